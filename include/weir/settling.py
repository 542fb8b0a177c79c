"""Settles what follows from the commits of a dataflow: clears, releases, notifications, versions for targets.

Invariant: a task and upkeep make the same call, `settle`. What one process leaves undone, any later one does: all that
is due is in the ledger.

Invariant 11: before a pass of upkeep deletes anything of a dataflow, the ledger is compared with the newest files in
the store.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from weir.coordination.airflow import Clearer
from weir.coordination.evidence import require_not_behind
from weir.coordination.run_records import write_records
from weir.coordination.services import Services
from weir.coordination.settled import Due, Settled
from weir.errors import LedgerBehind, Misconfigured, Retryable
from weir.ledger.clears import cleared_without_try
from weir.ledger.leases import drop_expired
from weir.ledger.publications import has_late_runs, note_late_runs
from weir.ledger.runs import newest_dataflow_settings
from weir.notifications.delivery import AirflowContext, Hung, forget
from weir.notifications.delivery import deliver as deliver_notifications
from weir.rebuild.catching_up import catch_up
from weir.recovery import pending_clears
from weir.recovery.awaiting import tell_of_gone
from weir.recovery.datasets import tell_readers
from weir.retention.checkpoints import maintain_checkpoints, maintain_outdated
from weir.retention.deletion_queries import runs_not_kept, runs_to_release
from weir.retention.release import Deleted, delete_released, release
from weir.retention.versions import expire_versions
from weir.sinks.delivery import TOLD_AFTER, Silence, unprepared
from weir.sinks.delivery import deliver as deliver_versions
from weir.sinks.provisional import settle_provisional
from weir.state_tables.following import follow_checkpoints
from weir.topology.ids import RunId
from weir.topology.regions import RegionId
from weir.units import format_size


class Settling:
    """Settles dataflows in one process, which leaves alone those that have not answered it."""

    def __init__(self, services: Services, airflow: Callable[[], Clearer], context: AirflowContext = dict) -> None:
        self._services, self._airflow, self._context = services, airflow, context
        self._hung, self._silence = Hung(), Silence()

    def settle(self, dataflow: str | None, due: Due) -> Settled:
        """Settle what is due of a dataflow; clears also of all dataflows (None). What fails is in the answer."""
        settled = Settled()
        if due.clears and due.is_thorough:
            self.tell_of_gone_tasks(dataflow, settled)
        if due.clears:
            with settled.trying("pending clears"):
                self.deliver_clears(dataflow, settled)
        if dataflow is None:
            return settled
        if due.runs != ():
            with settled.trying(dataflow):
                self.release(dataflow, due, settled)
        if due.early != ():
            with settled.trying(f"{dataflow}, early results"):
                self.settle_early(dataflow, due, settled)
        if due.readers:
            with settled.trying(f"{dataflow}, readers"):
                self.tell_readers(dataflow, due, settled)
        if due.receivers:
            with settled.trying(f"{dataflow}, notifications"):
                self.tell(dataflow, due, settled)
        if due.tables:
            with settled.trying(f"{dataflow}, tables of states"):
                self.follow_checkpoints(dataflow, due, settled)
        if due.targets:
            with settled.trying(f"{dataflow}, targets"):
                self.deliver_versions(dataflow, settled)
        return settled

    def catch_up(self, dataflow: str) -> str:
        """Have a ledger that has lost commits catch up with the store. Raises Misconfigured or Retryable."""
        done = catch_up(self._services, dataflow)
        return "Another process had the ledger catch up meanwhile" if done is None else done

    def tell_of_gone_tasks(self, dataflow: str | None, settled: Settled) -> None:
        """Have runs closed again of which Airflow has lost a task that was cleared: their closing task says so."""
        cleared: dict[RunId, set[RegionId]] = {}
        with settled.trying("cleared tasks"), self._services.ledger.transaction() as session:
            cleared = cleared_without_try(session, dataflow)
        for run, regions in cleared.items():
            with settled.trying(run):
                if said := tell_of_gone(self._services, run, regions, self._airflow()):
                    settled.done[run] = said

    def deliver_clears(self, dataflow: str | None, settled: Settled) -> None:
        """Deliver pending clears to Airflow. Raises Retryable or Misconfigured; those that it has not taken remain."""
        settled.clears += pending_clears.deliver(self._services, self._airflow(), dataflow)

    def tell_readers(self, dataflow: str, due: Due, settled: Settled) -> None:
        """Have readers in other dataflows compare what they have read, and deliver the clears of those that run again.

        Upkeep delivers clears by itself.
        """
        for reader in tell_readers(self._services, dataflow):
            settled.done[f"{dataflow}, readers"] = f"{reader} was compared with what is published now"
            if not due.is_thorough:
                with settled.trying(f"{reader}, pending clears"):
                    self.deliver_clears(reader, settled)

    def settle_early(self, dataflow: str, due: Due, settled: Settled) -> None:
        """Show results early, and take back what may not be shown any more. Raises LedgerBehind, Retryable."""
        services, is_thorough = self._services, due.is_thorough
        self._do(
            dataflow, due, partial(settle_provisional, services, dataflow, due.early, settled, is_thorough=is_thorough)
        )

    def follow_checkpoints(self, dataflow: str, due: Due, settled: Settled) -> None:
        """Bring tables of states up to date. Raises LedgerBehind where upkeep has not had the ledger catch up."""
        self._do(dataflow, due, partial(follow_checkpoints, self._services, dataflow, settled))

    def _do(self, dataflow: str, due: Due, job: Callable[[], object]) -> None:
        """Do a job; upkeep has a ledger that is found to have lost commits catch up."""
        if due.is_thorough:
            up_to_date(self._services, dataflow, job)
        else:
            job()

    def release(self, dataflow: str, due: Due, settled: Settled) -> None:
        """Release results that no run needs any more, and delete their bytes. Raises Retryable.

        Checkpoints are maintained first where all runs are meant, or the state of one of them was recomputed.
        """
        if due.is_thorough:
            settled.done[dataflow] = up_to_date(
                self._services, dataflow, lambda: self._release_thoroughly(dataflow, settled)
            )
            return
        services = self._services
        if due.runs is None:
            expire_versions(services, dataflow)
            maintain_checkpoints(services, dataflow)
        else:
            maintain_outdated(services, dataflow, due.runs)
        release(services, dataflow, due.runs)
        deleted = delete_released(services, dataflow, due.runs)
        if deleted:
            settled.done[dataflow] = _deleted_line(deleted)

    def _release_thoroughly(self, dataflow: str, settled: Settled) -> str:
        services = self._services
        require_not_behind(services, dataflow)
        with services.ledger.transaction(dataflow) as session:
            drop_expired(session, services.now())
        with settled.trying(dataflow, LedgerBehind):
            write_records(services, dataflow)
        with settled.trying(dataflow, LedgerBehind):
            expire_versions(services, dataflow)
        checkpoints = ""
        with settled.trying(dataflow, LedgerBehind):
            checkpoints = str(maintain_checkpoints(services, dataflow, is_thorough=True))
        for run in _to_release(services, dataflow):
            with settled.trying(run, LedgerBehind):
                release(services, dataflow, [run])
        deleted = _deleted_line(delete_released(services, dataflow))
        return f"{deleted}; {checkpoints}" if checkpoints else deleted

    def tell(self, dataflow: str, due: Due, settled: Settled) -> None:
        """Tell receivers; upkeep also of late epochs. One that has not answered for an hour is a failure."""
        if due.is_thorough:
            self._note_late_runs(dataflow)
        told, untold = deliver_notifications(self._services, dataflow, self._context, self._hung)
        if due.is_thorough:
            forget(self._services, dataflow)
        if told:
            settled.done[f"{dataflow}, notifications"] = f"{told} delivered"
        for waiting in untold:
            where = f"{dataflow}, {waiting.receiver.name}"
            settled.done[where] = str(waiting)
            if waiting.problem_since is not None and waiting.problem_since + TOLD_AFTER <= waiting.at:
                settled.failed[where] = Retryable(str(waiting))

    def _note_late_runs(self, dataflow: str) -> None:
        services = self._services
        with services.ledger.transaction() as session:
            if not has_late_runs(session, dataflow, services.now()):
                return
        with services.ledger.transaction(dataflow) as session:
            note_late_runs(session, dataflow, services.now())

    def deliver_versions(self, dataflow: str, settled: Settled) -> None:
        """Commit published versions into their targets.

        A version that has waited for an hour, or that a person has to see to, is a failure; so is a run that is not
        published for an hour since a target does not answer.
        """
        services = self._services
        for run, error in unprepared(services, dataflow):
            settled.failed[run] = Retryable.of("settling.target_awaited", error=error)
        for waiting in deliver_versions(services, dataflow, silence=self._silence):
            where = f"{dataflow}.{waiting.sink}"
            settled.done[where] = str(waiting)
            if waiting.needs_person(services.now()):
                settled.failed[where] = waiting.error


def up_to_date(services: Services, dataflow: str, job: Callable[[], object]) -> str:
    """Do a job; where the ledger is found to have lost commits, it catches up, and the job is done again."""
    try:
        return str(job())
    except LedgerBehind:
        done = catch_up(services, dataflow)
    again = str(job())
    return again if done is None else f"{done}; {again}"


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
