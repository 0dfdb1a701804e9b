"""Pictures of benchmarks: lines on two logarithmic axes, as SVG."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from pathlib import Path

WIDTH, HEIGHT = 470, 340  # of a panel, in pixels
LEFT, RIGHT, TOP, BOTTOM = 60, 150, 34, 40
COLOURS = ("#444444", "#1b6ca8", "#c8553d", "#3a7d44", "#8a4f9e", "#b8860b", "#008b8b", "#d1495b", "#5c6bc0")


@dataclass(frozen=True)
class Line:
    """Points, all above zero, and their name."""

    name: str
    x: list[int]
    y: list[int]
    dashes: str = ""


@dataclass(frozen=True)
class Panel:
    """Lines on one pair of axes."""

    title: str
    lines: list[Line]


def draw(path: Path, panels: list[Panel]) -> None:
    """Write the panels side by side."""
    body = [f'<g transform="translate({at * WIDTH} 0)">{_panel(one)}</g>' for at, one in enumerate(panels)]
    size = f'width="{WIDTH * len(panels)}" height="{HEIGHT}"'
    style = 'font-family="sans-serif" font-size="11" fill="#222222"'
    text = "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>', _background(len(panels)), *body])
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"{text}\n</svg>\n")


def _background(panels: int) -> str:
    return f'<rect width="{WIDTH * panels}" height="{HEIGHT}" fill="white"/>'


def _panel(panel: Panel) -> str:
    low_x, high_x = _decades([value for line in panel.lines for value in line.x])
    low_y, high_y = _decades([value for line in panel.lines for value in line.y])
    wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def across(value: float) -> float:
        return LEFT + wide * (math.log10(value) - low_x) / (high_x - low_x)

    def down(value: float) -> float:
        return TOP + high * (high_y - math.log10(value)) / (high_y - low_y)

    parts = [f'<text x="{LEFT}" y="18" font-size="13">{escape(panel.title)}</text>']
    for decade in range(low_x, high_x + 1):
        x = across(10**decade)
        parts.append(f'<path d="M{x:.1f} {TOP}V{TOP + high}" stroke="#dddddd"/>')
        parts.append(f'<text x="{x:.1f}" y="{TOP + high + 16}" text-anchor="middle">{_power(decade)}</text>')
    for decade in range(low_y, high_y + 1):
        y = down(10**decade)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{LEFT + wide}" stroke="#dddddd"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_power(decade)}</text>')
    for at, line in enumerate(panel.lines):
        colour = COLOURS[at % len(COLOURS)]
        points = " ".join(f"{across(x):.1f},{down(y):.1f}" for x, y in zip(line.x, line.y, strict=True))
        dashes = f' stroke-dasharray="{line.dashes}"' if line.dashes else ""
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.6"{dashes}/>')
        y = TOP + 12 + 15 * at
        parts.append(f'<path d="M{LEFT + wide + 6} {y - 4}h16" stroke="{colour}" stroke-width="1.6"{dashes}/>')
        parts.append(f'<text x="{LEFT + wide + 26}" y="{y}">{escape(line.name)}</text>')
    return "".join(parts)


def _power(decade: int) -> str:
    return f'10<tspan dy="-4" font-size="8">{decade}</tspan>'


def _decades(values: list[int]) -> tuple[int, int]:
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return low, max(high, low + 1)
