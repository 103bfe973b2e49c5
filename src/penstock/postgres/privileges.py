"""Whether the user may do what the stream needs, asked before anything heavy; runs on the driver.

All that is missing comes in one error, each with the statement that grants it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from penstock.errors import AccessError
from penstock.postgres.errors import translated
from penstock.postgres.identifiers import quote_identifier, quote_qualified

if TYPE_CHECKING:
    import psycopg

    from penstock.postgres.model import Table

# Managed services grant replication by membership instead of the role's attribute.
_REPLICATION_ROLES = ["rds_replication", "rds_superuser", "azure_pg_admin", "alloydbsuperuser"]

_ROLE = """
SELECT current_user::text, r.rolsuper, r.rolbypassrls,
       r.rolsuper OR r.rolreplication OR EXISTS (
         SELECT FROM pg_roles m WHERE m.rolname = ANY(%s) AND pg_has_role(m.oid, 'MEMBER')),
       has_database_privilege(current_database(), 'CREATE'), current_database()::text
  FROM pg_roles r WHERE r.rolname = current_user
"""
# SELECT on each column is enough where it is not granted on the table.
_TABLES = """
SELECT c.oid::int8, has_schema_privilege(c.relnamespace, 'USAGE'),
       has_table_privilege(c.oid, 'SELECT') OR NOT EXISTS (
         SELECT FROM pg_attribute a
          WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
            AND NOT has_column_privilege(c.oid, a.attnum, 'SELECT')),
       pg_has_role(c.relowner, 'USAGE'), pg_get_userbyid(c.relowner)::text,
       c.relrowsecurity AND (c.relforcerowsecurity OR NOT pg_has_role(c.relowner, 'USAGE'))
  FROM pg_class c WHERE c.oid = ANY(%s::oid[])
"""


def missing_privileges(
    connection: psycopg.Connection[Any],
    tables: Sequence[Table],
    *,
    needs_replication: bool = True,
    needs_publication: bool = False,
) -> list[str]:
    """List the statements that grant what this user lacks; empty where nothing is missing.

    Args:
        connection: as that user.
        tables: that are read.
        needs_replication: whether a slot is made or read.
        needs_publication: whether a publication has to be made.
    """
    with translated("The user's privileges"):
        role = connection.execute(_ROLE, [_REPLICATION_ROLES]).fetchone()
        rows = connection.execute(_TABLES, [[table.oid for table in tables]]).fetchall()
    assert role is not None  # noqa: S101 - one is always somebody
    user, is_super, bypasses_policies, may_replicate, may_create, database = role
    if is_super:
        return []
    account = quote_identifier(user)
    missing: dict[str, None] = {}
    if needs_replication and not may_replicate:
        missing[f"ALTER ROLE {account} REPLICATION"] = None
    if needs_publication and not may_create:
        missing[f"GRANT CREATE ON DATABASE {quote_identifier(database)} TO {account}"] = None
    by_oid = {table.oid: table for table in tables}
    for oid, may_use, may_select, is_owner, owner, has_policies in rows:
        table = by_oid[oid]
        target = quote_qualified(table.schema, table.name)
        if not may_use:
            schema = quote_identifier(table.schema)
            missing[f"GRANT USAGE ON SCHEMA {schema} TO {account}"] = None
        if not may_select:
            missing[f"GRANT SELECT ON TABLE {target} TO {account}"] = None
        if needs_publication and not is_owner:
            # Only owners publish; membership in the owner is as good.
            missing[f"GRANT {quote_identifier(owner)} TO {account}"] = None
        if has_policies and not bypasses_policies:
            # Its policies would hide rows from the snapshot that the stream has.
            missing[f"ALTER ROLE {account} BYPASSRLS"] = None
    return list(missing)


def check_privileges(
    connection: psycopg.Connection[Any],
    tables: Sequence[Table],
    *,
    needs_replication: bool = True,
    needs_publication: bool = False,
) -> None:
    """Check that this user may do all that is needed; see `missing_privileges`.

    Raises:
        AccessError: something is missing; it names every statement that grants it.
    """
    missing = missing_privileges(
        connection,
        tables,
        needs_replication=needs_replication,
        needs_publication=needs_publication,
    )
    if not missing:
        return
    hint = ""
    if needs_publication:
        hint = ". Or let the tables' owner make the publication and set option 'publication' to it"
    raise AccessError(
        "PRIVILEGES",
        f"User '{connection.info.user}'",
        f"lacks {len(missing)} of the privileges that the stream needs",
        f"As an administrator run: {'; '.join(missing)}{hint}",
    )
