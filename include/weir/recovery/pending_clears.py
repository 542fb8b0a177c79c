"""Carrying out owed clears.

Invariant 7: an owed clear is settled only when Airflow was seen to follow it: a newer try, or one not yet finished.
Any number of processes may do this at once; the clear itself compares first.
"""

from __future__ import annotations

from itertools import groupby

from sqlalchemy import select
from sqlalchemy.orm import Session

from weir.coordination.airflow import MISSING, ClearAnswer, Clearer, ClearItem
from weir.coordination.services import Services
from weir.coordination.values import ClearOutcome, DeliveredClear, TaskKey
from weir.errors import WeirError
from weir.ledger.clears import open_clears
from weir.ledger.database.tables import AttemptRow, OwedClearRow
from weir.ledger.snapshot import ENDED

NOTE_LENGTH = 1000
"""The longest note that Airflow keeps."""

FINISHED = frozenset({"success", "failed", "skipped", "upstream_failed", "removed", MISSING})
"""Airflow's states in which nothing more happens to a task instance by itself."""


def deliver(services: Services, clearer: Clearer, dataflow: str | None = None) -> list[DeliveredClear]:
    """Carry out what is owed, of one dataflow or of all. Raises Retryable or Misconfigured as the clearer does."""
    first = _settle_once(services, clearer, dataflow)
    if all(each.settlement is not ClearOutcome.UNSEEN for each in first):
        return first
    return [each for each in first if each.is_settled] + _settle_once(services, clearer, dataflow)


def _settle_once(services: Services, clearer: Clearer, dataflow: str | None) -> list[DeliveredClear]:
    with services.ledger.transaction() as session:
        owed = open_clears(session, dataflow)
    done: list[DeliveredClear] = []
    refused: list[WeirError] = []
    ordered = sorted(owed, key=lambda row: (row.dag_id, row.reason, row.id))
    for (_, reason), rows in groupby(ordered, key=lambda row: (row.dag_id, row.reason)):
        batch = list(rows)
        try:
            answers = clearer.clear([_item(row) for row in batch], reason[:NOTE_LENGTH])
        except WeirError as error:
            refused.append(error)  # the clears of other DAGs may still be possible
            continue
        done += [_record(services, row, answer) for row, answer in zip(batch, answers, strict=True)]
    if refused:
        raise refused[0]
    return done


def _item(row: OwedClearRow) -> ClearItem:
    return ClearItem(row.dag_id, row.run_id, row.task_id, row.map_index, row.expected_try)


def _record(services: Services, row: OwedClearRow, answer: ClearAnswer) -> DeliveredClear:
    with services.ledger.transaction(row.dataflow) as session:
        settlement = _settlement(session, row, answer)
        outcome = _outcome(settlement, row, answer)
        fresh = session.get(OwedClearRow, row.id)
        if fresh is not None and fresh.settled_at is None:
            fresh.outcome, fresh.found_try = outcome, answer.try_number
            fresh.settled_at = services.now() if settlement.is_settled else None
            fresh.expected_try = answer.try_number if settlement is ClearOutcome.UNSEEN else fresh.expected_try
            # What that try does by itself is no repair: nobody is to wait for a newer one. Without a state it has been
            # cleared already, and a newer one comes.
            is_itself = answer.try_number == row.expected_try and answer.state is not None
            fresh.is_void = settlement is ClearOutcome.UNFINISHED and is_itself
    return DeliveredClear(TaskKey(row.dag_id, row.run_id, row.task_id, row.map_index), settlement, outcome, row.reason)


def _is_ending(session: Session, row: OwedClearRow, answer: ClearAnswer) -> bool:
    """Whether the expected try has ended but Airflow still calls it unfinished: it can be cleared in a moment."""
    if answer.state in FINISHED or answer.try_number != row.expected_try:
        return False
    query = select(AttemptRow.id).where(
        AttemptRow.run == row.run,
        AttemptRow.region == row.region,
        AttemptRow.subtask == row.subtask,
        AttemptRow.try_number == row.expected_try,
        AttemptRow.state.in_(ENDED),
    )
    return session.scalar(query) is not None


def _is_unseen(session: Session, row: OwedClearRow, answer: ClearAnswer) -> bool:
    """Whether Airflow has finished another try that never entered the ledger, so that it cannot have done what is owed.

    It was marked by hand, failed before its begin, or is one that only a lost ledger knew; one below the expected try
    is that of a DagRun that was deleted and made anew.
    """
    if answer.state not in FINISHED - {"skipped", "removed", MISSING} or answer.try_number == row.expected_try:
        return False
    if answer.try_number < row.expected_try:
        return True
    query = select(AttemptRow.id).where(
        AttemptRow.run == row.run,
        AttemptRow.region == row.region,
        AttemptRow.subtask == row.subtask,
        AttemptRow.try_number > row.expected_try,
    )
    return session.scalar(query.limit(1)) is None


def _settlement(session: Session, row: OwedClearRow, answer: ClearAnswer) -> ClearOutcome:
    if answer.cleared:
        return ClearOutcome.CLEARED
    if _is_ending(session, row, answer):
        return ClearOutcome.ENDING
    return ClearOutcome.UNSEEN if _is_unseen(session, row, answer) else _as_found(row, answer)


def _as_found(row: OwedClearRow, answer: ClearAnswer) -> ClearOutcome:
    if answer.state in (MISSING, "removed"):
        return ClearOutcome.MISSING
    if answer.try_number > row.expected_try:
        return ClearOutcome.NEWER
    if answer.state not in FINISHED:
        return ClearOutcome.UNFINISHED
    return ClearOutcome.SKIPPED if answer.state == "skipped" else ClearOutcome.REFUSED


def _outcome(settlement: ClearOutcome, row: OwedClearRow, answer: ClearAnswer) -> str:
    found = f"{answer.state or 'no state yet'} at try {answer.try_number}"
    said = {
        ClearOutcome.CLEARED: "cleared",
        ClearOutcome.MISSING: f"Airflow has no such task instance ({answer.state})",
        ClearOutcome.NEWER: f"not needed: {found}, newer than try {row.expected_try}",
        ClearOutcome.UNFINISHED: f"not needed: {found}, it has not finished",
        ClearOutcome.ENDING: f"still {found}: to be cleared when it has ended",
        ClearOutcome.UNSEEN: f"not cleared yet: {found}, a try that Weir has not seen",
    }
    return said.get(settlement, f"not cleared: {found}")
