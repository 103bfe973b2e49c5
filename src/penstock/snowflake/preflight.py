"""What is checked and made before the first row is sent; runs on the driver.

Looks at the tables (which wakes no warehouse), creates and widens what the options allow, and
gives the plan for the tasks.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from pyspark.sql.types import StringType, StructType

from penstock._core.clock import SYSTEM_CLOCK
from penstock.errors import OptionError, SchemaError
from penstock.snowflake.connection import connected, execute
from penstock.snowflake.merge.plan import MergeColumn, MergePlan, MetaColumns
from penstock.snowflake.merge.schedule import MergeTask, ensure_task
from penstock.snowflake.ndjson import ColumnPlan
from penstock.snowflake.options import SnowpipeOptions
from penstock.snowflake.sink.task import LETTER_COLUMNS, SinkPlan
from penstock.snowflake.tables import Needed, Rights, TableColumn, ensure_table
from penstock.snowflake.types import VARIANT, SnowType, snow_type

# Spark makes a writer twice per micro-batch, in driver processes that it keeps: a good look at the
# tables holds this long. The service refuses what no longer fits.
_CHECK_SECONDS = 60.0
_CHANNEL, _OFFSET = "_channel", "_offset"
_OURS = (
    Needed(_CHANNEL, SnowType("VARCHAR", 16_777_216), "string"),
    Needed(_OFFSET, SnowType("NUMBER", 38), "decimal(38,0)"),
)
_META = ("op", "lsn", "ordinal", "unchanged")
_OTHER_META = ("commit_time", "xid")


@dataclass(frozen=True)
class Plans:
    """What tasks and commits need. Picklable."""

    sink: SinkPlan
    merge: MergePlan | None = None


_CHECKED: dict[tuple[SnowpipeOptions, str], tuple[float, Plans]] = {}
# Protects _CHECKED.
_LOCK = threading.Lock()


def plans_for(options: SnowpipeOptions, schema: StructType) -> Plans:
    """Make the tables fit, and give the plans; looks again only after a while.

    Raises:
        PenstockError: a table or a column does not fit, or Snowflake cannot be reached.
    """
    place = (options, schema.json())
    now = SYSTEM_CLOCK.monotonic()
    with _LOCK:
        known = _CHECKED.get(place)
    if known is not None and now - known[0] < _CHECK_SECONDS:
        return known[1]
    needed = _needed(options, schema)
    with connected(options) as connection:
        plans = _plan(connection, options, schema, needed)
        _ensure_letters(connection, options)
    with _LOCK:
        _CHECKED[place] = (now, plans)
    return plans


def _needed(options: SnowpipeOptions, schema: StructType) -> list[Needed]:
    """Give the columns of the DataFrame, checked without a connection."""
    fields = {field.name: field for field in schema.fields}
    for name in options.json_columns:
        if name not in fields or not isinstance(fields[name].dataType, StringType):
            raise OptionError(
                "JSON_COLUMNS",
                f"Option 'jsonColumns' of {options.USE}",
                f"'{name}' is not a column of type string",
                f"The columns are {', '.join(schema.fieldNames())}",
            )
    if not fields:
        raise SchemaError(
            "COLUMN_MISSING", "The DataFrame", "has no columns", "Select what is to be written"
        )
    lowered = [name.lower() for name in schema.fieldNames()]
    for name in schema.fieldNames():
        if lowered.count(name.lower()) > 1:
            raise SchemaError(
                "COLUMN_TWICE",
                f"Column '{name}'",
                "there is another one of this name, in upper or lower case",
                "Rename one of them",
            )
    return [
        Needed(
            field.name,
            VARIANT
            if field.name in options.json_columns
            else snow_type(field.name, field.dataType),
            field.dataType.simpleString(),
        )
        for field in schema.fields
    ]


def _plan(
    connection: Any, options: SnowpipeOptions, schema: StructType, needed: list[Needed]
) -> Plans:
    rights = Rights(options.create_table, options.evolve_schema)
    if options.landing is None:
        found = ensure_table(connection, options.target, needed, rights)
        if options.on_refused_rows == "dead-letter":
            # Rows that only the service finds unfit are kept by it.
            execute(
                connection,
                f"ALTER TABLE {options.target.sql} SET ERROR_LOGGING = TRUE",
                f"Table {options.target}",
            )
        return Plans(SinkPlan(options.target, _columns(options, schema, found)))
    return _plan_merge(connection, options, schema, needed, rights)


def _plan_merge(
    connection: Any,
    options: SnowpipeOptions,
    schema: StructType,
    needed: list[Needed],
    rights: Rights,
) -> Plans:
    landing = options.landing
    if landing is None:
        raise RuntimeError("there is no landing table without merge")
    prefix = options.meta_prefix
    meta = {prefix + name for name in (*_META, *_OTHER_META)}
    _check_changes(options, needed)
    own = [one for one in needed if one.name not in meta]
    target = dict(
        zip(
            (one.name for one in own),
            ensure_table(connection, options.target, own, rights),
            strict=True,
        )
    )
    execute(
        connection,
        f"CREATE SCHEMA IF NOT EXISTS {landing.schema_sql}",
        f"Schema of table {landing}",
    )
    # The landing table has the target's names, so that the merge finds each in both; and the
    # DataFrame's types, because it is ours to make.
    landed = [*(_renamed(one, target) for one in needed), *_OURS]
    found = ensure_table(connection, landing, landed, Rights(may_create=True, may_evolve=True))
    names = {one.name: column.name for one, column in zip(landed, found, strict=True)}
    sink = SinkPlan(
        landing,
        _columns(options, schema, found[: len(needed)]),
        channel_column=names[_CHANNEL],
        offset_column=names[_OFFSET],
    )
    merge = MergePlan(
        options.target.sql,
        landing.sql,
        tuple(target[name].name for name in options.key_columns),
        tuple(MergeColumn(column.name, str(column.type), name) for name, column in target.items()),
        MetaColumns(
            **{name: names[prefix + name] for name in _META},
            channel=names[_CHANNEL],
            offset=names[_OFFSET],
            unused=tuple(names[prefix + name] for name in _OTHER_META if prefix + name in names),
        ),
    )
    if options.merge_schedule is not None:
        task = MergeTask(
            merge,
            options.merge_schedule,
            landing.database,
            landing.schema,
            f"{options.target.table}_MERGE",
            options.warehouse,
        )
        ensure_task(connection, task)
    return Plans(sink, merge)


def _renamed(one: Needed, target: dict[str, TableColumn]) -> Needed:
    return Needed(target[one.name].name, one.type, one.spark) if one.name in target else one


def _check_changes(options: SnowpipeOptions, needed: list[Needed]) -> None:
    names = [one.name for one in needed]
    for name in _META:
        if options.meta_prefix + name not in names:
            raise SchemaError(
                "COLUMN_MISSING",
                f"Column '{options.meta_prefix}{name}'",
                "merge=true needs it, and the DataFrame does not have it",
                "Write the rows of format('postgres_cdc') as they come; with another metaPrefix "
                "there, set the same here",
            )
    for name in options.key_columns:
        if name not in names:
            raise OptionError(
                "KEY_COLUMNS",
                f"Option 'keyColumns' of {options.USE}",
                f"'{name}' is not a column of the DataFrame",
                f"The columns are {', '.join(names)}",
            )


def _columns(
    options: SnowpipeOptions, schema: StructType, found: list[TableColumn]
) -> tuple[ColumnPlan, ...]:
    return tuple(
        ColumnPlan(
            column.name,
            column.type,
            column.is_nullable,
            is_json=field.name in options.json_columns,
            is_variant=field.dataType.simpleString() == "variant",
        )
        for field, column in zip(schema.fields, found, strict=False)
    )


def _ensure_letters(connection: Any, options: SnowpipeOptions) -> None:
    if options.dead_letter is None:
        return
    needed = [
        Needed(name, SnowType.parse(kind), kind.lower()) for name, kind in LETTER_COLUMNS.items()
    ]
    ensure_table(connection, options.dead_letter, needed, Rights(may_create=True, may_evolve=False))
