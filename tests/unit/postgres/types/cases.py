"""Values of every type: as SQL takes them, and as they must arrive in Spark."""

from __future__ import annotations

import datetime
import zoneinfo
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

D = Decimal
date = datetime.date
at = datetime.datetime
UTC = zoneinfo.ZoneInfo("UTC")
NAN = float("nan")
INF = float("inf")

LOOKALIKES = [
    "",
    " ",
    "NULL",
    "null",
    "\\N",
    '"',
    '""',
    "\\",
    "\\\\",
    '\\"',
    "{}",
    "{a,b}",
    "(1,2)",
    "a,b",
    "a\nb\tc\rd",
    "'quoted'",
    "naive \u00e9 \u4e2d \U0001f600",
    "=>",
    "%s",
]


@dataclass(frozen=True, eq=False)
class Case:
    """A type, its Spark type, and (SQL text, expected value) pairs; a null is always added."""

    sql: str
    spark: str
    pairs: tuple[tuple[str, Any], ...]

    @property
    def inputs(self) -> list[str | None]:
        return [text for text, _ in self.pairs] + [None]

    @property
    def expected(self) -> list[Any]:
        return [value for _, value in self.pairs] + [None]


def case(sql: str, spark: str, *pairs: tuple[str, Any]) -> Case:
    return Case(sql, spark, pairs)


def strings(sql: str, *texts: str) -> Case:
    """A type whose text comes out as it went in."""
    return Case(sql, "string", tuple((text, text) for text in texts))


def array_literal(texts: list[str]) -> str:
    escaped = (text.replace("\\", "\\\\").replace('"', '\\"') for text in texts)
    return "{" + ",".join(f'"{text}"' for text in escaped) + "}"


def row_literal(texts: list[str]) -> str:
    escaped = (text.replace("\\", "\\\\").replace('"', '""') for text in texts)
    return "(" + ",".join(f'"{text}"' for text in escaped) + ")"


NUMBERS = [
    case("int2", "smallint", ("0", 0), ("-32768", -32768), ("32767", 32767)),
    case("int4", "int", ("0", 0), ("-2147483648", -(2**31)), ("2147483647", 2**31 - 1)),
    case("int8", "bigint", ("-9223372036854775808", -(2**63)), ("9223372036854775807", 2**63 - 1)),
    case(
        "float4",
        "float",
        ("0.5", 0.5),
        ("-0", -0.0),
        ("NaN", NAN),
        ("Infinity", INF),
        ("-Infinity", -INF),
        # The nearest floats of 32 bits, written with 64.
        ("0.1", 0.10000000149011612),
        ("3.4028235e38", 3.4028234663852886e38),
        ("1e-45", 1.401298464324817e-45),
    ),
    case(
        "float8",
        "double",
        ("0.1", 0.1),
        ("-0", -0.0),
        ("NaN", NAN),
        ("Infinity", INF),
        ("-Infinity", -INF),
        ("1.7976931348623157e308", 1.7976931348623157e308),
        ("5e-324", 5e-324),
        ("0.30000000000000004", 0.30000000000000004),
    ),
    case(
        "numeric(12,2)",
        "decimal(12,2)",
        ("0", D("0.00")),
        ("1.005", D("1.01")),
        ("-9999999999.99", D("-9999999999.99")),
        ("9999999999.99", D("9999999999.99")),
    ),
    case("numeric(5)", "decimal(5,0)", ("12345", D("12345")), ("-0.4", D("0"))),
    case(
        "numeric(38,0)",
        "decimal(38,0)",
        ("9" * 38, D("9" * 38)),
        ("-" + "9" * 38, D("-" + "9" * 38)),
    ),
    case(
        "numeric(38,38)",
        "decimal(38,38)",
        ("0." + "9" * 38, D("0." + "9" * 38)),
        ("0", D("0E-38")),
    ),
    # Three digits, the last two positions left of the point are zeros.
    case("numeric(3,-2)", "decimal(5,0)", ("99900", D("99900")), ("-149", D("-100")), ("1", D(0))),
    case("numeric(3,5)", "decimal(5,5)", ("0.00999", D("0.00999")), ("-0.001", D("-0.00100"))),
    case("numeric(36,-3)", "string", ("9" * 36 + "000", "9" * 36 + "000")),
    case("numeric(39,1)", "string", ("9" * 38 + ".9", "9" * 38 + ".9"), ("NaN", "NaN")),
    case("numeric(3,40)", "string", ("0", "0." + "0" * 40)),
    case(
        "numeric",
        "string",
        ("1.50", "1.50"),
        ("-0.000", "0.000"),
        ("NaN", "NaN"),
        ("Infinity", "Infinity"),
        ("-Infinity", "-Infinity"),
        ("1e100", "1" + "0" * 100),
        ("1e-30", "0." + "0" * 29 + "1"),
    ),
    case("money", "string", ("1234.5", "$1,234.50"), ("-1", "-$1.00")),
    case("oid", "bigint", ("0", 0), ("4294967295", 2**32 - 1)),
    case("xid", "bigint", ("3", 3), ("4294967295", 2**32 - 1)),
    case("cid", "bigint", ("4294967295", 2**32 - 1)),
    case("xid8", "decimal(20,0)", ("18446744073709551615", D(2**64 - 1)), ("1", D(1))),
]

