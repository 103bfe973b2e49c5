"""The password file of libpq (`PGPASSFILE`, `~/.pgpass`); runs on the driver.

Read here, because executors have no such file: the driver looks the password up and sends it.
"""

from __future__ import annotations

import logging
import re
import stat
from pathlib import Path

_log = logging.getLogger(__name__)

# A field ends at a colon that no backslash escapes.
_FIELD = re.compile(r"((?:\\.|[^:\\])*)(?::|$)")


def look_up(path: Path, host: str, port: str, database: str, user: str) -> str | None:
    """Find the password in a password file, by libpq's rules: the first line that fits."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return None
    if not stat.S_ISREG(mode):
        return None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        # As libpq: a file that others can read is not used.
        _log.warning("password file %s is not used: others may read it; chmod 0600 it", path)
        return None
    wanted = (host, port, database, user)
    for line in path.read_text(errors="replace").splitlines():
        password = _password_of(line, wanted)
        if password is not None:
            return password
    return None


def _password_of(line: str, wanted: tuple[str, ...]) -> str | None:
    if line.startswith("#"):
        return None
    position = 0
    for value in wanted:
        match = _FIELD.match(line, position)
        if match is None or not line[position:]:
            return None
        field = match.group(1)
        if field != "*" and _unescape(field) != value:
            return None
        position = match.end()
    return _unescape(line[position:])


def _unescape(field: str) -> str:
    return re.sub(r"\\(.)", r"\1", field)
