"""Options of a format: declared once, parsed before any I/O, documented from the same lines.

One frozen dataclass per format and direction derives from `Options`; each field is made by `opt`.
Runs on the driver, in workers and in the command line; pure.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, ClassVar, Self

from penstock.errors import OptionError

# Keys that Spark itself puts among a format's options.
SPARK_KEYS = frozenset({"path", "checkpointlocation", "queryname", "outputmode"})

_META = "penstock"


@dataclasses.dataclass(frozen=True)
class Parser:
    """Turns an option's text into a value, or raises ValueError saying what it expects."""

    kind: str
    parse: Callable[[str], Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptionInfo:
    """What is known of one option apart from its value."""

    field: str
    name: str
    doc: str
    parser: Parser
    default: Any
    example: str | None
    secret: bool
    advanced: bool
    aliases: tuple[str, ...]

    @property
    def is_required(self) -> bool:
        """Whether leaving it out is an error."""
        return self.default is dataclasses.MISSING

    @property
    def default_text(self) -> str:
        """The default in the spelling a user would write."""
        if self.is_required:
            return "required"
        if self.default is None or self.default == ():
            return "-"
        if isinstance(self.default, bool):
            return str(self.default).lower()
        if self.parser.kind == "duration":
            return _duration_text(self.default)
        if self.parser.kind == "size":
            return _size_text(self.default)
        return str(self.default)

    @property
    def sample_text(self) -> str:
        """A value to show how the option is written: the example, else the default."""
        if self.example is not None:
            return self.example
        return "..." if self.is_required or self.default is None else self.default_text


def _parse_text(value: str) -> str:
    if not value.strip():
        raise ValueError("a text that is not empty")
    return value


def _parse_boolean(value: str) -> bool:
    known = {"true": True, "false": False}
    try:
        return known[value.strip().lower()]
    except KeyError:
        raise ValueError("true or false") from None


def integer(low: int, high: int | None = None) -> Parser:
    """Make a parser for whole numbers from `low` to `high`, both included."""
    expected = f"a whole number of at least {low}" + ("" if high is None else f", at most {high}")

    def parse(value: str) -> int:
        try:
            number = int(value.strip())
        except ValueError:
            raise ValueError(expected) from None
        if number < low or (high is not None and number > high):
            raise ValueError(expected)
        return number

    return Parser("int", parse)


def choice(*allowed: str) -> Parser:
    """Make a parser for one of a few words."""

    by_key = {word.lower(): word for word in allowed}

    def parse(value: str) -> str:
        try:
            return by_key[value.strip().lower()]
        except KeyError:
            raise ValueError("one of " + ", ".join(allowed)) from None

    return Parser(" | ".join(allowed), parse)


_DURATION_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "k": 2**10,
    "m": 2**20,
    "g": 2**30,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
}
_QUANTITY = re.compile(r"\s*(\d{1,18}(?:\.\d{1,9})?)\s*([a-zA-Z]*)\s*")


def _parse_duration(value: str) -> float:
    match = _QUANTITY.fullmatch(value)
    unit = match.group(2).lower() if match else ""
    # "10 seconds" is how Spark's own triggers are written, so whole words are taken too.
    unit = {
        "second": "s",
        "seconds": "s",
        "minute": "m",
        "minutes": "m",
        "hour": "h",
        "hours": "h",
        "day": "d",
        "days": "d",
        "millisecond": "ms",
        "milliseconds": "ms",
    }.get(unit, unit)
    if not match or unit not in _DURATION_UNITS:
        raise ValueError("a duration with its unit, for example 500ms, 30s or 5m")
    return float(match.group(1)) * _DURATION_UNITS[unit]


def _parse_size(value: str) -> int:
    match = _QUANTITY.fullmatch(value)
    if not match or match.group(2).lower() not in _SIZE_UNITS:
        raise ValueError("a size in bytes or with a unit, for example 9000000, 8MiB or 9MB")
    # Exact, because a float makes 0.57GB one byte less and rounds above 2**53.
    return math.floor(Decimal(match.group(1)) * _SIZE_UNITS[match.group(2).lower()])


def duration(low: float = 0.0, high: float | None = None) -> Parser:
    """Make a parser for durations; the value is in seconds."""

    def parse(value: str) -> float:
        seconds = _parse_duration(value)
        if seconds < low or (high is not None and seconds > high):
            upper = "" if high is None else f", at most {_duration_text(high)}"
            raise ValueError(f"a duration of at least {_duration_text(low)}{upper}")
        return seconds

    return Parser("duration", parse)


