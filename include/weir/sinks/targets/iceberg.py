"""A table of Apache Iceberg: an epoch's files are replaced, and its marker is set, by one snapshot.

Invariant 12: the marker is a table property, which changes in the same commit as the snapshot that has the epoch's
files. A commit is a compare-and-swap on the snapshot that was looked at: PyIceberg's own retries, which would repeat an
append on top of another process's, are off, and each turn looks anew.

The table owns its files: they are linked or copied to its location, under names that no other commit uses. So the
store's retention and the table's maintenance never depend on one another, and a file that is not whole is named by no
snapshot.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final, cast

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table, Transaction

from weir.catalogs import CatalogAway, is_refusal, opened, require_location, said
from weir.connections import S3Account
from weir.errors import Misconfigured
from weir.sinks.folders import LocalFolder, S3Folder, TargetFolder, parts_of, require_apart
from weir.sinks.protocol import (
    ROLLED_BACK,
    Held,
    Outcome,
    PutBytes,
    Reach,
    SinkTarget,
    TargetAway,
    Token,
    Version,
    VersionFile,
)
from weir.sinks.targets.iceberg_epoch import OWNER, EpochInTable, Marker, file_name, marker_key
from weir.sinks.targets.iceberg_schema import data_file, schema_of, stage_schema
from weir.store.time_limit import pauses

_FORMAT: Final = 2
"""The greatest format version of tables that PyIceberg writes."""

_TURNS: Final = 10
"""How often a commit that somebody else came before, or that was not answered, is tried again at once."""

_PAUSES: Final = (0.1, 2.0)
"""The first pause between two of them, and the longest, in seconds."""

_SECONDS: Final = 180.0
"""How long turns begin: a catalog that answers everything but commits takes a minute for each."""

_RETRIES: Final = "commit.retry.num-retries"
_MERGES: Final = "commit.manifest-merge.enabled"


@dataclass(slots=True)
class _Placed:
    """The files of a version in the table's location, under names of this commit only."""

    commit: str = field(default_factory=lambda: uuid.uuid4().hex)
    paths: list[str] = field(default_factory=list)
    put_bytes: PutBytes = field(default_factory=PutBytes)


