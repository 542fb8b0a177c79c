"""What a failure counts against: the restart strategy and the limits of failures, or a budget of its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from sqlalchemy.orm import Session

from weir.ledger.attempts import Origin, attempts_of, failures_since_clear, newest_attempts
from weir.ledger.models import AttemptRow
from weir.recovery.answer import Answer, answer
from weir.recovery.classify import FailureClass
from weir.recovery.restart import RestartStrategy, seeded_jitter
from weir.recovery.run_state import AttemptState
from weir.topology.regions import RegionId

COUNTED = (FailureClass.APPLICATION, FailureClass.KILLED)
"""The failures that the restart strategy decides about."""

PATIENT_WITH = (FailureClass.ENVIRONMENT, FailureClass.ENGINE)

PATIENCE = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0)
"""Seconds to wait for a store or a Spark server that does not answer: first hardly, then patiently.

All tries together last for three quarters of an hour: a person may have to make room on a disk."""

_JITTER = 0.1
"""The share of a delay by which tasks that lost the same server come back apart."""


def restart_answer(session: Session, strategy: RestartStrategy, run: str, region: RegionId) -> Answer:
    """What follows from the newest failure of `region`, by the strategy and by the limits of failures."""
    own = failures_since_clear(attempts_of(session, run, region), COUNTED)
    return answer(strategy, _seed(run, region), _milliseconds(own), lambda: (run, _failures_of_run(session, run)))


def spent(attempts: Sequence[AttemptRow], failure: FailureClass) -> int:
    """How often a region, whose attempts these are, has failed so since it last committed or a person cleared it."""
    count = 0
    for row in attempts:
        if row.origin == Origin.CLEARED_BY_PERSON.value:
            count = 0
        if row.state == AttemptState.COMMITTED.value:
            count = 0
        elif row.failure == failure.value:
            count += 1
    return count


def patience(run: str, region: RegionId, failure: FailureClass, used: int) -> float:
    """Seconds before the next try after the failure of this number (from 1), a little apart for each region."""
    if failure not in PATIENT_WITH:
        return 0.0
    milliseconds = int(PATIENCE[min(used, len(PATIENCE)) - 1] * 1000)
    return (milliseconds + seeded_jitter(_seed(run, region))(used, int(milliseconds * _JITTER))) / 1000


def _failures_of_run(session: Session, run: str) -> list[int]:
    """When tasks of a run have failed since a person last cleared any of them: whoever clears has seen the run."""
    regions = newest_attempts(session, run).values()
    seen = [row.began_at for rows in regions for row in rows if row.origin == Origin.CLEARED_BY_PERSON.value]
    failures = (at for rows in regions for at in failures_since_clear(rows, COUNTED))
    return _milliseconds(at for at in failures if not seen or at >= max(seen))


def _milliseconds(times: Iterable[datetime]) -> list[int]:
    return sorted(int(at.timestamp() * 1000) for at in times)


def _seed(run: str, region: RegionId) -> str:
    return f"{run} {region}"
