"""`weir advise`: which exchanges, parallelism and retention would have cost less.

Invariant: it changes nothing; what it advises is declared by a person.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from weir.advice.advice_rules import Advice, Change
from weir.advice.advice_rules import advise as advise_on
from weir.advice.measurements import measured
from weir.advice.replay_rules import Expected
from weir.cli.documents import AsJson, DataflowName, print_document
from weir.cli.tables import key, number, print_cells, print_line, print_rows, value
from weir.environment import opened_services
from weir.units import format_size


def advise(dataflow: DataflowName, as_json: AsJson = False) -> None:
    """Advise on exchanges, parallelism and retention, from what past runs and their failures have cost.

    The costs before and after are those of the recorded failures, replayed by the engine that decides.
    """
    with opened_services() as services:
        with services.ledger.transaction() as session:
            found = measured(session, dataflow)
        advice = advise_on(found, services.retention.of(found.dataflow).keep)
    if as_json:
        print_document(**_document(advice))
    else:
        _print_advice(advice)


def _document(advice: Advice) -> dict[str, Any]:
    """Round what is measured (docs/advice.md)."""
    return {
        **{name: getattr(advice, name) for name in ("dataflow", "runs", "failures", "late_clears")},
        "changes": [
            {**asdict(each), "seconds": round(each.seconds, 3), "bytes": round(each.bytes)} for each in advice.changes
        ],
        "before": _rounded(advice.before),
        "after": _rounded(advice.after),
    }


def _rounded(cost: Expected) -> dict[str, float]:
    return {name: round(getattr(cost, name), 3) for name in ("work", "recovery", "total")}


def _print_advice(advice: Advice) -> None:
    print_line(
        f"{advice.dataflow}: from {advice.runs} closed runs with the stages of the newest one, {advice.failures} "
        f"failure(s), and {advice.late_clears} clear(s) of closed runs"
    )
    if not advice.changes:
        total = advice.before.total
        share = f"{advice.before.recovery / total:.0%}" if total else "0%"
        print_line(f"Nothing to change. A run takes {_seconds(total)} of tasks, {share} by failures.")
        return
    print_rows(_CHANGES, advice.changes)
    costs = (("work", "work"), ("because of failures", "recovery"), ("together", "total"))
    rows = (
        (title, _seconds(getattr(advice.before, name)), _seconds(getattr(advice.after, name))) for title, name in costs
    )
    print_cells((key("seconds of tasks a run"), number("as declared"), number("as advised")), rows)


def _saved(change: Change) -> str:
    saved = [_seconds(change.seconds)] if change.seconds else []
    if change.bytes:
        saved.append(f"{format_size(round(abs(change.bytes)))} {'less' if change.bytes > 0 else 'more'} at rest")
    return ", ".join(saved)


_CHANGES = (key("what"), value("declared"), value("advised"), number("saves a run", _saved))


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s"
