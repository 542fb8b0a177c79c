"""The results of a stage of a run, open for reading.

Invariant 4: open results are leased until they are closed or garbage-collected, or the process ends.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from weir.coordination.read_leases import ReadLease
from weir.errors import Fault, Loss, Misconfigured
from weir.formats.manifest import READ_OPTIONS, DataFile, Manifest, together
from weir.ledger.database.tables import ResultRow
from weir.reading.availability import Chosen, Unreadable, advice
from weir.state.spark_schema import arrow_schema, spark_ddl
from weir.store.errors import NotFound
from weir.store.store import Store
from weir.store.worker_threads import in_parallel

_FILES_AT_ONCE = 4
"""Each is held in memory, as it is in the store and as a table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenPartition:
    """One partition: who made it, what it holds, and its Parquet files, as paths or URLs that Spark understands."""

    subtask: int
    attempt: str
    rows: int
    bytes: int
    digest: str
    folder: str
    files: tuple[str, ...]


class Opened:
    """What is open for reading: its files stay as they are until it is closed."""

    def __init__(self, store: Store, lease: ReadLease | None, closing: ExitStack) -> None:
        self._store, self._lease, self._closing = store, lease, closing
        self._is_open = True

    def close(self) -> None:
        """Release the lease: files that no other reader needs may be released from now on."""
        self._is_open = False
        self._closing.close()

    def __enter__(self) -> Self:
        """Open already."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close."""
        self.close()

    def _require_open(self) -> None:
        if not self._is_open:
            raise Misconfigured.of("reading.lease_ended", table=self)

    def _keep_lease(self) -> None:
        """Keep the lease until this is closed or the process ends: Spark reads the files when they are used."""
        self._require_open()
        if self._lease is not None:
            self._lease.outlive_its_object()


class OpenedResults(Opened):
    """The rows of a stage of a run, of one attempt a partition, which stay as they are while this is open.

    Close it, or use it in a `with` statement. It is closed when it is garbage-collected, unless Spark was
    given its files: then when the process ends.
    """

    def __init__(
        self, store: Store, chosen: Chosen, manifests: Sequence[Manifest], lease: ReadLease, closing: ExitStack
    ) -> None:
        super().__init__(store, lease, closing)
        self._chosen, self._parts = chosen, tuple(zip(chosen.rows, manifests, strict=True))

    @property
    def run(self) -> str:
        """The run's id in the ledger, DATAFLOW@EPOCH."""
        return self._chosen.run

    @property
    def run_id(self) -> str:
        """The run's id in Airflow."""
        return self._chosen.run_id

    @property
    def stage(self) -> str:
        """The stage whose rows these are; a sink is one, too."""
        return self._chosen.stage

    @property
    def version(self) -> int | None:
        """The published version, or the number of provisional rows; None for a stage that is no sink."""
        return self._chosen.version

    @property
    def lacks(self) -> str:
        """What the run of provisional rows has yet to do; empty for a version."""
        return self._chosen.lacks

    @property
    def partitions(self) -> tuple[OpenPartition, ...]:
        """The partitions, by subtask."""
        return tuple(self._partition(row, manifest) for row, manifest in self._parts)

    @property
    def files(self) -> tuple[str, ...]:
        """All Parquet files, as paths or URLs that Spark understands. Read them only while this is open."""
        return tuple(file for each in self.partitions for file in each.files)

    @property
    def rows(self) -> int:
        """The number of rows in all partitions."""
        return sum(manifest.rows for _, manifest in self._parts)

    @property
    def bytes(self) -> int:
        """The size of all files."""
        return sum(manifest.bytes for _, manifest in self._parts)

    @property
    def digest(self) -> str:
        """The digest of all rows: equal for equal rows, however they are partitioned."""
        return together([manifest.digest for _, manifest in self._parts])

    @property
    def spark_schema(self) -> str:
        """The columns, as Spark's own JSON of a schema."""
        return self._parts[0][1].spark_schema

    def arrow(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Read all rows, or some columns of them, into memory, each file compared with its recorded SHA-256.

        Raises Unreadable for a file that is gone or damaged, Misconfigured for a type or column that is not there, and
        Retryable where the store does not answer.
        """
        self._require_open()
        schema = self._arrow_schema(columns)
        read = partial(self._table, schema)
        files = [(row, file) for row, manifest in self._parts for file in manifest.files]
        tables = in_parallel(lambda each: read(*each), files, min(_FILES_AT_ONCE, self._store.workers))
        return pa.concat_tables([schema.empty_table(), *tables])

    def spark(self, session: Any) -> Any:
        """Give all rows as a DataFrame of `session`, which must be able to read the store.

        Spark reads them when they are used: from now on they are claimed until this is closed or the process ends.
        """
        self._keep_lease()
        columns = spark_ddl(self.spark_schema)
        if not self.files:
            return session.createDataFrame([], columns)
        return session.read.options(**READ_OPTIONS).schema(columns).parquet(*self.files)

    def __repr__(self) -> str:
        """Say what is open."""
        version = "" if self.version is None else f" version {self.version}"
        state = "" if self._is_open else ", closed"
        return f"<{self.stage}{version} of {self.run}: {self.rows} rows, {self.bytes} bytes{state}>"

    def _partition(self, row: ResultRow, manifest: Manifest) -> OpenPartition:
        files = tuple(self._store.spark_url(f"{row.folder}/{file.name}") for file in manifest.files)
        digest = str(manifest.digest)
        return OpenPartition(
            subtask=row.subtask,
            attempt=row.attempt,
            rows=manifest.rows,
            bytes=manifest.bytes,
            digest=digest,
            folder=row.folder,
            files=files,
        )

    def _arrow_schema(self, columns: Sequence[str] | None) -> pa.Schema:
        schema = arrow_schema(self.spark_schema)
        unknown = [name for name in columns or () if name not in schema.names]
        if unknown:
            raise Misconfigured.of("reading.column_unknown", stage=self.stage, unknown=unknown[0], names=schema.names)
        return schema if columns is None else pa.schema([schema.field(name) for name in columns])

    def _table(self, schema: pa.Schema, row: ResultRow, file: DataFile) -> pa.Table:
        path = f"{row.folder}/{file.name}"
        try:
            data = self._store.read(path)
        except NotFound:
            raise self._unreadable(
                row, Fault.MISSING, f"{path}: expected {file.bytes} bytes, found no such file"
            ) from None
        found = hashlib.sha256(data).hexdigest()
        if found != file.sha256:
            detail = f"{path}: expected SHA-256 {file.sha256}, found {found}"
            raise self._unreadable(row, Fault.DAMAGED, detail)
        table = pq.read_table(
            io.BytesIO(data),
            columns=schema.names,
            page_checksum_verification=True,
            coerce_int96_timestamp_unit="us",  # else times beyond 1677 to 2262 become others
        )
        try:
            return table.select(schema.names).cast(schema)
        except pa.ArrowInvalid as error:
            raise Misconfigured.of(
                "reading.values_unfit_for_arrow", path=path, stage=self.stage, error=error
            ) from error

    def _unreadable(self, row: ResultRow, fault: Fault, detail: str) -> Unreadable:
        loss = Loss(row.run, row.stage, row.subtask, row.layout, row.attempt, fault, detail)
        return Unreadable([loss], advice(row.run, [row], is_named=fault is Fault.DAMAGED))
