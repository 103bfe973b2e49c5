"""Topic schemas: which definitions are taken, which messages fit, and how refusals read."""

from __future__ import annotations

import io
import json
import pickle
import sys
import time
import tracemalloc
from typing import Any

import fastavro
import pytest
from google.pubsub_v1 import types as pubsub_types
from hypothesis import given
from hypothesis import strategies as st

from penstock.emulator.pubsub.schemas import (
    MAX_DEFINITION_BYTES,
    CompiledSchema,
    Encoding,
    MessageMismatchError,
    SchemaDefinitionError,
    SchemaType,
    compile_schema,
)

JSON, BINARY = Encoding.JSON, Encoding.BINARY


def field(name: str, avro_type: Any) -> dict[str, Any]:
    return {"name": name, "type": avro_type}


def record(*fields: dict[str, Any], name: str = "R", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def avro(*fields: dict[str, Any], **more: Any) -> CompiledSchema:
    return compile_schema(SchemaType.AVRO, json.dumps(record(*fields, **more)))


def proto(definition: str) -> CompiledSchema:
    return compile_schema(SchemaType.PROTOCOL_BUFFER, definition)


def zigzag(number: int) -> bytes:
    number = (number << 1) ^ (number >> 63)
    encoded = b""
    while number > 0x7F:
        encoded += bytes([number & 0x7F | 0x80])
        number >>= 7
    return encoded + bytes([number])


def encoded_json(value: object) -> bytes:
    return json.dumps(value).encode()


def refusal(schema: CompiledSchema, data: bytes, encoding: Encoding) -> str:
    with pytest.raises(MessageMismatchError) as caught:
        schema.check(data, encoding)
    return str(caught.value)


ORDER_FIELDS = (
    field("id", "long"),
    field("note", ["null", "string"]),
    field("color", {"type": "enum", "name": "Color", "symbols": ["RED", "BLUE"]}),
    field("hash", {"type": "fixed", "name": "Hash", "size": 2}),
    field("sizes", {"type": "array", "items": "int"}),
    field("prices", {"type": "map", "values": "double"}),
    field("buyer", record(field("name", "string"), name="Buyer")),
    field("at", {"type": "long", "logicalType": "timestamp-micros"}),
    field("flag", "boolean"),
    field("blob", "bytes"),
    field("ratio", "float"),
    field("choice", ["null", "Buyer", "Color", "Hash"]),
)
ORDER = record(*ORDER_FIELDS, name="Order", namespace="shop")
ORDER_VALUE: dict[str, Any] = {
    "id": -(1 << 63),
    "note": "caf\u00e9",
    "color": "BLUE",
    "hash": b"\x00\xff",
    "sizes": [1, -2, 3],
    "prices": {"eur": 1.5, "usd": -2.0},
    "buyer": {"name": "Ann"},
    "at": 1 << 62,
    "flag": True,
    "blob": b"\xfe",
    "ratio": 0.5,
    "choice": ("shop.Buyer", {"name": "Bob"}),
}
ORDER_JSON: dict[str, Any] = ORDER_VALUE | {
    "note": {"string": "caf\u00e9"},
    "hash": "\x00\xff",
    "blob": "\xfe",
    "choice": {"shop.Buyer": {"name": "Bob"}},
}


@pytest.fixture(scope="module")
def order() -> CompiledSchema:
    return compile_schema(SchemaType.AVRO, json.dumps(ORDER))


@pytest.fixture(scope="module")
def order_bytes() -> bytes:
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(ORDER), ORDER_VALUE)
    return buffer.getvalue()


PERSON_PROTO = """
syntax = "proto2";
package shop;
message Person {
  required int32 id = 1;
  optional string display_name = 2;
  map<string, Person> friends = 3;
  repeated Person children = 4;
  optional Kind kind = 5;
  oneof contact { string mail = 6; int32 phone = 7; }
  enum Kind { UNKNOWN = 0; KNOWN = 1; }
  message Address { optional string town = 1; }
  optional Address address = 8;
}
"""