class IcebergTarget(SinkTarget):
    """A table in a catalog that PyIceberg knows, by an Airflow connection."""

    def prepare(self, version: Version, held: Held | None) -> Token:  # noqa: ARG002  the table tells
        """Check columns, types and partition values by footers; with create="if_missing" make the table, empty."""
        wanted = schema_of(version.spark_schema)
        with self._catalog() as catalog:
            table = self._table(catalog, wanted)
            self._require_writable(table)
            require_apart(table.location(), self.reach)
            epoch = EpochInTable.read(table, version.owner, version.epoch)
            if epoch.outcome(version) is Outcome.ABSENT:
                epoch.require_replaceable()
            tried = table.transaction()  # it shows what the schema will be, and is never committed
            stage_schema(tried, self._name, wanted, may_change=self._may_create)
            path = table.location_provider().new_data_location(file_name(version, _Placed().commit, 0))
            require_room(table.io, path, self.reach)
            for file in _with_rows(version):
                data_file(self._name, tried.table_metadata, file.path, file, partial(self.reach.open, file))
        return {}

    def commit(self, version: Version, token: Token) -> Outcome:  # noqa: ARG002  there is nothing to plan
        """Put the files in place, then swap them for the epoch's earlier ones."""
        wanted, placed, found = schema_of(version.spark_schema), _Placed(), Outcome.ABSENT

        def change(table: Table) -> Transaction | None:
            nonlocal found
            epoch = EpochInTable.read(table, version.owner, version.epoch)
            found = epoch.outcome(version)
            if found is not Outcome.ABSENT:
                return None
            epoch.require_replaceable()
            if not placed.paths:
                self._place(table, version, placed)
            return self._replacing(epoch, version, wanted, placed)

        with self._catalog() as catalog:
            self._until_committed(lambda: self._table(catalog, wanted), change)
        self.put_bytes = placed.put_bytes
        return Outcome.COMMITTED if found is Outcome.ABSENT else found

    def recover(self, version: Version, token: Token) -> Outcome:  # noqa: ARG002
        """Read the marker and the names of the live files."""
        with self._catalog() as catalog:
            try:
                table = catalog.load_table(self._identifier)
            except NoSuchTableError:
                return Outcome.ABSENT
            return EpochInTable.read(table, version.owner, version.epoch).outcome(version)

    def rollback(self, version: Version, token: Token) -> bool:  # noqa: ARG002  the table tells
        """Take the epoch's files out, by one snapshot. Raises TargetConflict if somebody has rewritten them."""
        is_there = False

        def change(table: Table) -> Transaction | None:
            nonlocal is_there
            epoch = EpochInTable.read(table, version.owner, version.epoch)
            marker = epoch.marker
            is_there = marker is not None and version.is_marked_by(marker.number, marker.digest)
            if marker is None or not is_there or marker.digest == ROLLED_BACK:
                return None
            epoch.require_replaceable()
            return _swap(epoch, table.transaction(), Marker(version.number, ROLLED_BACK, uuid.uuid4().hex, 0), (), {})

        with self._catalog() as catalog:
            self._until_committed(lambda: self._load(catalog), change)
        return is_there

    @contextmanager
    def _catalog(self) -> Iterator[Catalog]:
        """Open the catalog; one that does not answer is a target that is away."""
        try:
            with opened(self.reach.connection(self.options["conn_id"])) as catalog:
                yield catalog
        except CatalogAway as error:
            raise TargetAway(str(error)) from error

    def _replacing(self, epoch: EpochInTable, version: Version, wanted: Schema, placed: _Placed) -> Transaction:
        table = epoch.table
        transaction = table.transaction()
        stage_schema(transaction, self._name, wanted, may_change=self._may_create)
        files = [
            data_file(self._name, transaction.table_metadata, path, file, partial(_open, table, path))
            for path, file in zip(placed.paths, _with_rows(version), strict=True)
        ]
        marker = Marker(version.number, version.digest, placed.commit, len(files))
        counted = {f"weir.{name}-bytes": str(size) for name, size in asdict(placed.put_bytes).items()}
        return _swap(epoch, transaction, marker, files, {key.replace("_", "-"): size for key, size in counted.items()})

    def _place(self, table: Table, version: Version, placed: _Placed) -> None:
        """Link or copy the files. What a process that is killed leaves there is named by no snapshot."""
        provider = table.location_provider()
        for index, file in enumerate(_with_rows(version)):
            path = provider.new_data_location(file_name(version, placed.commit, index))
            put(table.io, path, file, self.reach, placed.put_bytes)
            placed.paths.append(path)

    def _until_committed(self, load: Callable[[], Table], change: Callable[[Table], Transaction | None]) -> None:
        """Commit what `change` stages for the table as it is, until it is in, or there is nothing to stage."""
        until = time.monotonic() + _SECONDS
        for turn, pause in enumerate(pauses(*_PAUSES), 1):
            table = load()
            table.metadata.properties[_RETRIES] = "0"  # in this object only
            table.metadata.properties.setdefault(_MERGES, "true")  # likewise; so it is for writers in Java
            transaction = change(table)
            failure = None if transaction is None else _failure_of(transaction)
            if failure is None:
                return
            if turn > 1 and is_refusal(failure):  # the first may have come after a commit, which this turn would see
                raise failure
            if turn == _TURNS or time.monotonic() >= until:
                raise TargetAway.of(
                    "sinks.iceberg_commits_fail", turn=turn, name=self._name, said=said(failure)
                ) from failure
            time.sleep(pause)

    def _table(self, catalog: Catalog, wanted: Schema) -> Table:
        try:
            return catalog.load_table(self._identifier)
        except (NoSuchTableError, NoSuchNamespaceError):
            if not self._may_create:
                raise self._missing(catalog) from None
        for depth in range(1, len(self._identifier)):
            with suppress(NamespaceAlreadyExistsError):  # another process was faster
                catalog.create_namespace_if_not_exists(self._identifier[:depth])
        try:
            return catalog.create_table(self._identifier, wanted)
        except TableAlreadyExistsError:
            return self._load(catalog)

    def _require_writable(self, table: Table) -> None:
        require_location(f"the location of the table {self._name}", table.location())
        if table.metadata.format_version > _FORMAT:
            raise Misconfigured.of(
                "sinks.iceberg_format_too_new",
                name=self._name,
                format_version=table.metadata.format_version,
                format=_FORMAT,
            )

    def _load(self, catalog: Catalog) -> Table:
        try:
            return catalog.load_table(self._identifier)
        except (NoSuchTableError, NoSuchNamespaceError):
            raise self._missing(catalog) from None

    def _missing(self, catalog: Catalog) -> Misconfigured:
        return Misconfigured.of("sinks.iceberg_table_missing", catalog=catalog.name, name=self._name)

    @property
    def _name(self) -> str:
        return str(self.options["table"])

    @property
    def _identifier(self) -> tuple[str, ...]:
        return tuple(self._name.split("."))

    @property
    def _may_create(self) -> bool:
        return bool(self.options["create"] == "if_missing")