TEXTS = [
    strings("text", *LOOKALIKES, "x" * 10_000),
    strings("varchar", *LOOKALIKES),
    strings("varchar(5)", "", "12345", "NULL"),
    strings("name", "", "NULL", "a b"),
    case("char(4)", "string", ("ab", "ab  "), ("", "    "), ("\u00e9", "\u00e9   ")),
    case("bpchar", "string", ("ab  ", "ab  ")),
    case('"char"', "string", ("a", "a"), ("", ""), ("\\", "\\"), ("\\377", "\\377")),
    strings("refcursor", "", "NULL", "c1"),
    case("bool", "boolean", ("true", True), ("f", False)),
    case(
        "bytea",
        "binary",
        ("\\x", b""),
        ("\\x00", b"\0"),
        ("NULL", b"NULL"),
        ("\\x5c785c", b"\\x\\"),
        ("\\x" + bytes(range(256)).hex(), bytes(range(256))),
    ),
    strings("uuid", "00000000-0000-0000-0000-000000000000", "f81d4fae-7dec-11d0-a765-00a0c91e6bf6"),
    strings("json", '{"a":  1, "a": 2}', "null", '"NULL"', "1e400", '"\\u0000\\""', "[]"),
    case(
        "jsonb",
        "string",
        ('{"b":1,"a":  [null, 1.50]}', '{"a": [null, 1.50], "b": 1}'),
        ("null", "null"),
        ('"a\\"b\\\\"', '"a\\"b\\\\"'),
    ),
    # The server in the wheel is built without XML: only nulls can be stored.
    Case("xml", "string", ()),
    strings("jsonpath", '$."a"[*]?(@ > 1)'),
]

TIMES = [
    case(
        "date",
        "date",
        ("0001-01-01", date(1, 1, 1)),
        ("9999-12-31", date(9999, 12, 31)),
        ("1582-10-10", date(1582, 10, 10)),
        ("2024-02-29", date(2024, 2, 29)),
    ),
    case(
        "timestamp",
        "timestamp_ntz",
        ("0001-01-01", at(1, 1, 1)),
        ("9999-12-31 23:59:59.999999", at(9999, 12, 31, 23, 59, 59, 999999)),
        ("1969-12-31 23:59:59.9", at(1969, 12, 31, 23, 59, 59, 900000)),
        ("2026-01-02 03:04:05", at(2026, 1, 2, 3, 4, 5)),
        ("2026-01-02 24:00", at(2026, 1, 3)),
    ),
    case(
        "timestamp(3)", "timestamp_ntz", ("1999-01-01 00:00:00.0016", at(1999, 1, 1, 0, 0, 0, 2000))
    ),
    case(
        "timestamptz",
        "timestamp",
        ("0001-01-01 00:00+00", at(1, 1, 1, tzinfo=UTC)),
        ("9999-12-31 23:59:59.999999+00", at(9999, 12, 31, 23, 59, 59, 999999, UTC)),
        ("2026-01-02 03:04:05.678+05:30", at(2026, 1, 1, 21, 34, 5, 678000, UTC)),
        ("1883-11-18 12:00 America/New_York", at(1883, 11, 18, 17, 0, 0, 0, UTC)),
    ),
    strings("time", "00:00:00", "23:59:59.999999", "24:00:00", "12:34:56.7"),
    strings("timetz", "00:00:00+00", "24:00:00-15:59", "12:34:56.7+05:30"),
    case(
        "interval",
        "string",
        ("1 year 2 mons 3 days 04:05:06.7", "P1Y2M3DT4H5M6.7S"),
        ("-1 mon +2 days -3 sec", "P-1M2DT-3S"),
        ("0", "PT0S"),
    ),
]

