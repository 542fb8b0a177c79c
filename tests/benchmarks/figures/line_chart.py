"""Line charts as SVG, without a library. Invariant: the same chart is the same text, so that a figure can be compared.

The background is drawn, so a page of any colour can hold the figure; where the reader's system is dark, it is dark.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 760, 420
LEFT, RIGHT, TOP, BOTTOM = 70, 250, 44, 54
LIGHT = ("#0b62c4", "#b3471b", "#1d7a3a", "#6b6b6b", "#8a3fa0", "#8a6d00")
DARK = ("#6db0ff", "#ff9b6b", "#62d088", "#b0b0b0", "#d69bea", "#e3c558")
"""The colours of the series, in order; a chart has at most so many."""


def _style() -> str:
    return "".join(
        [
            "text{font:13px system-ui,sans-serif}.small{font-size:12px}.title{font-weight:600}",
            ".line{fill:none;stroke-width:2}.dash{stroke-dasharray:6 4}.mark{stroke-width:2}.open{fill:none!important}",
            _colours("#222", "#fff", "#ddd", "#777", LIGHT),
            f"@media(prefers-color-scheme:dark){{{_colours('#ddd', '#15181c', '#333', '#999', DARK)}}}",
        ]
    )


def _colours(text: str, back: str, grid: str, axis: str, series: tuple[str, ...]) -> str:
    of_series = (f".s{n} .line,.s{n} .mark{{stroke:{each}}}.s{n} .mark{{fill:{each}}}" for n, each in enumerate(series))
    return f"text{{fill:{text}}}.back{{fill:{back}}}.grid{{stroke:{grid}}}.axis{{stroke:{axis}}}{''.join(of_series)}"


@dataclass(frozen=True, slots=True)
class Axis:
    """From `low` to `high`, with a label at each tick; equal distances are equal ratios if it `is_log`."""

    title: str
    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    is_log: bool = False

    def place(self, value: float) -> float:
        """Where a value is, from 0 at `low` to 1 at `high`; a value beyond them is at the edge."""
        value, low, high = (math.log10(each) if self.is_log else each for each in (value, self.low, self.high))
        return min(1.0, max(0.0, (value - low) / (high - low)))


@dataclass(frozen=True, slots=True)
class Series:
    """Points of one name, in order; a dashed line is what others have measured. A point of no `y` was given up."""

    name: str
    points: tuple[tuple[float, float | None], ...]
    is_dashed: bool = False
    has_line: bool = True


@dataclass(frozen=True, slots=True)
class Chart:
    """Axes and what is drawn between them."""

    title: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]

    def svg(self) -> str:
        """The figure as a file's text."""
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
            f"<title>{escape(self.title)}</title><style>{_style()}</style>",
            f'<rect class="back" width="{WIDTH}" height="{HEIGHT}"/>',
            _text(LEFT, 24, self.title, "title"),
            *self._axes(),
            *(part for number, each in enumerate(self.series) for part in self._drawn(number, each)),
            "</svg>",
        ]
        return "\n".join(parts) + "\n"

    def _at(self, x: float, y: float | None) -> tuple[float, float]:
        high = self.y.high if y is None else y
        across, up = self.x.place(x), self.y.place(high)
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    def _axes(self) -> list[str]:
        (left, bottom), (right, top) = self._at(self.x.low, self.y.low), self._at(self.x.high, self.y.high)
        parts = []
        for value, label in self.x.ticks:
            x, _ = self._at(value, self.y.low)
            parts += [_line(x, bottom, x, top, "grid"), _text(x, bottom + 18, label, "small", "middle")]
        for value, label in self.y.ticks:
            _, y = self._at(self.x.low, value)
            parts += [_line(left, y, right, y, "grid"), _text(left - 8, y + 4, label, "small", "end")]
        parts += [_line(left, bottom, right, bottom, "axis"), _line(left, bottom, left, top, "axis")]
        middle = (bottom + top) / 2
        turned = f'<g transform="translate(20 {middle:.1f}) rotate(-90)">{_text(0, 0, self.y.title, "", "middle")}</g>'
        return [*parts, _text((left + right) / 2, HEIGHT - 14, self.x.title, "", "middle"), turned]

    def _drawn(self, number: int, series: Series) -> list[str]:
        dash = " dash" if series.is_dashed else ""
        places = [self._at(*point) for point in series.points]
        done = [place for place, (_, y) in zip(places, series.points, strict=True) if y is not None]
        parts = []
        if series.has_line and len(done) > 1:
            told = " ".join(f"{x:.1f},{y:.1f}" for x, y in done)
            parts.append(f'<polyline class="line{dash}" points="{told}"/>')
        for (x, y), (_, value) in zip(places, series.points, strict=True):
            parts.append(_mark(number, x, y) if value is not None else _given_up(x, y))
        x, y = WIDTH - RIGHT + 18, TOP + 14 + 22 * number
        parts += [_mark(number, x + 9, y - 4), _text(x + 26, y, series.name, "small")]
        if series.has_line:
            parts.append(f'<polyline class="line{dash}" points="{x},{y - 4} {x + 18},{y - 4}"/>')
        return [f'<g class="s{number}">', *parts, "</g>"]


def decades(low: int, high: int) -> tuple[tuple[float, str], ...]:
    """Ticks at powers of ten, from the exponents `low` to `high`."""
    return tuple((10.0**each, f"{10.0**each:g}") for each in range(low, high + 1))


def _mark(number: int, x: float, y: float) -> str:
    """A shape by series: who sees no colours tells them apart."""
    if number % 3 == 0:
        return f'<circle class="mark" cx="{x:.1f}" cy="{y:.1f}" r="4"/>'
    if number % 3 == 1:
        return f'<rect class="mark" x="{x - 4:.1f}" y="{y - 4:.1f}" width="8" height="8"/>'
    return f'<path class="mark" d="M{x:.1f} {y - 5:.1f}l5 9h-10z"/>'


def _given_up(x: float, y: float) -> str:
    """An arrow that points out of the figure."""
    return f'<path class="mark open" d="M{x:.1f} {y + 18:.1f}v-16m-5 6l5-6l5 6"/>'


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, text: str, kind: str, anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
