"""Blocks of Snowflake Scripting, taken apart."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from snowflake.connector.errors import ProgrammingError

from penstock.emulator.snowflake.blocks import Assign, Block, If, Raise, Sql, is_block, parse_body


@pytest.mark.parametrize("text", ["BEGIN", "BEGIN;", "begin transaction", "BEGIN WORK", "SELECT 1"])
def test_a_transaction_is_no_block(text: str) -> None:
    assert not is_block(text)


def test_one_statement() -> None:
    assert parse_body("INSERT INTO t SELECT ';';") == Block((Sql("INSERT INTO t SELECT ';'"),))


def test_a_block_with_all_its_parts() -> None:
    block = parse_body(
        """
        DECLARE
          bad EXCEPTION (-20001, 'it''s; bad');
          n INTEGER DEFAULT 0;
        BEGIN
          BEGIN TRANSACTION;
          SELECT COUNT(*), 1 INTO :n, :m FROM "odd;name" WHERE a = ':n'; -- a comment; of two
          IF (n > 0 AND (1 = 1)) THEN
            n := n + 1;
            DELETE FROM t WHERE CASE WHEN a THEN b END;
          ELSE RAISE bad;
          END IF;
          COMMIT;
        EXCEPTION WHEN OTHER THEN
          ROLLBACK;
          RAISE;
        END;
        """
    )
    assert block.variables == {"N": "0"}
    assert block.exceptions == {"BAD": (-20001, "it's; bad")}
    assert block.handler == (Sql("ROLLBACK"), Raise(None))
    begin, select, branch, commit = block.steps
    assert (begin, commit) == (Sql("BEGIN TRANSACTION"), Sql("COMMIT"))
    assert isinstance(select, Sql)
    assert select.into == ("N", "M")
    assert select.text == """SELECT COUNT(*), 1 FROM "odd;name" WHERE a = ':n'"""
    assert branch == If(
        "(n > 0 AND (1 = 1))",
        (Assign("N", "n + 1"), Sql("DELETE FROM t WHERE CASE WHEN a THEN b END")),
        (Raise("BAD"),),
    )


@pytest.mark.parametrize(
    "text",
    [
        "BEGIN LET x := 1; END",
        "BEGIN FOR i IN 1 TO 2 DO SELECT 1; END FOR; END",
        "BEGIN BEGIN SELECT 1; END; END",
        "BEGIN SELECT 1;",
        "BEGIN IF (1) THEN SELECT 1; END",
        "BEGIN SELECT 1; END END",
    ],
)
def test_what_is_not_known_is_refused(text: str) -> None:
    with pytest.raises(ProgrammingError):
        parse_body(text)


WORDS = "BEGIN END IF THEN ELSE RAISE EXCEPTION WHEN OTHER DECLARE ; := x 1 ( ) ' \" INTO : ,"


@given(st.lists(st.sampled_from(WORDS.split()), max_size=15))
def test_no_text_is_a_mistake(words: list[str]) -> None:
    with contextlib.suppress(ProgrammingError):
        parse_body("BEGIN " + " ".join(words) + " END")
