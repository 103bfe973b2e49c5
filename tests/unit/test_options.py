"""What the options base promises to every format, shown on a format of its own."""

from __future__ import annotations

import contextlib
import pickle
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import OptionError
from penstock.options import (
    BOOLEAN,
    OptionInfo,
    Options,
    Parser,
    choice,
    duration,
    integer,
    opt,
    size,
)

HIDDEN = "hunter2-and-more"


def _parse_key(value: str) -> str:
    if not value.startswith("key:"):
        raise ValueError("a key that starts with key:")
    return value


@dataclass(frozen=True, kw_only=True)
class SampleOptions(Options):
    USE: ClassVar[str] = 'spark.read.format("sample")'

    table_name: str = opt("The table.", example="public.orders")
    batch_rows: int = opt("Rows.", integer(1, 1000), default=100)
    batch_bytes: int = opt("Bytes.", size(10, 10_000_000), default=9_000_000)
    linger: float = opt("Wait.", duration(0.0, 60.0), default=0.01, advanced=True)
    wait: float | None = opt("Wait more.", duration(1.0), default=None)
    is_ordered: bool = opt("Order.", BOOLEAN, default=False)
    mode: str = opt("Mode.", choice("append", "upsertOnly"), default="append")
    private_key: str | None = opt(
        "Secret.", Parser("key", _parse_key), default=None, secret=True, aliases=("keyText",)
    )


@dataclass(frozen=True, kw_only=True)
class CheckedOptions(SampleOptions):
    def check(self) -> None:
        if self.is_ordered and self.mode == "append":
            raise OptionError("OPTION_CONFLICT", "Options", "contradict", "Change one")


def parse(**raw: str) -> SampleOptions:
    return SampleOptions.parse({"tableName": "t", **raw})


def refusal(**raw: str) -> OptionError:
    with pytest.raises(OptionError) as caught:
        parse(**raw)
    return caught.value


def info(name: str) -> OptionInfo:
    return next(info for info in SampleOptions.infos() if info.name == name)


def test_field_names_become_camel_case() -> None:
    names = [info.name for info in SampleOptions.infos()]
    assert names == [
        "tableName",
        "batchRows",
        "batchBytes",
        "linger",
        "wait",
        "isOrdered",
        "mode",
        "privateKey",
    ]


def test_defaults_hold_where_nothing_is_given() -> None:
    options = parse()
    assert (options.batch_rows, options.linger, options.wait) == (100, 0.01, None)


@pytest.mark.parametrize("key", ["tableName", "tablename", "TABLENAME"])
def test_names_are_not_case_sensitive(key: str) -> None:
    assert SampleOptions.parse({key: "t"}).table_name == "t"


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("batchRow", "batchRows"), ("tabelName", "tableName"), ("lingerMs", "linger")],
)
def test_unknown_option_names_the_nearest_match(wrong: str, right: str) -> None:
    error = refusal(**{wrong: "5"})
    assert error.code == "OPTION_UNKNOWN"
    assert f"'{wrong}'" in error.subject
    assert error.remedy == f"Did you mean '{right}'?"


def test_nearest_match_of_an_alias_is_the_options_own_name() -> None:
    assert refusal(keyTexts="x").remedy == "Did you mean 'privateKey'?"


def test_unknown_option_without_a_match_points_to_the_list() -> None:
    assert "penstock options" in refusal(zzz="5").remedy


def test_unknown_option_does_not_show_its_value() -> None:
    assert HIDDEN not in str(refusal(privatKey=HIDDEN))


def test_missing_option_shows_how_to_set_it() -> None:
    with pytest.raises(OptionError) as caught:
        SampleOptions.parse({})
    assert caught.value.code == "OPTION_MISSING"
    assert caught.value.remedy == 'Add .option("tableName", "public.orders")'
    assert 'spark.read.format("sample")' in str(caught.value)


def test_option_error_is_a_value_error() -> None:
    assert issubclass(OptionError, ValueError)


@pytest.mark.parametrize(
    "key", ["path", "checkpointLocation", "checkpointlocation", "queryName", "__internal__"]
)
def test_keys_of_spark_are_skipped(key: str) -> None:
    assert parse(**{key: "anything"}) == parse()


def test_alias_sets_the_option() -> None:
    assert parse(keyText="key:1").private_key == "key:1"


def test_option_and_its_alias_together_are_refused() -> None:
    error = refusal(privateKey="key:1", keyText="key:2")
    assert error.code == "OPTION_TWICE"
    assert "key:" not in str(error)


def test_secret_shows_nowhere() -> None:
    options = parse(privateKey=f"key:{HIDDEN}")
    assert HIDDEN not in repr(options)
    assert HIDDEN not in str(options)
    error = refusal(privateKey=HIDDEN)
    for text in (str(error), repr(error), repr(error.args)):
        assert HIDDEN not in text
    assert "***" in error.fact
    assert error.__cause__ is None
    assert error.__suppress_context__


def test_invalid_value_names_option_value_and_an_example() -> None:
    error = refusal(batchRows="many")
    assert str(error) == (
        "[PENSTOCK_OPTION_INVALID] Option 'batchRows' of spark.read.format(\"sample\"): "
        "the value 'many' is not a whole number of at least 1, at most 1000. "
        'For example: .option("batchRows", "100")'
    )


def test_example_without_default_is_not_a_dash() -> None:
    assert refusal(wait="soon").remedy == 'For example: .option("wait", "...")'


