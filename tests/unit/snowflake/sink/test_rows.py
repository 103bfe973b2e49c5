"""Rows that do not fit, values of all kinds, names of all kinds, keys that change."""

from __future__ import annotations

import datetime as dt
import json
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from pyspark.sql import types as spark

from penstock.errors import AccessError, ConnectError, ResourceError, RowError, WriteRejectedError
from penstock.snowflake import preflight
from penstock.snowflake.preflight import plans_for
from penstock.snowflake.sink.pool import POOL
from penstock.snowflake.sink.sdk import CURES
from penstock.snowflake.sink.task import TaskPlace, write_partition
from tests.unit.snowflake.sink.conftest import Sink


def key_pair() -> tuple[bytes, str]:
    key = rsa.generate_private_key(65537, 2048)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return private, public.decode()


class TestUnfitRows:
    def test_the_first_is_named_with_its_position(self, sink: Sink) -> None:
        values = [1.0] * 700 + [math.nan, math.inf]
        with pytest.raises(RowError, match=r"'N' in row 700 of partition 0, batch 3.*1 more"):
            sink.write(values, 3, kind=spark.DoubleType(), onNonFinite="refuse")

    def test_they_go_to_the_dead_letter_table_once(self, sink: Sink) -> None:
        values = [0.5, math.nan, 1.5, -math.inf]
        letters = f"L{sink.number}"
        more = {"onNonFinite": "refuse", "onRefusedRows": "dead-letter", "deadLetterTable": letters}
        for _ in range(2):
            totals = sink.write(values, 3, kind=spark.DoubleType(), **more)
            assert totals.dead_lettered == 2
            POOL.close()
        assert sink.rows() == [0.5, 1.5]
        found = sink.query(
            f"SELECT channel, batch_id, row_number, column_name, reason, row_data FROM {letters} "  # noqa: S608
            "ORDER BY row_number"
        )
        assert [row[:4] for row in found] == [
            (sink.channel, 3, 1, "N"),
            (sink.channel, 3, 3, "N"),
        ]
        assert [json.loads(row[5])["N"] for row in found] == ["NaN", "-inf"]
        assert "NaN" in found[0][4]

    def test_of_the_service_fail_now_and_at_every_replay(self, sink: Sink) -> None:
        """The table was narrowed after the look at it: only the service can tell."""
        sink.query(f"CREATE TABLE {sink.table} (n VARCHAR(100))")
        options = sink.options()
        schema = spark.StructType([spark.StructField("n", spark.StringType())])
        plan = plans_for(options, schema).sink
        sink.query(f"DROP TABLE {sink.table}")
        sink.query(f"CREATE TABLE {sink.table} (n VARCHAR(3))")
        batch = pa.record_batch([pa.array(["a", "too long", "b"])], names=["n"])
        for _ in range(2):
            with pytest.raises(WriteRejectedError, match=r"ROWS_REFUSED.*or before it.*length"):
                write_partition(options, plan, TaskPlace(sink.stream, 0, 0), iter([batch]))
            POOL.close()
        assert sink.rows() == ["a", "b"]

    def test_of_the_service_are_kept_by_it_with_dead_letter(self, sink: Sink) -> None:
        letters = {"onRefusedRows": "dead-letter", "deadLetterTable": f"L{sink.number}"}
        sink.query(f"CREATE TABLE {sink.table} (n VARCHAR(100))")
        options = sink.options(**letters)
        schema = spark.StructType([spark.StructField("n", spark.StringType())])
        plan = plans_for(options, schema).sink
        sink.query(f"DROP TABLE {sink.table}")
        sink.query(f"CREATE TABLE {sink.table} (n VARCHAR(3)) ERROR_LOGGING = TRUE")
        batch = pa.record_batch([pa.array(["a", "too long", "b"])], names=["n"])
        totals = write_partition(options, plan, TaskPlace(sink.stream, 0, 0), iter([batch]))
        assert totals.refused == 1
        assert sink.rows() == ["a", "b"]
        assert len(sink.query(f"SELECT * FROM ERROR_TABLE({sink.table})")) == 1  # noqa: S608


