"""A keyed state at the end of an epoch, open for reading.

Invariant 4: an open state is leased until it is closed or garbage-collected, or the process ends; unless it was opened
without a lease.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from functools import cached_property, partial
from numbers import Real
from typing import Any

import pyarrow as pa

from weir.coordination.read_leases import ReadLease
from weir.dataflow.key_types import key_types
from weir.dataflow.state import State
from weir.errors import Fault, Loss, Misconfigured
from weir.formats.manifest import StateFile
from weir.formats.region_job import StateToRead
from weir.reading.availability import Unreadable
from weir.reading.opened import Opened
from weir.state.assigned import files_to_read
from weir.state.file_rules import oldest_first, sorted_runs
from weir.state.spark_schema import arrow_schema
from weir.state.state_files import Gone, Shape, newest, of_key, read_row_groups, read_rows
from weir.store.store import Store
from weir.store.worker_threads import in_parallel
from weir.topology.key_hash import key_group

_FILES_AT_ONCE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenStatePartition:
    """The state of one subtask: the attempt that committed it, its inclusive key groups, its files, oldest first."""

    subtask: int
    layout: str
    attempt: str
    key_groups: tuple[int, int]
    rows: int
    digest: str
    files: tuple[StateFile, ...]
    is_counted: bool = True
    """False where blind upserts have left bounds only: `rows` is then the most that there can be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateAt:
    """A state at the end of an epoch: of which run, and of which checkpoint (None: as the epoch has committed it)."""

    state: State
    stage: str
    run: str
    epoch: str
    checkpoint: int | None
    spark_schema: str
    max_parallelism: int
    expired_until: int | None
    partitions: tuple[OpenStatePartition, ...]
    advice: str
    """Return the command that restores a missing file."""
    is_stale: bool = False
    """Whether the newest epoch cannot be read, and this is the newest whole one."""