def _swap(
    epoch: EpochInTable, transaction: Transaction, marker: Marker, files: Sequence[DataFile], summary: dict[str, str]
) -> Transaction:
    """Stage these files in place of all that the epoch has, and the marker."""
    transaction.set_properties({marker_key(epoch.owner, epoch.epoch): marker.to_json()})
    told = {OWNER: epoch.owner, "weir.epoch": epoch.epoch, "weir.version": str(marker.number), **summary}
    update = transaction.update_snapshot(snapshot_properties=told)
    # Only an append merges manifests and drops empty ones; an overwrite reads each, so there must not be many.
    with update.overwrite() if epoch.files else update.merge_append() as snapshot:
        for file in epoch.files:
            snapshot.delete_data_file(file)
        for file in files:
            snapshot.append_data_file(file)
    return transaction


def _failure_of(transaction: Transaction) -> Exception | None:
    """Commit; return why that failed, or may have failed: the caller looks at the table before it tries again.

    What is staged stays: a conflict, too, may be that of a request which was repeated on its way, and had succeeded.
    PyIceberg would delete the manifests of that snapshot.
    """
    transaction._snapshot_producers = []  # noqa: SLF001
    try:
        transaction.commit_transaction()
    except Exception as error:  # noqa: BLE001
        return error
    return None


def _with_rows(version: Version) -> Sequence[VersionFile]:
    """Return the files that have rows: a file without has no partition value, and nothing to read."""
    return [file for file in version.files if file.rows]


def _open(table: Table, path: str) -> BinaryIO:
    return cast("BinaryIO", table.io.new_input(path).open())


_ACCOUNT: Final = {
    "s3.access-key-id": "key",
    "s3.secret-access-key": "secret",
    "s3.session-token": "token",
    "s3.endpoint": "endpoint",
    "s3.region": "region",
}
"""The properties of PyIceberg that an account has. With any other one (a role, a proxy, encryption), only PyIceberg
writes to the S3."""

_TIMES: Final = {"s3.connect-timeout", "s3.request-timeout"}


def put(io: FileIO, path: str, file: VersionFile, reach: Reach, counted: PutBytes) -> None:
    """Link or copy a file to its path in a table, and count its bytes.

    A local one is linked where it can be; one on S3 is copied by S3 where it can be; any other is streamed through this
    process. Raises TargetAway, Misconfigured, or Retryable if the store's file is damaged.
    """
    above, _, name = path.rpartition("/")
    folder = _folder(io, above, reach, counted)
    if folder is not None:
        folder.make()
        folder.put(name, file)
        return
    with io.new_output(path).create() as written:
        for part in parts_of(reach, file):
            written.write(part)
    counted.copied += file.bytes


def require_room(io: FileIO, path: str, reach: Reach) -> None:
    """Require that a file can be put at a path, as far as that can be told. Raises TargetAway or Misconfigured."""
    above, _, name = path.rpartition("/")
    folder = _folder(io, above, reach, PutBytes())
    if folder is not None:
        folder.require_room([name])


def _folder(io: FileIO, location: str, reach: Reach, counted: PutBytes) -> TargetFolder | None:
    """Return the folder of a location, as PyIceberg takes it; None for one that only PyIceberg reaches."""
    scheme, is_url, _ = location.partition("://")
    if location.startswith("/") or scheme == "file":
        return LocalFolder(Path(location.removeprefix("file://")), reach, counted)
    given = {key: str(value) for key, value in io.properties.items() if key.startswith(("s3.", "client."))}
    found = {_ACCOUNT[key]: value for key, value in given.items() if key in _ACCOUNT}
    if scheme != "s3" or not is_url or "key" not in found or given.keys() - _ACCOUNT.keys() - _TIMES:
        return None
    return S3Folder(location, S3Account(**found), reach, counted)