OTHERS = [
    case(
        "inet",
        "string",
        ("10.0.0.1", "10.0.0.1"),
        ("10.0.0.1/8", "10.0.0.1/8"),
        ("::1/128", "::1"),
    ),
    strings("cidr", "10.0.0.0/8", "10.0.0.1/32", "2001:db8::/32"),
    strings("macaddr", "08:00:2b:01:02:03"),
    strings("macaddr8", "08:00:2b:01:02:03:04:05"),
    strings("bit(3)", "101"),
    strings("varbit", "", "1", "0" * 70),
    case("point", "string", ("(1.5,-2)", "(1.5,-2)"), ("NaN,Infinity", "(NaN,Infinity)")),
    strings("line", "{1,2,3}"),
    strings("lseg", "[(0,0),(1,1)]"),
    strings("box", "(1,1),(0,0)"),
    strings("path", "((0,0),(1,1))", "[(0,0),(1,1)]"),
    strings("polygon", "((0,0),(1,1),(1,0))"),
    strings("circle", "<(0,0),1.5>"),
    strings("tsvector", "", "'a':1A 'b''c':2"),
    strings("tsquery", "", "'a' & !'b'"),
    strings("pg_lsn", "0/0", "16/B374D848"),
    strings("tid", "(0,1)", "(4294967295,65535)"),
    strings("pg_snapshot", "10:20:10,14,15"),
    strings("txid_snapshot", "10:20:10,14,15"),
    strings("int2vector", "", "1 -2 3"),
    strings("oidvector", "", "1 4294967295"),
    strings("aclitem", "=r/postgres"),
    case("regclass", "string", ("pg_class", "pg_class"), ("public.sample", "public.sample")),
    strings("regtype", "integer", "public.mood"),
    strings("regproc", "now"),
    strings("regprocedure", "now()", "abs(integer)"),
    case("regoper", "string", ("pg_catalog.||/", "||/")),
    strings("regoperator", "+(integer,integer)"),
    strings("regnamespace", "public"),
    strings("regrole", "postgres"),
    strings("regconfig", "english"),
    strings("regdictionary", "simple"),
    case("regcollation", "string", ('pg_catalog."C"', '"C"')),
    strings("int4range", "empty", "[1,2)", "(,5)"),
    strings("numrange", "(1.50,2.0]"),
    strings("daterange", "[2020-01-01,2020-01-02)", "[-infinity,infinity)"),
    case("tstzrange", "string", ("[2020-01-01 00:00+02,)", '["2019-12-31 22:00:00+00",)')),
    strings("int4multirange", "{}", "{[1,2),[5,9)}"),
    strings("public.mood", "sad", 'it\'s, "ok"', "NULL", ""),
    strings("public.halfvec_like", "x,y"),
]