@pytest.fixture(scope="module")
def person() -> CompiledSchema:
    return proto(PERSON_PROTO)


@pytest.fixture(scope="module")
def point() -> CompiledSchema:
    return proto('syntax = "proto3"; message Point { int32 x = 1; string label = 2; }')


def test_enum_numbers_are_those_of_the_service() -> None:
    for own in SchemaType:
        assert getattr(pubsub_types.Schema.Type, own.name) == own.value
    for encoding in Encoding:
        assert getattr(pubsub_types.Encoding, encoding.name) == encoding.value


def test_avro_binary_written_by_another_library_is_accepted(
    order: CompiledSchema, order_bytes: bytes
) -> None:
    order.check(order_bytes, BINARY)


def test_avro_json_encoding_is_accepted(order: CompiledSchema) -> None:
    order.check(encoded_json(ORDER_JSON), JSON)
    order.check(encoded_json(ORDER_JSON | {"note": None, "choice": None}), JSON)
    order.check(encoded_json(ORDER_JSON | {"choice": {"shop.Color": "RED"}}), JSON)
    order.check(encoded_json(ORDER_JSON | {"ratio": 3}), JSON)


def test_every_cut_of_an_avro_binary_message_is_refused(
    order: CompiledSchema, order_bytes: bytes
) -> None:
    for size in range(len(order_bytes)):
        assert refusal(order, order_bytes[:size], BINARY)


def test_bytes_after_an_avro_record_are_refused(order: CompiledSchema, order_bytes: bytes) -> None:
    assert "2 bytes follow the end" in refusal(order, order_bytes + b"\0\0", BINARY)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"id": 1 << 63}, "field id: a number that is not a valid long"),
        ({"id": 1.0}, "field id: a number that is not a valid long"),
        ({"id": True}, "field id: a boolean that is not a valid long"),
        ({"id": "7"}, "field id: a string that is not a valid long"),
        ({"note": "plain"}, "field note: expected one of null, string"),
        ({"note": {"int": 1}}, "field note: expected one of null, string"),
        ({"note": {"string": "a", "x": 1}}, "field note: expected one of null, string"),
        ({"note": {"null": None}}, "field note: expected one of null, string"),
        ({"note": {"string": 5}}, "field note: a number that is not a valid string"),
        ({"color": "GREEN"}, "field color: a string that is not a valid shop.Color"),
        ({"color": []}, "field color: an array that is not a valid shop.Color"),
        ({"hash": "abc"}, "field hash: a string that is not a valid shop.Hash"),
        ({"hash": "\u0100a"}, "field hash: a string that is not a valid shop.Hash"),
        ({"sizes": {}}, "field sizes: expected array, found an object"),
        ({"sizes": [1, None]}, "field sizes: null that is not a valid int"),
        ({"prices": []}, "field prices: expected map, found an array"),
        ({"prices": {"eur": "1"}}, "field prices: a string that is not a valid double"),
        ({"buyer": {}}, "field buyer: record shop.Buyer lacks name"),
        ({"buyer": {"name": 1}}, "field buyer.name: a number that is not a valid string"),
        ({"blob": "\u65e5"}, "field blob: a string that is not a valid bytes"),
        ({"extra": 1}, "1 field(s) that record shop.Order does not have"),
    ],
)
def test_avro_json_refusal_names_the_field_and_the_type(
    order: CompiledSchema, changed: dict[str, Any], expected: str
) -> None:
    assert refusal(order, encoded_json(ORDER_JSON | changed), JSON).startswith(expected)


