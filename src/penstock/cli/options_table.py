"""A format's options as tables: for the terminal, and for the page in docs/reference/options.

Both come from the options dataclasses, so they cannot say anything else than what is parsed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from penstock.options import OptionInfo, Options
from penstock.postgres.options import PostgresCdcOptions, PostgresReadOptions
from penstock.pubsub.options import PubSubReadOptions, PubSubSinkOptions
from penstock.pubsub.source.options import PubSubSourceOptions
from penstock.snowflake.options import SnowpipeOptions

COLUMNS = ("Option", "Type", "Default", "Meaning", "Example")


class Format(StrEnum):
    """The formats that have options to show."""

    PUBSUB = "pubsub"
    POSTGRES_CDC = "postgres_cdc"
    SNOWPIPE = "snowpipe"


@dataclass(frozen=True)
class Direction:
    """One use of a format, with options of its own."""

    title: str
    uses: tuple[str, ...]
    options: type[Options]


DIRECTIONS: dict[Format, tuple[Direction, ...]] = {
    Format.PUBSUB: (
        Direction(
            "Writing",
            ('df.writeStream.format("pubsub")', 'df.write.format("pubsub")'),
            PubSubSinkOptions,
        ),
        Direction("Streaming read", ('spark.readStream.format("pubsub")',), PubSubSourceOptions),
        Direction("Batch read", ('spark.read.format("pubsub")',), PubSubReadOptions),
    ),
    Format.POSTGRES_CDC: (
        Direction(
            "Streaming read", ('spark.readStream.format("postgres_cdc")',), PostgresCdcOptions
        ),
        Direction("Batch read", ('spark.read.format("postgres_cdc")',), PostgresReadOptions),
    ),
    Format.SNOWPIPE: (
        Direction(
            "Writing",
            ('df.writeStream.format("snowpipe")', 'df.write.format("snowpipe")'),
            SnowpipeOptions,
        ),
    ),
}

_RULES = (
    "Names are not case-sensitive, and an unknown name is an error. A duration has a unit "
    "(`500ms`, `30s`, `5m`), a size is in bytes or has a unit (`9000000`, `9MB`, `8MiB`). "
    "Penstock never shows the value of an option marked as secret."
)


def _type_text(info: OptionInfo) -> str:
    return f"{info.parser.kind}, secret" if info.secret else info.parser.kind


def _meaning(info: OptionInfo) -> str:
    if not info.aliases:
        return info.doc
    return f"{info.doc} Also called {', '.join(info.aliases)}."


def _groups(options: type[Options]) -> Iterator[tuple[str, list[OptionInfo]]]:
    """Split into the options most people need and the others; the required ones come first."""
    infos = sorted(options.infos(), key=lambda info: not info.is_required)
    yield "", [info for info in infos if not info.advanced]
    advanced = [info for info in infos if info.advanced]
    if advanced:
        yield "Advanced", advanced


def markdown_page(format_name: Format) -> str:
    """Write the whole reference page of a format."""
    lines = [
        f"# Options of the {format_name.value} format",
        "",
        "<!-- Generated from the options' own declarations: change them, then `make docs`. -->",
        "",
        _RULES,
    ]
    for direction in DIRECTIONS[format_name]:
        lines += ["", f"## {direction.title}", "", ", ".join(f"`{use}`" for use in direction.uses)]
        for heading, infos in _groups(direction.options):
            if heading:
                lines += ["", f"### {direction.title}: {heading.lower()} options"]
            lines += ["", *_markdown_table(infos)]
    return "\n".join(lines) + "\n"


def _markdown_table(infos: Iterable[OptionInfo]) -> Iterator[str]:
    yield _markdown_row(COLUMNS)
    yield _markdown_row("---" for _ in COLUMNS)
    for info in infos:
        yield _markdown_row(
            (
                f"`{info.name}`",
                _type_text(info),
                "**required**" if info.is_required else _code(info.default_text),
                _meaning(info),
                _code(info.example or "-"),
            )
        )


def _code(value: str) -> str:
    return value if value == "-" else f"`{value}`"


def _markdown_row(cells: Iterable[str]) -> str:
    # A bare bar ends a cell, also inside backquotes.
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def terminal_tables(format_name: Format) -> Iterator[RenderableType]:
    """Draw the same tables for a terminal."""
    for direction in DIRECTIONS[format_name]:
        yield Text.assemble(
            "\n", (direction.title, "bold"), "  ", (", ".join(direction.uses), "cyan")
        )
        for heading, infos in _groups(direction.options):
            yield _terminal_table(heading, infos)


def _terminal_table(heading: str, infos: Iterable[OptionInfo]) -> Table:
    # Two columns, because five leave no room for the text on a terminal of 80.
    table = Table(
        title=f"{heading} options" if heading else None,
        title_justify="left",
        header_style="bold",
        show_lines=True,
    )
    table.add_column("Option", no_wrap=True)
    table.add_column("Meaning")
    for info in infos:
        option = Text(info.name, style="bold green")
        option.append(f"\n{_type_text(info)}", style="not bold default")
        if info.is_required:
            option.append("\nrequired", style="bold red")
        elif info.default is not None:
            option.append(f"\ndefault {info.default_text}", style="not bold default")
        meaning = Text(_meaning(info).replace("`", ""))
        if info.example:
            meaning.append(f"\nExample: {info.example}", style="dim")
        table.add_row(option, meaning)
    return table
