"""One table that follows the retained checkpoints of its state.

Invariants: what is wanted is read of the ledger when the table's lock is held, so that no process puts back what a
later one has seen. Each step is a transaction of its own, and is derived anew: whoever is killed when, any process goes
on. A checkpoint that holds half of a correction is not shown.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from sqlalchemy.orm import Session

from weir.coordination.services import Services
from weir.dataflow.state import State
from weir.dataflow.targets import Target
from weir.errors import Retryable
from weir.ledger.checkpoints import is_of_closed, retained_checkpoints
from weir.ledger.database.tables import RunRow
from weir.sinks.protocol import TargetAway
from weir.sinks.targets.postgres_server import PostgresServer
from weir.state.checkpoint_content import read_checkpoint
from weir.state_tables.content import StateOfCheckpoint, as_copied, changed_files
from weir.state_tables.postgres import OpenTable, PostgresStateTable, Versions
from weir.state_tables.versions import (
    Apply,
    At,
    TableVersion,
    may_go_on,
    nearest,
    newest_of_epochs,
    next_step,
    replaced_by,
)
from weir.topology.ids import Epoch


def follow(services: Services, dataflow: str, state: State, table: Target) -> str:
    """Bring the table of a state up to date; say what was done, empty for nothing. Raises as `open`."""
    return _following(services, dataflow, state, table).follow()


def verify(
    services: Services, dataflow: str, state: State, table: Target, epochs: Collection[Epoch]
) -> tuple[dict[At, int], bool]:
    """Compare the rows of a state's table with the checkpoints of some epochs. Raises as `open`, and Retryable.

    Returns how many keys have other rows, by checkpoint, and whether all checkpoints were written again because of it.
    """
    try:
        return _following(services, dataflow, state, table).verify(epochs)
    except TargetAway:
        raise
    except Retryable:  # a checkpoint has gone while its files were read
        return _following(services, dataflow, state, table).verify(epochs)


def _following(services: Services, dataflow: str, state: State, table: Target) -> _Following:
    name = table.options["table"]
    server = PostgresServer(
        services.connections,
        table.options["conn_id"],
        name,
        mends=f"Where somebody has changed the table, drop {name}_rows (cascade): it is made anew",
        then="; upkeep tries again",
    )
    return _Following(services, dataflow, state, PostgresStateTable(server, f"{dataflow}.{state.name}"))


@dataclass(slots=True)
class _Following:
    """A state and its table, and what was done to it."""

    services: Services
    dataflow: str
    state: State
    table: PostgresStateTable
    applied: int = 0
    newest: At | None = None
    is_taken_over: bool = False
    contents: dict[At, StateOfCheckpoint] = field(default_factory=dict)
    """What was read of checkpoints: a number has one content."""

    def follow(self) -> str:
        """Do what is to be done, step by step; say what, empty for nothing. Raises as PostgresStateTable.open."""
        while self._is_stepped():
            pass
        if not self.applied or self.newest is None:
            return ""
        shown = f"checkpoint {self.newest.checkpoint} of {self.newest.epoch}"
        taken = "; it had those of another deployment" if self.is_taken_over else ""
        return f"{self.table.server.table} has {shown} now ({self.applied} applied{taken})"

    def verify(self, epochs: Collection[Epoch]) -> tuple[dict[At, int], bool]:
        """Compare rows; write all checkpoints again in one transaction, unless one is shown that is not wanted now.

        Those that the table does not have yet follow as always.
        """
        with self.table.open() as opened:
            wanted, _ = self._wanted()
            found = opened.versions()
            differing = {
                at: number
                for at, (version, parts) in sorted(found.items())
                if at.epoch in epochs
                and at in wanted
                and wanted[at].parts == parts
                and (number := self._differing(opened, wanted[at], version))
            }
            is_written = bool(differing) and found.keys() <= wanted.keys()
            if is_written:
                opened.forget([*found])
                for at in sorted(found):
                    self._add(opened, wanted[at])
        return differing, is_written

    def _differing(self, opened: OpenTable, content: StateOfCheckpoint, version: TableVersion) -> int:
        rows = as_copied(content.tables(self.services.store), content.shape)
        return opened.differing(content.spark_schema, rows, version)

    def _is_stepped(self) -> bool:
        """Do one step; report whether there may be another."""
        with self.table.open() as opened:
            wanted, open_epochs = self._wanted()
            found = opened.versions()
            others = [at for at, content in wanted.items() if at in found and found[at][1] != content.parts]
            if others:  # the number is of another store by now
                opened.forget(others)
                self.is_taken_over = True
                return True
            versions = [version for version, _ in found.values()]
            self.newest = max(found, default=None)
            step = next_step(wanted.keys(), versions, opened.used() if found else (), open_epochs)
            if not isinstance(step, Apply):
                return opened.carry_out(step, versions)
            self._apply(opened, wanted, step.at)
        return True

    def _apply(self, opened: OpenTable, wanted: Mapping[At, StateOfCheckpoint], at: At) -> None:
        """Add a checkpoint; to a new table all of them, so that it never shows an older one as the newest."""
        newest = wanted[max(wanted)]
        is_new = opened.prepare(newest.spark_schema, newest.keys)
        for number, each in enumerate(sorted(wanted) if is_new else [at]):
            self._add(opened, wanted[each])
            if is_new and number == 0:
                opened.index()
            self.applied += 1

    def _add(self, opened: OpenTable, content: StateOfCheckpoint) -> None:
        found = opened.versions()
        segments = self._added(opened, content, found)
        version = TableVersion(content.at, segments, content.expired_until)
        replaced = replaced_by(content.at, [each for each, _ in found.values()])
        opened.enter(version, content.parts, replaced)

    def _added(self, opened: OpenTable, content: StateOfCheckpoint, found: Versions) -> tuple[int, ...]:
        """Add what an epoch has changed, where a version is known that it has changed; else what differs from one."""
        store, shape, schema = self.services.store, content.shape, content.spark_schema
        for version, parts in found.values():
            if not may_go_on(content.expired_until, version):
                continue
            changed = changed_files(self.services, content, version.at.epoch, parts)
            if changed is not None:
                return opened.add_changes(schema, as_copied(content.changed_tables(store, changed), shape), version)
        onto = nearest(content.at, [version for version, _ in found.values()])
        return opened.add_all(schema, as_copied(content.tables(store), shape), onto)

    def _wanted(self) -> tuple[dict[At, StateOfCheckpoint], set[Epoch]]:
        """Return the state in the newest retained checkpoint of each run that was closed with it, and all such epochs.

        Those that were kept by another key are left out, and epochs that are sealed.
        """
        with self.services.ledger.transaction() as session:
            rows = [row for row in retained_checkpoints(session, self.dataflow) if not _is_sealed(session, row.run)]
            closed = [row for row in rows if is_of_closed(session, row, self.state.name)]
            newest = newest_of_epochs(At(row.epoch, row.number) for row in closed)
        for at in newest:
            if at not in self.contents:
                self.contents.update((at, content) for content in self._in(at))
        found = {at: self.contents[at] for at in newest if at in self.contents}
        keys = found[max(found)].keys if found else ()
        return {at: content for at, content in found.items() if content.keys == keys}, {row.epoch for row in rows}

    def _in(self, at: At) -> Iterator[StateOfCheckpoint]:
        checkpoint = read_checkpoint(self.services.store, self.dataflow, at.checkpoint)
        if checkpoint is not None:
            kept = [each for each in checkpoint.states if each.state.name == self.state.name]
            yield from (StateOfCheckpoint(checkpoint, each) for each in kept)


def _is_sealed(session: Session, run: str) -> bool:
    row = session.get(RunRow, run)
    return row is not None and row.sealed_at is not None
