"""Checks in Airflow that the regions that an attempt awaits will run.

Invariant: no attempt waits for ever. A region that runs by the ledger and is finished in Airflow has no result: it was
marked a success manually, or killed finally. One that Airflow does not have is awaited only while Airflow can make it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from weir.coordination.airflow import ClearAnswer, Clearer, ClearItem
from weir.coordination.evidence import look_for_results
from weir.coordination.registered import Registered
from weir.coordination.services import Services
from weir.coordination.values import Awaiting
from weir.errors import Fenced, Misconfigured
from weir.execution.airflow_words import FINAL, NOT_IN_AIRFLOW, run_again
from weir.execution.run_state import CLOSE, AttemptState
from weir.ledger.attempts import LIVE, attempts_of, end
from weir.ledger.clears import task_of
from weir.ledger.database.tables import AttemptRow, PendingClearRow
from weir.ledger.runs import Run, run_by_id
from weir.ledger.snapshot import run_state
from weir.recovery.expansion import Wanted, as_airflow_makes_them
from weir.recovery.reconcile import add_clear_of_closing
from weir.restarts.delays import FIRST_WAIT, LONGEST_WAIT
from weir.topology.ids import OWN_RUN, RunId
from weir.topology.regions import RegionId

DELETED = "Airflow's DagRun was deleted: "
"""The beginning of the error about an earlier run that nothing computes."""


@dataclass(frozen=True, slots=True)
class AwaitedStatus:
    """The status of awaited regions in Airflow.

    `has_changed`: the ledger was corrected. `void` are regions that have failed, or are of earlier runs and never
    began, and that are finished in Airflow.
    """

    has_changed: bool
    void: frozenset[RegionId]


@dataclass(frozen=True, slots=True)
class _Asked:
    """A region that is asked about; `live` are its attempts that were live before Airflow answered."""

    region: RegionId
    run: Run
    item: ClearItem
    is_owed: bool
    live: frozenset[str]

    @property
    def wanted(self) -> Wanted:
        """Its task instance, and the parallelism that its task has by now."""
        name = self.region.name
        parallelism = 1 if name == CLOSE.name else self.run.topology.region(name).parallelism
        return Wanted(self.item, parallelism, is_running=self.region.is_of_own_run)


def awaited_status(services: Services, run: Run, regions: Iterable[RegionId], clearer: Clearer) -> AwaitedStatus:
    """Ask Airflow for the status of awaited regions, and start earlier runs that are queued after this run.

    Raises Misconfigured for a region that was skipped, has failed finally or does not exist and will not, and
    LedgerBehind if the store has the result of one that is a success in Airflow. A failed region of an earlier run is
    awaited, so that its repair needs no clear of later runs.
    """
    with services.ledger.transaction() as session:
        asked = [_asked(session, run, region) for region in sorted(regions)]
    _require_computed(asked)
    answers = clearer.inspect([each.item for each in asked])
    answers = as_airflow_makes_them(clearer, [each.wanted for each in asked], answers)
    for each, answer in zip(asked, answers, strict=True):
        _require_runnable(each, answer, clearer)
    to_start = {each.run.id: each.run for each, answer in zip(asked, answers, strict=True) if _is_to_come(each, answer)}
    for earlier in to_start.values():
        clearer.start(earlier.dag_id, earlier.run_id)
    finished = [(each, answer) for each, answer in zip(asked, answers, strict=True) if answer.state == "success"]
    if not finished:
        return AwaitedStatus(has_changed=False, void=frozenset())
    for each, _ in finished:
        local = each.region.in_run(OWN_RUN)
        look_for_results(services, each.run.id, each.run.topology.outputs(local))
    with services.ledger.transaction(run.dataflow.name) as session:
        # A list: all are voided, not only the first.
        changed = [_void(session, services, each, answer) for each, answer in finished]
        void = frozenset(each.region for each, _ in finished if _will_not_come(session, each))
    return AwaitedStatus(any(changed), void)


def still_to_run(services: Services, run: Run, regions: Collection[RegionId], clearer: Clearer) -> frozenset[RegionId]:
    """Return those regions that Airflow runs, or will run, whether or not the ledger knows: a person may have cleared.

    Raises Retryable or Misconfigured as `states_in_airflow` does.
    """
    states = states_in_airflow(services, run, regions, clearer)
    return frozenset(region for region, state in states.items() if state not in FINAL)


def states_in_airflow(
    services: Services, run: Run, regions: Collection[RegionId], clearer: Clearer
) -> dict[RegionId, str | None]:
    """Return Airflow's states of the task instances of regions, except of runs that no DagRun computes.

    Raises Retryable or Misconfigured as the clearer does, which is not asked about nothing.
    """
    if not regions:
        return {}
    with services.ledger.transaction() as session:
        asked = [_asked(session, run, region) for region in sorted(regions)]
    asked = [each for each in asked if each.run.has_dag_run]
    answers = clearer.inspect([each.item for each in asked])
    answers = as_airflow_makes_them(clearer, [each.wanted for each in asked], answers)
    return {each.region: answer.state for each, answer in zip(asked, answers, strict=True)}


def require_running(session: Session, attempt: str, resolved: str) -> AttemptRow:
    """Return the row of an attempt that has `resolved` something. Raises Fenced for one that has ended meanwhile."""
    row = session.get(AttemptRow, attempt)  # None: the ledger has lost it, or was rebuilt
    if row is None or row.state != AttemptState.RUNNING.value:
        raise Fenced.of("recovery.ended_while_resolving", attempt=attempt, resolved=resolved)
    return row


def tell_of_gone(services: Services, name: RunId, cleared: Collection[RegionId], clearer: Clearer) -> str:
    """Have a run closed again of which Airflow has lost the task of a `cleared` region, and say so; else return "".

    The closing task fails and says what to type: no other task may need what is missing. Raises Retryable or
    Misconfigured as the clearer does.
    """
    with services.ledger.transaction() as session:
        run = run_by_id(session, name)
        # A later run may have had a region cleared before this one was pinned, to a declaration without it.
        known = sorted({CLOSE, *filter(run.topology.knows, cleared)})
        asked = [_asked(session, run, region) for region in known]
    answers = as_airflow_makes_them(
        clearer, [each.wanted for each in asked], clearer.inspect([each.item for each in asked])
    )
    states = {each.region: answer.state for each, answer in zip(asked, answers, strict=True)}
    gone = [str(region) for region, state in states.items() if state in NOT_IN_AIRFLOW]
    if not gone or states[CLOSE] != "success":
        return ""
    why = f"Airflow has no {', '.join(gone)} any more"
    with services.ledger.transaction(run.dataflow.name) as session:
        is_cleared = add_clear_of_closing(session, services, run.id, why)
    return f"{why}: {CLOSE.name} is cleared, and says what to do" if is_cleared else ""


def wait_for(row: AttemptRow, reason: str, registered: Registered, now: datetime) -> Awaiting:
    """Record that an attempt waits, longer each time."""
    seconds = min(FIRST_WAIT * 2**row.waits, LONGEST_WAIT)
    row.state, row.waits, row.error = AttemptState.WAITING.value, min(row.waits + 1, 10), None
    row.awaited, row.heard_at = None, now
    return Awaiting(seconds, reason, registered.interrupt, registered.attempt.id)


def _asked(session: Session, run: Run, region: RegionId) -> _Asked:
    owner = run if region.is_of_own_run else run_by_id(session, region.run, run.topology)
    is_owed = any(row.settled_at is None for row in _repairs(session, owner, region))
    local = region.in_run(OWN_RUN)
    live = frozenset(row.id for row in attempts_of(session, owner.id, local) if row.state in LIVE)
    return _Asked(region, owner, clear_item(session, owner, local), is_owed, live)


def clear_item(session: Session, run: Run, region: RegionId) -> ClearItem:
    """Return the task instance of `region`, of any try."""
    task_id, map_index = task_of(session, run, region)
    return ClearItem(run.dag_id, run.run_id, task_id, map_index, None)


def _is_to_come(asked: _Asked, answer: ClearAnswer) -> bool:
    """Report whether the run may be queued because `max_active_runs` counts this run."""
    return not asked.region.is_of_own_run and answer.state is None


def _require_computed(asked: Iterable[_Asked]) -> None:
    """Refuse to wait for the restored state that a dataflow has begun with: no DagRun computes it."""
    for each in asked:
        if not each.run.has_dag_run:
            name = each.run.dataflow.name
            raise Misconfigured.of(
                "recovery.restored_files_gone", region=each.region, name=name, run_id=each.run.run_id
            )


def _require_runnable(asked: _Asked, answer: ClearAnswer, clearer: Clearer) -> None:
    region, run = asked.region, asked.run
    if answer.state in ("failed", "upstream_failed") and not asked.is_owed and region.is_of_own_run:
        raise Misconfigured.of(
            "recovery.producer_failed",
            region=region,
            task_id=answer.item.task_id,
            run_id=run.run_id,
            state=answer.state,
            number=run.id,
        )
    if answer.state == "skipped":
        raise Misconfigured.of(
            "recovery.producer_skipped",
            region=region,
            task_id=answer.item.task_id,
            run_id=run.run_id,
            number=run.id,
        )
    if answer.state in NOT_IN_AIRFLOW and not region.is_of_own_run:
        if clearer.exists(run.dag_id, run.run_id) is False:
            raise Misconfigured(_deleted(run, region))
        raise Misconfigured.of(
            "recovery.producer_missing",
            region=region,
            task_id=answer.item.task_id,
            map_index=answer.item.map_index,
            run_id=run.run_id,
            number=run.id,
        )
    if answer.state in NOT_IN_AIRFLOW:
        raise Misconfigured.of(
            "recovery.task_of_pin_missing",
            region=region,
            run_id=run.id,
            task_id=answer.item.task_id,
            map_index=answer.item.map_index,
        )


def _deleted(run: Run, region: RegionId) -> str:
    """Say that the DagRun of an earlier run is deleted: first what loses nothing, then what loses its rows."""
    return (
        f"{DELETED}{run.run_id} of the epoch before, and with it {region}, which is read. Have its interval run again, "
        f"which loses nothing: {run_again(run.dag_id, run.interval[0])}, or trigger it with its date. Then clear this "
        f"task. (`weir run adopt {run.id}` gives the epoch up instead: this one then goes on from the one before it, "
        "and what it and all later ones make lacks the rows of the epoch that is given up)"
    )


def _repairs(session: Session, run: Run, region: RegionId) -> list[PendingClearRow]:
    query = select(PendingClearRow).where(
        PendingClearRow.run == run.id,
        PendingClearRow.region == region.name,
        PendingClearRow.subtask == region.subtask,
        ~PendingClearRow.is_void,
    )
    return list(session.scalars(query))


def _will_not_come(session: Session, asked: _Asked) -> bool:
    """Report whether a region that has failed, or one of an earlier run that never began, will not run."""
    region, run = asked.region, asked.run
    if region.is_of_own_run or attempts_of(session, run.id, region):
        return run_state(session, run).region(region.in_run(OWN_RUN)).has_failed
    return not _repairs(session, run, region)


def _void(session: Session, services: Services, asked: _Asked, answer: ClearAnswer) -> bool:
    """Record that an awaited region has no result; false while a clear is pending, or if the answer is outdated."""
    run, local = asked.run, asked.region.in_run(OWN_RUN)
    owed = _repairs(session, run, local)
    if any(row.settled_at is None for row in owed):
        return False
    attempts = attempts_of(session, run.id, local)
    # Numbers prove nothing: a DagRun that was created again counts its tries from 1, and Airflow's database may have
    # lost the try that was live before it answered.
    has_begun = any(row.state in LIVE and row.id not in asked.live for row in attempts)
    if has_begun or not run_state(session, run).region(local).is_running:
        return False  # a try has begun, or the region has ended, since the answer
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
