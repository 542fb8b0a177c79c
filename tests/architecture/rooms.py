"""Draws the rooms of docs/architecture.md and their table; `.venv/bin/python -m tests.architecture.rooms` writes both.

Rooms and their order are those of `test_layers.LAYERS`; what a room is for is the first line of its docstring.
"""

from __future__ import annotations

import ast
import re
from html import escape
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "architecture.md"
FIGURE: Final = ROOT / "docs" / "figures" / "rooms.svg"
ENGINE: Final = "include/weir"
BANDS: Final = {
    "who runs it": ("plugins/weir_airflow", "cli", "trials", "testing"),
    "asked by people": ("serving", "views", "reading", "requests", "doctor", "telemetry"),
    "behind ports": ("quality", "retention", "integrity", "rebuild", "sinks", "state_tables", "notifications"),
    "decisions": ("attempts", "recovery", "state", "snapshots", "advice"),
    "what is kept": ("store", "ledger", "coordination", "kafka"),
    "pure model": ("code", "dataflow", "topology", "execution", "formats", "restarts"),
}
"""From above: a room imports rooms of its own band and of those below."""
BESIDE: Final = ("spark_jobs/weir_spark", "include/weir_dev")
"""Drawn beside the bands: the Spark side, which knows the model and the store, and the tools of a checkout."""

_BLOCK: Final = re.compile(r"(?s)(<!-- rooms -->\n).*?(<!-- end -->)")
_WIDTH, _LEFT, _BOX, _HIGH, _GAP = 920, 136, 104, 34, 8
_PER_ROW: Final = 6


def folder_of(room: str) -> Path:
    """The folder of a room: a path from the root, or a package of the engine."""
    return ROOT / (room if "/" in room else f"{ENGINE}/{room}")


def purpose_of(room: str) -> str:
    """The first line of a room's docstring."""
    text = ast.get_docstring(ast.parse((folder_of(room) / "__init__.py").read_text())) or ""
    return text.partition("\n")[0].rstrip(".")


def drawing() -> str:
    """The bands as SVG."""
    parts, top = list[str](), 12
    for number, (band, rooms) in enumerate(BANDS.items()):
        rows = [rooms[at : at + _PER_ROW] for at in range(0, len(rooms), _PER_ROW)]
        high = len(rows) * (_HIGH + _GAP) + _GAP
        parts.append(f'<rect x="4" y="{top}" width="{_WIDTH - 8}" height="{high}" rx="6" class="band{number % 2}"/>')
        parts.append(f'<text x="16" y="{top + high / 2 + 4:g}" class="name">{escape(band)}</text>')
        parts += [
            _box(room, _LEFT + column * (_BOX + _GAP), top + _GAP + row * (_HIGH + _GAP))
            for row, in_row in enumerate(rows)
            for column, room in enumerate(in_row)
        ]
        top += high + _GAP
    parts += [
        f'<text x="16" y="{top + _GAP + _HIGH / 2 + 4:g}" class="name">beside them</text>',
        *(_box(room, _LEFT + column * (_BOX + _GAP), top + _GAP) for column, room in enumerate(BESIDE)),
    ]
    return _SVG.format(width=_WIDTH, height=top + _HIGH + 3 * _GAP, body="\n".join(parts))


def _box(room: str, x: float, y: float) -> str:
    name = escape(room.rpartition("/")[2])
    return (
        f'<rect x="{x}" y="{y}" width="{_BOX}" height="{_HIGH}" rx="4" class="room"/>'
        f'<text x="{x + _BOX / 2:g}" y="{y + _HIGH / 2 + 4:g}" text-anchor="middle">{name}</text>'
    )


_SVG: Final = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="13">
<style>.band0{{fill:#eef2f7}}.band1{{fill:#f7f4ee}}.room{{fill:#fff;stroke:#5b6b80}}.name{{font-weight:bold}}</style>
<rect width="{width}" height="{height}" fill="#fff"/>
{body}
</svg>
"""


def with_table(page: str) -> str:
    """The page, with its table of rooms made anew."""
    rooms = [*(room for rooms in BANDS.values() for room in rooms), *BESIDE]
    rows = [f"| `{folder_of(room).relative_to(ROOT)}` | {purpose_of(room)} |" for room in rooms]
    table = "\n".join(["| Room | What it is for |", "|---|---|", *rows])
    return _BLOCK.sub(lambda found: f"{found[1]}\n{table}\n\n{found[2]}", page)


if __name__ == "__main__":
    FIGURE.write_text(drawing())
    PAGE.write_text(with_table(PAGE.read_text()))