def test_avro_json_field_with_a_default_may_not_be_left_out() -> None:
    schema = avro(field("a", "int") | {"default": 0}, field("b", ["null", "int"]))
    assert "record R lacks a, b" in refusal(schema, b"{}", JSON)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b'{"a": 1} x',
        b'{"a": 1}{"a": 1}',
        b'{"a": 1, "a": 1}',
        b'{"a": NaN}',
        b'{"a": 1e999}',
        b'{"a": 0x10}',
        b'\xff{"a": 1}',
        b'\xef\xbb\xbf{"a": 1}',
        '{"a": 1}'.encode("utf-16"),
        b"[1]",
        b"null",
        b"[" * 200_000,
        b'{"a": ' + b"9" * 10_000 + b"}",
    ],
)
def test_text_that_is_not_one_json_record_is_refused(data: bytes) -> None:
    schema = avro(field("a", "double"))
    schema.check(b' {"a": 1}\n', JSON)
    assert refusal(schema, data, JSON)


@pytest.mark.parametrize(
    ("avro_type", "data"),
    [
        ("int", zigzag(1 << 31)),
        ("long", b"\xff" * 9 + b"\x7f"),
        ("long", b"\xff" * 11),
        ("boolean", b"\x02"),
        ("string", zigzag(-1)),
        ("string", zigzag(1) + b"\xff"),
        (["null", "int"], zigzag(-1) + zigzag(1)),
        (["null", "int"], zigzag(2)),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, zigzag(1)),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, zigzag(-1)),
        ({"type": "array", "items": "int"}, zigzag(-1) + zigzag(2) + zigzag(1) + zigzag(0)),
        ({"type": "map", "values": "int"}, zigzag(1) + zigzag(1) + b"\xff\x02\x00"),
    ],
)
def test_malformed_avro_binary_is_refused(avro_type: Any, data: bytes) -> None:
    assert refusal(avro(field("a", avro_type)), data, BINARY).startswith("field a: ")


def test_avro_blocks_that_state_their_size_are_accepted() -> None:
    data = zigzag(-2) + zigzag(2) + zigzag(1) + zigzag(2) + zigzag(1) + zigzag(3) + zigzag(0)
    avro(field("a", {"type": "array", "items": "int"})).check(data, BINARY)


@pytest.mark.parametrize(
    ("avro_type", "data"),
    [
        ("string", zigzag(1 << 40) + b"abc"),
        ("bytes", zigzag(1 << 62) + b"abc"),
        ({"type": "array", "items": "int"}, zigzag(1 << 40) + b"\x02\x02"),
        ({"type": "array", "items": "null"}, zigzag(1 << 40)),
        ({"type": "map", "values": "null"}, zigzag(1 << 40) + b"\x02a"),
        ({"type": "fixed", "name": "F", "size": 1 << 40}, b"abc"),
        (["null", "R"], b"\x02" * 1_000_000),
        ({"type": "array", "items": "R"}, b"\x02" * 1_000_000),
        ("R", b""),
    ],
)
def test_avro_binary_that_claims_a_huge_value_is_refused_fast_and_small(
    avro_type: Any, data: bytes
) -> None:
    schema = avro(field("a", avro_type))
    tracemalloc.start()
    started = time.perf_counter()
    try:
        refusal(schema, data, BINARY)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert time.perf_counter() - started < 1.0
    assert peak < 1 << 20


def test_long_array_of_nulls_costs_nothing() -> None:
    data = zigzag(1 << 40) + zigzag(0)
    avro(field("a", {"type": "array", "items": "null"})).check(data, BINARY)


def test_recursive_avro_type_is_checked_up_to_a_depth() -> None:
    schema = avro(field("next", ["null", "R"]))
    schema.check(b"\x02" * 50 + b"\0", BINARY)
    value: dict[str, Any] = {"next": None}
    for _ in range(50):
        value = {"next": {"R": value}}
    schema.check(encoded_json(value), JSON)
    for _ in range(100):
        value = {"next": {"R": value}}
    assert "nested" in refusal(schema, encoded_json(value), JSON)
    message = refusal(schema, b"\x02" * 1000 + b"\0", BINARY)
    assert "nested" in message
    assert len(message) < 2000


