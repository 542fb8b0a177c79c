"""The jobs of upkeep, every few minutes and every hour, for all dataflows of the ledger.

Invariant: a failure for one run or dataflow does not stop the others, and is raised when all others are done.

Invariant 11: before a pass deletes anything of a dataflow, the ledger is compared with the newest files in the store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial

from sqlalchemy import select

from weir.coordination.airflow import Clearer
from weir.coordination.evidence import require_not_behind
from weir.coordination.run_records import write_records
from weir.coordination.services import Services
from weir.errors import Internal, LedgerBehind, Misconfigured, Retryable
from weir.integrity.scrub import scrub_dataflow
from weir.ledger.database.tables import DataflowRow
from weir.ledger.housekeeping import is_due, note_done
from weir.ledger.leases import drop_expired
from weir.ledger.runs import newest_dataflow_settings
from weir.notifications.channels import AirflowContext
from weir.notifications.delivery import Hung, forget
from weir.notifications.delivery import deliver as deliver_notifications
from weir.rebuild.catching_up import catch_up
from weir.retention.checkpoints import maintain_checkpoints
from weir.retention.release import Deleted, delete_released, release
from weir.retention.release_queries import runs_not_kept, runs_to_release
from weir.retention.sweep import DAILY, sweep
from weir.retention.sweep_report import SweepReport
from weir.retention.unknown_folders import report_unknown_dataflows
from weir.retention.versions import expire_versions
from weir.sinks.delivery import Silence, deliver, shuffled, unprepared
from weir.units import format_size

FULL_SWEEP = timedelta(days=1)
"""How often every folder of the store is swept, and not only those of recent runs."""

_STORE = "the store"

_KINDS = (Retryable, Misconfigured)
"""Kinds of error that a person must act on."""


@dataclass(slots=True)
class Upkept:
    """The report of an upkeep job for each dataflow, and its failures, by dataflow or by run."""

    done: dict[str, str] = field(default_factory=dict)
    failed: dict[str, Exception] = field(default_factory=dict)

    @contextmanager
    def trying(self, where: str, *passed_on: type[Exception]) -> Iterator[None]:
        """Write down what fails at `where`, whatever it is but an error that is `passed_on`, and go on."""
        try:
            yield
        except passed_on:
            raise
        except Exception as error:  # noqa: BLE001 - the others have their turn, then it is raised
            self.failed.setdefault(where, error)

    def lines(self) -> list[str]:
        """One line for each dataflow, then one for each failure."""
        failed = [f"{where}: failed, {type(error).__name__}: {error}" for where, error in self.failed.items()]
        return [*(f"{dataflow}: {said}" for dataflow, said in self.done.items()), *failed]

    def require_whole(self) -> None:
        """Raise an error if any job has failed: of the failures' common kind, or Internal; the first is its cause."""
        if not self.failed:
            return
        errors = list(self.failed.values())
        reasons = "; ".join(f"{where}: {type(error).__name__}: {error}" for where, error in self.failed.items())
        kind = next((each for each in _KINDS if all(isinstance(error, each) for error in errors)), Internal)
        raise kind(f"Upkeep failed in {len(errors)} place(s), all else was done: {reasons}") from errors[0]


def release_and_deliver(services: Services, context: AirflowContext) -> Upkept:
    """Release results, tell receivers, then commit versions into targets: what may have to wait for others comes last.

    Receivers come first of those two: each has a time limit, while a target's own code may hang. They are told of what
    it makes known by the next upkeep.
    """
    kept = [release_everywhere(services), notify_everywhere(services, context), deliver_everywhere(services)]
    done = {where: said for each in kept for where, said in each.done.items()}
    failed = {where: error for each in kept for where, error in each.failed.items()}
    return Upkept(done, failed)


def release_everywhere(services: Services) -> Upkept:
    """Release and delete the results of all dataflows that no run needs any more; delete expired leases."""
    kept = Upkept()
    for dataflow in _dataflows(services):
        with kept.trying(dataflow):
            kept.done[dataflow] = _up_to_date(services, dataflow, partial(_release, services, dataflow, kept))
    return kept


def _up_to_date(services: Services, dataflow: str, job: Callable[[], object]) -> str:
    """Do a job; a ledger that is found to have lost commits catches up with the store, and the job is done again."""
    try:
        return str(job())
    except LedgerBehind:
        done = catch_up(services, dataflow)
    again = str(job())
    return again if done is None else f"{done}; {again}"


def _release(services: Services, dataflow: str, kept: Upkept) -> str:
    require_not_behind(services, dataflow)
    with services.ledger.transaction(dataflow) as session:
        drop_expired(session, services.now())
    with kept.trying(dataflow, LedgerBehind):
        write_records(services, dataflow)
    with kept.trying(dataflow, LedgerBehind):
        expire_versions(services, dataflow)
    checkpoints = ""
    with kept.trying(dataflow, LedgerBehind):
        checkpoints = str(maintain_checkpoints(services, dataflow, is_thorough=True))
    for run in _to_release(services, dataflow):
        with kept.trying(run, LedgerBehind):
            release(services, dataflow, [run])
    deleted = _deleted_line(delete_released(services, dataflow))
    return f"{deleted}; {checkpoints}" if checkpoints else deleted