def test_values_of_all_kinds_arrive_as_they_are(sink: Sink) -> None:
    moment = dt.datetime(2024, 2, 29, 23, 59, 59, 123456)
    cases: dict[str, tuple[spark.DataType, list[Any], str, list[Any]]] = {
        "i8": (spark.ByteType(), [-128, 127, None], "i8", [-128, 127, None]),
        "i64": (spark.LongType(), [-(2**63), 2**63 - 1, None], "i64", [-(2**63), 2**63 - 1, None]),
        "dec": (
            spark.DecimalType(38, 10),
            [Decimal("9999999999999999999999999999.9999999999"), Decimal("-0.0000000001"), None],
            "dec::VARCHAR",
            ["9999999999999999999999999999.9999999999", "-0.0000000001", None],
        ),
        "f": (spark.DoubleType(), [math.inf, 5e-324, -0.0], "f", [math.inf, 5e-324, -0.0]),
        "f32": (spark.FloatType(), [0.5, math.nan, None], "f32", [0.5, math.nan, None]),
        "b": (spark.BooleanType(), [True, False, None], "b", [True, False, None]),
        "s": (
            spark.StringType(),
            ['"\\\n\t\u2028😀', "", None],
            "s",
            ['"\\\n\t\u2028😀', "", None],
        ),
        "bin": (spark.BinaryType(), [b"\x00\xff", b"", None], "bin", [b"\x00\xff", b"", None]),
        "d": (
            spark.DateType(),
            [dt.date(1, 1, 1), dt.date(9999, 12, 31), None],
            "d",
            [dt.date(1, 1, 1), dt.date(9999, 12, 31), None],
        ),
        "tn": (
            spark.TimestampNTZType(),
            [moment, None, None],
            "tn::VARCHAR",
            [str(moment), None, None],
        ),
        "tz": (
            spark.TimestampType(),
            [moment.replace(tzinfo=dt.UTC), None, None],
            "tz::VARCHAR",
            [f"{moment}+00", None, None],
        ),
        "a": (
            spark.ArrayType(spark.IntegerType()),
            [[1, None], [], None],
            "a",
            ["[1,null]", "[]", None],
        ),
        "m": (
            spark.MapType(spark.StringType(), spark.DecimalType(38, 3)),
            [[("k", Decimal("123456789012.125"))], [], None],
            "m",
            ['{"k":123456789012.125}', "{}", None],
        ),
    }
    from pyspark.sql.pandas.types import to_arrow_type

    schema = spark.StructType([spark.StructField("id", spark.IntegerType())])
    arrays = [pa.array([0, 1, 2], pa.int32())]
    for name, (kind, values, _, _) in cases.items():
        schema = schema.add(name, kind)
        arrays.append(pa.array(values, to_arrow_type(kind, timezone="UTC")))
    options = sink.options()
    plan = plans_for(options, schema).sink
    batch = pa.record_batch(arrays, names=schema.fieldNames())
    write_partition(options, plan, TaskPlace(sink.stream, 0, 0), iter([batch]))
    selected = ", ".join(expression for _, _, expression, _ in cases.values())
    seen = sink.query(f"SELECT {selected} FROM {sink.table} ORDER BY id")  # noqa: S608
    for column, (name, (_, _, _, wanted)) in enumerate(cases.items()):
        values = [row[column] for row in seen]
        if name in ("a", "m"):
            values = [value and "".join(value.split()) for value in values]
        assert repr(values) == repr(wanted) or values == wanted, name


@pytest.mark.parametrize("name", ['"we ""ird"" name.ü"', '"lower"', '"a/b?c=d%20"', '"名前"'])
def test_any_legal_name_of_a_table_works(sink: Sink, name: str) -> None:
    unique = f'"{sink.number} {name[1:]}'
    sink.write([1, 2], table=unique)
    assert sorted(sink.query(f"SELECT n FROM {unique}")) == [(1,), (2,)]  # noqa: S608


@pytest.mark.parametrize("name", ['we "ird" name.ü', "lower case", "select", "ü", "a.b", "Ab"])
def test_any_legal_name_of_a_column_works(sink: Sink, name: str) -> None:
    schema = spark.StructType([spark.StructField(name, spark.LongType())])
    options = sink.options()
    plan = plans_for(options, schema).sink
    batch = pa.record_batch([pa.array([1, 2])], names=[name])
    write_partition(options, plan, TaskPlace(sink.stream, 0, 0), iter([batch]))
    assert sorted(sink.query(f"SELECT * FROM {sink.table}")) == [(1,), (2,)]  # noqa: S608


def test_a_key_that_is_rotated_under_a_running_stream_is_used(sink: Sink, tmp_path: Path) -> None:
    emulator = sink.emulator
    path = tmp_path / "key.p8"
    first, first_public = key_pair()
    second, second_public = key_pair()
    user = f"USER{sink.number}"
    emulator.set_public_key(user, first_public)
    path.write_bytes(first)
    more = {"user": user, "privateKeyFile": str(path)}
    sink.write([1], 0, **more)
    # As one rotates keys: the second is registered, the file is replaced, the first goes.
    emulator.set_public_key(user, second_public, slot="RSA_PUBLIC_KEY_2")
    path.write_bytes(second)
    emulator.set_public_key(user, None)
    sink.write([2], 1, **more)
    assert sink.rows() == [1, 2]


class TestAccess:
    def test_a_wrong_key_is_named_at_once(self, sink: Sink, tmp_path: Path) -> None:
        path = tmp_path / "key.p8"
        path.write_bytes(key_pair()[0])
        with pytest.raises(AccessError, match="RSA_PUBLIC_KEY"):
            sink.write([1], privateKeyFile=str(path))

    def test_a_missing_table_is_named_with_its_remedy(self, sink: Sink) -> None:
        with pytest.raises(ResourceError, match=r"does not exist.*createTable"):
            sink.write([1], createTable="false")

    def test_a_missing_database_is_named(self, sink: Sink) -> None:
        with pytest.raises(ResourceError, match="NOWHERE"):
            sink.write([1], database="nowhere", createTable="false")

    def test_a_host_that_is_not_there_is_told_in_time(self, sink: Sink) -> None:
        with pytest.raises(ConnectError, match="'host' and 'port'"):
            sink.write([1], port="1", connectTimeout="2s")

    def test_a_table_dropped_under_the_query_is_told(self, sink: Sink) -> None:
        sink.write([1], 0)
        options = sink.options()
        schema = spark.StructType([spark.StructField("n", spark.LongType())])
        plan = plans_for(options, schema).sink
        POOL.close()
        sink.query(f"DROP TABLE {sink.table}")
        preflight._CHECKED.clear()
        batch = pa.record_batch([pa.array([1])], names=["n"])
        with pytest.raises(ResourceError, match=r"TABLE_MISSING.*dropped"):
            write_partition(options, plan, TaskPlace(sink.stream, 1, 0), iter([batch]))


def test_every_error_code_of_the_sdk_has_an_answer() -> None:
    from snowflake.ingest.streaming.streaming_ingest_error import StreamingIngestErrorCode

    assert {code.value for code in StreamingIngestErrorCode} == set(CURES)