@pytest.mark.parametrize(
    ("definition", "expected"),
    [
        ("", "cannot be read"),
        ("not json", "not valid JSON at character 0"),
        ("\ud800", "Unicode"),
        ('"string"', '"type": "record"'),
        ("[]", '"type": "record"'),
        (json.dumps([record()]), '"type": "record"'),
        (json.dumps({"type": "enum", "name": "E", "symbols": ["A"]}), '"type": "record"'),
        (json.dumps({"type": "record", "fields": []}), "name"),
        (json.dumps(record(field("a", "strin"))), "unknown type strin"),
        (json.dumps(record({"name": "a"})), "missing 'type'"),
        (json.dumps(record(field("a", "int"), field("a", "int"))), "given twice"),
        (json.dumps(record(field("a b", "int"))), "not a valid Avro name"),
        (json.dumps(record(name="1R")), "R"),
        (json.dumps(record(field("a", "int") | {"default": "x"})), "int"),
        (json.dumps(record(field("a", ["int", "int"]))), "union repeats a type"),
        (json.dumps(record(field("a", ["int", ["null"]]))), "contains a union"),
        (json.dumps(record(field("a", {"type": "array"}))), "lacks 'items'"),
        (json.dumps(record(field("a", {"type": "enum", "name": "E"}))), "lacks 'symbols'"),
        (
            json.dumps(record(field("a", {"type": "fixed", "name": "F", "size": -1}))),
            "fixed type F",
        ),
        (json.dumps(record(field("a", None))), "wrong JSON type"),
        (json.dumps(record() | {"fields": 3}), "wrong JSON type"),
        (json.dumps(record() | {"__fastavro_parsed": True, "fields": [3]}), "not an Avro schema"),
        (json.dumps(record(field("a", record(name="R")))), "R"),
        ('{"type": "record", "name": "R", "name": "S", "fields": []}', "same name twice"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_unusable_avro_definition_is_refused_with_the_reason(
    definition: str, expected: str
) -> None:
    with pytest.raises(SchemaDefinitionError) as caught:
        compile_schema(SchemaType.AVRO, definition)
    assert expected in str(caught.value)


def test_avro_definition_is_refused_beyond_a_depth() -> None:
    avro_type: Any = "int"
    for _ in range(100):
        avro_type = {"type": "array", "items": avro_type}
    avro(field("a", avro_type)).check(zigzag(0), BINARY)
    for _ in range(100):
        avro_type = {"type": "array", "items": avro_type}
    with pytest.raises(SchemaDefinitionError, match="nested deeper than 200"):
        avro(field("a", avro_type))


@pytest.mark.parametrize("schema_type", SchemaType)
def test_definition_over_the_size_limit_is_refused(schema_type: SchemaType) -> None:
    with pytest.raises(SchemaDefinitionError, match=str(MAX_DEFINITION_BYTES)):
        compile_schema(schema_type, " " * (MAX_DEFINITION_BYTES + 1))


def test_protobuf_binary_is_accepted(person: CompiledSchema, point: CompiledSchema) -> None:
    person.check(b"\x08\x07\x12\x03Ann\x22\x02\x08\x01", BINARY)
    point.check(b"", BINARY)
    point.check(b"\x08\x01\x12\x01a", BINARY)


def test_protobuf_binary_with_unknown_fields_is_accepted(point: CompiledSchema) -> None:
    point.check(b"\x08\x01\xf8\x01\x05", BINARY)


@pytest.mark.parametrize(
    "data", [b"\x08", b"\x0c", b"\x00", b"\x12\x05a", b"\x12\x01\xff", b"\x0b", b"\xff" * 20]
)
def test_malformed_protobuf_binary_is_refused(point: CompiledSchema, data: bytes) -> None:
    assert refusal(point, data, BINARY) == "not an encoded message of type Point"


def test_deeply_nested_protobuf_binary_is_refused(person: CompiledSchema) -> None:
    data = b"\x08\x01"
    for _ in range(150):
        size = len(data)
        data = b"\x08\x01\x22" + bytes([size & 0x7F | 0x80, size >> 7]) + data
    assert "shop.Person" in refusal(person, data, BINARY)


def test_protobuf_required_field_must_be_present(person: CompiledSchema) -> None:
    assert "required fields are missing: id" in refusal(person, b"", BINARY)
    message = refusal(person, encoded_json({"id": 1, "friends": {"SECRET.key": {}}}), JSON)
    assert "required fields are missing: id" in message
    assert "SECRET" not in message


def test_protobuf_json_is_accepted(person: CompiledSchema) -> None:
    whole = {"id": 1, "displayName": "Ann", "friends": {"x": {"id": "2"}}, "kind": "KNOWN"}
    person.check(encoded_json(whole), JSON)
    person.check(encoded_json({"id": 1, "display_name": None, "children": [{"id": 2}]}), JSON)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"id": "SECRET"}, "field id: a value that does not fit the type"),
        ({"id": 1 << 40}, "field id: a value that does not fit the type"),
        ({"SECRET": 1}, "an unknown field"),
        ({"[SECRET.x]": 1}, "an unknown field"),
        ({"children": [{"id": {}}]}, "field children.id: a value that does not fit"),
        ({"children": [{"SECRET": 1}]}, "field children: an unknown field"),
        ({"friends": {"SECRET": {"id": "SECRET"}}}, "field friends.id: a value"),
        ({"friends": "SECRET"}, "field friends: a value"),
        ({"address": {"town": 5}}, "field address.town: a value"),
        ({"address": {"SECRET": "SECRET"}}, "field address: an unknown field"),
        ({"kind": "SECRET"}, "field kind: a value"),
        ({"displayName": ["SECRET"]}, "field display_name: a value"),
        ({"mail": "SECRET", "phone": 1}, "two fields of which only one may be set"),
        ([], "expected message shop.Person, found an array"),
        ("", "expected message shop.Person, found a string"),
        (None, "expected message shop.Person, found null"),
    ],
)
def test_protobuf_json_refusal_names_the_field_and_never_a_value(
    person: CompiledSchema, value: object, expected: str
) -> None:
    with pytest.raises(MessageMismatchError) as caught:
        person.check(encoded_json(value), JSON)
    assert str(caught.value).startswith(expected)
    assert "SECRET" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_avro_refusal_never_shows_a_value(order: CompiledSchema) -> None:
    for name in ORDER_JSON:
        for wrong in ("SECRET\u0100", {"SECRET": "SECRET"}, [{"SECRET": 1}]):
            assert "SECRET" not in refusal(order, encoded_json(ORDER_JSON | {name: wrong}), JSON)


