"""A table of Delta Lake: an epoch's files and its marker change in one commit of the table's log.

Invariant 12: a commit holds the new files, the removal of all others of the epoch's partition, and the marker (Delta's
"application transactions", one an epoch). It is made on the snapshot of which the marker was read, and fails if anybody
has committed since: then the marker is read again. delta-rs' own retries are off: they would not see a compaction.

Invariant: a file of ours is in the folder, whole, before the log names it, under a name that is used once. What a
process that was killed has put there, a later commit uses, or a full vacuum removes.

Source of the protocol: Delta's, "Transaction Identifiers"; delta-rs' create_write_transaction.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from itertools import islice
from typing import Any, Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, DeltaProtocolError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions

from weir.connections import S3Account
from weir.dataflow.state_schema import Fields
from weir.delta_rs import is_of_library, is_refusal, said
from weir.errors import Misconfigured
from weir.sinks.folders import TargetFolder, open_folder, require_apart
from weir.sinks.protocol import ROLLED_BACK, Held, Outcome, SinkTarget, TargetAway, Token, Version
from weir.sinks.rows import batches
from weir.sinks.targets.delta_columns import (
    OWNER,
    columns_of,
    new_schema,
    require_features,
    require_no_nulls,
    require_usable,
    required_columns,
    schema_with,
)
from weir.store.time_limit import pauses

_TURNS: Final = 20
"""How often a commit is tried while others commit to the same table."""

_PAUSES: Final = (0.02, 2.0)
"""The first pause between two of them, and the longest, in seconds."""

_ROLLED_BACK: Final = -1
"""The digest in the marker of a version whose rows were taken out."""

_S3: Final = {
    "conditional_put": "etag",  # of several writers of one log entry, one succeeds
    "connect_timeout": "5s",
    "timeout": "30s",
    "max_retries": "4",
    "retry_timeout": "60s",
}
_OURS: Final = re.compile(r"/weir-\d{5}-(?P<number>\d+)-[^/]*\Z")


class DeltaTarget(SinkTarget):
    """A table that is partitioned by epoch, in a local folder or on S3."""

    def prepare(self, version: Version, held: Held | None) -> Token:  # noqa: ARG002  the marker tells
        """Check that the table takes columns and nulls. With create="if_missing", a missing table is made, empty."""
        columns = columns_of(version.spark_schema, self._partition)
        require_apart(self._place, self.reach)
        with self._reached():
            self._folder.require_alone()
            table = self._found() or self._created(columns)
            self._require_own(table, version.owner)
            self._folder.require_room(self._names(table, version))
            self._schema(table, columns)
            required = required_columns(table.schema().to_json(), columns)
            if required:
                require_no_nulls(str(self), required, batches(self.reach, version, required))
        return {}

    def commit(self, version: Version, token: Token) -> Outcome:  # noqa: ARG002  there is nothing to plan
        """Put the files into the table's folder, then replace the epoch's partition and its marker in one commit."""
        columns = columns_of(version.spark_schema, self._partition)
        with self._reached():
            for pause in islice(pauses(*_PAUSES), _TURNS):
                table = self._found() or self._created(columns)
                found = self._seen(table, version)
                if found is not Outcome.ABSENT:
                    return found
                if self._is_added(table, version, columns):
                    return Outcome.COMMITTED
                time.sleep(pause)
        raise TargetAway.of("sinks.delta_changes_too_often", table=self, turns=_TURNS, version=version)

    def recover(self, version: Version, token: Token) -> Outcome:  # noqa: ARG002
        """Read the epoch's marker in the newest version of the table, and look for the epoch's files."""
        with self._reached():
            table = self._found()
            return Outcome.ABSENT if table is None else self._seen(table, version)

    def rollback(self, version: Version, token: Token) -> bool:  # noqa: ARG002
        """Remove the files of the epoch's partition, and change the marker, in one commit."""
        with self._reached():
            for pause in islice(pauses(*_PAUSES), _TURNS):
                table = self._found()
                number, digest = (0, None) if table is None else self._marked(table, version)
                is_equal = number < version.number and digest == _digest(version)
                if table is None or not (number == version.number or is_equal):
                    return False
                if digest == _ROLLED_BACK:
                    return True
                self._require_own(table, version.owner)
                self._features(table)
                said = {**_said(version), "digest": ROLLED_BACK, "rows": 0}
                if self._is_written(table, said, table.schema(), [], _ROLLED_BACK):
                    return True
                time.sleep(pause)
        raise TargetAway.of("sinks.delta_rollback_contended", table=self, turns=_TURNS, version=version)

    def _seen(self, table: DeltaTable, version: Version) -> Outcome:
        number, digest = self._marked(table, version)
        if number > version.number:
            return Outcome.SUPERSEDED
        if number == version.number and digest == _ROLLED_BACK:
            return Outcome.ROLLED_BACK
        if digest != _digest(version) or not self._is_whole(table, version, number):
            return Outcome.ABSENT
        return Outcome.COMMITTED if number == version.number else Outcome.EQUAL

    def _marked(self, table: DeltaTable, version: Version) -> tuple[int, int | None]:
        """Return number and digest of the version that the table has of the epoch; the number 0 where it has none."""
        marker = _marker(version.owner, version.epoch)
        return table.transaction_version(marker) or 0, table.transaction_version(_digest_marker(marker))

    def _is_whole(self, table: DeltaTable, version: Version, number: int) -> bool:
        """Report whether the partition has as many rows as the version, in files that are there.

        They are those of the number in the marker (somebody may have restored an older version of the table), or files
        into which somebody has compacted them. A change of others that keeps the number of rows is not noticed.
        """
        live = self._live(table, version.epoch)
        rows = [each["num_records"] for each in live]
        ours = [_OURS.search(each["path"]) for each in live]
        if None in rows or sum(rows) != version.rows or any(each and int(each["number"]) != number for each in ours):
            return False
        return all(self._folder.has(each["path"], each["size_bytes"]) for each in live)

    def _live(self, table: DeltaTable, epoch: str) -> list[dict[str, Any]]:
        found = pa.table(table.get_add_actions(flatten=True))
        if not found.num_rows:
            return []
        columns = ["path", "size_bytes", "num_records", f"partition.{self._partition}"]
        rows: list[dict[str, Any]] = found.select(columns).to_pylist()
        return [each for each in rows if each[columns[-1]] == epoch]

    def _is_added(self, table: DeltaTable, version: Version, columns: Fields) -> bool:
        """Commit a version unless anybody has committed since the table was loaded, or files are gone again."""
        claimed = self._claimed(table, version.owner)
        if claimed is None:
            return False
        schema = self._schema(claimed, columns)
        files = list(zip(self._names(claimed, version), version.files, strict=True))
        for name, file in files:
            self._folder.put(name, file)
        now = int(time.time() * 1000)
        actions: list[AddAction | RemoveAction] = [
            # Without minima and maxima: where some columns have them and others do not, delta-rs' dataset for Arrow
            # leaves out files with matching rows (its issue 3173), and a column that is added later has none.
            AddAction(
                name,
                file.bytes,
                {self._partition: version.epoch},
                now,
                data_change=True,
                stats=json.dumps({"numRecords": file.rows}),
            )
            for name, file in files
        ]
        # A full vacuum may have removed what no commit names yet.
        is_there = all(self._folder.has(name, file.bytes) for name, file in files)
        return is_there and self._is_written(claimed, _said(version), schema, actions, _digest(version))

    def _names(self, table: DeltaTable, version: Version) -> list[str]:
        """Return the names of a version's files; others where it was there, and somebody has changed it."""
        again = f"-{table.version()}" if self._marked(table, version)[0] == version.number else ""
        return [
            f"{self._partition}={version.epoch}/weir-{place:05}-{version.number}-{version.attempt}{again}.parquet"
            for place in range(len(version.files))
        ]

    def _is_written(
        self,
        table: DeltaTable,
        said: dict[str, Any],
        schema: Schema,
        actions: list[AddAction | RemoveAction],
        digest: int,
    ) -> bool:
        """Replace an epoch's partition and its marker in one commit; False if somebody has committed meanwhile.

        That may have been this commit, whose answer was lost.
        """
        marker, entry = _marker(said["owner"], said["epoch"]), table.version() + 1
        try:
            table.create_write_transaction(
                actions,
                "overwrite",  # delta-rs removes what it finds in the partition
                schema,
                [self._partition],
                partition_filters=[(self._partition, "=", said["epoch"])],
                commit_properties=CommitProperties(
                    max_commit_retries=0,
                    custom_metadata={"weir": said},
                    app_transactions=[
                        Transaction(marker, said["number"]),
                        Transaction(_digest_marker(marker), digest),
                    ],
                ),
            )
        except CommitFailedError:
            return False
        self._folder.flush(f"_delta_log/{entry:020}.json")  # delta-rs does not, and a torn one ends a table
        return True

    def _schema(self, table: DeltaTable, columns: Fields) -> Schema:
        """Return the schema that the table will have; it changes in the commit that needs it. Raises Misconfigured."""
        require_features(str(self), columns, self._features(table))
        before = table.schema().to_json()
        may_change = self.options["create"] == "if_missing"
        return Schema.from_json(schema_with(str(self), before, columns, self._partition, may_change=may_change))

    def _features(self, table: DeltaTable) -> set[str]:
        """Return the features of a table that can be published into. Raises Misconfigured for any other table."""
        protocol, found = table.protocol(), table.metadata()
        features = {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
        require_usable(str(self), found.partition_columns, found.configuration, features, self._partition)
        return features

    def _claimed(self, table: DeltaTable, owner: str) -> DeltaTable | None:
        """Return the table as the owner's; the first time, the property is set by a commit that changes no rows.

        Returns None if somebody has committed meanwhile.
        """
        if self._require_own(table, owner):
            return table
        try:
            table.alter.set_table_properties(
                {OWNER: owner},
                raise_if_not_exists=False,  # it is no property of Delta's
                commit_properties=CommitProperties(max_commit_retries=0),
            )
        except CommitFailedError:
            return None
        return table

    def _require_own(self, table: DeltaTable, owner: str) -> bool:
        """Report whether the table says whose it is. Raises Misconfigured if it is another sink's."""
        found = table.metadata().configuration.get(OWNER)
        if found not in (None, owner):
            raise Misconfigured.of("sinks.delta_owned_by_another", table=self, found=found, owner=owner, property=OWNER)
        return found is not None

    def _found(self) -> DeltaTable | None:
        """Load the newest version of the table; None where there is none, and there could be one."""
        self._folder.require()
        try:
            try:
                return DeltaTable(self._place, storage_options=self._storage)
            except TableNotFoundError:
                raise
            except DeltaError:  # the log may have been cleaned up while it was read
                return DeltaTable(self._place, storage_options=self._storage)
        except TableNotFoundError:
            return None

    def _created(self, columns: Fields) -> DeltaTable:
        """Create the table, without rows, unless somebody else just does."""
        if self.options["create"] != "if_missing":
            raise Misconfigured.of("sinks.delta_table_missing", table=self, partition=self._partition)
        schema = Schema.from_json(new_schema(columns, self._partition))
        try:
            create_table_with_add_actions(
                self._place, schema, [], partition_by=[self._partition], storage_options=self._storage
            )
        except (DeltaError, OSError):
            table = self._found()
            if table is None:
                raise
            return table
        return DeltaTable(self._place, storage_options=self._storage)

    @contextmanager
    def _reached(self) -> Iterator[None]:
        try:
            yield
        except DeltaProtocolError as error:
            raise Misconfigured.of("sinks.delta_features_unknown", table=self, said=said(error)) from error
        except BaseException as error:
            if is_refusal(error):
                raise Misconfigured.of(
                    "sinks.delta_unusable", table=self, name=type(error).__name__, said=said(error)
                ) from error
            if isinstance(error, OSError) or is_of_library(error):
                raise TargetAway.of("sinks.delta_silent", table=self, said=said(error)) from error
            raise

    @property
    def _place(self) -> str:
        return str(self.options["path"])

    @property
    def _partition(self) -> str:
        return str(self.options["partition"])

    @cached_property
    def _account(self) -> S3Account:
        return S3Account.of(self.options["conn_id"], self.reach.connection)

    @cached_property
    def _storage(self) -> dict[str, str] | None:
        is_remote = self._place.startswith("s3://")
        return {**_S3, **self._account.for_object_store()} if is_remote else None

    @cached_property
    def _folder(self) -> TargetFolder:
        return open_folder(self._place, self._account, self.reach, self.put_bytes)

    def __str__(self) -> str:
        return f"the Delta table {self._place}"


def _marker(owner: str, epoch: str) -> str:
    return f"weir/{owner}/{epoch}"


def _said(version: Version) -> dict[str, Any]:
    """Return what the table's history says about a commit, for people."""
    return {
        "owner": version.owner,
        "epoch": version.epoch,
        "number": version.number,
        "digest": version.digest,
        "rows": version.rows,
        "attempt": version.attempt,
    }


def _digest_marker(marker: str) -> str:
    return f"{marker}#digest"


def _digest(version: Version) -> int:
    """Return 63 bits of the digest, since a marker's value is a signed number of 64."""
    return int.from_bytes(hashlib.sha256(version.digest.encode()).digest()[:8]) >> 1