NESTED = [
    case(
        "int4[]",
        "array<int>",
        ("{}", []),
        ("{1,NULL,-3}", [1, None, -3]),
        ("{NULL}", [None]),
        ("[2:3]={5,6}", [5, 6]),
        ("[0:0]={7}", [7]),
    ),
    case(
        "text[]",
        "array<string>",
        ("{}", []),
        ('{NULL,"NULL",null,"null"}', [None, "NULL", None, "null"]),
        ('{""}', [""]),
        ('{"",""}', ["", ""]),
        (array_literal(LOOKALIKES), LOOKALIKES),
        ('[-1:0]={"a{b","]="}', ["a{b", "]="]),
    ),
    case("bool[]", "array<boolean>", ("{t,f,NULL}", [True, False, None])),
    case(
        "numeric(6,2)[]",
        "array<decimal(6,2)>",
        ("{1,2.345,NULL}", [D("1.00"), D("2.35"), None]),
    ),
    case("numeric[]", "array<string>", ("{1.0,NaN}", ["1.0", "NaN"])),
    case("float8[]", "array<double>", ("{1.5,NaN,-Infinity}", [1.5, NAN, -INF])),
    case("bytea[]", "array<binary>", (r'{"\\x00","\\x",NULL}', [b"\0", b"", None])),
    case("date[]", "array<date>", ("{2020-01-01}", [date(2020, 1, 1)])),
    case(
        "timestamptz[]",
        "array<timestamp>",
        ('{"2020-01-01 00:00:00+00",NULL}', [at(2020, 1, 1, tzinfo=UTC), None]),
    ),
    case("inet[]", "array<string>", ("{10.0.0.1,10.0.0.0/8}", ["10.0.0.1", "10.0.0.0/8"])),
    case("box[]", "array<string>", ("{(1,1),(0,0);(2,2),(1,1)}", ["(1,1),(0,0)", "(2,2),(1,1)"])),
    case("jsonb[]", "array<string>", (r'{"{\"a\": [1, 2]}"}', ['{"a": [1, 2]}'])),
    case("char(3)[]", "array<string>", ("{a}", ["a  "])),
    case(
        "uuid[]", "array<string>", ("{" + "0" * 32 + "}", ["00000000-0000-0000-0000-000000000000"])
    ),
    case("public.mood[]", "array<string>", ('{sad,"NULL"}', ["sad", "NULL"])),
    case("public.price", "decimal(8,2)", ("1.5", D("1.50"))),
    case("public.special_price", "decimal(8,2)", ("2.5", D("2.50"))),
    case("public.price[]", "array<decimal(8,2)>", ("{1.5,NULL}", [D("1.50"), None])),
    case("public.ids", "array<int>", ("{1,2}", [1, 2])),
    case("public.ids[]", "array<array<int>>", ('{"{1,NULL}","{}",NULL}', [[1, None], [], None])),
    case(
        "public.pair",
        "struct<a:int,b c:string>",
        ("(1,x)", {"a": 1, "b c": "x"}),
        ("(,)", {"a": None, "b c": None}),
        ('(,"")', {"a": None, "b c": ""}),
        ("(2,NULL)", {"a": 2, "b c": "NULL"}),
        *((row_literal(["7", text]), {"a": 7, "b c": text}) for text in LOOKALIKES),
    ),
    case("public.single", "struct<v:bigint>", ("(5)", {"v": 5}), ("()", {"v": None})),
    case(
        "public.deep",
        "struct<p:struct<a:int,b c:string>,ps:array<struct<a:int,b c:string>>,d:decimal(4,1)>",
        (
            '("(1,""a """"b"""""")","{""(2,\\\\""x\\\\\\\\\\\\\\\\y\\\\"")"",NULL}",3)',
            {
                "p": {"a": 1, "b c": 'a "b"'},
                "ps": [{"a": 2, "b c": "x\\y"}, None],
                "d": D("3.0"),
            },
        ),
        ("(,{},)", {"p": None, "ps": [], "d": None}),
    ),
    case("public.nothing", "string", ("()", "()")),
]

CASES = NUMBERS + TEXTS + TIMES + OTHERS + NESTED

SETUP = """
CREATE TYPE public.mood AS ENUM ('sad', 'it''s, "ok"', 'NULL', '');
CREATE DOMAIN public.price AS numeric(8,2) CHECK (VALUE >= 0);
CREATE DOMAIN public.special_price AS public.price;
CREATE DOMAIN public.ids AS int4[];
CREATE TYPE public.pair AS (a int4, "b c" text);
CREATE TYPE public.single AS (v int8);
CREATE TYPE public.deep AS (p public.pair, ps public.pair[], d numeric(4,1));
CREATE TYPE public.nothing AS ();
CREATE TYPE public.halfvec_like;
CREATE FUNCTION public.halfvec_like_in(cstring) RETURNS public.halfvec_like
    LANGUAGE internal IMMUTABLE STRICT AS 'textin';
CREATE FUNCTION public.halfvec_like_out(public.halfvec_like) RETURNS cstring
    LANGUAGE internal IMMUTABLE STRICT AS 'textout';
CREATE TYPE public.halfvec_like (
    INPUT = public.halfvec_like_in, OUTPUT = public.halfvec_like_out, LIKE = text
);
-- A cast to text that says something else than the output function.
CREATE FUNCTION public.halfvec_like_cast(public.halfvec_like) RETURNS text
    LANGUAGE sql IMMUTABLE AS $$ SELECT 'cast'::text $$;
CREATE CAST (public.halfvec_like AS text) WITH FUNCTION public.halfvec_like_cast;
CREATE TABLE public.sample (n int);
"""
