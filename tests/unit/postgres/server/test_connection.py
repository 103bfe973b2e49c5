"""Connections: what libpq would do, done on the driver; and what goes wrong, told."""

# The passwords are the tests' own.
# ruff: noqa: S105, S106

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg.conninfo import conninfo_to_dict

from penstock.errors import AccessError, ConnectError, OptionError, PenstockError, ResourceError
from penstock.postgres.connection import (
    ConnectionSettings,
    connect_arrow,
    connect_control,
    connect_replication,
    session_options,
)
from penstock.postgres.errors import is_transient, translated
from penstock.testing.postgres import PostgresServer
from tests.unit.postgres.server.conftest import Place

PASSWORD = "p@ss/w:rd?#%"
CONNECTORS = [connect_control, connect_replication, connect_arrow]


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("PG")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))


def test_options_win_over_the_url_and_the_url_over_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PGUSER", "from_environment")
    monkeypatch.setenv("PGSSLMODE", "disable")
    monkeypatch.setenv("PGPASSWORD", "from_environment")
    settings = ConnectionSettings.parse("postgresql://u@h:1/d?sslmode=require", password="option")
    assert (settings.user, settings.get("sslmode")) == ("u", "require")
    assert dict(settings.secrets)["password"] == "option"
    plain = ConnectionSettings.parse("postgresql://h/d")
    assert (plain.user, plain.get("sslmode")) == ("from_environment", "disable")
    assert dict(plain.secrets)["password"] == "from_environment"


def test_a_service_of_the_environment_is_followed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "services").write_text("[shop]\nhost=db.example\nuser=reader\n")
    monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))
    monkeypatch.setenv("PGSERVICE", "shop")
    settings = ConnectionSettings.parse("postgresql:///d")
    assert (settings.get("host"), settings.user) == ("db.example", "reader")
    assert "service" not in conninfo_to_dict(settings.conninfo())


def test_a_password_is_in_no_text_of_the_settings() -> None:
    settings = ConnectionSettings.parse(
        "postgresql://u@h/d?sslpassword=of-the-key", password=PASSWORD
    )
    assert PASSWORD not in repr(settings) + str(settings) + settings.server
    assert "of-the-key" not in repr(settings)
    assert pickle.loads(pickle.dumps(settings)) == settings  # noqa: S301 - our own
    assert PASSWORD in conninfo_to_dict(settings.conninfo())["password"]


@pytest.mark.parametrize(
    "url",
    [
        "jdbc:postgresql://h/d",
        "host=h dbname=d password=TOPSECRET",
        "postgresql://u:TOPSECRET%zz@h/d",
        "postgresql://u:TOPSECRET@h:TOPSECRET/d?nonsense=TOPSECRET",
        "postgresql://u:TOPSECRET@h/d?replication=database",
        "postgresql://u:TOPSECRET@h/d?service=x",
        "postgresql://u:TOPSECRET@h/",
    ],
)
def test_a_url_that_cannot_be_used_is_told_without_its_password(url: str) -> None:
    with pytest.raises(OptionError, match="URL_INVALID") as caught:
        ConnectionSettings.parse(url)
    assert "TOPSECRET" not in str(caught.value) + repr(caught.value.__context__)


@given(
    st.dictionaries(
        st.sampled_from(["user", "dbname", "application_name", "options"]),
        st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1),
    )
)
def test_any_value_reads_back_from_the_connection_string(values: dict[str, str]) -> None:
    settings = ConnectionSettings(tuple(values.items()))
    parsed = conninfo_to_dict(settings.conninfo())
    options = parsed.pop("options")
    assert parsed == {key: value for key, value in values.items() if key != "options"}
    assert options.startswith(values.get("options", "").lstrip())


def test_session_settings_may_have_spaces_and_backslashes(place: Place) -> None:
    session = {"application_name": "a b\\c 'd'", "work_mem": "7MB"}
    assert "\\ " in session_options(session)
    with connect_control(place.settings, session) as connection:
        row = connection.execute(
            "SELECT current_setting('work_mem'), current_setting('DateStyle')"
        ).fetchone()
        assert row == ("7MB", "ISO, MDY")


@pytest.mark.parametrize("connector", CONNECTORS)
def test_a_role_s_own_settings_do_not_change_the_session(place: Place, connector: Any) -> None:
    place.execute(
        f"ALTER DATABASE {place.database} SET DateStyle = 'German'",
        f"ALTER DATABASE {place.database} SET statement_timeout = '1h'",
        f"ALTER DATABASE {place.database} SET search_path = 'elsewhere'",
    )
    connection = connector(place.settings)
    with connection, connection.cursor() as cursor:
        for name, value in (
            ("DateStyle", "ISO, MDY"),
            ("statement_timeout", "0"),
            ("search_path", ""),
            ("application_name", "penstock"),
            ("row_security", "off"),
        ):
            cursor.execute(f"SELECT current_setting('{name}')")
            assert cursor.fetchone() == (value,)


def test_an_arrow_connection_is_read_only(place: Place) -> None:
    place.execute("CREATE TABLE public.t (a int)")
    connection = connect_arrow(place.settings)
    with (
        connection,
        connection.cursor() as cursor,
        pytest.raises(ResourceError, match="READ_ONLY"),
        translated("Table 'public.t'"),
    ):
        cursor.execute("INSERT INTO public.t VALUES (1)")


