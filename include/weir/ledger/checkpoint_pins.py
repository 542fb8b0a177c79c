"""What checkpoints mean for the life of results. Invariant: what a retained checkpoint names is not released."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from weir.ledger.checkpoints import is_retained
from weir.ledger.models import AttemptRow, ResultRow, RunRow
from weir.ledger.state_models import CheckpointRow, RestoreRow
from weir.results.release_rule import Pin
from weir.state.retention import SnapshotKind
from weir.topology.regions import Topology

_OWN = CheckpointRow.kind == SnapshotKind.CHECKPOINT.value


def checkpoint_pins(session: Session, run: RunRow, topology: Topology, stored: Collection[ResultRow]) -> dict[int, Pin]:
    """The results of a run that its retained checkpoints name, by their numbers.

    One that was made again is named by those that were begun before the newer one was there.
    """
    if not topology.dataflow.keeps_state:
        return {}
    query = select(CheckpointRow.number, CheckpointRow.triggered_at)
    retained = session.execute(query.where(CheckpointRow.run == run.id, _OWN, is_retained())).all()
    if not retained:
        return {}
    named = {(each.stage, each.subtask, each.layout) for each in topology.carried}
    made = _made_at(session, run.id)
    pins = {}
    for row in stored:
        partition = (row.stage, row.subtask, row.layout)
        newer = None if row.is_current else made.get(partition)
        by = [number for number, at in retained if newer is None or at < newer]
        if partition in named and by:
            pins[row.id] = Pin(f"checkpoint {max(by)} names it")
    return pins


def _made_at(session: Session, run: str) -> dict[tuple[str, int, str], datetime]:
    """Since when each partition's current result is there."""
    query = (
        select(ResultRow.stage, ResultRow.subtask, ResultRow.layout, AttemptRow.ended_at, AttemptRow.began_at)
        .join(AttemptRow, AttemptRow.id == ResultRow.attempt)
        .where(ResultRow.run == run, ResultRow.is_current)
    )
    return {(stage, subtask, layout): ended or began for stage, subtask, layout, ended, began in session.execute(query)}


def why_subsumed(session: Session, run: RunRow, topology: Topology) -> str | None:
    """Why nobody goes on from the states of a closed run any more; None where somebody may.

    Its own checkpoint is retained no more, and one of a later epoch is. Not of what a fork still holds on to.
    """
    if not topology.dataflow.keeps_state or run.closed_at is None:
        return None
    retained = select(CheckpointRow.number, CheckpointRow.epoch).where(
        CheckpointRow.dataflow == run.dataflow, _OWN, is_retained(), CheckpointRow.epoch >= run.epoch
    )
    found = session.execute(retained.order_by(CheckpointRow.epoch)).all()
    if not found or any(epoch == run.epoch for _, epoch in found):
        return None
    restored = select(RestoreRow.id).where(
        RestoreRow.dataflow == run.dataflow, RestoreRow.epoch == run.epoch, RestoreRow.unpinned_at.is_(None)
    )
    if session.scalar(restored.limit(1)) is not None:
        return None
    number, epoch = found[0]
    return f"its checkpoint was subsumed: the oldest that is retained is {number}, of epoch {epoch}"
