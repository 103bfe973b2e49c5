"""The wheel: pure, complete, with nothing in it that does not work yet."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path

import pytest

import penstock

ROOT = Path(__file__).resolve().parent.parent

# What the core may need; every SDK belongs to an extra.
CORE = {"pyspark", "rich", "typer"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel as a release does, with the hatchling of this environment."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index"]
    done = subprocess.run(
        [*command, "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return HeaderParser().parsestr(archive.read(name).decode())


def test_wheel_is_pure(wheel: Path, names: list[str]) -> None:
    assert wheel.name == f"penstock-{penstock.__version__}-py3-none-any.whl"
    assert not [name for name in names if name.endswith((".so", ".dylib", ".pyd", ".jar"))]


def test_wheel_registers_only_formats_that_exist(names: list[str]) -> None:
    shims = [name for name in names if name.startswith("pyspark_")]
    assert shims == [
        "pyspark_penstock_postgres_cdc.py",
        "pyspark_penstock_pubsub.py",
        "pyspark_penstock_snowpipe.py",
    ]


def test_wheel_tells_type_checkers(names: list[str]) -> None:
    assert "penstock/py.typed" in names


def test_wheel_has_every_module_and_nothing_else(names: list[str]) -> None:
    source = ROOT / "src"
    modules = {
        str(path.relative_to(source))
        for path in source.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc"
    }
    assert {name for name in names if ".dist-info/" not in name} == modules


def test_licence_and_python_version_are_stated(metadata: Message, names: list[str]) -> None:
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    assert [name for name in names if name.endswith(".dist-info/licenses/LICENSE")]


def test_core_installs_no_sdk(metadata: Message) -> None:
    required = metadata.get_all("Requires-Dist") or []
    core = {
        re.split(r"[^A-Za-z0-9_.-]", line, maxsplit=1)[0].lower()
        for line in required
        if "extra ==" not in line
    }
    assert core == CORE


def test_extras_are_the_documented_ones(metadata: Message) -> None:
    extras = set(metadata.get_all("Provides-Extra") or [])
    assert extras == {
        "all",
        "emulator",
        "java",
        "postgres",
        "postgres-server",
        "pubsub",
        "snowflake",
        "snowflake-emulator",
        "spool",
    }
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [name for name in sorted(extras) if f"penstock[{name}]" not in readme] == []


def test_command_and_fixture_are_registered(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("entry_points.txt")]
        text = archive.read(name).decode()
    assert "penstock = penstock.cli.main:main" in text
    assert "penstock = penstock.pytest_plugin" in text


def test_constraints_name_versions_and_nothing_of_a_machine() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="ascii").splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert [
        line for line in pins if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", line)
    ] == []