@pytest.mark.parametrize(
    ("definition", "expected"),
    [
        ("", "one top-level message"),
        ("nonsense", "line 1, column 1: Expected top-level statement"),
        ('syntax = "proto3";\nmessage M {\n  int32 a = ;\n}', "line 3, column 13: "),
        ('syntax = "proto3"; message M { Missing a = 1; }', '"Missing" is not defined'),
        ('syntax = "proto3"; message A {} message B {}', "found: A, B"),
        ('syntax = "proto3"; message A {} enum E { Z = 0; }', "found: A, E"),
        ('syntax = "proto3"; enum E { Z = 0; }', "found: E"),
        ('syntax = "proto3"; import "other.proto"; message M {}', "not supported"),
        (
            'syntax = "proto3"; import "google/protobuf/timestamp.proto"; message M {}',
            "google/protobuf/timestamp.proto",
        ),
        ('syntax = "proto3"; import "../../etc/passwd"; message M {}', ""),
        ('syntax = "proto4"; message M {}', "proto4"),
        ('edition = "2023"; message M {}', "not an edition"),
        ('syntax = "proto3"; package google.protobuf; message Any {}', "reserved"),
        ("\ud800", "Unicode"),
        ("\0", ""),
    ],
)
def test_unusable_protobuf_definition_is_refused_with_the_reason(
    definition: str, expected: str
) -> None:
    with pytest.raises(SchemaDefinitionError) as caught:
        proto(definition)
    message = str(caught.value)
    assert expected in message
    assert "penstock-schema-" not in message
    assert "schema.proto" not in message


