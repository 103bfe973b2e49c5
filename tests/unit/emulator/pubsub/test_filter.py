"""The subscription filter language: what parses, what it means, and where it refuses."""

from __future__ import annotations

import pickle
import time
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.emulator.pubsub.filter import (
    MAX_FILTER_BYTES,
    FilterSyntaxError,
    compile_filter,
)

Attributes = dict[str, str]
ATTRIBUTES_TYPE = pa.map_(pa.string(), pa.string())
ENTRY_FIELDS = [ATTRIBUTES_TYPE.key_field, ATTRIBUTES_TYPE.item_field]


def map_array(rows: list[Attributes | None]) -> pa.MapArray:
    return pa.array(
        [None if row is None else list(row.items()) for row in rows], type=ATTRIBUTES_TYPE
    )


def passes(text: str, attributes: Attributes) -> bool:
    (result,) = compile_filter(text).matches(map_array([attributes])).tolist()
    return bool(result)


@pytest.mark.parametrize(
    ("text", "attributes", "expected"),
    [
        ("", {}, True),
        ("attributes:a", {"a": ""}, True),
        ("attributes:a", {"A": "", "aa": ""}, False),
        ('attributes.a = "x"', {"a": "x"}, True),
        ('attributes.a = "x"', {"a": "X"}, False),
        ('attributes.a = "x"', {"b": "x"}, False),
        ('attributes.a = ""', {"a": ""}, True),
        ('attributes.a = ""', {}, False),
        ('attributes.a != "x"', {"a": "y"}, True),
        ('attributes.a != "x"', {"a": "x"}, False),
        ('hasPrefix(attributes.a, "ab")', {"a": "abc"}, True),
        ('hasPrefix(attributes.a, "ab")', {"a": "a"}, False),
        ('hasPrefix(attributes.a, "")', {"a": ""}, True),
        ('hasPrefix(attributes.a, "")', {}, False),
        ("NOT attributes:a", {}, True),
        ("NOT attributes:a", {"a": ""}, False),
        ("-attributes:a", {}, True),
        ('-hasPrefix(attributes.a, "x")', {"a": "xy"}, False),
        ("-(attributes:a OR attributes:b)", {"c": ""}, True),
        ("NOT(attributes:a)", {"a": ""}, False),
        ("NOT attributes:a AND attributes:b", {"b": ""}, True),
        ("NOT attributes:a AND attributes:b", {}, False),
        ("attributes:a AND attributes:b AND attributes:c", {"a": "", "b": "", "c": ""}, True),
        ("attributes:a OR attributes:b OR attributes:c", {"c": ""}, True),
        ("(attributes:a OR attributes:b) AND NOT attributes:c", {"b": ""}, True),
        ("attributes:a OR (attributes:b AND attributes:c)", {"b": ""}, False),
        ("((attributes:a))", {"a": ""}, True),
    ],
)
def test_filter_means_what_the_service_documents(
    text: str, attributes: Attributes, expected: bool
) -> None:
    assert passes(text, attributes) is expected


def test_not_equal_matches_a_message_without_the_key() -> None:
    assert passes('attributes.a != "x"', {})
    assert not passes('attributes:a AND attributes.a != "x"', {})


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("my-key_2", "my-key_2"),
        ("_a", "_a"),
        ("attributes", "attributes"),
        ("hasPrefix", "hasPrefix"),
        ('"my key"', "my key"),
        ('"AND"', "AND"),
        ('"iana.org/language_tag"', "iana.org/language_tag"),
        ('"caf\u00e9"', "caf\u00e9"),
        (r'"say \"hi\""', 'say "hi"'),
    ],
)
def test_key_may_be_a_bare_name_or_a_quoted_string(key: str, name: str) -> None:
    assert passes(f"attributes:{key}", {name: ""})
    assert passes(f'attributes.{key} = "v"', {name: "v"})
    assert passes(f'hasPrefix(attributes.{key}, "v")', {name: "vw"})


@pytest.mark.parametrize(
    ("literal", "value"),
    [
        (r"\"", '"'),
        (r"\\", "\\"),
        (r"\n\t\r", "\n\t\r"),
        (r"\u00e9", "\u00e9"),
        (r"\U0001F600", "\U0001f600"),
        (r"\x41\101", "AA"),
        ("\u65e5\u672c", "\u65e5\u672c"),
        (r"\\n", r"\n"),
        (r"\u0000", "\0"),
    ],
)
def test_string_literal_escapes_are_decoded(literal: str, value: str) -> None:
    assert passes(f'attributes.a = "{literal}"', {"a": value})


@pytest.mark.parametrize(
    "text", ["  attributes:a  ", "attributes : a", "attributes\n:\ta", "( attributes:a )"]
)
def test_whitespace_between_tokens_does_not_matter(text: str) -> None:
    assert passes(text, {"a": ""})


