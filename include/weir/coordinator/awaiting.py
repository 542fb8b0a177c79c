"""Whether somebody really is at work on what an attempt awaits.

Invariant: nobody waits for ever. What the ledger believes to be at work and Airflow calls finished is work that came
to nothing: marked success by hand, or killed for good.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import select
from sqlalchemy.orm import Session

from weir.coordinator.clearing import MISSING, ClearAnswer, Clearer, ClearItem
from weir.coordinator.services import Services
from weir.errors import Misconfigured
from weir.ledger.attempts import LIVE, attempts_of, end
from weir.ledger.models import OwedClearRow
from weir.ledger.owed import task_of
from weir.ledger.runs import Run
from weir.ledger.snapshot import run_state
from weir.recovery.run_state import AttemptState
from weir.topology.regions import RegionId

NOT_IN_AIRFLOW = (MISSING, "removed")


def void_finished(services: Services, run: Run, regions: Iterable[RegionId], clearer: Clearer) -> bool:
    """Ask Airflow about regions believed to be at work; whether any of them turned out to be finished.

    Raises Misconfigured for one that was skipped, failed for good or does not exist.
    """
    with services.ledger.transaction() as session:
        items = {region: _item(session, run, region) for region in sorted(regions)}
        owing = {region for region in items if any(row.settled_at is None for row in _repairs(session, run, region))}
    answers = dict(zip(items, clearer.inspect(list(items.values())), strict=True))
    for region, answer in answers.items():
        _require_runnable(run, region, answer, is_owed=region in owing)
    finished = {region: answer for region, answer in answers.items() if answer.state == "success"}
    if not finished:
        return False
    with services.ledger.transaction(run.dataflow.name) as session:
        # Each is asked of, so that none is left out because another one was void.
        return any([_void(session, services, run, region, answer) for region, answer in finished.items()])  # noqa: C419


def _item(session: Session, run: Run, region: RegionId) -> ClearItem:
    task_id, map_index = task_of(session, run, region)
    return ClearItem(run.dag_id, run.run_id, task_id, map_index, None)


def _require_runnable(run: Run, region: RegionId, answer: ClearAnswer, *, is_owed: bool) -> None:
    if answer.state in ("failed", "upstream_failed") and not is_owed:
        raise Misconfigured(
            f"{region} is awaited, but Airflow calls {answer.item.task_id} of run {run.run_id} {answer.state}: look at "
            "its log, mend the cause, and clear it with its downstream tasks"
        )
    if answer.state == "skipped":
        raise Misconfigured(
            f"{region} was skipped in Airflow, so its result was never made: clear {answer.item.task_id} of run "
            f"{run.run_id} (a region cannot be left out of a dataflow)"
        )
    if answer.state in NOT_IN_AIRFLOW:
        raise Misconfigured(
            f"run {run.id} is pinned to a dataflow with {region}, but Airflow has no such task instance any more "
            f"({answer.item.task_id}, map index {answer.item.map_index}): the DAG has changed. "
            f"`weir run adopt {run.id}` moves the run to the present dataflow"
        )


def _repairs(session: Session, run: Run, region: RegionId) -> list[OwedClearRow]:
    query = select(OwedClearRow).where(
        OwedClearRow.run == run.id,
        OwedClearRow.region == region.name,
        OwedClearRow.subtask == region.subtask,
        ~OwedClearRow.is_void,
    )
    return list(session.scalars(query))


def _void(session: Session, services: Services, run: Run, region: RegionId, answer: ClearAnswer) -> bool:
    """Record that what is awaited will not come; false while a clear is still owed, or where the answer is too old."""
    owed = _repairs(session, run, region)
    if any(row.settled_at is None for row in owed):
        return False
    attempts = attempts_of(session, run.id, region)
    is_newer = any(row.try_number > answer.try_number for row in attempts)
    if is_newer or not run_state(session, run).region(region).at_work:
        return False  # a newer try has begun, or the work has ended, since the run was looked at
    for row in attempts:
        if row.state in (*LIVE, AttemptState.RETRYING.value):
            end(
                row,
                AttemptState.FAILED,
                services.now(),
                error="Airflow calls it a success, but it has committed nothing",
            )
    for each in owed:
        each.is_void, each.found_try = True, answer.try_number
    return True
