"""Finding a Java: fake executables stand in for the vendors' many ways to answer."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from penstock._core import java
from penstock.errors import MissingExtraError, PenstockError


def write_java(
    home: Path, version: str, *, tells_home: Path | None = None, status: int = 0
) -> Path:
    """Make a directory that looks like a JAVA_HOME; its java prints what a real one would."""
    lines = [f'openjdk version "{version}" 2025-01-01', "OpenJDK Runtime Environment"]
    if tells_home:
        lines.insert(0, f"    java.home = {tells_home}")
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    printed = "\n".join(f"echo {shlex.quote(line)} >&2" for line in lines)
    executable.write_text(f"#!/bin/sh\n{printed}\nexit {status}\n")
    executable.chmod(0o755)
    return home


@pytest.fixture(autouse=True)
def bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without Java: no JAVA_HOME, an empty PATH, no wheel, a cache of its own."""
    (tmp_path / "bin").mkdir()
    # Set first, so that it is put back also where it was not set and `ensure_java` sets it.
    monkeypatch.setenv("JAVA_HOME", "")
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(java, "_wheel_runtime", lambda: None)
    return tmp_path


def put_on_path(machine: Path, home: Path) -> None:
    (machine / "bin" / "java").symlink_to(home / "bin" / "java")


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('openjdk version "25.0.2" 2026-01-20 LTS', 25),
        ('java version "1.8.0_402"', 8),
        ('java version "11.0.2" 2019-01-15 LTS', 11),
        ('openjdk version "26-ea" 2026-03-17', 26),
        ('openjdk version "24-internal-adhoc.me"', 24),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "17.0.1"', 17),
        ('NOTE: Picked up JDK_JAVA_OPTIONS: "-Dversion 8"\njava version "19.0.1"', 19),
        ('openjdk version "unknown"', None),
        ("The operation couldn't be completed. Unable to locate a Java Runtime.", None),
        ("", None),
    ],
)
def test_version_is_read_from_every_vendors_text(text: str, version: int | None) -> None:
    assert java.parse_version(text) == version


def test_java_home_wins_over_path(bare_machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = write_java(bare_machine / "jdk21", "21.0.4")
    put_on_path(bare_machine, write_java(bare_machine / "jdk25", "25"))
    monkeypatch.setenv("JAVA_HOME", str(chosen))
    assert java.usable_java_home() == chosen


def test_java_home_that_is_too_old_gives_way_to_path(
    bare_machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(write_java(bare_machine / "jdk8", "1.8.0_402")))
    modern = write_java(bare_machine / "jdk17", "17.0.15")
    put_on_path(bare_machine, modern)
    assert java.ensure_java() == modern
    assert os.environ["JAVA_HOME"] == str(modern)


def test_java_home_that_does_not_exist_gives_way_to_path(
    bare_machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(bare_machine / "gone"))
    modern = write_java(bare_machine / "jdk17", "17.0.15")
    put_on_path(bare_machine, modern)
    assert java.usable_java_home() == modern


def test_home_behind_a_shim_is_the_one_java_tells(bare_machine: Path) -> None:
    real = bare_machine / "real-home"
    put_on_path(bare_machine, write_java(bare_machine / "shims", "21.0.1", tells_home=real))
    assert java.usable_java_home() == real


def test_java_that_fails_to_start_is_passed_over(bare_machine: Path) -> None:
    put_on_path(bare_machine, write_java(bare_machine / "stub", "21.0.1", status=1))
    assert java.usable_java_home() is None


def test_file_that_is_no_program_is_passed_over(
    bare_machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executable = bare_machine / "home" / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_bytes(b"\x00\x01")
    executable.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(bare_machine / "home"))
    assert java.usable_java_home() is None


def test_java_that_never_answers_is_passed_over(
    bare_machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = write_java(bare_machine / "hung", "21")
    (home / "bin" / "java").write_text("#!/bin/sh\nexec /bin/sleep 60\n")
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setattr(java, "_PROBE_SECONDS", 0.1)
    assert java.usable_java_home() is None


def test_no_java_at_all_is_an_error_with_the_command_that_helps(bare_machine: Path) -> None:
    with pytest.raises(MissingExtraError) as caught:
        java.ensure_java()
    assert isinstance(caught.value, PenstockError)
    assert caught.value.code == "JAVA_MISSING"
    assert "pip install 'penstock[java]'" in str(caught.value)
    assert "JAVA_HOME" not in os.environ


def test_error_names_each_java_that_is_too_old(
    bare_machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = write_java(bare_machine / "jdk8", "1.8.0_402")
    monkeypatch.setenv("JAVA_HOME", str(old))
    put_on_path(bare_machine, write_java(bare_machine / "jdk11", "11.0.2"))
    with pytest.raises(MissingExtraError, match=r"is version 8, java on the PATH .* version 11"):
        java.ensure_java()
    assert os.environ["JAVA_HOME"] == str(old)


@pytest.fixture
def wheel(bare_machine: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A runtime as the wheel has it, in a directory whose name needs quoting."""
    runtime = write_java(bare_machine / "it's a wheel", "25.0.2")
    monkeypatch.setattr(java, "_wheel_runtime", lambda: runtime)
    return runtime


def test_wheel_is_the_last_resort(
    bare_machine: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = java.usable_java_home()
    assert found is not None
    assert found.is_relative_to(bare_machine / "cache")
    installed = write_java(bare_machine / "jdk17", "17.0.15")
    put_on_path(bare_machine, installed)
    assert java.usable_java_home() == installed


def test_launcher_drops_only_the_module_that_the_wheel_lacks(wheel: Path) -> None:
    (wheel / "bin" / "java").write_text("#!/bin/sh\nprintf '<%s>' \"$@\"\n")
    home = java._launcher_home(wheel)
    printed = subprocess.run(
        [home / "bin" / "java", "-cp", "a b", "--add-modules=jdk.incubator.vector", "", "$x", "*"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert printed == "<-cp><a b><><$x><*>"


def test_launcher_is_written_once_and_repaired_if_changed(wheel: Path) -> None:
    launcher = java._launcher_home(wheel) / "bin" / "java"
    first = launcher.stat()
    assert java._launcher_home(wheel) / "bin" / "java" == launcher
    assert launcher.stat().st_ino == first.st_ino
    launcher.write_text("something else")
    java._launcher_home(wheel)
    assert str(wheel).split("'")[0] in launcher.read_text()
    assert [path.name for path in launcher.parent.iterdir()] == ["java"]


def test_cache_that_cannot_be_written_is_no_obstacle(
    bare_machine: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (bare_machine / "cache").write_text("a file where the directory should be")
    monkeypatch.setattr("tempfile.tempdir", str(bare_machine))
    home = java.ensure_java()
    assert os.access(home / "bin" / "java", os.X_OK)
    assert java.usable_java_home() == home