@pytest.mark.parametrize(
    ("text", "column", "found", "expected"),
    [
        ("   ", 4, "end", "attributes"),
        ("attribute:a", 1, "`attribute`", "attributes"),
        ("attributes", 11, "end", "`:` or `.`"),
        ("attributes:", 12, "end", "a key"),
        ("attributes:2a", 12, "`2`", "a name"),
        ("attributes:AND", 12, "`AND`", "a key"),
        ("attributes.a", 13, "end", "`=` or `!="),
        ("attributes.a = b", 16, "`b`", "string in double quotes"),
        ("attributes.a = 'b'", 16, "`'`", "double quotes"),
        ('attributes.a = "b', 16, '`"`', "closed"),
        (r'attributes.a = "b\q"', 18, r"`\q`", "escape"),
        (r'attributes.a = "\ud800"', 17, r"`\ud800`", "Unicode character"),
        ('attributes.a < "b"', 14, "`<`", "operator"),
        ("attributes:a attributes:b", 14, "`attributes`", "AND, OR"),
        ("attributes:a and attributes:b", 14, "`and`", "AND is written in upper case"),
        ("not attributes:a", 1, "`not`", "NOT is written in upper case"),
        ("NOT NOT attributes:a", 5, "`NOT`", "attributes"),
        ("attributes:a AND", 17, "end", "attributes"),
        ("attributes:a AND attributes:b OR attributes:c", 31, "`OR`", "parentheses"),
        ("attributes:a OR attributes:b AND attributes:c", 30, "`AND`", "parentheses"),
        ("(attributes:a", 14, "end", "`)`"),
        ("attributes:a)", 13, "`)`", "end of the filter"),
        ("hasPrefix(attributes:a, b)", 21, "`:`", "`.`"),
        ('hasPrefix(attributes.a "b")', 24, '`"b"`', "`,`"),
        ('hasprefix(attributes.a, "b")', 1, "`hasprefix`", "hasPrefix"),
        ("attributes:\ud800", 12, "surrogate", "Unicode"),
    ],
)
def test_syntax_error_states_column_finding_and_expectation(
    text: str, column: int, found: str, expected: str
) -> None:
    with pytest.raises(FilterSyntaxError) as caught:
        compile_filter(text)
    message = str(caught.value)
    assert caught.value.column == column
    assert message.startswith(f"filter column {column}: found ")
    told, _, wanted = message.partition(", expected ")
    assert found in told
    assert expected in wanted


def test_syntax_error_survives_pickling() -> None:
    with pytest.raises(FilterSyntaxError) as caught:
        compile_filter("attributes")
    copy = pickle.loads(pickle.dumps(caught.value))  # noqa: S301  # our own bytes
    assert str(copy) == str(caught.value)
    assert copy.column == caught.value.column


def test_length_limit_counts_bytes_not_characters() -> None:
    room = MAX_FILTER_BYTES - len("attributes:")
    compile_filter("attributes:" + "a" * room)
    with pytest.raises(FilterSyntaxError, match="257 bytes"):
        compile_filter("attributes:" + "a" * (room + 1))
    with pytest.raises(FilterSyntaxError, match="at most 256 bytes"):
        compile_filter('attributes:"' + "\u00e9" * 130 + '"')


@pytest.mark.parametrize("opening", ["(", "-("])
def test_deep_nesting_is_a_syntax_error(opening: str) -> None:
    with pytest.raises(FilterSyntaxError, match="at most 64 levels of parentheses"):
        compile_filter(opening * 120)


def test_batch_of_no_messages_gives_an_empty_result() -> None:
    for text in ("", "attributes:a", "NOT attributes:a"):
        result = compile_filter(text).matches(map_array([]))
        assert result.dtype == np.bool_
        assert result.shape == (0,)


def test_null_map_counts_as_empty_even_when_it_owns_entries() -> None:
    full = map_array([{"a": "x"}, {"a": "x"}, {"b": "x"}])
    masked = pa.MapArray.from_buffers(
        full.type,
        3,
        [pa.py_buffer(bytes([0b101])), full.buffers()[1]],
        children=[pa.StructArray.from_arrays([full.keys, full.items], fields=ENTRY_FIELDS)],
    )
    assert masked.null_count == 1
    assert compile_filter("attributes:a").matches(masked).tolist() == [True, False, False]
    assert compile_filter("NOT attributes:a").matches(masked).tolist() == [False, True, True]


def test_sliced_array_sees_only_its_own_messages() -> None:
    whole = map_array([{"a": "1"}, {"b": "1"}, {"a": "2", "b": "2"}, None, {"a": "1"}])
    by_slice = compile_filter('attributes.a = "1"').matches(whole[1:])
    assert by_slice.tolist() == [False, False, False, True]
    assert compile_filter("attributes:b").matches(whole[2:3]).tolist() == [True]
    assert compile_filter("attributes:b").matches(whole[5:]).tolist() == []


