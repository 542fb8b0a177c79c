"""What checkpoints mean for the life of results. Invariant: what a retained checkpoint names is not released."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from weir.ledger.checkpoints import is_retained, runs_of_lost_checkpoints
from weir.ledger.models import AttemptRow, ResultRow, RunRow
from weir.ledger.state_models import CheckpointRow, RestoreRow
from weir.results.release_rule import Pin
from weir.state.retention import SnapshotKind
from weir.topology.regions import Topology

_OWN = CheckpointRow.kind == SnapshotKind.CHECKPOINT.value


def checkpoint_pins(
    session: Session, run: RunRow, topology: Topology | None, stored: Collection[ResultRow]
) -> dict[int, Pin]:
    """The results of a run that its retained checkpoints name, by their numbers.

    One that was made again is named by those that were begun before the newer one was there. A checkpoint that is older
    than all that counts may be of a run that was moved to another form since: it may name any result that does not.
    """
    keeps_state = topology is not None and topology.dataflow.keeps_state
    if not keeps_state and all(each.is_current for each in stored):
        return {}
    query = select(CheckpointRow.number, CheckpointRow.triggered_at)
    retained = session.execute(query.where(CheckpointRow.run == run.id, _OWN, is_retained())).all()
    if not retained:
        return {}
    carried = topology.carried if topology is not None and keeps_state else ()
    named = {(each.stage, each.subtask, each.layout) for each in carried}
    made = _made_at(session, run.id)
    oldest = min(made.values(), default=None)
    before = [number for number, at in retained if oldest is None or at < oldest]
    pins = {}
    for row in stored:
        partition = (row.stage, row.subtask, row.layout)
        newer = None if row.is_current else made.get(partition)
        by = [] if row.is_current else list(before)
        if partition in named:
            by += [number for number, at in retained if newer is None or at < newer]
        if by:
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


def why_subsumed(session: Session, run: RunRow, topology: Topology, most: int) -> str | None:
    """Why nobody goes on from the states of a closed run any more; None where somebody may.

    Its own checkpoint is retained no more, and one of a later epoch is. Not of what a fork still holds on to, nor where
    its own was lost and would be one of the `most` that are retained: it is completed once more.
    """
    if not topology.dataflow.keeps_state or run.closed_at is None:
        return None
    retained = select(CheckpointRow.number, CheckpointRow.epoch).where(
        CheckpointRow.dataflow == run.dataflow, _OWN, is_retained(), CheckpointRow.epoch >= run.epoch
    )
    found = session.execute(retained.order_by(CheckpointRow.epoch)).all()
    if not found or any(epoch == run.epoch for _, epoch in found):
        return None
    if run.id in runs_of_lost_checkpoints(session, run.dataflow, most):
        return None
    restored = select(RestoreRow.id).where(
        RestoreRow.dataflow == run.dataflow, RestoreRow.epoch == run.epoch, RestoreRow.unpinned_at.is_(None)
    )
    if session.scalar(restored.limit(1)) is not None:
        return None
    number, epoch = found[0]
    return f"its checkpoint was subsumed: the oldest that is retained is {number}, of epoch {epoch}"