class OpenedState(Opened):
    """The rows of a keyed state as an epoch has left them; they stay as they are while this is open.

    Close it, or use it in a `with` statement. It is closed when it is garbage-collected, unless Spark was
    given its files: then when the process ends.
    """

    def __init__(self, store: Store, at: StateAt, lease: ReadLease | None, closing: ExitStack) -> None:
        super().__init__(store, lease, closing)
        self._at = at

    @property
    def name(self) -> str:
        """The state's name."""
        return self._at.state.name

    @property
    def stage(self) -> str:
        """The stage that keeps it."""
        return self._at.stage

    @property
    def run(self) -> str:
        """The run's id in the ledger, DATAFLOW@EPOCH."""
        return self._at.run

    @property
    def epoch(self) -> str:
        """The epoch at whose end this is the state."""
        return self._at.epoch

    @property
    def checkpoint(self) -> int | None:
        """The number of the checkpoint that it is read from; None for what the epoch has committed."""
        return self._at.checkpoint

    @property
    def stale(self) -> bool:
        """Whether newer state is being computed: no epoch was named, and the newest cannot be read now."""
        return self._at.is_stale

    @property
    def keys(self) -> tuple[str, ...]:
        """The key columns."""
        return self._at.state.keys

    @property
    def partitions(self) -> tuple[OpenStatePartition, ...]:
        """The partitions, by subtask."""
        return self._at.partitions

    @property
    def rows(self) -> int:
        """The number of rows, as it was recorded, or the most that there can be: nothing is read for it."""
        return sum(each.rows for each in self.partitions)

    @property
    def is_counted(self) -> bool:
        """Whether `rows` is exact: blind upserts do not count what they replace."""
        return all(each.is_counted for each in self.partitions)

    @property
    def spark_schema(self) -> str:
        """The columns, as Spark's own JSON of a schema."""
        return self._at.spark_schema

    @property
    def bytes(self) -> int:
        """The size of all files."""
        return sum(file.file.bytes for file in {file.path: file for file in self._files}.values())

    @property
    def runs(self) -> int:
        """The maximum number of rows of one key that a reader merges."""
        return max((sorted_runs(each.files) for each in self.partitions), default=0)

    def get(self, *key: Any) -> dict[str, Any] | None:
        """The row of a key, given by the values of its columns in order, also as text; None if there is none.

        Reads the row groups that may hold it, the newest file first. Raises Misconfigured for a key that cannot be one,
        Unreadable for a file that is gone or damaged, and Retryable.
        """
        shape, asked = self.shape, self.typed_key(key)
        group = self.group_of(asked)
        for part, file in self.files_of(group):
            rows = of_key(self._read(part, shape.stored, (group, group), file), asked)
            if rows.num_rows:
                found = newest([rows], shape).select(shape.columns.names).to_pylist()
                return found[0] if found else None
        return None

    @cached_property
    def shape(self) -> Shape:
        """The columns, keys and expiry of the rows."""
        return self._shape()

    @cached_property
    def _key_types(self) -> tuple[str, ...]:
        return key_types(self._at.spark_schema, self.divided_by, f"state {self.name}")

    @property
    def divided_by(self) -> tuple[str, ...]:
        """The key columns that make the key group: the least prefix of a key that can be looked up."""
        return self._at.state.divided_by

    def typed_key(self, values: Sequence[Any]) -> dict[str, Any]:
        """Return a key in the types of its columns. Raises Misconfigured for what cannot be one."""
        if len(values) != len(self.keys):
            named = ", ".join(self.keys)
            raise Misconfigured.of(
                "reading.key_incomplete", name=self.name, named=named, expected=len(self.keys), given=len(values)
            )
        return self._typed(values)

    def typed_prefix(self, values: Sequence[Any]) -> dict[str, Any]:
        """Return the first values of a key in the types of their columns. Raises Misconfigured for what is none."""
        least = self.divided_by
        if not len(least) <= len(values) <= len(self.keys):
            raise Misconfigured.of("reading.prefix_too_short", name=self.name, least=least, keys=self.keys)
        return self._typed(values)

    def _typed(self, values: Sequence[Any]) -> dict[str, Any]:
        fields, names = self.shape.columns, self.keys[: len(values)]
        return {
            name: typed_value(name, value, fields.field(name).type) for name, value in zip(names, values, strict=True)
        }

    def group_of(self, key: Mapping[str, Any]) -> int:
        """Return the key group of a key or prefix. Raises Misconfigured if this is closed."""
        self._require_open()
        values = [key[name] for name in self.divided_by]
        return key_group(list(zip(self._key_types, values, strict=True)), self._at.max_parallelism)

    def files_of(self, group: int) -> list[tuple[OpenStatePartition, StateFile]]:
        """Return the files that name a key group, newest first."""
        return [
            (part, file)
            for part in self.partitions
            for file in reversed(part.files)
            if file.key_groups[0] <= group <= file.key_groups[1]
        ]

    def row_group(self, part: OpenStatePartition, file: StateFile, number: int, schema: pa.Schema) -> pa.Table:
        """Read one row group. Raises Unreadable for a file that is gone or damaged."""
        try:
            return read_row_groups(self._store, file, schema, [number])
        except Gone as error:
            raise self._lost(part, error) from None

    def arrow(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Read all rows, or some columns of them, into memory; each row group is compared with its recorded SHA-256.

        Raises Unreadable for a file that is gone or damaged, Misconfigured for a type or column that is not there, and
        Retryable where the store does not answer.
        """
        shape = self._shape(columns)
        return pa.concat_tables([self._wanted(shape, columns).empty_table(), *self.tables(columns)])

    def tables(self, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """Read all rows, a partition at a time."""
        self._require_open()
        shape = self._shape(columns)
        wanted = self._wanted(shape, columns)
        for part in self.partitions:
            read = in_parallel(
                partial(self._read, part, shape.stored, part.key_groups),
                part.files,
                min(_FILES_AT_ONCE, self._store.workers),
            )
            yield newest(list(read), shape).select(wanted.names)

    def spark(self, session: Any) -> Any:
        """Give all rows as a DataFrame of `session`, which must be able to read the store; Weir's Spark side is needed.

        Spark reads them when they are used: from now on they are claimed until this is closed or the process ends.
        """
        self._keep_lease()
        # By name: nothing in `weir` depends on Spark.
        stored = importlib.import_module("weir_spark.state.reader").StoredState(session, self.to_read())
        return stored.rows().select(*arrow_schema(self._at.spark_schema).names)

    def to_read(self) -> StateToRead:
        """Return the state as a Spark job reads it."""
        files = files_to_read(self._store, oldest_first(self._files))
        return StateToRead(state=self._at.state, files=files, expired_until=self._at.expired_until)

    def __repr__(self) -> str:
        """Say what is open."""
        of = self.run if self.checkpoint is None else f"checkpoint {self.checkpoint}, {self.run}"
        most = "" if self.is_counted else "at most "
        return f"<state {self.name} of {of}: {most}{self.rows} rows{'' if self._is_open else ', closed'}>"

    @property
    def _files(self) -> Iterator[StateFile]:
        return (file for part in self.partitions for file in part.files)

    def _shape(self, columns: Sequence[str] | None = None) -> Shape:
        schema = arrow_schema(self._at.spark_schema)
        unknown = [name for name in columns or () if name not in schema.names]
        if unknown:
            raise Misconfigured.of(
                "reading.state_column_unknown", name=self.name, unknown=unknown[0], names=schema.names
            )
        if columns is not None:
            schema = pa.schema([field for field in schema if field.name in {*columns, *self.keys}])
        return Shape(schema, self.keys, self._at.expired_until)

    def _wanted(self, shape: Shape, columns: Sequence[str] | None) -> pa.Schema:
        return shape.columns if columns is None else pa.schema([shape.columns.field(name) for name in columns])

    def _read(self, part: OpenStatePartition, schema: pa.Schema, groups: tuple[int, int], file: StateFile) -> pa.Table:
        try:
            return read_rows(self._store, file, schema, groups)
        except Gone as error:
            raise self._lost(part, error) from None

    def _lost(self, part: OpenStatePartition, error: Gone) -> Unreadable:
        fault = Fault.DAMAGED if error.is_there else Fault.MISSING
        loss = Loss(self.run, self.name, part.subtask, part.layout, part.attempt, fault, error.detail)
        return Unreadable([loss], self._at.advice)


def typed_value(name: str, value: Any, kind: pa.DataType) -> Any:
    """Return a key's value in the type of its column; text is parsed, of bytes as hex.

    Raises Misconfigured for an invalid value.
    """
    try:
        if isinstance(value, str):
            value.encode()  # half of a surrogate pair is no text
        if value is None or (isinstance(value, str) and pa.types.is_string(kind)):
            return value
        if isinstance(value, str) and pa.types.is_binary(kind):
            return bytes.fromhex(value)
        found = (pa.scalar(value).cast(kind) if isinstance(value, str) else pa.scalar(value, kind)).as_py()
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise Misconfigured.of("reading.key_value_of_other_type", name=name, kind=kind, value=value) from error
    # Arrow cuts 1.5 down to 1, and a time to its day; it takes a time without a zone to be in UTC.
    is_naive = isinstance(value, datetime) and isinstance(found, datetime) and value.tzinfo is None
    if isinstance(value, date | Real | Decimal) and found != value and not is_naive:
        raise Misconfigured.of("reading.key_value_nearly", name=name, kind=kind, value=value, found=found)
    return found