def test_a_replication_connection_takes_replication_commands(place: Place) -> None:
    with connect_replication(place.settings) as connection:
        row = connection.execute("IDENTIFY_SYSTEM").fetchone()
        assert row is not None
        assert row[3] == place.database


def broken(server: PostgresServer, kind: str) -> ConnectionSettings:
    url = server.url()
    known: dict[str, tuple[str, dict[str, str]]] = {
        "password": (url, {"password": "WRONGSECRET"}),
        "no password": (server.url(user="postgres"), {}),
        "role": (url, {"user": "nobody_here"}),
        "database": (server.url("no_such_database"), {}),
        "port": (url.replace(f":{server.port}", ":1"), {}),
        "host": (url.replace("127.0.0.1", "no-such-host.invalid"), {}),
        "tls": (url, {"sslmode": "require"}),
    }
    address, options = known[kind]
    return ConnectionSettings.parse(address, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("connector", CONNECTORS)
@pytest.mark.parametrize(
    ("kind", "error", "code"),
    [
        ("password", AccessError, "PASSWORD"),
        ("no password", AccessError, "PASSWORD"),
        ("role", AccessError, "PASSWORD"),
        ("database", ResourceError, "DATABASE_MISSING"),
        ("port", ConnectError, "CONNECTION_REFUSED"),
        ("host", ConnectError, "HOST_UNKNOWN"),
        ("tls", ConnectError, "TLS"),
    ],
)
def test_a_failed_connection_is_told_with_its_reason(
    postgres: PostgresServer, connector: Any, kind: str, error: type[PenstockError], code: str
) -> None:
    settings = broken(postgres, kind)
    with pytest.raises(error) as caught:
        connector(settings)
    assert caught.value.code == code
    assert settings.server in str(caught.value)
    assert "WRONGSECRET" not in str(caught.value) + repr(caught.value.__cause__)
    assert postgres.password not in str(caught.value)
    assert is_transient(caught.value) == (code == "CONNECTION_REFUSED")


# Connections for replication do not count against the limit of a role.
@pytest.mark.parametrize("connector", [connect_control, connect_arrow])
def test_a_full_server_passes_by_itself(place: Place, role: Any, connector: Any) -> None:
    settings = role("REPLICATION CONNECTION LIMIT 0")
    with pytest.raises(ConnectError) as caught:
        connector(settings)
    assert caught.value.code == "TOO_MANY_CONNECTIONS"
    assert is_transient(caught.value)


def test_a_role_without_replication_is_told_the_grant(place: Place, role: Any) -> None:
    settings = role()
    with pytest.raises(AccessError, match="REPLICATION"):
        connect_replication(settings)


@pytest.mark.parametrize("connector", CONNECTORS)
def test_a_server_that_is_stopped_passes_by_itself(
    postgres_16: PostgresServer, connector: Any
) -> None:
    settings = ConnectionSettings.parse(postgres_16.url())
    postgres_16.stop()
    try:
        with pytest.raises(ConnectError) as caught:
            connector(settings)
        assert is_transient(caught.value)
    finally:
        postgres_16.start()
    connector(settings).close()


PASSFILE = r"""# a comment
other:5432:*:*:no
127.0.0.1:{port}:a\:b:postgres:colon
127.0.0.1:{port}:*:postgres:{password}
*:*:*:*:last
"""


def test_a_password_file_is_read_as_libpq_does(
    place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "passwords"
    escaped = place.server.password.replace(":", "\\:")
    file.write_text(PASSFILE.format(port=place.server.port, password=escaped))
    file.chmod(0o600)
    url = f"postgresql://postgres@127.0.0.1:{place.server.port}/{place.database}"
    monkeypatch.setenv("PGPASSFILE", str(file))

    with psycopg.connect(url) as libpq:
        ours = ConnectionSettings.parse(url)
        assert dict(ours.secrets)["password"] == libpq.info.password
    connect_arrow(ours).close()
    other = ConnectionSettings.parse(url.replace(place.database, "a:b"))
    assert dict(other.secrets)["password"] == "colon"
    assert dict(ConnectionSettings.parse("postgresql://x@y/z").secrets)["password"] == "last"


def test_a_password_file_that_others_can_read_is_not_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / ".pgpass"
    file.write_text("*:*:*:*:open")
    file.chmod(0o644)
    assert ConnectionSettings.parse("postgresql://u@h/d").secrets == ()
    assert "chmod 0600" in caplog.text
    file.chmod(0o600)
    assert ConnectionSettings.parse("postgresql://u@h/d").secrets == (("password", "open"),)


def test_hosts_with_different_passwords_are_refused(tmp_path: Path) -> None:
    file = tmp_path / ".pgpass"
    file.write_text("a:*:*:*:one\nb:*:*:*:two\nc:*:*:*:one\n")
    file.chmod(0o600)
    same = ConnectionSettings.parse("postgresql://u@a:1,c:2/d")
    assert same.secrets == (("password", "one"),)
    with pytest.raises(OptionError, match="different passwords"):
        ConnectionSettings.parse("postgresql://u@a,b/d")


def test_a_connection_has_a_time_limit_and_notices_a_dead_peer() -> None:
    parsed = conninfo_to_dict(
        ConnectionSettings.parse("postgresql://h/d", connect_timeout_seconds=0.2).conninfo()
    )
    assert parsed["connect_timeout"] == "1"
    assert parsed["keepalives_idle"] == "30"
    default = ConnectionSettings.parse("postgresql://h/d?keepalives_idle=7")
    assert (default.get("connect_timeout"), default.get("keepalives_idle")) == ("10", "7")
