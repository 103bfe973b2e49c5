"""What `import penstock` gives, and what it must not bring with it."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import penstock
from penstock import errors

SDKS = ("fastavro", "google", "grpc", "numpy", "ptars", "pyarrow", "pyspark")


def modules_after(statement: str) -> set[str]:
    """Run a statement in a fresh interpreter; give the top-level modules it has then."""
    code = f"import sys\n{statement}\nprint(*{{name.split('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_every_public_name_is_there() -> None:
    assert [name for name in penstock.__all__ if not hasattr(penstock, name)] == []
    assert len(set(penstock.__all__)) == len(penstock.__all__)
    assert penstock.__all__ == sorted(penstock.__all__)


def test_every_error_is_public() -> None:
    tree = {
        name
        for name, value in inspect.getmembers(errors, inspect.isclass)
        if issubclass(value, errors.PenstockError)
    }
    assert tree <= set(penstock.__all__)


def test_nothing_else_is_public() -> None:
    public = {
        name
        for name, value in vars(penstock).items()
        if not name.startswith("_") and not inspect.ismodule(value)
    }
    assert public == set(penstock.__all__) - {"__version__"}


@pytest.mark.parametrize(
    "module",
    [
        "penstock",
        "penstock.cli.main",
        "penstock.errors",
        "penstock.options",
        "penstock.pubsub.options",
        "penstock.retry",
    ],
)
def test_import_brings_no_sdk(module: str) -> None:
    assert modules_after(f"import {module}") & set(SDKS) == set()


def test_pytest_plugin_is_light() -> None:
    """Every pytest run on a machine with Penstock loads it."""
    assert modules_after("import penstock.pytest_plugin") & (set(SDKS) - {"pyspark"}) == set()
