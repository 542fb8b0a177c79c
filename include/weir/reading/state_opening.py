"""Which state a reader means, by an epoch.

Invariant: what is given is what an epoch has committed, never the work of an attempt that has not come to its end; it
is claimed in the transaction that answers that it is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from sqlalchemy.orm import Session

from weir.coordinator.reading import ReadLease, claimed, reader
from weir.coordinator.services import Services
from weir.dataflow.state import StateKind
from weir.errors import Loss, Misconfigured
from weir.ledger.checkpoints import retained_checkpoints
from weir.ledger.models import RunRow
from weir.ledger.runs import runs_of, topology_of
from weir.ledger.state_models import CheckpointRow
from weir.reading.availability import Chosen, Unreadable
from weir.reading.choosing import When, choose
from weir.reading.opened_state import OpenedState, OpenStatePartition, StateAt
from weir.reading.probing import manifests_of
from weir.results.manifest import Manifest
from weir.state.files import expired_until
from weir.topology.key_groups import key_group_range
from weir.topology.regions import Topology

_SHOWN = 10


def open_state(
    services: Services, dataflow: str, run: When, name: str, closing: ExitStack, attempt: str | None = None
) -> OpenedState:
    """Open the state that an epoch has left. Raises Misconfigured, Unreadable, Retryable."""
    with services.ledger.transaction(dataflow) as session:
        retained = told(kept_checkpoints(session, dataflow))
        _require_keyed(session, dataflow, name)
        try:
            chosen = choose(session, dataflow, run, name, attempt)
        except Unreadable as error:
            raise _unreadable(error.losses, dataflow, run, retained) from None
        topology = topology_of(session.get_one(RunRow, chosen.run).pinned or {})
        numbers = [row.id for row in chosen.rows]
        claim = claimed(session, services, dataflow, numbers, reader("weir.open"), chosen.states)
    lease = ReadLease(claim)
    closing.callback(lease.close)
    try:
        manifests = manifests_of(services, chosen)
    except Unreadable as error:
        raise _unreadable(error.losses, dataflow, run, retained) from None
    at = _of_epoch(topology, name, chosen, manifests, advice_on(chosen.run, retained))
    return OpenedState(services.store, at, lease, closing.pop_all())


def keyed_states(session: Session, dataflow: str) -> tuple[str, ...]:
    """The keyed states of any run that the ledger remembers: one may have come or gone."""
    flows = [topology_of(row.pinned).dataflow for row in runs_of(session, dataflow) if row.pinned is not None]
    states = (state for flow in flows for stage in flow.stages for state in stage.states)
    return tuple(sorted({state.name for state in states if state.kind is StateKind.KEYED}))


def kept_checkpoints(session: Session, dataflow: str) -> list[CheckpointRow]:
    """The checkpoints that are retained, without savepoints, by number."""
    return [row for row in retained_checkpoints(session, dataflow) if not row.folder]


def told(retained: Sequence[CheckpointRow]) -> str:
    """Checkpoints as a message names them."""
    shown = ", ".join(f"{row.number} of {row.epoch}" for row in retained[-_SHOWN:])
    return f"the checkpoints {shown}" if shown else "no checkpoints"


def _unreadable(losses: Sequence[Loss], dataflow: str, run: When, retained: str) -> Unreadable:
    runs = {loss.run for loss in losses} or {f"{dataflow}@{run}"}
    return Unreadable(losses, advice_on(min(runs), retained))


def advice_on(run: str, retained: str) -> str:
    """What brings a state of a run back that cannot be read."""
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
            key_group_range(each.max_parallelism, topology.dataflow.stage(name).parallelism, each.subtask),
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
        expired_until=expired_until(state, chosen.epoch),
        partitions=parts,
        advice=advice,
    )
