"""Small multiples of time series as an SVG file; pure, and without a drawing library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

_WIDTH, _HEIGHT = 220, 110
_LEFT, _TOP, _GAP = 12, 34, 16
_TEXT = 'font-family="sans-serif" font-size="11" fill="#333"'


@dataclass(frozen=True)
class Panel:
    """One series and its place: columns stand for processes, rows for what is measured."""

    column: str
    row: str
    # In seconds and in the unit of the row.
    points: Sequence[tuple[float, float]]


def svg(title: str, panels: Sequence[Panel]) -> str:
    """Draw the panels in a grid; each has its own scale, from 0 to its largest value."""
    columns = list(dict.fromkeys(panel.column for panel in panels))
    rows = list(dict.fromkeys(panel.row for panel in panels))
    width = _LEFT * 2 + len(columns) * (_WIDTH + _GAP)
    height = _TOP * 2 + len(rows) * (_HEIGHT + _TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{_LEFT}" y="20" {_TEXT} font-weight="bold">{escape(title)}</text>',
    ]
    for panel in panels:
        x = _LEFT + columns.index(panel.column) * (_WIDTH + _GAP)
        y = _TOP * 2 + rows.index(panel.row) * (_HEIGHT + _TOP)
        parts += _draw(panel, x, y)
    return "\n".join([*parts, "</svg>", ""])


def _draw(panel: Panel, x: float, y: float) -> list[str]:
    most = max((value for _, value in panel.points), default=0.0)
    last = max((second for second, _ in panel.points), default=0.0)
    line = " ".join(
        f"{x + second / (last or 1.0) * _WIDTH:.1f},{y + _HEIGHT * (1 - value / (most or 1.0)):.1f}"
        for second, value in panel.points
    )
    label = escape(f"{panel.column}: {panel.row}, up to {most:,.0f}")
    return [
        f'<text x="{x}" y="{y - 5}" {_TEXT}>{label}</text>',
        f'<rect x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" fill="none" stroke="#ccc"/>',
        f'<polyline points="{line}" fill="none" stroke="#1f6fb4" stroke-width="1.2"/>',
    ]
