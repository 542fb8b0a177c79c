"""Has the tables of a dataflow's states follow its retained checkpoints.

Invariants: what is wanted is read of the ledger when the table's lock is held, so that no process puts back what a
later one has seen. Each step is a transaction of its own, and is derived anew: whoever is killed when, any process goes
on. A checkpoint that holds half of a correction is not shown.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from weir.coordination.services import Services
from weir.coordination.settled import Settled
from weir.dataflow.state import State, StateKind
from weir.dataflow.targets import Target
from weir.formats.checkpoint import Checkpoint
from weir.ledger.checkpoints import is_of_closed, retained_checkpoints
from weir.ledger.runs import newest_pinned, topology_of
from weir.sinks.targets.postgres_server import PostgresServer
from weir.state.checkpoint_content import read_checkpoint
from weir.state_tables.content import StateOfCheckpoint, as_copied, changed_files
from weir.state_tables.postgres import OpenTable, PostgresStateTable, Versions
from weir.state_tables.versions import (
    Apply,
    At,
    Delete,
    Fold,
    Forget,
    TableVersion,
    all_expired_until,
    nearest,
    newest_of_epochs,
    next_step,
    replaced_by,
)


def follow_checkpoints(services: Services, dataflow: str, settled: Settled) -> None:
    """Bring the tables of a dataflow's states up to date. What fails for one is in `settled`, and keeps no other."""
    for state, table in _declared(services, dataflow):
        where = f"{dataflow}.{state.name}, its table"
        with settled.trying(where):
            server = PostgresServer(services.connections, table.options["conn_id"], table.options["table"])
            following = _Following(services, dataflow, state, PostgresStateTable(server, f"{dataflow}.{state.name}"))
            if said := following.follow():
                settled.done[where] = said


def _declared(services: Services, dataflow: str) -> list[tuple[State, Target]]:
    """Return the states that have tables, as the newest run that has begun declares them."""
    with services.ledger.transaction() as session:
        pinned = newest_pinned(session, dataflow)
    stages = () if pinned is None else topology_of(pinned).dataflow.stages
    keyed = [state for stage in stages for state in stage.states if state.kind is StateKind.KEYED]
    return [(state, state.table) for state in keyed if state.table is not None]


@dataclass(slots=True)
class _Following:
    """A state and its table, and what was done to it."""

    services: Services
    dataflow: str
    state: State
    table: PostgresStateTable
    applied: int = 0
    newest: At | None = None

    def follow(self) -> str:
        """Do what is to be done, step by step; say what, empty for nothing. Raises as PostgresStateTable.open."""
        while self._is_stepped():
            pass
        if not self.applied or self.newest is None:
            return ""
        shown = f"checkpoint {self.newest.checkpoint} of {self.newest.epoch}"
        return f"{self.table.server.table} has {shown} now ({self.applied} applied)"

    def _is_stepped(self) -> bool:
        """Do one step; report whether there may be another."""
        with self.table.open() as opened:
            wanted = {each.at: each for each in self._wanted()}
            found = opened.versions()
            versions = [version for version, _ in found.values()]
            self.newest = max(found, default=None)
            match next_step(wanted, versions, opened.used() if found else ()):
                case Apply(at):
                    self._apply(opened, wanted[at], wanted[max(wanted)])
                    self.applied += 1
                case Forget(gone):
                    opened.forget(gone)
                case Delete(segments):
                    opened.delete_page(segments)
                case Fold() as fold:
                    opened.fold_page(fold, all_expired_until(versions))
                case None:
                    until = all_expired_until(versions)
                    return until is not None and opened.expire_page(until)
        return True

    def _apply(self, opened: OpenTable, content: StateOfCheckpoint, newest: StateOfCheckpoint) -> None:
        is_new = opened.prepare(newest.spark_schema, newest.keys)
        found = {} if is_new else opened.versions()
        segments = self._added(opened, content, found)
        versions = [version for version, _ in found.values()]
        rows = sum(part.rows for part in content.snapshot.partitions)
        version = TableVersion(content.at, segments, content.expired_until)
        opened.enter(content.at, version, content.parts, rows, replaced_by(content.at, versions))
        if is_new:
            opened.index()

    def _added(self, opened: OpenTable, content: StateOfCheckpoint, found: Versions) -> tuple[int, ...]:
        """Add what an epoch has changed, where a version is known that it has changed; else what differs from one."""
        store, shape = self.services.store, content.shape
        for version, parts in found.values():
            changed = changed_files(self.services, content, parts)
            if changed is not None:
                return opened.add_changes(as_copied(content.changed_tables(store, changed), shape), version)
        onto = nearest(content.at, [version for version, _ in found.values()])
        return opened.add_all(as_copied(content.tables(store), shape), onto)

    def _wanted(self) -> Iterator[StateOfCheckpoint]:
        """Yield the state in each retained checkpoint of a run that was closed with it, the newest one of an epoch."""
        with self.services.ledger.transaction() as session:
            rows = retained_checkpoints(session, self.dataflow)
            closed = [row for row in rows if is_of_closed(session, row, self.state.name)]
            wanted = newest_of_epochs(At(row.epoch, row.number) for row in closed)
        for at in wanted:
            checkpoint = read_checkpoint(self.services.store, self.dataflow, at.checkpoint)
            if checkpoint is not None:
                yield from self._in(checkpoint)

    def _in(self, checkpoint: Checkpoint) -> Iterator[StateOfCheckpoint]:
        for each in checkpoint.states:
            if each.state.name == self.state.name:
                yield StateOfCheckpoint(checkpoint, each)
