"""Options of `format("snowpipe")`; parsed on the driver, pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from penstock.errors import OptionError
from penstock.options import BOOLEAN, Options, Parser, choice, duration, integer, opt, size
from penstock.snowflake.identifiers import TableName, read_name, read_names
from penstock.snowflake.merge.schedule import parse_schedule

# Properties of the SDK's client that have options of their own.
_OUR_PROPERTIES = frozenset(
    {"account", "user", "private_key", "private_key_passphrase", "role", "host", "port", "scheme",
     "ssl", "url", "application", "authorization_type"}
)  # fmt: skip
_PREFIX = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,99}")


def _parse_prefix(value: str) -> str:
    if not _PREFIX.fullmatch(value):
        raise ValueError("a letter, then up to 99 letters, digits and underscores")
    return value.upper()


def _parse_columns(value: str) -> tuple[str, ...]:
    # Spark's names, not SQL's: taken as they are, because columns are matched as they are.
    names = tuple(part.strip() for part in value.split(","))
    if not all(names):
        raise ValueError("names of columns with commas between")
    if len(set(names)) != len(names):
        raise ValueError("names of columns, each once")
    return names


def _parse_schedule(value: str) -> str:
    try:
        return parse_schedule(value)
    except OptionError as exc:
        raise ValueError(f"a schedule. {exc.remedy}") from None


def _parse_properties(value: str) -> tuple[tuple[str, str], ...]:
    pairs = [part.partition("=") for part in value.split(",")]
    if not all(name.strip() and equals for name, equals, _ in pairs):
        raise ValueError("properties as name=value, with commas between")
    found = tuple((name.strip().lower(), text.strip()) for name, _, text in pairs)
    taken = sorted(_OUR_PROPERTIES.intersection(name for name, _ in found))
    if taken:
        raise ValueError(f"free of {', '.join(taken)}, which other options set")
    return found


def _parse_host(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", value):
        raise ValueError("a host's name alone, without https:// and port")
    return value


NAME = Parser("name", read_name)
NAMES = Parser("name", read_names)
PREFIX = Parser("name", _parse_prefix)
COLUMNS = Parser("names", _parse_columns)
SCHEDULE = Parser("schedule", _parse_schedule)
HOST = Parser("host", _parse_host)
PROPERTIES = Parser("properties", _parse_properties)


@dataclass(frozen=True, kw_only=True)
class SnowpipeOptions(Options):
    """Options of the sink, streaming and batch."""

    USE: ClassVar[str] = 'df.writeStream.format("snowpipe")'

    account: str = opt("The account's identifier.", example="myorg-myaccount")
    user: str = opt("The user whose public key is registered.", example="PIPELINE")
    database: str = opt("The database of the table.", NAME, example="SHOP")
    schema: str = opt("The schema of the table.", NAME, default="PUBLIC", example="SALES")
    table: tuple[str, ...] = opt(
        "The table that rows are added to, or with merge=true the one that changes are applied "
        "to. Also `schema.table` or `database.schema.table`. As in SQL, a name without double "
        "quotes is upper case.",
        NAMES,
        example="ORDERS",
    )
    private_key_file: str = opt(
        "File with the user's private key (PEM, PKCS#8; encrypted or not), on the driver and on "
        "every executor. Each reads it itself, keeps it in memory, and reads it again when the "
        "file changes or the service refuses the key.",
        example="/etc/penstock/rsa_key.p8",
    )
    private_key_passphrase_file: str | None = opt(
        "File with the passphrase of an encrypted key. Without it: the environment variable "
        "PENSTOCK_PRIVATE_KEY_PASSPHRASE of the node that reads the key.",
        default=None,
        example="/etc/penstock/rsa_key.pass",
    )
    role: str | None = opt(
        "The role to use; without it, the user's default role.", default=None, example="LOADER"
    )
    warehouse: str | None = opt(
        "The warehouse of merge=true. Adding rows needs none; a task of mergeSchedule without it "
        "uses Snowflake's own compute.",
        NAME,
        default=None,
        example="LOAD_WH",
    )
    create_table: bool = opt(
        "Create the table when it is missing, from the DataFrame's columns.",
        BOOLEAN,
        default=False,
    )
    evolve_schema: bool = opt(
        "When the DataFrame needs more than the table has: add columns, raise NUMBER's digits, "
        "lengthen VARCHAR and BINARY, drop NOT NULL from columns that the DataFrame does not have. "
        "Nothing is ever dropped or narrowed.",
        BOOLEAN,
        default=False,
    )
    json_columns: tuple[str, ...] = opt(
        "Columns of the DataFrame of type string that hold JSON and become VARIANT. A text that is "
        "no JSON is an unfit value.",
        COLUMNS,
        default=(),
        example="payload, tags",
    )
    channel_prefix: str | None = opt(
        "What the names of the stream's channels begin with; a channel is this, in upper case, and "
        "the partition's number. Without it: the id of the query, which is that of its checkpoint. "
        "Two queries must never have the same.",
        PREFIX,
        default=None,
        example="orders_to_snowflake",
    )
    channels: int | None = opt(
        "The most channels that the query may use. Each partition of a batch has a channel of its "
        "own, so a batch with more partitions is refused: use coalesce. Without it: as many as "
        "there are partitions.",
        integer(1, 2000),
        default=None,
    )
    flush_timeout: float = opt(
        "How long a task goes on while nothing of it is committed, and how long the service may "
        "push back, before the task fails.",
        duration(1.0),
        default=300.0,
    )
    on_refused_rows: str = opt(
        "What becomes of rows that do not fit the table: the query fails with the row's position "
        "(fail), or they go to `deadLetterTable` and the others are written (dead-letter).",
        choice("fail", "dead-letter"),
        default="fail",
    )
    dead_letter_table: tuple[str, ...] | None = opt(
        "The table for rows that do not fit, with the row as JSON and the reason. It is created "
        "when it is missing.",
        NAMES,
        default=None,
        example="ORDERS_REFUSED",
    )
    on_non_finite: str = opt(
        "NaN and the infinities of float and double columns: FLOAT has them (keep), they do not "
        "fit (refuse), or they become NULL (null). Inside arrays, maps and structs, keep gives the "
        "texts NaN, inf and -inf, because JSON has no such numbers.",
        choice("keep", "refuse", "null"),
        default="keep",
    )
    on_out_of_range: str = opt(
        "Dates and timestamps outside the years 1 to 9999: they do not fit (refuse), they become "
        "NULL (null), or the first or last moment of that range (clamp). Numbers always fit: a "
        "column that has not the digits of the DataFrame's type is an error at the start.",
        choice("refuse", "null", "clamp"),
        default="refuse",
    )
    on_changed_replay: str = opt(
        "A batch is run again after a failure, and its rows are not those of the first time (the "
        "source or a shuffle gave another order): fail, or send the partition's rows again "
        "(resend), which is at least once.",
        choice("fail", "resend"),
        default="fail",
        advanced=True,
    )
    merge: bool = opt(
        "Apply the rows as changes of `postgres_cdc` to the table: they land in a table of their "
        "own, and a MERGE inserts, updates and deletes by key.",
        BOOLEAN,
        default=False,
    )
    key_columns: tuple[str, ...] = opt(
        "The key of merge=true: the columns of the source's primary key.",
        COLUMNS,
        default=(),
        example="id",
    )
    landing_schema: str | None = opt(
        "The schema of the landing table of merge=true; without it, the table's own.",
        NAME,
        default=None,
        example="LANDING",
    )
    merge_schedule: str | None = opt(
        "Have a task in Snowflake apply the changes on this schedule, instead of a MERGE on each "
        "commit of a batch.",
        SCHEDULE,
        default=None,
        example="5 minutes",
    )
    meta_prefix: str = opt(
        "What the names of the change stream's columns begin with, with merge=true: the source's "
        "option of the same name.",
        default="_",
        advanced=True,
    )
    host: str | None = opt(
        "The host of the account; without it <account>.snowflakecomputing.com.",
        HOST,
        default=None,
        advanced=True,
        example="myorg-myaccount.privatelink.snowflakecomputing.com",
    )
    port: int = opt("Its port.", integer(1, 65535), default=443, advanced=True)
    connect_timeout: float = opt(
        "Longest wait for a connection or a login.",
        duration(1.0, 600.0),
        default=30.0,
        advanced=True,
    )
    idle_timeout: float = opt(
        "A worker closes a client and its channels when they were not used for so long. Spark "
        "ends idle workers after a minute.",
        duration(0.1),
        default=30.0,
        advanced=True,
    )
    chunk_bytes: int = opt(
        "About how much JSON is handed to the SDK at a time.",
        size(1024, 16_000_000),
        default=2_000_000,
        advanced=True,
    )

    sdk_properties: tuple[tuple[str, str], ...] = opt(
        "More properties of the Snowpipe Streaming SDK's client. A local emulator needs those that "
        "keep the SDK from writing files, which only the service takes.",
        PROPERTIES,
        default=(),
        advanced=True,
        example="max_client_lag=2 seconds",
    )

    def check(self) -> None:
        """Check what goes together.

        Raises:
            OptionError: two options contradict each other, or one lacks another.
        """
        for name, value in (("table", self.table), ("deadLetterTable", self.dead_letter_table)):
            if value is not None and len(value) > 3:
                raise self._conflict(
                    name, "has more than database, schema and table", "Quote names with dots"
                )
        if self.on_refused_rows == "dead-letter" and self.dead_letter_table is None:
            raise self._conflict(
                "onRefusedRows",
                "is dead-letter, but there is no table for them",
                'Add .option("deadLetterTable", "...")',
            )
        if self.dead_letter_table is not None and self.on_refused_rows != "dead-letter":
            raise self._conflict(
                "deadLetterTable",
                "is set, but onRefusedRows is fail",
                'Add .option("onRefusedRows", "dead-letter"), or leave it out',
            )
        if self.dead_letter is not None and self.dead_letter in (self.target, self.landing):
            raise self._conflict(
                "deadLetterTable", "is the table that is written", "Name another table"
            )
        self._check_merge()

    def _check_merge(self) -> None:
        if self.merge and not self.key_columns:
            raise self._conflict(
                "merge",
                "is true, but the key is not known",
                'Add .option("keyColumns", "id") with the columns of the primary key',
            )
        if self.merge and self.warehouse is None and self.merge_schedule is None:
            raise self._conflict(
                "merge",
                "is true, but there is no warehouse to run it",
                'Add .option("warehouse", "...")',
            )
        if self.merge:
            return
        for name, value in (
            ("keyColumns", self.key_columns),
            ("landingSchema", self.landing_schema),
            ("mergeSchedule", self.merge_schedule),
        ):
            if value:
                raise self._conflict(
                    name, "is set, but merge is not true", 'Add .option("merge", "true")'
                )

    def _conflict(self, name: str, fact: str, remedy: str) -> OptionError:
        return OptionError("OPTION_CONFLICT", f"Option '{name}' of {self.USE}", fact, remedy)

    def _named(self, names: tuple[str, ...]) -> TableName:
        padded = (self.database, self.schema)[: 3 - len(names)] + names
        return TableName(*padded)

    @property
    def target(self) -> TableName:
        """The table that the user has named."""
        return self._named(self.table)

    @property
    def landing(self) -> TableName | None:
        """The table that changes land in, with merge=true."""
        if not self.merge:
            return None
        target = self.target
        return TableName(
            target.database, self.landing_schema or target.schema, f"{target.table}_LANDING"
        )

    @property
    def written(self) -> TableName:
        """The table that tasks write to."""
        return self.landing or self.target

    @property
    def dead_letter(self) -> TableName | None:
        """The table for rows that do not fit."""
        return None if self.dead_letter_table is None else self._named(self.dead_letter_table)

    @property
    def host_name(self) -> str:
        """The host of the account."""
        return self.host or f"{self.account.lower()}.snowflakecomputing.com"
