"""The demo's own honesty: it fails when a claim does not hold, and shows the code that it runs."""

from __future__ import annotations

import ast
import io
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import Console

import penstock.demo
from penstock.cli import demo as command
from penstock.demo import consume, story
from penstock.demo.show import Show, body


def make_show() -> tuple[Show, io.StringIO]:
    output = io.StringIO()
    return Show(Console(file=output, width=100, highlight=False)), output


def test_one_false_claim_spoils_the_verdict() -> None:
    show, output = make_show()
    show.check("this holds", holds=True)
    show.check("this does not", holds=False)
    assert show.verdict() is False
    assert "do NOT add up" in output.getvalue()
    assert "FAIL this does not" in output.getvalue()


def test_claims_that_all_hold_are_the_verdict() -> None:
    show, output = make_show()
    show.check("this holds", holds=True)
    assert show.verdict() is True
    assert "ok  this holds" in output.getvalue()


@pytest.mark.parametrize(
    ("outcome", "status"), [(lambda _: False, 1), (lambda _: True, None), ("interrupt", 130)]
)
def test_exit_code_tells_how_it_went(
    outcome: Any, status: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_: int) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(penstock.demo, "run_demo", interrupt if outcome == "interrupt" else outcome)
    if status is None:
        command.demo(10)
        return
    with pytest.raises(typer.Exit) as caught:
        command.demo(10)
    assert caught.value.exit_code == status


@pytest.mark.parametrize(
    "function", [story.create_resources, story.start_stream, story.read_back, consume.start_totals]
)
def test_shown_code_is_whole_and_fits_a_terminal(function: Callable[..., Any]) -> None:
    shown = body(function)
    assert ast.parse("if True:\n" + shown)
    assert '"""' not in shown
    assert "noqa" not in shown
    assert max(len(line) for line in shown.splitlines()) <= 78


def test_sample_orders_add_up_to_what_is_remembered(tmp_path: Path) -> None:
    sent = story.Sent()
    story.write_orders(tmp_path, 0, 1000, 3, sent)
    story.write_orders(tmp_path, 1000, 501, 2, sent)
    files = sorted(tmp_path.iterdir())
    orders = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    assert len(files) == 5
    assert sorted(order["order_id"] for order in orders) == list(range(1501))
    assert sent.rows == 1501
    counts = Counter(order["kind"] for order in orders)
    for kind, (count, cents) in sent.by_kind.items():
        assert count == counts[kind] == sent.count(kind)
        assert cents == sum(order["cents"] for order in orders if order["kind"] == kind)


def test_tables_mark_thousands_and_keep_texts() -> None:
    show, output = make_show()
    show.table(("name", "rows"), [("a", 1234567), ("b", 5)])
    assert "1,234,567" in output.getvalue()
