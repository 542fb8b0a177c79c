"""Results that came out otherwise although they were made from the same (DESIGN 9.1). Invariant: it changes nothing."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from weir.ledger.models import AttemptRow, ResultRow
from weir.topology.regions import RegionId


@dataclass(frozen=True, slots=True)
class NotDeterministic:
    """`attempt` has made another result of a partition than `differs_from`, from equal inputs by equal code."""

    run: str
    stage: str
    subtask: int
    attempt: str
    differs_from: str

    def __str__(self) -> str:
        return f"{self.stage}[{self.subtask}] of {self.attempt} differs from that of {self.differs_from}"


def findings_of(session: Session, attempts: Collection[str]) -> tuple[NotDeterministic, ...]:
    """What attempts have made that was unlike an earlier result without a reason, once a stage and subtask."""
    query = (
        select(ResultRow)
        .where(ResultRow.attempt.in_(attempts), ResultRow.differs_from.is_not(None))
        .order_by(ResultRow.id)
    )
    found = (
        NotDeterministic(row.run, row.stage, row.subtask, row.attempt, row.differs_from or "")
        for row in session.scalars(query)
    )
    return tuple(dict.fromkeys(found))


def not_deterministic_regions(session: Session, runs: Collection[str], current: str) -> frozenset[RegionId]:
    """The regions of `runs` of which equal inputs have given unequal results; those of `current` have no run."""
    query = (
        select(AttemptRow.run, AttemptRow.region, AttemptRow.subtask)
        .join(ResultRow, ResultRow.attempt == AttemptRow.id)
        .where(AttemptRow.run.in_(runs), ResultRow.differs_from.is_not(None))
    )
    return frozenset(
        RegionId(region, subtask, "" if run == current else run) for run, region, subtask in session.execute(query)
    )