def test_protobuf_definition_without_a_syntax_line_is_proto2() -> None:
    schema = proto("message M { required int32 a = 1; }")
    assert "missing: a" in refusal(schema, b"", BINARY)


def test_schemas_with_the_same_message_name_do_not_collide(point: CompiledSchema) -> None:
    other = proto('syntax = "proto3"; message Point { string x = 1; }')
    other.check(encoded_json({"x": "text"}), JSON)
    assert refusal(point, encoded_json({"x": "text"}), JSON)
    point.check(encoded_json({"x": 1}), JSON)


@pytest.mark.parametrize(
    ("schema_type", "module"),
    [
        (SchemaType.AVRO, "fastavro"),
        (SchemaType.PROTOCOL_BUFFER, "grpc_tools"),
        (SchemaType.PROTOCOL_BUFFER, "google.protobuf"),
    ],
)
def test_missing_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, schema_type: SchemaType, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(SchemaDefinitionError, match=r"pip install 'penstock\[emulator\]'"):
        compile_schema(schema_type, "{}")


def test_mismatch_survives_pickling(order: CompiledSchema) -> None:
    with pytest.raises(MessageMismatchError) as caught:
        order.check(encoded_json(ORDER_JSON | {"id": None}), JSON)
    copy = pickle.loads(pickle.dumps(caught.value))  # noqa: S301  # our own bytes
    assert str(copy) == str(caught.value)


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def only_mismatch_escapes(schema: CompiledSchema, data: bytes, encoding: Encoding) -> None:
    try:
        schema.check(data, encoding)
    except MessageMismatchError as error:
        message = str(error)
        assert message
        assert len(message) < 2000


@given(data=st.binary(max_size=200), encoding=st.sampled_from(Encoding))
def test_random_bytes_raise_nothing_but_a_mismatch(
    order: CompiledSchema, person: CompiledSchema, data: bytes, encoding: Encoding
) -> None:
    only_mismatch_escapes(order, data, encoding)
    only_mismatch_escapes(person, data, encoding)


@given(at=st.integers(0, 200), byte=st.integers(0, 255), extra=st.binary(max_size=3))
def test_damaged_avro_binary_raises_nothing_but_a_mismatch(
    order: CompiledSchema, order_bytes: bytes, at: int, byte: int, extra: bytes
) -> None:
    at %= len(order_bytes)
    only_mismatch_escapes(
        order, order_bytes[:at] + bytes([byte]) + extra + order_bytes[at:], BINARY
    )


@given(name=st.sampled_from([*ORDER_JSON]), value=ANY_JSON)
def test_random_json_value_in_an_avro_field_raises_nothing_but_a_mismatch(
    order: CompiledSchema, name: str, value: object
) -> None:
    only_mismatch_escapes(order, encoded_json(ORDER_JSON | {name: value}), JSON)


PERSON_NAMES = ["id", "displayName", "friends", "children", "kind", "mail", "phone", "address"]


@given(value=st.dictionaries(st.sampled_from(PERSON_NAMES) | st.text(), ANY_JSON, max_size=4))
def test_random_protobuf_json_raises_nothing_but_a_mismatch(
    person: CompiledSchema, value: dict[str, object]
) -> None:
    only_mismatch_escapes(person, encoded_json({"id": 1} | value), JSON)


@given(value=st.fixed_dictionaries({"a": st.integers(-(2**63), 2**63 - 1), "b": st.text()}))
def test_avro_binary_of_another_library_always_fits(value: dict[str, Any]) -> None:
    definition = record(field("a", "long"), field("b", "string"))
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(definition), value)
    schema = compile_schema(SchemaType.AVRO, json.dumps(definition))
    schema.check(buffer.getvalue(), BINARY)
    schema.check(encoded_json(value), JSON)
