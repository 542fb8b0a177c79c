"""The rows of a keyed state as a checkpoint has them: all that are visible, or what has changed since another one.

Invariants: each byte that is read is compared with its recorded digest. What has changed is taken from files only where
these, and nothing else, lie upon exactly the files of the other checkpoint; else it is not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from sqlalchemy import select
from sqlalchemy.orm import Session

from weir.coordination.services import Services
from weir.errors import Misconfigured, Retryable
from weir.execution.run_state import ReadResult
from weir.formats.checkpoint import Checkpoint, KeyedSnapshot, StatePartition
from weir.formats.manifest import StateContent, StateFile
from weir.ledger.database.tables import ResultRow
from weir.ledger.reads import reads_of
from weir.ledger.runs import epoch_of_run
from weir.state.compactions import Compacted, compactions_of
from weir.state.file_rules import assigned_files, expired_until, overlap
from weir.state.spark_schema import arrow_schema
from weir.state.state_files import DELETED, UPDATED, Gone, Shape, newest, read_rows
from weir.state_tables.versions import At
from weir.store.errors import NotFound
from weir.store.probe import read_manifest
from weir.store.store import Store
from weir.topology.ids import Epoch

_ROWS_AT_ONCE: Final = 250_000
"""About how many rows of a state are in memory."""

Parts = Mapping[str, tuple[str, int, int]]
"""The digest and the inclusive key groups of each subtask's partition."""


@dataclass(frozen=True, slots=True)
class StateOfCheckpoint:
    """A keyed state as a checkpoint has it."""

    checkpoint: Checkpoint
    snapshot: KeyedSnapshot

    @property
    def at(self) -> At:
        """Of which epoch it is, and of which checkpoint."""
        return At(self.checkpoint.epoch, self.checkpoint.number)

    @property
    def expired_until(self) -> int | None:
        """Return the newest update that has expired, in seconds since 1970; None where nothing expires."""
        return expired_until(self.snapshot.state, self.checkpoint.epoch)

    @property
    def keys(self) -> tuple[str, ...]:
        """The key columns."""
        return self.snapshot.state.keys

    @property
    def spark_schema(self) -> str:
        """The columns, as Spark's own JSON of a schema."""
        return self.snapshot.spark_schema

    @property
    def shape(self) -> Shape:
        """The columns, keys and expiry of the rows."""
        return Shape(arrow_schema(self.spark_schema), self.keys, self.expired_until)

    @property
    def parts(self) -> Parts:
        """What tells its partitions from those of other contents."""
        return {str(each.subtask): (each.digest, *each.key_groups) for each in self.snapshot.partitions}

    def tables(self, store: Store) -> Iterator[pa.Table]:
        """Read all rows that are visible, some key groups at a time, with Weir's own columns. Raises Retryable."""
        for part in self.snapshot.partitions:
            for groups in _slices(part.key_groups, part.rows):
                found = [_read(store, each, self.shape, groups) for each in part.files]
                yield newest([each for each in found if each.num_rows], self.shape)

    def changed_tables(self, store: Store, files: tuple[StateFile, ...]) -> Iterator[pa.Table]:
        """Read all rows of some files, deleted ones, too, with Weir's own columns. Raises Retryable."""
        for file in files:
            for groups in _slices(file.key_groups, file.file.rows):
                yield _read(store, file, self.shape, groups)


def _read(store: Store, file: StateFile, shape: Shape, groups: tuple[int, int]) -> pa.Table:
    if not overlap(file.key_groups, groups):
        return shape.stored.empty_table()
    try:
        return read_rows(store, file, shape.stored, groups)
    except Gone as error:
        raise Retryable.of("state_tables.file_gone", error=error) from error


def _slices(key_groups: tuple[int, int], rows: int) -> Iterator[tuple[int, int]]:
    """Divide inclusive key groups so that each part has not too many of the rows."""
    first, last = key_groups
    step = max(1, (last - first + 1) // max(1, -(-rows // _ROWS_AT_ONCE)))
    for begin in range(first, last + 1, step):
        yield begin, min(last, begin + step - 1)


def as_copied(tables: Iterable[pa.Table], shape: Shape) -> Iterator[pa.Table]:
    """Give rows the columns of a table's rows: those of the user, then what Weir knows of a row."""
    names = [*shape.columns.names, DELETED, UPDATED]
    for table in tables:
        if UPDATED in table.column_names:
            yield table.select(names)
        else:
            yield table.append_column(UPDATED, pa.nulls(table.num_rows, pa.int64())).select(names)


@dataclass(frozen=True, slots=True)
class _Attempt:
    """A partition: where it was written, where what its attempt has read of before, and what that was compacted to."""

    part: StatePartition
    folder: str
    folder_before: str
    compacted_before: tuple[StateFile, ...] | None


def changed_files(
    services: Services, content: StateOfCheckpoint, before: Epoch, parts: Parts
) -> tuple[StateFile, ...] | None:
    """Return the files with what has changed since the end of the epoch `before`, whose content consists of `parts`.

    None where that is not known: it is of other attempts or subtasks, all of the state was written, or files that tell
    have gone. Raises Retryable.
    """
    name = content.snapshot.state.name
    with services.ledger.transaction() as session:
        attempts = [_attempt_of(session, name, part, before, parts) for part in content.snapshot.partitions]
    found: list[StateFile] = []
    for each in attempts:
        changed = None if each is None else _changed(services.store, each, content.checkpoint.epoch)
        if changed is None:
            return None
        found += changed
    return tuple(found)


def _attempt_of(session: Session, name: str, part: StatePartition, before: Epoch, parts: Parts) -> _Attempt | None:
    reads = [each for each in reads_of(session, part.attempt) if each.partition.stage == name]
    read = next((each for each in reads if _is_of(each, part, before, parts)), None)
    if read is None:
        return None
    attempt, subtask = read.attempt, read.partition.subtask
    folders = [_folder(session, part.attempt, name, part.subtask), _folder(session, attempt, name, subtask)]
    if None in folders:
        return None
    compacted = compactions_of(session, [attempt]).get(Compacted(attempt, name, subtask))
    return _Attempt(part, str(folders[0]), str(folders[1]), compacted)


def _is_of(read: ReadResult, part: StatePartition, before: Epoch, parts: Parts) -> bool:
    """Report whether an attempt has read the key groups of its partition at the end of that epoch, with these rows."""
    known = parts.get(str(read.partition.subtask))
    return epoch_of_run(read.partition.run) == before and known == (read.digest, *part.key_groups)


def _folder(session: Session, attempt: str, stage: str, subtask: int) -> str | None:
    of_part = (ResultRow.attempt == attempt, ResultRow.stage == stage, ResultRow.subtask == subtask)
    return session.scalar(select(ResultRow.folder).where(*of_part).order_by(ResultRow.id.desc()).limit(1))


def _changed(store: Store, attempt: _Attempt, epoch: Epoch) -> list[StateFile] | None:
    written, before = _state_in(store, attempt.folder), _state_in(store, attempt.folder_before)
    if written is None or before is None:
        return None
    own = [each for each in written.files if each.epoch == epoch]
    kept = {(each.path, each.key_groups) for each in written.files if each.epoch != epoch}
    for files in (before.files, attempt.compacted_before or before.files):
        assigned = assigned_files(files, attempt.part.key_groups, written.expired_until)
        if kept == {(each.path, each.key_groups) for each in assigned}:
            return own
    return None


def _state_in(store: Store, folder: str) -> StateContent | None:
    try:
        return read_manifest(store, folder).state
    except (NotFound, Misconfigured):
        return None