def _to_release(services: Services, dataflow: str) -> list[str]:
    """Return the runs of which anything may be released now: of most, a policy keeps everything."""
    with services.ledger.transaction() as session:
        try:
            settings = newest_dataflow_settings(session, dataflow, services.retention)
            return runs_not_kept(session, dataflow, settings, services.now())
        except Misconfigured:  # of a run that cannot be read, its own release says so, and the others have their turn
            return runs_to_release(session, dataflow)


def _deleted_line(deleted: tuple[Deleted, ...]) -> str:
    if not deleted:
        return "nothing to delete"
    size = format_size(sum(each.bytes for each in deleted))
    return f"{len(deleted)} result(s) deleted that are no longer needed: {size}"


def deliver_everywhere(services: Services) -> Upkept:
    """Commit the published versions of all dataflows into their targets that no closing task has committed.

    A version that has waited for an hour, or that a person has to see to, is a failure; so is a run that is not
    published for an hour since a target does not answer.
    """
    kept, silence = Upkept(), Silence()
    # Not always in one order: no dataflow is always the one for which no patience is left.
    for dataflow in shuffled(services, _dataflows(services), str):
        with kept.trying(dataflow):
            for run, error in unprepared(services, dataflow):
                kept.failed[run] = Retryable(f"nothing is published until its target answers: {error}")
            for each in deliver(services, dataflow, silence=silence):
                kept.done[f"{dataflow}.{each.sink}"] = str(each)
                if each.needs_person(services.now()):
                    kept.failed[f"{dataflow}.{each.sink}"] = each.error
    return kept


def notify_everywhere(services: Services, context: AirflowContext) -> Upkept:
    """Tell the receivers of all dataflows what waits for them; `context` as for `weir.notifications.delivery`.

    A receiver that has not answered for an hour is a failure.
    """
    kept, hung = Upkept(), Hung()
    for dataflow in _dataflows(services):
        with kept.trying(dataflow):
            told, untold = deliver_notifications(services, dataflow, context, hung)
            forget(services, dataflow)
            if told:
                kept.done[f"{dataflow}, notifications"] = f"{told} delivered"
            for each in untold:
                where = f"{dataflow}, {each.receiver.name}"
                kept.done[where] = str(each)
                if each.needs_person:
                    kept.failed[where] = Retryable(str(each))
    return kept


def sweep_everywhere(services: Services, clearer: Clearer) -> Upkept:
    """Remove what dead attempts, deleted DagRuns and expired runs left: of recent runs, and once a day of all."""
    kept = Upkept()
    is_daily = False
    for dataflow in _dataflows(services):
        with kept.trying(dataflow):
            began = services.now()
            is_full = _is_full_due(services, dataflow)
            job = partial(sweep, services, dataflow, is_daily=is_full, clearer=clearer)
            kept.done[dataflow] = _up_to_date(services, dataflow, job)
            if is_full:
                is_daily = True
                _up_to_date(services, dataflow, partial(_note_full, services, dataflow, began))
    if is_daily:
        with kept.trying(_STORE):
            kept.done[_STORE] = _of_nobody(services)
    return kept


def _note_full(services: Services, dataflow: str, began: datetime) -> None:
    with services.ledger.transaction(dataflow) as session:
        note_done(session, DAILY, dataflow, began)


def _of_nobody(services: Services) -> str:
    """Report folders in the store that belong to no dataflow of the ledger: upkeep never deletes them."""
    report = SweepReport(is_full=True)
    report_unknown_dataflows(services, report, services.retention.orphan_age)
    return (
        "; ".join(f"{each.path}, {format_size(each.bytes)}: {each.reason}" for each in report.unknown) or "all is known"
    )


def _is_full_due(services: Services, dataflow: str) -> bool:
    with services.ledger.transaction() as session:
        return is_due(session, DAILY, dataflow, FULL_SWEEP, services.now())


def scrub_everywhere(services: Services, clearer: Clearer) -> Upkept:
    """Verify a share of all stored bytes of all dataflows; have damaged results that are needed recomputed."""
    kept = Upkept()
    for dataflow in _dataflows(services):
        with kept.trying(dataflow):
            job = partial(scrub_dataflow, services, clearer, dataflow)
            kept.done[dataflow] = _up_to_date(services, dataflow, job)
    return kept


def _dataflows(services: Services) -> list[str]:
    with services.ledger.transaction() as session:
        return list(session.scalars(select(DataflowRow.name).order_by(DataflowRow.name)))