def size(low: int = 1, high: int | None = None) -> Parser:
    """Make a parser for sizes; the value is in bytes."""

    def parse(value: str) -> int:
        count = _parse_size(value)
        if count < low or (high is not None and count > high):
            upper = "" if high is None else f", at most {_size_text(high)}"
            raise ValueError(f"a size of at least {_size_text(low)}{upper}")
        return count

    return Parser("size", parse)


def _duration_text(seconds: float) -> str:
    if 0 < seconds < 1:
        return f"{seconds * 1000:g}ms"
    # More digits than :g has by itself, which would write a week and a half as 1e+06s.
    return f"{seconds:.12g}s"


def _size_text(count: int) -> str:
    for unit in ("GB", "MB", "kB"):
        base = {"GB": 10**9, "MB": 10**6, "kB": 10**3}[unit]
        if count >= base and count % base == 0:
            return f"{count // base}{unit}"
    return f"{count}B"


TEXT = Parser("text", _parse_text)
BOOLEAN = Parser("boolean", _parse_boolean)


def opt(
    doc: str,
    parser: Parser = TEXT,
    *,
    default: Any = dataclasses.MISSING,
    example: str | None = None,
    secret: bool = False,
    advanced: bool = False,
    aliases: tuple[str, ...] = (),
) -> Any:
    """Declare one option. Without a default it is required; a secret never shows its value."""
    metadata = {
        _META: {
            "doc": doc,
            "parser": parser,
            "example": example,
            "secret": secret,
            "advanced": advanced,
            "aliases": aliases,
        }
    }
    if default is dataclasses.MISSING:
        return dataclasses.field(metadata=metadata, repr=not secret)
    return dataclasses.field(default=default, metadata=metadata, repr=not secret)


def _camel_case(name: str) -> str:
    head, *tail = name.split("_")
    return head + "".join(word.capitalize() for word in tail)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Base of every format's options. Picklable: it travels to the executors."""

    # How a user reaches these options, for error messages: 'spark.read.format("pubsub")'.
    USE: ClassVar[str] = ""

    @classmethod
    def infos(cls) -> list[OptionInfo]:
        """List the declared options in their order."""
        return [
            OptionInfo(
                field=field.name,
                name=_camel_case(field.name),
                default=field.default,
                **field.metadata[_META],
            )
            for field in dataclasses.fields(cls)
        ]

    @classmethod
    def parse(cls, raw: Mapping[str, str]) -> Self:
        """Check and convert what the user gave.

        Raises:
            OptionError: an option is unknown, missing, malformed, or contradicts another.
        """
        infos = cls.infos()
        by_key = {key.lower(): info for info in infos for key in (info.name, *info.aliases)}
        values: dict[str, Any] = {}
        spelled: dict[str, str] = {}
        for key, text in raw.items():
            lowered = key.lower()
            if lowered in SPARK_KEYS or lowered.startswith("__"):
                continue
            info = by_key.get(lowered)
            if info is None:
                raise cls._unknown(key, by_key)
            if info.field in spelled:
                raise OptionError(
                    "OPTION_TWICE",
                    f"Options '{spelled[info.field]}' and '{key}' of {cls.USE}",
                    "both set the same thing",
                    f"Keep '{info.name}' and remove the other",
                )
            spelled[info.field] = key
            values[info.field] = cls._convert(info, text)
        for info in infos:
            if info.is_required and info.field not in values:
                raise OptionError(
                    "OPTION_MISSING",
                    f"Option '{info.name}' of {cls.USE}",
                    "is not set",
                    f'Add .option("{info.name}", "{info.sample_text}")',
                )
        options = cls(**values)
        options.check()
        return options

    def check(self) -> None:
        """Check rules that involve more than one option; formats override this."""

    @classmethod
    def _convert(cls, info: OptionInfo, text: str) -> Any:
        try:
            return info.parser.parse(text)
        except ValueError as expected:
            shown = "***" if info.secret else repr(text)
            raise OptionError(
                "OPTION_INVALID",
                f"Option '{info.name}' of {cls.USE}",
                f"the value {shown} is not {expected}",
                f'For example: .option("{info.name}", "{info.sample_text}")',
            ) from None

    @classmethod
    def _unknown(cls, key: str, by_key: Mapping[str, OptionInfo]) -> OptionError:
        near = difflib.get_close_matches(key.lower(), by_key, n=1, cutoff=0.6)
        remedy = "See docs/reference/options, or run: penstock options"
        if near:
            remedy = f"Did you mean '{by_key[near[0]].name}'?"
        return OptionError("OPTION_UNKNOWN", f"Option '{key}' of {cls.USE}", "is not known", remedy)
