"""Kept results, and the figures and tables that are drawn from them: `python tests/benchmarks/figures/figure_files.py`.

Invariant: what stands in the documentation is what the results give; a test compares them.
"""

from __future__ import annotations

import json
from pathlib import Path

from seed_figures import (
    Measurements,
    alignment_charts,
    alignment_table,
    captions,
    failure_charts,
    failure_tables,
    snapshot_charts,
    snapshot_tables,
)

FOLDER = Path(__file__).parents[3] / "docs" / "figures"
PAGE = FOLDER.parent / "measurements.md"
SNAPSHOTS, FAILURES, ALIGNMENT = "snapshots", "failures", "alignment"
KEYS = {
    SNAPSHOTS: ("mode", "keys", "subtasks"),
    FAILURES: ("arm", "work", "mean", "seed"),
    ALIGNMENT: ("parallelism", "shuffles"),
}
"""What makes a measurement the successor of an earlier one."""


def load(folder: Path, kind: str) -> Measurements:
    """The results that are kept; none before the first measurement."""
    file = folder / f"{kind}.json"
    return json.loads(file.read_text()) if file.exists() else []


def keep(folder: Path, kind: str, new: Measurements) -> None:
    """Add results to those that are kept, in place of earlier ones of the same."""

    def key(one: dict[str, object]) -> tuple[object, ...]:
        return tuple(one[name] for name in KEYS[kind])

    replaced = {key(one) for one in new}
    folder.mkdir(parents=True, exist_ok=True)
    kept = [*(one for one in load(folder, kind) if key(one) not in replaced), *new]
    (folder / f"{kind}.json").write_text("[\n" + ",\n".join(json.dumps(one) for one in kept) + "\n]\n")


def drawn(folder: Path) -> dict[str, str]:
    """All figures, by file name."""
    charts = snapshot_charts(load(folder, SNAPSHOTS)) | failure_charts(load(folder, FAILURES))
    charts |= alignment_charts(load(folder, ALIGNMENT))
    return {f"{name}.svg": chart.svg() for name, chart in charts.items()}


def with_tables(text: str, folder: Path) -> str:
    """A page, with the tables between the marks of each kind of results made anew."""
    snapshots, failures, alignment = (load(folder, kind) for kind in (SNAPSHOTS, FAILURES, ALIGNMENT))
    tables = {
        SNAPSHOTS: snapshot_tables(snapshots),
        FAILURES: f"{captions(failures)}\n\n{failure_tables(failures)}" if failures else "",
        ALIGNMENT: alignment_table(alignment),
    }
    for kind, table in tables.items():
        begin, end = f"<!-- {kind}: drawn from figures/{kind}.json -->\n", f"<!-- end of {kind} -->\n"
        before, _, rest = text.partition(begin)
        _, mark, after = rest.partition(end)
        if not mark:
            raise ValueError(
                f"the page has no lines {begin.strip()!r} and {end.strip()!r}: add them where {kind} belong"
            )
        text = f"{before}{begin}\n{table}\n{end}{after}"
    return text


def redraw(folder: Path = FOLDER) -> None:
    """Write all figures, and the tables into the page beside the folder, if there is one."""
    for name, svg in drawn(folder).items():
        (folder / name).write_text(svg)
    page = folder.parent / PAGE.name
    if page.exists():
        page.write_text(with_tables(page.read_text(), folder))


if __name__ == "__main__":
    redraw()
