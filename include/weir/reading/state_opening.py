"""Selects the state that a reader names: at the end of an epoch, or in a checkpoint or savepoint.

Invariants: a reader gets only what attempts have committed, or exactly the files that a manifest names; of closed runs
alone, only what stood when a run was closed. The lease begins in the transaction that finds the state; a savepoint
needs none, since only its owner deletes it. Stale state is given only if no epoch is named, of one epoch as a whole,
and says so. Without leases nothing is written into the ledger; what is read may then be deleted meanwhile, and is
Unreadable.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, replace

from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from weir.coordination.read_leases import ReadClaim, ReadLease, claimed, reader
from weir.coordination.services import Services
from weir.dataflow.state import StateKind
from weir.errors import Fault, Loss, Misconfigured, Retryable
from weir.execution.partition_state import PartitionState
from weir.formats.checkpoint import Checkpoint, KeyedSnapshot
from weir.formats.manifest import Manifest
from weir.formats.paths import checkpoint_path
from weir.ledger.checkpoints import checkpoint_row, is_closed_with, is_of_closed, retained_checkpoints
from weir.ledger.database.tables import CheckpointRow, ResultRow, RunRow
from weir.ledger.names import require_dataflow
from weir.ledger.runs import runs_of, topology_of
from weir.reading.availability import Chosen, Unreadable, manifests_of
from weir.reading.choosing import When, choose
from weir.reading.opened_state import OpenedState, OpenStatePartition, StateAt
from weir.snapshots.source import Folder, find_source
from weir.state.checkpoint_content import read_checkpoint
from weir.state.compactions import missing_files
from weir.state.file_rules import expired_until
from weir.topology.ids import RunId
from weir.topology.key_groups import key_group_range
from weir.topology.regions import Topology

_SHOWN = 10


class NotClosed(Retryable):
    """Raised where only what a closed run has left is wanted, and the run is not closed."""


@dataclass(frozen=True, slots=True)
class StateReader:
    """Who opens a state; with leases, unless the ledger has to stay as it is, as for a page."""

    services: Services
    is_leasing: bool = True

    def transaction(self, dataflow: str) -> AbstractContextManager[Session]:
        """Return the transaction that finds the state."""
        return self.services.ledger.transaction(dataflow if self.is_leasing else None)

    def claim(
        self,
        session: Session,
        dataflow: str,
        results: Collection[int],
        states: Collection[PartitionState] = (PartitionState.FINISHED,),
    ) -> ReadClaim | None:
        """Lease the results of the state in that transaction."""
        if not self.is_leasing:
            return None
        return claimed(session, self.services, dataflow, results, reader("weir.open"), states)


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedState:
    """A keyed state at the end of `run`, in a checkpoint or savepoint, or else the newest; `attempt` is of a subtask.

    With `is_fresh` the newest one is refused where it cannot be read now. With `of_closed` it is what stood when its
    run was closed: what may still be rolled back is never given.
    """

    dataflow: str
    name: str
    run: When = None
    checkpoint: str | None = None
    attempt: str | None = None
    is_fresh: bool = False
    of_closed: bool = False


def open_wanted_state(by: StateReader, wanted: WantedState, closing: ExitStack) -> OpenedState:
    """Open a state. Raises Misconfigured, Unreadable, Retryable."""
    if wanted.checkpoint is not None:
        return _open_snapshot(by, wanted, wanted.checkpoint, closing)
    if wanted.run is None and wanted.attempt is None:
        return _open_newest_state(by, wanted, closing)
    return _open_state(by, wanted, closing)


def _open_newest_state(by: StateReader, wanted: WantedState, closing: ExitStack) -> OpenedState:
    """Open the state that the newest epoch has left; unless a fresh one is wanted, else that of the newest whole epoch.

    An epoch is whole if its state can be read, or that of its checkpoint: while a correction of an earlier epoch
    cascades, it is as it was before. Raises Misconfigured, Unreadable, Retryable.
    """
    try:
        newest = _newest_closed(by.services, wanted) if wanted.of_closed else None
        return _open_state(by, replace(wanted, run=newest), closing)
    except (Unreadable, NotClosed):
        if wanted.is_fresh:
            raise
        for run, checkpoint in _whole_candidates(by.services, wanted):
            with suppress(Unreadable, NotClosed, Misconfigured):
                if checkpoint is None:
                    return _open_state(by, replace(wanted, run=run), closing, is_stale=True)
                return _open_checkpoint(by, wanted, checkpoint, closing, is_stale=True)
        raise


def _newest_closed(services: Services, wanted: WantedState) -> str | None:
    """Return the newest run with the state that is closed, or was until something of it became stale.

    Raises NotClosed where a newer one begins anew, and its checkpoint has what it was closed with.
    """
    was_closed = RunRow.closed_at.is_not(None) | RunRow.closed_result.is_not(None)
    with services.ledger.transaction() as session:
        newest = session.scalar(_present(wanted).where(was_closed).order_by(RunRow.epoch.desc()).limit(1))
        later = [row for row in retained_checkpoints(session, wanted.dataflow) if row.run > (newest or "")]
        kept = max((row.run for row in later if is_of_closed(session, row, wanted.name)), default=None)
    if kept is not None:
        raise NotClosed.of("reading.run_not_closed", run=kept)
    return newest


def _present(wanted: WantedState) -> Select[RunId]:
    """Select the runs that have results of the state; of a sealed one nothing counts."""
    present = select(ResultRow.run).join(RunRow, RunRow.id == ResultRow.run)
    present = present.where(RunRow.dataflow == wanted.dataflow, RunRow.sealed_at.is_(None))
    return present.where(ResultRow.stage == wanted.name, ResultRow.is_current)


def _whole_candidates(services: Services, wanted: WantedState) -> list[tuple[str, int | None]]:
    """Return runs that may have the state, newest epoch first: as they have left it (None), or in their checkpoint."""
    with services.ledger.transaction() as session:
        found: dict[str, list[int | None]] = {run: [None] for run in session.scalars(_present(wanted))}
        for row in retained_checkpoints(session, wanted.dataflow):
            if not wanted.of_closed or is_of_closed(session, row, wanted.name):
                found.setdefault(row.run, []).append(row.number)
    return [(run, number) for run in sorted(found, reverse=True) for number in found[run]]


def _open_state(by: StateReader, wanted: WantedState, closing: ExitStack, *, is_stale: bool = False) -> OpenedState:
    """Open the state that an epoch has left. Raises Misconfigured, Unreadable, NotClosed, Retryable."""
    services, dataflow, run, name = by.services, wanted.dataflow, wanted.run, wanted.name
    with by.transaction(dataflow) as session:
        retained = numbers_of(retained_checkpoints(session, dataflow))
        _require_keyed(session, dataflow, name)
        try:
            chosen = choose(session, dataflow, run, name, wanted.attempt)
        except Unreadable as error:
            raise _unreadable(error.losses, dataflow, run, retained) from None
        topology = topology_of(session.get_one(RunRow, chosen.run).pinned or {})
        numbers = [row.id for row in chosen.rows]
        if wanted.of_closed and not is_closed_with(session, session.get_one(RunRow, chosen.run), chosen.rows):
            raise NotClosed.of("reading.run_not_closed", run=chosen.run)
        claim = by.claim(session, dataflow, numbers, chosen.states)
    with ExitStack() as leased:
        lease = _lease(claim, leased)
        try:
            manifests = manifests_of(services, chosen)
        except Unreadable as error:
            raise _unreadable(error.losses, dataflow, run, retained) from None
        closing.push(leased.pop_all())
    at = _of_epoch(topology, name, chosen, manifests, advice_on(chosen.run, retained))
    return OpenedState(services.store, replace(at, is_stale=is_stale), lease, closing.pop_all())


def keyed_states(session: Session, dataflow: str) -> tuple[str, ...]:
    """Return the keyed states of all runs in the ledger: dataflows may add and remove states.

    Raises Misconfigured for a dataflow that the ledger does not know.
    """
    require_dataflow(session, dataflow)
    flows = [topology_of(row.pinned).dataflow for row in runs_of(session, dataflow) if row.pinned is not None]
    states = (state for flow in flows for stage in flow.stages for state in stage.states)
    return tuple(sorted({state.name for state in states if state.kind is StateKind.KEYED}))


def numbers_of(retained: Sequence[CheckpointRow]) -> str:
    """Checkpoints as a message names them; empty where there are none."""
    shown = ", ".join(f"{row.number} of {row.epoch}" for row in retained[-_SHOWN:])
    return f"the checkpoints {shown}" if shown else ""


def _unreadable(losses: Sequence[Loss], dataflow: str, run: When, retained: str) -> Unreadable:
    runs = {loss.run for loss in losses} or {f"{dataflow}@{run}"}
    return Unreadable(losses, advice_on(min(runs), retained))


def advice_on(run: str, retained: str) -> str:
    """Return the command that restores an unreadable state of a run."""
    kept = f"Kept are {retained}: read one of these with checkpoint=N, on the command line --checkpoint N"
    return f"`weir plan {run}` tells whether it can be recomputed. {kept if retained else 'No checkpoint is kept'}"


def _require_keyed(session: Session, dataflow: str, name: str) -> None:
    rows = runs_of(session, dataflow)
    known = keyed_states(session, dataflow)
    if rows and name not in known:
        raise unknown_state(dataflow, name, known)


def unknown_state(dataflow: str, name: str, known: Sequence[str]) -> Misconfigured:
    """Return the error about a state that no run of a dataflow has."""
    return Misconfigured.of("reading.state_unknown", dataflow=dataflow, name=name, known=", ".join(known) or "none")


def _of_epoch(topology: Topology, name: str, chosen: Chosen, manifests: Sequence[Manifest], advice: str) -> StateAt:
    state = topology.dataflow.state(name)
    keeper = next(stage for stage in topology.dataflow.stages if state in stage.states)
    first = manifests[0]
    parts = tuple(
        OpenStatePartition(
            subtask=each.subtask,
            layout=each.layout,
            attempt=each.attempt,
            key_groups=key_group_range(each.max_parallelism, topology.dataflow.stage(name).parallelism, each.subtask),
            rows=each.rows,
            digest=str(each.digest),
            files=() if each.state is None else each.state.files,
            is_counted=each.state is None or each.state.is_counted,
        )
        for each in manifests
    )
    return StateAt(
        state=state,
        stage=keeper.name,
        run=chosen.run,
        epoch=chosen.epoch,
        checkpoint=None,
        spark_schema=first.spark_schema,
        max_parallelism=first.max_parallelism,
        expired_until=expired_until(state, chosen.epoch),
        partitions=parts,
        advice=advice,
    )


def _lease(claim: ReadClaim | None, closing: ExitStack) -> ReadLease | None:
    if claim is None:
        return None
    lease = ReadLease(claim)
    closing.callback(lease.close)
    return lease


def _open_snapshot(by: StateReader, wanted: WantedState, which: str, closing: ExitStack) -> OpenedState:
    """Open the state of a checkpoint or savepoint: by its number, a savepoint also by its name or folder.

    Raises Misconfigured, Unreadable, Retryable.
    """
    services, dataflow = by.services, wanted.dataflow
    if which.isdigit():
        with services.ledger.transaction() as session:
            row = checkpoint_row(session, dataflow, int(which))
            is_own = row is None or not row.is_savepoint
        if is_own:
            return _open_checkpoint(by, wanted, int(which), closing)
    source = find_source(services, dataflow, which)
    with services.ledger.transaction() as session:  # a lease on no result
        claim = by.claim(session, dataflow, [])
    lease = _lease(claim, closing)
    advice = f"The savepoint in {source.folder.url} is not whole any more: `weir savepoint list` tells of others"
    at = _of_checkpoint(source.checkpoint, wanted.name, advice, source.folder)
    return OpenedState(source.folder.store, at, lease, closing.pop_all())


def _open_checkpoint(
    by: StateReader, wanted: WantedState, number: int, closing: ExitStack, *, is_stale: bool = False
) -> OpenedState:
    services, dataflow, name = by.services, wanted.dataflow, wanted.name
    with by.transaction(dataflow) as session:
        row = _retained(session, dataflow, number)
        results = list(session.scalars(select(ResultRow.id).where(ResultRow.run == row.run, ResultRow.stage == name)))
        claim = by.claim(session, dataflow, results)
        retained = numbers_of(retained_checkpoints(session, dataflow))
    lease = _lease(claim, closing)
    checkpoint = read_checkpoint(services.store, dataflow, number)
    if checkpoint is None:
        raise Misconfigured.of(
            "reading.checkpoint_gone",
            store_url=services.store.url,
            checkpoint_path=checkpoint_path(dataflow, number),
            number=number,
            dataflow=dataflow,
            retained=retained,
        )
    at = _of_checkpoint(checkpoint, name, advice_on(checkpoint.run, retained), Folder(services.store, ""))
    if is_stale:
        _require_files(services, at)
    return OpenedState(services.store, replace(at, is_stale=is_stale), lease, closing.pop_all())


def _require_files(services: Services, at: StateAt) -> None:
    """Require that all files of a state exist. Raises Unreadable."""
    missing = missing_files(services, [file for part in at.partitions for file in part.files])
    losses = [
        Loss(at.run, at.state.name, part.subtask, part.layout, part.attempt, Fault.MISSING, f"{file.path} is gone")
        for part in at.partitions
        for file in part.files
        if file.path in missing
    ]
    if losses:
        raise Unreadable(losses, at.advice)


def _retained(session: Session, dataflow: str, number: int) -> CheckpointRow:
    kept = {row.number: row for row in retained_checkpoints(session, dataflow)}
    if number in kept:
        return kept[number]
    known = checkpoint_row(session, dataflow, number)
    if known is not None and known.subsumed_by is not None:
        found = f"was subsumed by checkpoint {known.subsumed_by}"
    else:
        found = "is not known" if known is None else f"is {known.status}"
    named = numbers_of(list(kept.values())) or "no checkpoints"
    raise Misconfigured.of("reading.checkpoint_not_kept", number=number, dataflow=dataflow, found=found, named=named)


def _of_checkpoint(checkpoint: Checkpoint, name: str, advice: str, folder: Folder) -> StateAt:
    found = _snapshot(checkpoint, name)
    layout = found.layout.id
    parts = tuple(
        OpenStatePartition(
            subtask=part.subtask,
            layout=layout,
            attempt=part.attempt,
            key_groups=part.key_groups,
            rows=part.rows,
            digest=part.digest,
            files=tuple(replace(each, folder=folder.at(each.folder)) for each in part.files),
            is_counted=part.is_counted,
        )
        for part in found.partitions
    )
    return StateAt(
        state=found.state,
        stage=found.stage,
        run=checkpoint.run,
        epoch=checkpoint.epoch,
        checkpoint=checkpoint.number,
        spark_schema=found.spark_schema,
        max_parallelism=found.max_parallelism,
        expired_until=expired_until(found.state, checkpoint.epoch),
        partitions=parts,
        advice=advice,
    )


def _snapshot(checkpoint: Checkpoint, name: str) -> KeyedSnapshot:
    for each in checkpoint.states:
        if each.state.name == name:
            return each
    known = ", ".join(each.state.name for each in checkpoint.states) or "none"
    raise Misconfigured.of(
        "reading.state_not_in_checkpoint",
        number=checkpoint.number,
        dataflow=checkpoint.dataflow,
        name=name,
        known=known,
    )
