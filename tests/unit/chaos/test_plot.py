"""The plot of a soak run: well-formed, one line for each series."""

from __future__ import annotations

from xml.etree import ElementTree

from chaos.plot import Panel, svg


def test_each_series_is_drawn_within_the_picture() -> None:
    panels = [
        Panel("agent", "memory MB", [(0.0, 10.0), (5.0, 20.0), (10.0, 15.0)]),
        Panel("a < b", "files", [(0.0, 0.0)]),
        Panel("agent", "files", []),
    ]
    root = ElementTree.fromstring(svg("a & b", panels))  # noqa: S314 - our own text
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    lines = [one for one in root if one.tag.endswith("polyline")]
    assert len(lines) == len(panels)
    points = [
        tuple(map(float, point.split(",")))
        for line in lines
        for point in line.attrib["points"].split()
    ]
    assert len(points) == 4
    assert all(0 <= x <= width and 0 <= y <= height for x, y in points)
