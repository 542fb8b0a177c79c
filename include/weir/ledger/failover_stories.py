"""What failovers were about, and what they have cost. Invariant: it changes nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from weir.ledger.costs import costs_of_attempts
from weir.ledger.failovers import FailoverKind, failovers_of
from weir.ledger.findings import NotDeterministic, findings_of
from weir.ledger.models import AttemptRow, FailoverRow, OwedClearRow
from weir.recovery.plan import Cost, Plan, Total, total_of
from weir.recovery.run_state import AttemptState
from weir.recovery.staleness import USUAL_CAUSES

_DONE = (AttemptState.COMMITTED.value, AttemptState.ADOPTED.value)


@dataclass(frozen=True, slots=True)
class FailoverStory:
    """A failover, its plan, what was recomputed because of its clears, and what came out otherwise without a reason."""

    row: FailoverRow
    plan: Plan
    recomputed: Total
    findings: tuple[NotDeterministic, ...]

    @property
    def kind(self) -> FailoverKind:
        """What asked for it; what an older Weir recorded was a loss."""
        return FailoverKind(self.row.kind or FailoverKind.LOSS.value)

    def to_json(self) -> dict[str, Any]:
        """As `weir failovers --json` prints it (docs/plan.md)."""
        row = self.row
        return {
            "id": row.id,
            "incident": row.incident or row.id,
            "run": row.run,
            "kind": self.kind.value,
            "failed": f"{row.region}[{row.subtask}]" if row.region else None,
            "attempt": row.attempt or None,
            "decided_at": row.decided_at.isoformat(),
            "cause": row.cause,
            "labels": row.labels or {},
            "plan": self.plan.to_json(),
            "recomputed": asdict(self.recomputed),
            "not_deterministic": [asdict(each) for each in self.findings],
            "usual_causes": USUAL_CAUSES if self.findings else None,
        }


def failover_stories(session: Session, dataflow: str | None = None, epoch: str | None = None) -> list[FailoverStory]:
    """Past failovers, oldest first."""
    return [_story(session, row) for row in failovers_of(session, dataflow, epoch)]


def _story(session: Session, row: FailoverRow) -> FailoverStory:
    clears = session.scalars(select(OwedClearRow).where(OwedClearRow.failover == row.id))
    caused = [attempt for clear in clears for attempt in _caused_by(session, clear)]
    costs = costs_of_attempts(session, caused)
    recomputed = total_of(_finished(caused, costs))
    return FailoverStory(row, Plan.from_json(row.plan), recomputed, findings_of(session, list(costs)))


def _caused_by(session: Session, clear: OwedClearRow) -> list[AttemptRow]:
    """The tries behind a clear, up to the one that did what it was for."""
    query = (
        select(AttemptRow)
        .where(
            AttemptRow.run == clear.run,
            AttemptRow.region == clear.region,
            AttemptRow.subtask == clear.subtask,
            AttemptRow.try_number > clear.expected_try,
        )
        .order_by(AttemptRow.try_number)
    )
    found = []
    for row in session.scalars(query):
        found.append(row)
        if row.state in _DONE:
            break
    return found


def _finished(rows: Iterable[AttemptRow], costs: dict[str, Cost]) -> list[Cost | None]:
    return [costs[row.id] if row.ended_at is not None else None for row in rows]
