"""Which state a reader means, by an epoch or by a checkpoint.

Invariant: what is given is what an epoch has committed, or what a retained checkpoint names; never the work of an
attempt that has not come to its end. What is given is claimed in the transaction that answers that it is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from sqlalchemy import select
from sqlalchemy.orm import Session

from weir.coordinator.checkpoint_files import read_checkpoint
from weir.coordinator.reading import ReadLease, claimed, reader
from weir.coordinator.services import Services
from weir.dataflow.keep import time_from_text
from weir.dataflow.state import State, StateKind
from weir.errors import Loss, Misconfigured
from weir.ledger.checkpoints import checkpoint_row, retained_checkpoints
from weir.ledger.models import CheckpointRow, ResultRow, RunRow
from weir.ledger.runs import runs_of, topology_of
from weir.reading.availability import Chosen, Unreadable
from weir.reading.choosing import When, choose
from weir.reading.opened_state import OpenedState, OpenStatePartition, StateAt
from weir.reading.probing import manifests_of
from weir.results.checkpoint import Checkpoint, KeyedSnapshot, checkpoint_path
from weir.results.layout import Layout
from weir.results.manifest import Manifest
from weir.state.files import epoch_seconds
from weir.topology.key_groups import key_group_range
from weir.topology.regions import Topology

_SHOWN = 10


def open_state(services: Services, dataflow: str, run: When, name: str, closing: ExitStack) -> OpenedState:
    """Open the state that an epoch has left. Raises Misconfigured, Unreadable, Retryable."""
    with services.ledger.transaction(dataflow) as session:
        retained = _told(_kept(session, dataflow))
        _require_keyed(session, dataflow, name)
        try:
            chosen = choose(session, dataflow, run, name)
        except Unreadable as error:
            raise _unreadable(error.losses, dataflow, run, retained) from None
        topology = topology_of(session.get_one(RunRow, chosen.run).pinned or {})
        claim = claimed(session, services, dataflow, [row.id for row in chosen.rows], reader("weir.open"))
    lease = ReadLease(claim)
    closing.callback(lease.close)
    try:
        manifests = manifests_of(services, chosen)
    except Unreadable as error:
        raise _unreadable(error.losses, dataflow, run, retained) from None
    at = _of_epoch(topology, name, chosen, manifests, _advice(chosen.run, retained))
    return OpenedState(services.store, at, lease, closing.pop_all())


def open_checkpoint(services: Services, dataflow: str, number: int, name: str, closing: ExitStack) -> OpenedState:
    """Open the state that a retained checkpoint names. Raises Misconfigured, Unreadable, Retryable."""
    with services.ledger.transaction(dataflow) as session:
        row = _retained(session, dataflow, number)
        results = list(session.scalars(select(ResultRow.id).where(ResultRow.run == row.run, ResultRow.stage == name)))
        claim = claimed(session, services, dataflow, results, reader("weir.open"))
        retained = _told(_kept(session, dataflow))
    lease = ReadLease(claim)
    closing.callback(lease.close)
    checkpoint = read_checkpoint(services.store, dataflow, number)
    if checkpoint is None:
        raise Misconfigured(
            f"{services.store.url}/{checkpoint_path(dataflow, number)} is gone or damaged, though checkpoint {number} "
            f"of {dataflow} is kept: `weir verify` tells what else is. Kept are {retained}"
        )
    at = _of_checkpoint(checkpoint, _snapshot(checkpoint, name), _advice(checkpoint.run, retained))
    return OpenedState(services.store, at, lease, closing.pop_all())


def keyed_states(session: Session, dataflow: str) -> tuple[str, ...]:
    """The keyed states of any run that the ledger remembers: one may have come or gone."""
    flows = [topology_of(row.pinned).dataflow for row in runs_of(session, dataflow) if row.pinned is not None]
    states = (state for flow in flows for stage in flow.stages for state in stage.states)
    return tuple(sorted({state.name for state in states if state.kind is StateKind.KEYED}))


def _kept(session: Session, dataflow: str) -> list[CheckpointRow]:
    return [row for row in retained_checkpoints(session, dataflow) if not row.folder]


def _retained(session: Session, dataflow: str, number: int) -> CheckpointRow:
    kept = {row.number: row for row in _kept(session, dataflow)}
    if number in kept:
        return kept[number]
    known = checkpoint_row(session, dataflow, number)
    if known is not None and known.subsumed_by is not None:
        found = f"was subsumed by checkpoint {known.subsumed_by}"
    elif known is not None and known.folder:
        found = f"is a savepoint, in {known.folder}: `weir restore` makes a dataflow of it that can be read"
    else:
        found = "is not known" if known is None else f"is {known.status}"
    raise Misconfigured(f"checkpoint {number} of {dataflow} {found}; kept are {_told(list(kept.values()))}")


def _told(retained: Sequence[CheckpointRow]) -> str:
    shown = ", ".join(f"{row.number} of {row.epoch}" for row in retained[-_SHOWN:])
    return f"the checkpoints {shown}" if shown else "no checkpoints"


def _unreadable(losses: Sequence[Loss], dataflow: str, run: When, retained: str) -> Unreadable:
    runs = {loss.run for loss in losses} or {f"{dataflow}@{run}"}
    return Unreadable(losses, _advice(min(runs), retained))


def _advice(run: str, retained: str) -> str:
    return (
        f"`weir plan {run}` tells whether it can be made again. Kept are {retained}: read one of these with "
        "checkpoint=N, on the command line --checkpoint N"
    )


def _require_keyed(session: Session, dataflow: str, name: str) -> None:
    rows = runs_of(session, dataflow)
    known = keyed_states(session, dataflow)
    if not rows or name in known:
        return
    raise Misconfigured(
        f"dataflow {dataflow} keeps no state {name!r} by key; it keeps {', '.join(known) or 'none'}. Lists and "
        "broadcast state are read whole, like results: stage=..."
    )


def _of_epoch(topology: Topology, name: str, chosen: Chosen, manifests: Sequence[Manifest], advice: str) -> StateAt:
    state = topology.dataflow.state(name)
    keeper = next(stage for stage in topology.dataflow.stages if state in stage.states)
    first = manifests[0]
    parts = tuple(
        OpenStatePartition(
            each.subtask,
            each.layout,
            each.attempt,
            key_group_range(each.max_parallelism, len(manifests), each.subtask),
            each.rows,
            str(each.digest),
            () if each.state is None else each.state.files,
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
        expired_until=_expired_until(state, chosen.epoch),
        partitions=parts,
        advice=advice,
    )


def _of_checkpoint(checkpoint: Checkpoint, found: KeyedSnapshot, advice: str) -> StateAt:
    layout = Layout(found.state.keys, found.max_parallelism).id
    parts = tuple(
        OpenStatePartition(part.subtask, layout, part.attempt, part.key_groups, part.rows, part.digest, part.files)
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
        expired_until=_expired_until(found.state, checkpoint.epoch),
        partitions=parts,
        advice=advice,
    )


def _snapshot(checkpoint: Checkpoint, name: str) -> KeyedSnapshot:
    for each in checkpoint.states:
        if each.state.name == name:
            return each
    known = ", ".join(each.state.name for each in checkpoint.states) or "none"
    raise Misconfigured(
        f"checkpoint {checkpoint.number} of {checkpoint.dataflow} has no keyed state {name!r}; it has {known}"
    )


def _expired_until(state: State, epoch: str) -> int | None:
    """The newest update that is invisible in an epoch, in seconds since 1970; None where nothing expires."""
    time = None if state.ttl is None else time_from_text("ttl", state.ttl)
    return None if time is None else epoch_seconds(epoch) - int(time.total_seconds())
