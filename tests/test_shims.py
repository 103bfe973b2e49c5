"""The modules that Spark imports by itself: they must never fail, whatever is not installed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src"
SHIMS = sorted(path.stem for path in SOURCE.glob("pyspark_*.py"))

# A fresh interpreter, because the test's own has imported everything already.
PROGRAM = """
import importlib, json, sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in sys.argv[2].split(","):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Block())
module = importlib.import_module(sys.argv[1])
from pyspark.sql.datasource import DataSource
print(json.dumps({
    "name": module.DefaultSource.name(),
    "is_source": issubclass(module.DefaultSource, DataSource),
    "all": module.__all__,
    "heavy": sorted({name.split(".")[0] for name in sys.modules} & {"grpc", "ptars", "pyarrow"}),
}))
"""


def imported(shim: str, blocked: str) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, shim, blocked],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PYTHONPATH": str(SOURCE), "PATH": ""},
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


def test_there_is_a_shim() -> None:
    assert "pyspark_penstock_pubsub" in SHIMS


@pytest.mark.parametrize("shim", SHIMS)
def test_a_shim_imports_without_any_sdk(shim: str) -> None:
    answer = imported(shim, "google,grpc,ptars,pyarrow,psycopg,adbc_driver_postgresql,snowflake")
    assert answer["is_source"]
    assert answer["all"] == ["DefaultSource"]


@pytest.mark.parametrize("shim", SHIMS)
def test_a_shim_imports_no_sdk_where_there_is_one(shim: str) -> None:
    assert imported(shim, "nothing")["heavy"] == []


def test_each_shim_brings_a_format_of_its_own() -> None:
    names = [imported(shim, "nothing")["name"] for shim in SHIMS]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("shim", SHIMS)
def test_a_shim_is_nothing_but_a_shim(shim: str) -> None:
    lines = (SOURCE / f"{shim}.py").read_text().splitlines()
    assert len(lines) <= 12
