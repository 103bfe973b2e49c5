"""Load by pgbench: its own tables, and some with all that makes change streams hard.

Each transaction of the scripts changes several tables and keeps one order of rows, so that clients
wait for each other and do not deadlock.
"""

from __future__ import annotations

import os
import re
import subprocess
import threading
from pathlib import Path

from penstock.testing.postgres import PostgresServer

# Table -> its key.
TABLES: dict[str, tuple[str, ...]] = {
    "pgbench_accounts": ("aid",),
    "pgbench_tellers": ("tid",),
    # No key: rows are only added.
    "pgbench_history": (),
    "orders": ("id",),
    "items": ("order_id", "line"),
    "audit": ("id",),
}

_TABLES = """
CREATE SEQUENCE keys;
CREATE TABLE orders (id int8 PRIMARY KEY, customer int4, amount numeric(12,2), rate float8,
                     is_paid bool, placed timestamptz, day date, token uuid, note text);
ALTER TABLE orders ALTER note SET STORAGE EXTERNAL;
CREATE TABLE items (order_id int8, line int2, sku text, quantity int4, price numeric,
                    PRIMARY KEY (order_id, line));
ALTER TABLE items REPLICA IDENTITY FULL;
CREATE TABLE audit (id int8 PRIMARY KEY, what text);
INSERT INTO orders (id, note) SELECT g, CASE WHEN g % 3 = 0 THEN '' END
  FROM generate_series(1, 2000) g;
"""
# A note is large (stored apart, and not sent when it did not change), empty, or null.
_ORDERS = r"""
\set one random(1, 3000)
\set two random(1, 3000)
\set low least(:one, :two)
\set high greatest(:one, :two) + 1
\set chance random(1, 20)
BEGIN;
INSERT INTO orders VALUES (:low, :high, :chance * 1.25, random(), :chance > 10, now(),
  current_date - :chance, gen_random_uuid(),
  CASE WHEN :chance > 12 THEN (SELECT string_agg(md5((:low + g)::text), '')
       FROM generate_series(1, 90) g) WHEN :chance > 6 THEN '' END)
  ON CONFLICT (id) DO UPDATE SET amount = orders.amount + 0.01, placed = now();
INSERT INTO items SELECT :low, n, 'sku ' || n, n, n / 7.0 FROM generate_series(1, 3) n
  ON CONFLICT DO NOTHING;
UPDATE items SET quantity = quantity + 1, sku = sku || ',"' WHERE order_id = :low;
SAVEPOINT tried;
DELETE FROM items WHERE order_id = :low;
UPDATE orders SET customer = -1 WHERE id = :low;
ROLLBACK TO SAVEPOINT tried;
\if :chance <= 4
UPDATE items SET line = line + 10 WHERE order_id = :high AND line < 10
  AND NOT EXISTS (SELECT FROM items i WHERE i.order_id = :high AND i.line >= 10);
\elif :chance <= 8
UPDATE orders SET id = -nextval('keys') WHERE id = :high;
DELETE FROM items WHERE order_id = :high;
\elif :chance <= 12
DELETE FROM orders WHERE id = :high;
INSERT INTO orders (id, customer) VALUES (:high, 1) ON CONFLICT (id) DO UPDATE SET customer = 1;
UPDATE orders SET customer = 2 WHERE id = :high;
\else
UPDATE orders SET rate = rate * 1.5, is_paid = NOT is_paid WHERE id = :high;
\endif
COMMIT;
"""
_AUDIT = "INSERT INTO audit SELECT nextval('keys'), 'it''s ' || g FROM generate_series(1, 3) g;\n"
_TRUNCATE = "TRUNCATE audit;\n"
_PROCESSED = re.compile(r"actually processed: (\d+)")
# A load ends with its current round.
_ROUND_SECONDS = 3


def prepare_load(server: PostgresServer, database: str, folder: Path, scale: int = 1) -> list[str]:
    """Make and fill the tables; gives pgbench's arguments for the load on them."""
    _pgbench(server, database, "--initialize", "--quiet", f"--scale={scale}")
    server.execute(_TABLES, database)
    arguments = ["--builtin=tpcb-like@60"]
    for name, text, weight in (
        ("orders", _ORDERS, 100),
        ("audit", _AUDIT, 40),
        ("truncate", _TRUNCATE, 1),
    ):
        path = folder / f"{name}.sql"
        path.write_text(text)
        arguments.append(f"--file={path}@{weight}")
    return arguments


def _pgbench(server: PostgresServer, database: str, *arguments: str) -> str:
    environment = {"PGPASSWORD": server.password, "PGUSER": server.user, "PGHOST": server.host}
    done = subprocess.run(
        [str(server.bin("pgbench")), "--no-vacuum", *arguments, database],
        env={**os.environ, **environment, "PGPORT": str(server.port)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


class Load:
    """pgbench, round after round, until the `with` block ends."""

    def __init__(
        self, server: PostgresServer, database: str, arguments: list[str], rate: int
    ) -> None:
        self._server = server
        self._database = database
        pace = [f"--time={_ROUND_SECONDS}", f"--rate={rate}", "--client=3", "--max-tries=10"]
        self._arguments = [*pace, *arguments]
        self._ended = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._repeat, name="pgbench")
        self.transactions = 0

    def _repeat(self) -> None:
        try:
            while not self._ended.is_set():
                text = _pgbench(self._server, self._database, *self._arguments)
                found = _PROCESSED.search(text)
                assert found is not None
                self.transactions += int(found[1])
        except BaseException as exc:
            self._error = exc

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: object, at: object) -> None:
        self._ended.set()
        self._thread.join()
        if error is None and self._error is not None:
            raise self._error
