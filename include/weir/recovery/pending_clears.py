"""Delivers pending clears to Airflow.

Invariant 7: a clear is delivered once Airflow is seen to have followed it, with a newer or an unfinished try. Several
processes may deliver at once, since a clear compares the try first.

Invariant: a try is taken for cleared by Weir if a delivery has, or may have, cleared it; a person's clear that came
before Weir's stays a person's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from sqlalchemy import select, tuple_
from sqlalchemy.orm import Session

from weir.coordination.airflow import ClearAnswer, Clearer, ClearItem
from weir.coordination.services import Services
from weir.coordination.values import ClearOutcome, DeliveredClear, TaskKey
from weir.errors import WeirError
from weir.execution.airflow_words import CLEARABLE, FINAL, NOT_IN_AIRFLOW, run_again
from weir.ledger.clears import open_clears
from weir.ledger.database.tables import AttemptRow, PendingClearRow, RunRow
from weir.ledger.snapshot import ENDED

_YET_TO_START = ("up_for_reschedule", "scheduled", "queued")
"""Airflow's states of a task instance whose process has yet to start, under the number that it has."""


def deliver(services: Services, clearer: Clearer, dataflow: str | None = None) -> list[DeliveredClear]:
    """Deliver the pending clears of one dataflow or of all. Raises Retryable or Misconfigured as the clearer does."""
    first = _deliver_once(services, clearer, dataflow)
    if all(each.settlement is not ClearOutcome.UNSEEN for each in first):
        return first
    return [each for each in first if each.is_settled] + _deliver_once(services, clearer, dataflow)


def what_was_cleared(services: Services, clearer: Clearer, done: Iterable[DeliveredClear], owed: int) -> str:
    """Return how many of the `owed` task instances run again, why the others that were settled do not, and what helps.

    Raises Retryable or Misconfigured as the clearer does.
    """
    settled = [each for each in done if each.is_settled]
    in_vain = [each for each in settled if each.settlement in (ClearOutcome.MISSING, ClearOutcome.SKIPPED)]
    said = [f"{len(settled) - len(in_vain)} of {owed} task instance(s) are cleared, or about to run"]
    said += [f"{each.task.task_id}[{each.task.map_index}] of {each.task.run_id}: {each.outcome}" for each in in_vain]
    missing = [each.task for each in in_vain if each.settlement is ClearOutcome.MISSING]
    said += _have_again(services, clearer, {(each.dag_id, each.run_id) for each in missing})
    return "; ".join(said)


def _have_again(services: Services, clearer: Clearer, runs: Collection[tuple[str, str]]) -> Iterator[str]:
    """Say what helps where Airflow does not have task instances of these DagRuns."""
    deleted = [(dag_id, run_id) for dag_id, run_id in sorted(runs) if clearer.exists(dag_id, run_id) is False]
    if len(deleted) < len(runs):
        yield (
            "the DAG has changed: `weir run adopt` that run, and `weir clear` it. Where other indexes of that task run "
            "again, Airflow adds this one by itself: then there is nothing to do"
        )
    query = select(RunRow.dag_id, RunRow.run_id, RunRow.interval_start)
    with services.ledger.transaction() as session:
        rows = session.execute(query.where(tuple_(RunRow.dag_id, RunRow.run_id).in_(deleted))).all()
    for dag_id, run_id, start in rows:
        yield f"{run_id} was deleted in Airflow: {run_again(dag_id, start)} has its interval run again"


def _deliver_once(services: Services, clearer: Clearer, dataflow: str | None) -> list[DeliveredClear]:
    with services.ledger.transaction() as session:
        pending = open_clears(session, dataflow)
    done: list[DeliveredClear] = []
    refused: list[WeirError] = []
    # All of a DAG in one request: between two, Airflow's scheduler gives up anew what stands behind a failed task.
    for _, rows in groupby(sorted(pending, key=lambda row: (row.dag_id, row.id)), key=lambda row: row.dag_id):
        batch = list(rows)
        _count_sends(services, batch)
        try:
            answers = _cleared(clearer, [_item(row) for row in batch])
        except WeirError as error:
            refused.append(error)  # the clears of other DAGs may still be possible
            continue
        done += _record(services, batch, answers)
    if refused:
        raise refused[0]
    return done


def _cleared(clearer: Clearer, items: Sequence[ClearItem]) -> list[ClearAnswer]:
    """Clear; of a task that Airflow has mapped since the tries that the ledger knows, its first index."""
    answers = clearer.clear(items)
    gone = [each.item for each in answers if each.state in NOT_IN_AIRFLOW and each.item.map_index < 0]
    mapped = clearer.clear([replace(each, map_index=0) for each in gone]) if gone else ()
    there = {of: each for of, each in zip(gone, mapped, strict=True) if each.state not in NOT_IN_AIRFLOW}
    return [there.get(each.item, each) for each in answers]


def _item(row: PendingClearRow) -> ClearItem:
    return ClearItem(row.dag_id, row.run_id, row.task_id, row.map_index, row.expected_try, note=row.reason)


def _count_sends(services: Services, rows: Sequence[PendingClearRow]) -> None:
    """Count a delivery that is about to be sent, of which the answer may be lost."""
    for dataflow, some in groupby(sorted(rows, key=_dataflow), key=_dataflow):
        with services.ledger.transaction(dataflow) as session:
            for row in _fresh(session, some).values():
                row.sends += 1


