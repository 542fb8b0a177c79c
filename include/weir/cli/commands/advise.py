"""`weir advise`: which exchanges, parallelism and retention would have cost less.

Invariant: it changes nothing; what it advises is declared by a person.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from weir.cli.tables import key, number, print_line, print_rows, value
from weir.environment import opened_services
from weir.units import format_size

if TYPE_CHECKING:
    from weir.advice.advice_rules import Advice, Change
    from weir.advice.replay_rules import Expected

VERSION = 1


def advise(
    dataflow: Annotated[str, typer.Argument(help="The dataflow.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,  # noqa: FBT002  Typer's
) -> None:
    """Advise on exchanges, parallelism and retention, from what past runs and their failures have cost.

    The costs before and after are those of the recorded failures, replayed by the engine that decides.
    """
    from weir.advice.advice_rules import advise as advise_on  # noqa: PLC0415  SQLAlchemy is slow to import
    from weir.advice.measurements import measured  # noqa: PLC0415

    with opened_services() as services:
        with services.ledger.transaction() as session:
            found = measured(session, dataflow)
        advice = advise_on(found, services.retention.of(found.dataflow).keep)
    if as_json:
        print(json.dumps(advice_json(advice)))
    else:
        _print_advice(advice)


def advice_json(advice: Advice) -> dict[str, Any]:
    """Return the JSON of `weir advise --json` (docs/advice.md)."""
    return {
        "version": VERSION,
        "dataflow": advice.dataflow,
        "runs": advice.runs,
        "failures": advice.failures,
        "late_clears": advice.late_clears,
        "changes": [
            {**asdict(each), "seconds": round(each.seconds, 3), "bytes": round(each.bytes)} for each in advice.changes
        ],
        "before": _cost_json(advice.before),
        "after": _cost_json(advice.after),
    }


def _cost_json(cost: Expected) -> dict[str, float]:
    return {name: round(getattr(cost, name), 3) for name in ("work", "recovery", "total")}


def _print_advice(advice: Advice) -> None:
    console = Console()

    print_line(
        f"{advice.dataflow}: from {advice.runs} closed runs with the stages of the newest one, {advice.failures} "
        f"failure(s), and {advice.late_clears} clear(s) of closed runs",
        console,
    )
    if not advice.changes:
        total = _seconds(advice.before.total)
        print_line(f"Nothing to change. A run takes {total} of tasks, {_share(advice)} by failures.", console)
        return
    columns = key("what"), value("declared"), value("advised"), number("saves a run")
    print_rows(columns, map(_cells, advice.changes), console)
    costs = (("work", "work"), ("because of failures", "recovery"), ("together", "total"))
    rows = (
        (title, _seconds(getattr(advice.before, name)), _seconds(getattr(advice.after, name))) for title, name in costs
    )
    print_rows((key("seconds of tasks a run"), number("as declared"), number("as advised")), rows, console)


def _cells(change: Change) -> tuple[str, str, str, str]:
    saved = [_seconds(change.seconds)] if change.seconds else []
    if change.bytes:
        saved.append(f"{format_size(round(abs(change.bytes)))} {'less' if change.bytes > 0 else 'more'} at rest")
    return change.what, change.declared, change.advised, ", ".join(saved)


def _share(advice: Advice) -> str:
    return f"{advice.before.recovery / advice.before.total:.0%}" if advice.before.total else "0%"


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s"
