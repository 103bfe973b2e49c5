from __future__ import annotations

import dataclasses

from penstock.options import _camel_case
from penstock.postgres.types import SESSION_SETTINGS, TypePolicy
from penstock.postgres.types.docs import types_page
from tests.unit.postgres.types.cases import CASES


def cells(page: str) -> list[list[str]]:
    lines = [line for line in page.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line[1:-1].split(" | ")] for line in lines]


def test_each_tested_built_in_type_stands_in_the_page_with_its_spark_type() -> None:
    rows = [row for row in cells(types_page()) if len(row) == 3]
    stated = {name: row[1] for row in rows for name in row[0].split(", ")}

    for case in CASES:
        if case.sql in stated and case.sql != "numeric":
            assert stated[case.sql] == case.spark
    assert stated["numeric"] == "decimal(p,s), or string"
    assert len(set(stated) & {case.sql for case in CASES}) > 50


def test_the_page_names_every_choice_and_every_setting() -> None:
    page = types_page()

    for field in dataclasses.fields(TypePolicy):
        assert f"`{_camel_case(field.name)}`" in page
    for name in SESSION_SETTINGS:
        assert f"`{name}`" in page


def test_tables_are_whole_and_the_text_is_ascii() -> None:
    page = types_page()

    assert page.isascii()
    assert {len(row) for row in cells(page)} <= {2, 3, 4}
    assert all(len(line) <= 100 for line in page.splitlines() if not line.startswith("|"))