def _dataflow(row: PendingClearRow) -> str:
    return row.dataflow


def _fresh(session: Session, rows: Iterable[PendingClearRow]) -> dict[int, PendingClearRow]:
    """Return clears as they are now, by number."""
    found = session.scalars(select(PendingClearRow).where(PendingClearRow.id.in_([row.id for row in rows])))
    return {row.id: row for row in found}


def _record(
    services: Services, rows: Sequence[PendingClearRow], answers: Sequence[ClearAnswer]
) -> list[DeliveredClear]:
    """Record the answers to clears, in one transaction for each dataflow: one of all to all may have hundreds."""
    by_row = {row.id: answer for row, answer in zip(rows, answers, strict=True)}
    done: list[DeliveredClear] = []
    for dataflow, some in groupby(sorted(rows, key=_dataflow), key=_dataflow):
        batch = list(some)
        with services.ledger.transaction(dataflow) as session:
            fresh = _fresh(session, batch)
            done += [_recorded(session, services, row, fresh.get(row.id), by_row[row.id]) for row in batch]
    return done


def _recorded(
    session: Session, services: Services, row: PendingClearRow, fresh: PendingClearRow | None, answer: ClearAnswer
) -> DeliveredClear:
    settlement = _outcome_of(session, row, answer)
    outcome = _described(settlement, row, answer)
    if fresh is not None and not answer.cleared:
        fresh.sends -= 1  # this delivery has done nothing
    if fresh is not None and fresh.settled_at is None:
        fresh.outcome, fresh.found_try, fresh.map_index = outcome, answer.try_number, answer.item.map_index
        fresh.settled_at = services.now() if settlement.is_settled else None
        fresh.expected_try = answer.try_number if settlement is ClearOutcome.UNSEEN else fresh.expected_try
        is_itself = settlement is ClearOutcome.UNFINISHED and answer.try_number == row.expected_try
        if is_itself and answer.state in _YET_TO_START:
            fresh.expected_try -= 1  # it begins anew under its number, also where a rebuild has fenced what had begun
        # A try that runs is no repair: no newer try is to be awaited. One does follow where it has been cleared
        # already, so that it has no state, and where Airflow retries it, though a rebuild has fenced it.
        fresh.is_void = is_itself and answer.state not in (*_YET_TO_START, None, "up_for_retry")
    task = TaskKey(row.dag_id, row.run_id, row.task_id, answer.item.map_index)
    return DeliveredClear(task, settlement, outcome, row.reason)


def _is_ending(session: Session, row: PendingClearRow, answer: ClearAnswer) -> bool:
    """Report whether the expected try has ended but Airflow still calls it unfinished: it can be cleared soon."""
    if answer.state in FINAL or answer.try_number != row.expected_try:
        return False
    query = select(AttemptRow.id).where(
        AttemptRow.run == row.run,
        AttemptRow.region == row.region,
        AttemptRow.subtask == row.subtask,
        AttemptRow.try_number == row.expected_try,
        AttemptRow.state.in_(ENDED),
    )
    return session.scalar(query) is not None


def _is_unseen(session: Session, row: PendingClearRow, answer: ClearAnswer) -> bool:
    """Report whether Airflow has finished another try that was never registered, so that the clear is still needed.

    The try was marked manually, failed before its begin, or was registered in a ledger that was lost; a try below the
    expected one is that of a DagRun that was deleted and created again.
    """
    if answer.state not in CLEARABLE or answer.try_number == row.expected_try:
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


def _outcome_of(session: Session, row: PendingClearRow, answer: ClearAnswer) -> ClearOutcome:
    if answer.cleared:
        return ClearOutcome.CLEARED
    if _is_ending(session, row, answer):
        return ClearOutcome.ENDING
    return ClearOutcome.UNSEEN if _is_unseen(session, row, answer) else _as_found(row, answer)


def _as_found(row: PendingClearRow, answer: ClearAnswer) -> ClearOutcome:
    if answer.state in NOT_IN_AIRFLOW:
        return ClearOutcome.MISSING
    if answer.try_number > row.expected_try:
        return ClearOutcome.NEWER
    if answer.state not in FINAL:
        return ClearOutcome.UNFINISHED
    return ClearOutcome.SKIPPED if answer.state == "skipped" else ClearOutcome.REFUSED


def _described(settlement: ClearOutcome, row: PendingClearRow, answer: ClearAnswer) -> str:
    found = f"{answer.state or 'no state yet'} at try {answer.try_number}"
    texts = {
        ClearOutcome.CLEARED: "cleared",
        ClearOutcome.MISSING: f"Airflow has no such task instance ({answer.state})",
        ClearOutcome.NEWER: f"not needed: {found}, newer than try {row.expected_try}",
        ClearOutcome.UNFINISHED: f"not needed: {found}, it has not finished",
        ClearOutcome.ENDING: f"still {found}: to be cleared when it has ended",
        ClearOutcome.UNSEEN: f"not cleared yet: {found}, a try that Weir has not seen",
    }
    return texts.get(settlement, f"not cleared: {found}")