def test_large_batch_is_evaluated_without_a_loop_over_messages() -> None:
    rows = 200_000
    keys = pa.array(["a", "b"]).take(pa.array(np.arange(rows * 2) % 2))
    items = pa.array(["x", "y", "z"]).take(pa.array(np.arange(rows * 2) % 3))
    batch = pa.MapArray.from_arrays(pa.array(np.arange(rows + 1) * 2, pa.int32()), keys, items)
    compiled = compile_filter('attributes.a = "x" AND (attributes.b != "x" OR -attributes:c)')
    started = time.perf_counter()
    result = compiled.matches(batch)
    assert time.perf_counter() - started < 1.0
    assert int(result.sum()) == len(range(0, rows * 2, 6))


@dataclass(frozen=True)
class Reference:
    """A filter as text, with its meaning spelled out for one message."""

    text: str
    tree: tuple[object, ...]

    def passes(self, attributes: Attributes) -> bool:
        return evaluate(self.tree, attributes)


def evaluate(tree: tuple[object, ...], attributes: Attributes) -> bool:
    operator, *rest = tree
    if operator == "not":
        return not evaluate(operands(rest)[0], attributes)
    if operator in ("AND", "OR"):
        results = [evaluate(operand, attributes) for operand in operands(rest)]
        return all(results) if operator == "AND" else any(results)
    found = attributes.get(str(rest[0]))
    meanings = {
        "has": found is not None,
        "=": found == rest[-1],
        "!=": found != rest[-1],
        "prefix": found is not None and found.startswith(str(rest[-1])),
    }
    return meanings[str(operator)]


def operands(rest: list[object]) -> list[tuple[object, ...]]:
    return [operand for operand in rest if isinstance(operand, tuple)]


KEYS = st.sampled_from(["a", "b", "k\u00e9", 'q"'])
VALUES = st.sampled_from(["", "x", "xy", "\u65e5", "\\"])


def quoted(text: str) -> str:
    return '"' + text.replace("\\", r"\\").replace('"', r"\"") + '"'


def leaf(operator: str, key: str, value: str) -> Reference:
    name, literal = quoted(key), quoted(value)
    if operator == "has":
        return Reference(f"attributes:{name}", ("has", key))
    if operator == "prefix":
        return Reference(f"hasPrefix(attributes.{name},{literal})", ("prefix", key, value))
    return Reference(f"attributes.{name}{operator}{literal}", (operator, key, value))


def junction(operator: str, parts: list[Reference]) -> Reference:
    text = f" {operator} ".join(f"({o.text})" for o in parts)
    return Reference(text, (operator, *(o.tree for o in parts)))


def negation(sign: str, operand: Reference) -> Reference:
    return Reference(f"{sign}({operand.text})", ("not", operand.tree))


def larger(smaller: st.SearchStrategy[Reference]) -> st.SearchStrategy[Reference]:
    several = st.lists(smaller, min_size=2, max_size=3)
    return st.builds(junction, st.sampled_from(["AND", "OR"]), several) | st.builds(
        negation, st.sampled_from(["NOT ", "-"]), smaller
    )


LEAVES = st.builds(leaf, st.sampled_from(["has", "=", "!=", "prefix"]), KEYS, VALUES)
FILTERS = st.recursive(LEAVES, larger, max_leaves=5).filter(
    lambda reference: len(reference.text.encode()) <= MAX_FILTER_BYTES
)
ROWS = st.lists(st.none() | st.dictionaries(KEYS, VALUES, max_size=4), max_size=8)


@given(reference=FILTERS, rows=ROWS, bounds=st.tuples(st.integers(0, 8), st.integers(0, 8)))
def test_batch_evaluation_agrees_with_one_message_at_a_time(
    reference: Reference, rows: list[Attributes | None], bounds: tuple[int, int]
) -> None:
    chosen = slice(*bounds)
    result = compile_filter(reference.text).matches(map_array(rows)[chosen])
    assert result.tolist() == [reference.passes(row or {}) for row in rows[chosen]]


WORDS = ("attributes", "AND", "OR", "NOT", "hasPrefix", "and", "key", '"v"', r'"\u12"')
MARKS = (":", ".", "=", "!=", "(", ")", ",", "-", '"', "\\", " ", "\ud800", "\u00e9", "\0")
PIECES = st.sampled_from(WORDS + MARKS)


@given(text=st.text() | st.lists(PIECES, max_size=40).map("".join))
def test_random_text_compiles_or_raises_a_syntax_error(text: str) -> None:
    column = 1
    try:
        assert compile_filter(text).matches(map_array([{}, None])).shape == (2,)
    except FilterSyntaxError as error:
        column = error.column
    assert 1 <= column <= len(text) + 1
