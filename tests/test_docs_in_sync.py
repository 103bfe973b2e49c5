"""The generated pages say what the code says, and every link in the docs leads somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tools import gen_docs

from penstock.cli.options_table import DIRECTIONS, Format, markdown_page

ROOT = Path(__file__).resolve().parent.parent
PAGES = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md"))]


def run_generator(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "tools" / "gen_docs.py"), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


def test_generated_pages_are_up_to_date() -> None:
    assert gen_docs.outdated(ROOT) == [], "run `make docs`"


def test_check_fails_and_says_what_to_run(tmp_path: Path) -> None:
    done = run_generator("--check", "--root", str(tmp_path))
    assert done.returncode == 1
    assert "run `make docs`" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_generator_repairs_what_check_complains_of(tmp_path: Path) -> None:
    assert run_generator("--root", str(tmp_path)).returncode == 0
    page = tmp_path / "docs/reference/options/pubsub.md"
    assert page.read_text(encoding="utf-8") == markdown_page(Format.PUBSUB)
    assert run_generator("--check", "--root", str(tmp_path)).returncode == 0
    page.write_text("changed by hand")
    assert run_generator("--check", "--root", str(tmp_path)).returncode == 1


@pytest.mark.parametrize("format_name", list(Format))
def test_page_names_every_option_once_per_direction(format_name: Format) -> None:
    sections = re.split(r"^## ", markdown_page(format_name), flags=re.MULTILINE)[1:]
    assert len(sections) == len(DIRECTIONS[format_name])
    for section, direction in zip(sections, DIRECTIONS[format_name], strict=True):
        listed = re.findall(r"^\| `(\w+)` \|", section, flags=re.MULTILINE)
        assert sorted(listed) == sorted(info.name for info in direction.options.infos())


def test_every_table_row_has_five_cells() -> None:
    rows = [line for line in markdown_page(Format.PUBSUB).splitlines() if line.startswith("|")]
    assert {len(re.split(r"(?<!\\)\|", row)) for row in rows} == {7}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_to_a_file(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", page.read_text(encoding="utf-8"))
    broken = [link for link in links if not (page.parent / link).exists()]
    assert broken == []
