"""Whatever is sent, the answer is a refusal, never a mistake of the emulator."""

from __future__ import annotations

import http.client
import random
import ssl
import string
from urllib.parse import quote

import pytest

from tests.support.snowflake import BareClient, Lake


@pytest.fixture
def client(lake: Lake) -> BareClient:
    return lake.bare(lake.table("ID NUMBER(38,0), V VARIANT"))


BODIES = [
    b"{",
    b"[1]",
    b"5",
    b'"x"',
    b"null",
    b'{"ID": 1}{"ID": 2}',
    b'{"ID": 1}\n{"ID":',
    b'{"ID": 1, "ID": 2}',
    b'{"ID": "\xff"}',
    b"\x00\x01",
    b'{"V": ' + b"[" * 5000 + b"]" * 5000 + b"}",
    b'{"' + b"k" * 100_000 + b'": 1}',
]


@pytest.mark.parametrize("body", BODIES, ids=range(len(BODIES)))
def test_lines_that_are_no_rows(client: BareClient, lake: Lake, body: bytes) -> None:
    token = client.open()[1]["next_continuation_token"]
    status, _ = client.append(token, body)
    # Deep nesting and long keys are JSON; the rest is not.
    assert status in ((200, 400) if body in BODIES[-2:] else (400,))


def test_nothing_is_committed_of_a_body_that_is_refused(client: BareClient, lake: Lake) -> None:
    token = client.open("refused")[1]["next_continuation_token"]
    assert client.append(token, b'{"ID": 1}\n{"ID":', channel="refused")[0] == 400
    assert lake.status("refused")["last_committed_offset_token"] is None
    assert client.append(token, b'{"ID": 1}', channel="refused")[0] == 200
    assert lake.status("refused")["rows_inserted"] == 1


@pytest.mark.parametrize("encoding", ["gzip", "zstd", "br", "nonsense"])
def test_a_body_that_is_not_as_it_says(client: BareClient, encoding: str) -> None:
    token = client.open()[1]["next_continuation_token"]
    assert client.append(token, b'{"ID": 1}', headers={"Content-Encoding": encoding})[0] == 400


@pytest.mark.parametrize("body", [b"{", b"[]", b"\xff", b'{"channel_names": 5}', b'{"x": 1}'])
def test_requests_that_are_no_json(client: BareClient, body: bytes) -> None:
    path = f"/v2/streaming/{client.pipe}"
    assert client.send("POST", f"{path}:bulk-channel-status", body)[0] == 400
    if not body.startswith(b'{"'):
        assert client.send("PUT", f"{path}/channels/C", body)[0] == 400


def test_paths_by_chance(client: BareClient) -> None:
    chance = random.Random(5)
    parts = [*client.pipe.split("/"), "v2", "streaming", "data", "channels", "rows", "", "%", "%ff"]
    for _ in range(150):
        path = "/" + "/".join(chance.choices(parts, k=chance.randint(0, 12)))
        method = chance.choice(["GET", "POST", "PUT", "DELETE", "PATCH"])
        status, _ = client.send(method, path + chance.choice(["", "?a", "?continuationToken=%00"]))
        assert 400 <= status < 500, (method, path)


def test_names_by_chance(client: BareClient) -> None:
    chance = random.Random(6)
    for _ in range(60):
        name = quote("".join(chance.choices(string.printable + "\u96ea'\"", k=8)), safe="")
        path = f"/v2/streaming/databases/{name}/schemas/{name}/pipes/{name}:pipe-info"
        assert client.send("POST", path)[0] == 404


def test_sql_endpoints_by_chance(client: BareClient) -> None:
    for path in ("/session/v1/login-request", "/queries/v1/query-request", "/session"):
        for body in (b"", b"{", b"[]", b"5", b"\xff", b'{"data": 5}', b'{"data": {"TOKEN": {}}}'):
            status, answer = client.send("POST", path, body)
            assert status in (200, 400, 401), (path, body)
            assert answer["success"] is False


def test_control_requests_by_chance(client: BareClient) -> None:
    for name in ("inject", "set_key", "run_task", "nonsense"):
        for body in (b"", b"{", b"[]", b"{}", b'{"kind": 5}', b'{"user": 1, "slot": 2, "key": 3}'):
            assert 400 <= client.send("POST", f"/penstock-emulator/{name}", body)[0] < 500


def test_statements_by_chance(lake: Lake) -> None:
    from snowflake.connector.errors import ProgrammingError

    chance = random.Random(7)
    words = "SELECT CREATE TABLE TASK STREAM ALTER USER DROP FROM ON AS BEGIN END ; ' \" ( ) * = ,"
    more = (
        "T1 x 1 'a' MERGE INTO USING WHEN SHOW TASKS DESCRIBE SYSTEM$STREAM_HAS_DATA('x') :N := IF"
    )
    known = [*words.split(), *more.split()]
    with lake.emulator.connect() as connection, connection.cursor() as cursor:
        for _ in range(150):
            statement = " ".join(chance.choices(known, k=chance.randint(1, 9)))
            try:
                cursor.execute(statement)
            except ProgrammingError as exc:
                assert "emulator error" not in str(exc), statement  # noqa: PT017 - either is right


def test_bytes_that_are_no_request(lake: Lake) -> None:
    context = ssl.create_default_context(cafile=str(lake.emulator.ca_file))
    connection = http.client.HTTPSConnection(
        lake.emulator.host, lake.emulator.port, context=context, timeout=30
    )
    connection.connect()
    connection.sock.sendall(b"\x00nonsense\r\n\r\n")
    assert b"400" in connection.sock.recv(100)
    connection.close()
    assert lake.emulator.pid() > 0
