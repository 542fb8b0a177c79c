"""Draws amounts side by side as SVG: a column for each, of parts that stand on each other.

Invariant: as a drawing, a chart has no script, no style sheet of its own and no address.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup

from weir.formats.checkpoint import SnapshotKind
from weir.units import format_size
from weir.views.checkpoints import CheckpointView
from weir.views.drawings import STYLE, environment
from weir.views.failovers import FailoverWeek

_HEIGHT, _ABOVE, _BELOW, _LEFT = 150, 30, 22, 76
"""The height of the highest column, and the space above, below and beside all of them, in pixels."""
_WIDEST, _WIDTH = 44, 1100
"""The largest width of a column with the space beside it, and of all together."""
_LABEL: Final = 80
"""How much room the label of a column needs."""


@dataclass(frozen=True, slots=True)
class _Column:
    """A column: its label, its parts in the order of the chart's, and what is shown in full where the mouse is."""

    label: str
    parts: tuple[float, ...]
    title: str


@dataclass(frozen=True, slots=True)
class _Part:
    kind: int
    y: float
    height: float


@dataclass(frozen=True, slots=True)
class _Drawn:
    x: float
    width: float
    column: _Column
    parts: tuple[_Part, ...]
    has_label: bool


def chart_of_weeks(weeks: Sequence[FailoverWeek]) -> Markup:
    """Draw the seconds that were recomputed in each week, and those that a full restart would have cost on top."""
    columns = [
        _Column(
            label=f"{each.begins:%Y-%m-%d}",
            parts=(each.recomputed.seconds, max(each.full_restart.seconds - each.recomputed.seconds, 0.0)),
            title=f"{each.week}: {each.incidents} incident(s), {each.recomputed.seconds:,.1f} s recomputed, a full "
            f"restart {each.full_restart.seconds:,.1f} s",
        )
        for each in weeks
    ]
    return _chart("Seconds recomputed by week", ("recomputed", "spared of a full restart"), columns, "{:,.1f} s".format)


def chart_of_bytes(snapshots: Sequence[CheckpointView], most: int) -> Markup:
    """Draw how many bytes the newest complete checkpoints name, and how many of these no earlier one has."""
    return _of_bytes(snapshots, most, "")


def chart_file_of_bytes(snapshots: Sequence[CheckpointView]) -> str:
    """Return the same drawing of all complete checkpoints as an SVG file, with its style."""
    return _of_bytes(snapshots, len(snapshots), Markup(STYLE.read_text()))  # noqa: S704  it is ours


def _of_bytes(snapshots: Sequence[CheckpointView], most: int, style: str) -> Markup:
    complete = [each for each in snapshots if each.kind == SnapshotKind.CHECKPOINT.value and each.seconds is not None]
    columns = [
        _Column(
            label=f"{each.epoch[:4]}-{each.epoch[4:6]}-{each.epoch[6:8]}",
            parts=(each.incremental_bytes, each.full_bytes - each.incremental_bytes),
            title=f"checkpoint {each.number} of {each.epoch}: {format_size(each.full_bytes)}, of them new "
            f"{format_size(each.incremental_bytes)}",
        )
        for each in complete[-most:]
    ]
    what = "Bytes of checkpoints by epoch"
    return _chart(what, ("new", "shared"), columns, lambda amount: format_size(round(amount)), style)


def _chart(
    what: str, parts: Sequence[str], columns: Sequence[_Column], said: Callable[[float], str], style: str = ""
) -> Markup:
    largest = max((sum(each.parts) for each in columns), default=0.0)
    step = min(_WIDEST, _WIDTH / max(len(columns), 1))
    every = max(1, round(_LABEL / step + 0.5))
    drawn = [
        _Drawn(
            x=round(_LEFT + number * step, 1),
            width=round(step * 0.7, 1),
            column=column,
            parts=_stacked(column, largest),
            has_label=(len(columns) - 1 - number) % every == 0,
        )
        for number, column in enumerate(columns)
    ]
    lines = [(round(_ABOVE + _HEIGHT * (1 - share), 1), said(largest * share)) for share in (0.0, 0.5, 1.0)]
    text = environment.get_template("chart.svg").render(
        what=what,
        style=style,
        names=parts,
        columns=drawn,
        lines=lines if largest else lines[:1],
        left=_LEFT,
        base=_ABOVE + _HEIGHT,
        width=round(_LEFT + max(len(columns) * step, 320) + _LABEL / 2),
        height=_ABOVE + _HEIGHT + _BELOW,
    )
    return Markup(text)  # noqa: S704  the template escapes


def _stacked(column: _Column, largest: float) -> tuple[_Part, ...]:
    found, top = [], float(_ABOVE + _HEIGHT)
    for kind, amount in enumerate(column.parts):
        height = _HEIGHT * amount / largest if largest else 0.0
        top -= height
        found.append(_Part(kind, round(top, 1), round(height, 1)))
    return tuple(found)
