"""Writes the generated pages of docs/reference; `make docs` runs it, `--check` only compares."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from penstock.cli.options_table import Format, markdown_page
from penstock.postgres.types.docs import types_page
from penstock.snowflake.types_docs import types_page as snowflake_types_page

ROOT = Path(__file__).resolve().parent.parent


def pages() -> dict[Path, str]:
    """Render every generated page: its path in the repository, and its text."""
    folder = Path("docs/reference/options")
    options = {folder / f"{name.value}.md": markdown_page(name) for name in Format}
    return {
        **options,
        Path("docs/postgres-types.md"): types_page(),
        Path("docs/snowflake-types.md"): snowflake_types_page(),
    }


def outdated(root: Path) -> list[Path]:
    """List the pages that are missing or say something else than the code."""
    return [
        path
        for path, text in pages().items()
        if not (root / path).is_file() or (root / path).read_text(encoding="utf-8") != text
    ]


def main() -> int:
    """Write the pages, or compare them with the code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if out of date")
    parser.add_argument("--root", type=Path, default=ROOT, help="the repository")
    arguments = parser.parse_args()
    stale = outdated(arguments.root)
    if arguments.check:
        for path in stale:
            print(f"{path} is out of date: run `make docs`", file=sys.stderr)
        return 1 if stale else 0
    for path in stale:
        target = arguments.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(pages()[path], encoding="utf-8")
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
