"""One Parquet object an epoch on S3, `<partition>=<epoch>/data.parquet`, which any reader of a path takes.

Invariant 12: rows and marker are one object with its metadata, so that they change by one request. That request has
the condition that the object is still the one that was looked at: of two processes one looks again, and an older
version never takes the place of a newer one.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import IO, TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from weir.connections import S3Account
from weir.errors import Misconfigured, Retryable
from weir.sinks.folders import PART_BYTES, parts_of, reached, require_apart, s3_files
from weir.sinks.protocol import (
    ROLLED_BACK,
    Held,
    Outcome,
    Reach,
    SinkTarget,
    TargetAway,
    TargetConflict,
    Token,
    Version,
    outcome_of,
)
from weir.sinks.rows import batches
from weir.sinks.targets.files import partition_value, require_free_name
from weir.state.spark_schema import arrow_schema

if TYPE_CHECKING:
    from weir.store.s3 import S3Files

NAME: Final = "data.parquet"

_MARKER: Final = "weir-version"
"""The metadata key of the marker."""

_GROUP_ROWS: Final = 2**17
"""The rows of a row group: about as many are in memory."""

_TURNS: Final = 20
"""How often a commit looks again because another process was faster."""


@dataclass(frozen=True, slots=True)
class _Object:
    """What is there: its entity tag, and its marker."""

    etag: str
    number: int
    digest: str


class S3FilesTarget(SinkTarget):
    """A key prefix of a bucket. Nothing else writes into the epochs' folders."""

    def prepare(self, version: Version, held: Held | None) -> Token:  # noqa: ARG002  the object tells
        """Check types and names of columns, that the bucket is there, and that the epoch's folder is ours or free."""
        arrow_schema(version.spark_schema)
        require_free_name(version, self.options["partition"])
        require_apart(self.options["path"], self.reach)
        with reached(self.options["path"]):
            self._files.make_root()
        self._found(version)
        return {}

    def commit(self, version: Version, token: Token) -> Outcome:  # noqa: ARG002  there is nothing to plan
        """Upload the version in place of the object that was looked at."""
        for _ in range(_TURNS):
            found = self._found(version)
            seen = _seen(found, version)
            if seen is not Outcome.ABSENT:
                return seen
            if self._is_put(version, found, version.digest):
                return Outcome.COMMITTED
        raise TargetAway.of("sinks.s3_contended", key=self._key(version), turns=_TURNS)

    def recover(self, version: Version, token: Token) -> Outcome:  # noqa: ARG002
        """Read the marker."""
        return _seen(self._found(version), version)

    def rollback(self, version: Version, token: Token) -> bool:  # noqa: ARG002
        """Put an object without rows in place."""
        for _ in range(_TURNS):
            found = self._found(version)
            if found is None or not version.is_marked_by(found.number, found.digest):
                return False
            if found.digest == ROLLED_BACK or self._is_put(version, found, ROLLED_BACK):
                return True
        raise TargetAway.of("sinks.s3_contended", key=self._key(version), turns=_TURNS)

    def _found(self, version: Version) -> _Object | None:
        """Ask for the epoch's object. Raises TargetConflict for other objects there, and for that of another sink."""
        key = self._key(version)
        with reached(key):
            head = self._files.head(key)
            others = [] if head else self._names(version)
        if head is None:
            if others:
                raise TargetConflict.of(
                    "sinks.s3_pointer_in_the_way", path=self.options["path"], key=key, others=others[:3]
                )
            return None
        marker = json.loads(head.get("Metadata", {}).get(_MARKER) or "{}")
        if not marker:
            raise TargetConflict.of("sinks.s3_key_in_the_way", path=self.options["path"], key=key)
        if marker["owner"] != version.owner:
            raise Misconfigured.of(
                "sinks.s3_owned_by_another",
                path=self.options["path"],
                key=key,
                marker=marker["owner"],
                owner=version.owner,
            )
        return _Object(str(head["ETag"]), int(marker["number"]), str(marker["digest"]))

    def _names(self, version: Version) -> list[str]:
        try:
            names = [name for name, _ in self._files.entries(self._folder(version))]
        except FileNotFoundError:
            return []
        return [name for name in names if name != NAME]  # another process may have been faster

    def _is_put(self, version: Version, found: _Object | None, digest: str) -> bool:
        """Upload an object unless another one is there than the one that was found."""
        marker = {"owner": version.owner, "number": version.number, "digest": digest, "attempt": version.attempt}
        key, etag = self._key(version), None if found is None else found.etag
        with tempfile.TemporaryFile() as space, reached(key):
            files = version.files if digest != ROLLED_BACK else ()
            parts = _parts(self.reach, replace(version, files=files), space)
            try:
                self._files.swap(key, parts, {_MARKER: json.dumps(marker)}, etag)
            except FileExistsError:
                return False
        self.put_bytes.copied += sum(file.bytes for file in files)
        return True

    def _folder(self, version: Version) -> str:
        return f"{self.options['partition']}={partition_value(version.epoch)}"

    def _key(self, version: Version) -> str:
        return f"{self._folder(version)}/{NAME}"

    @cached_property
    def _files(self) -> S3Files:
        return s3_files(self.options["path"], S3Account.of(self.options["conn_id"], self.reach.connection))


def _seen(found: _Object | None, version: Version) -> Outcome:
    return Outcome.ABSENT if found is None else outcome_of(version, found.number, found.digest)


def _parts(reach: Reach, version: Version, space: IO[bytes]) -> Iterator[bytes]:
    """Return the bytes of one Parquet file with all rows: of the only file as it is, else of a new one in `space`."""
    if len(version.files) == 1:
        yield from parts_of(reach, version.files[0])
        return
    schema = arrow_schema(version.spark_schema)
    rows = 0
    with pq.ParquetWriter(space, schema, compression="zstd") as writer:
        for group in _groups(batches(reach, version, schema.names)):
            table = pa.Table.from_batches(group).cast(schema)
            writer.write_table(table)
            rows += table.num_rows
    if rows != version.rows:
        raise Retryable.of("sinks.s3_rows_differ", rows=rows, version=version, expected=version.rows)
    space.seek(0)
    while part := space.read(PART_BYTES):
        yield part


def _groups(found: Iterator[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """Collect batches, each group for a row group that is large enough to be read well."""
    group: list[pa.RecordBatch] = []
    rows = 0
    for batch in found:
        group.append(batch)
        rows += batch.num_rows
        if rows >= _GROUP_ROWS:
            yield group
            group, rows = [], 0
    if group:
        yield group