def test_empty_text_is_refused() -> None:
    with pytest.raises(OptionError, match="not empty"):
        SampleOptions.parse({"tableName": "  "})


@pytest.mark.parametrize("value", ["0", "1001", "1.5", "", "1e3", "ten"])
def test_integer_outside_its_bounds_is_refused(value: str) -> None:
    assert refusal(batchRows=value).code == "OPTION_INVALID"


@pytest.mark.parametrize(("value", "expected"), [("1", 1), (" 1000 ", 1000)])
def test_integer_bounds_are_included(value: str, expected: int) -> None:
    assert parse(batchRows=value).batch_rows == expected


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("500ms", 0.5),
        ("30s", 30.0),
        ("1.5s", 1.5),
        ("1m", 60.0),
        ("1min", 60.0),
        ("0s", 0.0),
        ("10 seconds", 10.0),
        ("1 minute", 60.0),
        ("1 second", 1.0),
        ("250 milliseconds", 0.25),
        (" 2 S ", 2.0),
    ],
)
def test_duration_takes_units(value: str, seconds: float) -> None:
    assert parse(linger=value).linger == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("2h", 7200.0), ("1 hour", 3600.0), ("2d", 172_800.0), ("1 day", 86400.0)],
)
def test_long_duration_takes_units(value: str, seconds: float) -> None:
    assert parse(wait=value).wait == seconds


@pytest.mark.parametrize("value", ["30", "", "s", "-1s", "1 fortnight", "1e3s", "nan s", "1s1s"])
def test_duration_without_a_known_unit_is_refused(value: str) -> None:
    assert "with its unit" in refusal(linger=value).fact


@pytest.mark.parametrize(("key", "value"), [("linger", "61s"), ("wait", "999ms")])
def test_duration_outside_its_bounds_is_refused(key: str, value: str) -> None:
    assert "at least" in refusal(**{key: value}).fact


@pytest.mark.parametrize(
    ("value", "count"),
    [
        ("9000000", 9_000_000),
        ("9MB", 9_000_000),
        ("8MiB", 8 * 2**20),
        ("8m", 8 * 2**20),
        ("1.5kB", 1500),
        ("512 KiB", 512 * 2**10),
        ("10b", 10),
    ],
)
def test_size_takes_units(value: str, count: int) -> None:
    assert parse(batchBytes=value).batch_bytes == count


def test_size_is_exact() -> None:
    exact = size(1)
    assert exact.parse("0.57GB") == 570_000_000
    assert exact.parse("9007199254740993") == 9_007_199_254_740_993


@pytest.mark.parametrize("value", ["", "9 lemons", "-5", "9", "11MB", "1GB"])
def test_size_outside_its_bounds_is_refused(value: str) -> None:
    assert refusal(batchBytes=value).code == "OPTION_INVALID"


@given(st.text(max_size=30))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    for parser in (duration(), size(), integer(0), BOOLEAN, choice("a", "b")):
        with contextlib.suppress(ValueError):
            parser.parse(text)


@pytest.mark.parametrize(
    ("value", "expected"), [("true", True), ("FALSE", False), (" True ", True)]
)
def test_boolean_takes_true_and_false(value: str, expected: bool) -> None:
    assert parse(isOrdered=value).is_ordered is expected


@pytest.mark.parametrize("value", ["1", "yes", "", "on"])
def test_boolean_takes_nothing_else(value: str) -> None:
    assert "true or false" in refusal(isOrdered=value).fact


@pytest.mark.parametrize("value", ["upsertOnly", "UPSERTONLY", " upsertonly "])
def test_choice_gives_the_word_as_it_was_declared(value: str) -> None:
    assert parse(mode=value).mode == "upsertOnly"


def test_choice_lists_the_words() -> None:
    assert "one of append, upsertOnly" in refusal(mode="truncate").fact


def test_cross_field_rules_are_checked_after_parsing() -> None:
    with pytest.raises(OptionError, match="contradict"):
        CheckedOptions.parse({"tableName": "t", "isOrdered": "true"})


def test_options_survive_the_way_to_an_executor() -> None:
    options = parse(privateKey=f"key:{HIDDEN}", linger="3s")
    assert pickle.loads(pickle.dumps(options)) == options  # noqa: S301 - our own bytes


def test_options_are_frozen() -> None:
    options: Any = parse()
    with pytest.raises(AttributeError):
        options.batch_rows = 5


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("tableName", "required"),
        ("batchRows", "100"),
        ("batchBytes", "9MB"),
        ("linger", "10ms"),
        ("wait", "-"),
        ("isOrdered", "false"),
        ("mode", "append"),
    ],
)
def test_default_is_shown_as_a_user_would_write_it(name: str, text: str) -> None:
    assert info(name).default_text == text


@pytest.mark.parametrize("name", ["batchRows", "batchBytes", "linger", "isOrdered", "mode"])
def test_default_text_parses_to_the_default(name: str) -> None:
    assert info(name).parser.parse(info(name).default_text) == info(name).default


def test_long_durations_are_written_without_an_exponent() -> None:
    with pytest.raises(ValueError, match="at least 1209600s, at most 12345678s"):
        duration(1_209_600.0, 12_345_678.0).parse("1s")


def test_sizes_that_are_not_round_keep_every_byte() -> None:
    with pytest.raises(ValueError, match="at least 1234567B, at most 2GB"):
        size(1_234_567, 2_000_000_000).parse("1")
