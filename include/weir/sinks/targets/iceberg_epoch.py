"""What a table of Apache Iceberg holds of an epoch of a sink: its marker, and the live files that a sink has put there.

The marker is a table property, which survives the expiry of snapshots. Files are told by their names: they have owner,
epoch, version and the commit that put them there, of which each has its own, so that no name is used twice.

Invariant: rows are taken for gone only where the table's history shows it. Where somebody has rewritten our files (a
compaction, an update), the rows are in files of others, and to add them again would double them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any, Final

from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntry, ManifestEntryStatus
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from weir.sinks.protocol import Outcome, TargetConflict, Version, outcome_of

_NAME: Final = re.compile(
    r"weir-(?P<owner>[^/]+)-(?P<epoch>\d{8}T\d{6}Z)-(?P<number>\d+)-(?P<commit>[0-9a-f]{32})-(?P<index>\d{5,})\.parquet"
)

_FIRST: Final = 1
"""The sequence number of a table's first snapshot; one without a parent may be the oldest that has not expired."""

OWNER: Final = "weir.owner"
"""The entry of a snapshot's summary with the sink that made it."""


def marker_key(owner: str, epoch: str) -> str:
    """Return the table property that says which version of an epoch the table holds."""
    return f"weir.{owner}.{epoch}"


def file_name(version: Version, commit: str, index: int) -> str:
    """Return the name of a version's file in the table."""
    return f"weir-{version.owner}-{version.epoch}-{version.number}-{commit}-{index:05}.parquet"


@dataclass(frozen=True, slots=True)
class Marker:
    """The version that the table holds of an epoch, the commit that put it there, and the number of its files."""

    number: int
    digest: str
    commit: str
    files: int

    def to_json(self) -> str:
        """Return it as the text of a table property."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Marker:
        """Read what `to_json` returned."""
        found: dict[str, Any] = json.loads(text)
        return cls(found["number"], found["digest"], found["commit"], found["files"])


class Rows(Enum):
    """Where the rows of a marker's version are."""

    LIVE = "live"
    """All of its files are live."""
    GONE = "gone"
    """Some of its files are not, and nothing else has their rows."""
    REWRITTEN = "rewritten"
    """Some of its files are not, and somebody else's may have their rows."""


@dataclass(frozen=True, slots=True)
class EpochInTable:
    """What a table, as it was loaded, holds of an epoch: `files` are all live ones of the sink's."""

    table: Table
    owner: str
    epoch: str
    marker: Marker | None
    files: tuple[DataFile, ...]

    @classmethod
    def read(cls, table: Table, owner: str, epoch: str) -> EpochInTable:
        """Read the marker and the manifests of a table's current snapshot."""
        text = table.metadata.properties.get(marker_key(owner, epoch))
        snapshot = table.current_snapshot()
        files = [] if snapshot is None else _live(table.io, snapshot)
        ours = [file for file in files if _is_of(file.file_path, owner, epoch)]
        return cls(table, owner, epoch, None if text is None else Marker.from_json(text), tuple(ours))

    def outcome(self, version: Version) -> Outcome:
        """Tell what the table holds of a version."""
        marker = self.marker
        if marker is None:
            return Outcome.ABSENT
        found = outcome_of(version, marker.number, marker.digest)
        is_kept = found not in (Outcome.COMMITTED, Outcome.EQUAL) or self.rows() is not Rows.GONE
        return found if is_kept else Outcome.ABSENT

    def require_replaceable(self) -> None:
        """Require that no file of somebody else has rows of the epoch's. Raises TargetConflict."""
        marker = self.marker
        if marker is None or self.rows() is not Rows.REWRITTEN:
            return
        name = ".".join(self.table.name())
        live = len(self._live_names())
        raise TargetConflict.of(
            "sinks.iceberg_epoch_rewritten",
            name=name,
            live=live,
            files=marker.files,
            number=marker.number,
            owner=self.owner,
            epoch=self.epoch,
            marker_key=marker_key(self.owner, self.epoch),
        )

    def rows(self) -> Rows:
        """Find out where the rows of the marker's version are, by the table's history where a file is not live."""
        marker = self.marker
        missing = set() if marker is None else self._names(marker) - self._live_names()
        return Rows.LIVE if not missing else self._without(missing)

    def _without(self, missing: set[str]) -> Rows:
        """Look for the snapshots that removed these files, from the current one back."""
        snapshot, later = self.table.current_snapshot(), None
        while snapshot is not None:
            removed = missing & {_base_name(each.data_file.file_path) for each in _removed(self.table.io, snapshot)}
            if removed and (_writes(snapshot) or (later is not None and _is_of_others(later) and _writes(later))):
                return Rows.REWRITTEN
            missing -= removed
            if not missing or snapshot.sequence_number == _FIRST:
                return Rows.GONE  # what no snapshot has removed was never there: somebody went back to an earlier one
            parent = snapshot.parent_snapshot_id
            snapshot, later = None if parent is None else self.table.metadata.snapshot_by_id(parent), snapshot
        # Without a current snapshot the table is empty; else the history that would tell has expired.
        return Rows.GONE if later is None else Rows.REWRITTEN

    def _names(self, marker: Marker) -> set[str]:
        before = f"weir-{self.owner}-{self.epoch}-{marker.number}-{marker.commit}"
        return {f"{before}-{index:05}.parquet" for index in range(marker.files)}

    def _live_names(self) -> set[str]:
        marker = self.marker
        names = {_base_name(file.file_path) for file in self.files}
        return set() if marker is None else names & self._names(marker)


def _is_of(path: str, owner: str, epoch: str) -> bool:
    found = _NAME.fullmatch(_base_name(path))
    return found is not None and (found["owner"], found["epoch"]) == (owner, epoch)


def _base_name(path: str) -> str:
    """Return a file's name; some layouts for object stores put a hash before it, and a hyphen."""
    name = path.rpartition("/")[2]
    return name[name.find("weir-") :] if "weir-" in name else name


def _live(io: FileIO, snapshot: Snapshot) -> Iterator[DataFile]:
    for manifest in snapshot.manifests(io):
        is_live = manifest.has_added_files() or manifest.has_existing_files()
        if manifest.content == ManifestContent.DATA and is_live:
            for entry in manifest.fetch_manifest_entry(io, discard_deleted=True):
                yield entry.data_file


def _removed(io: FileIO, snapshot: Snapshot) -> Iterator[ManifestEntry]:
    """Yield the entries of the data files that a snapshot removed."""
    for manifest in snapshot.manifests(io):
        if manifest.content == ManifestContent.DATA and manifest.added_snapshot_id == snapshot.snapshot_id:
            for entry in manifest.fetch_manifest_entry(io, discard_deleted=False):
                if entry.status == ManifestEntryStatus.DELETED and entry.snapshot_id == snapshot.snapshot_id:
                    yield entry


def _writes(snapshot: Snapshot) -> bool:
    """Report whether a snapshot added rows, or files with rows that were there.

    PyIceberg's overwrite is two snapshots, the second of which adds rows: both are looked at.
    """
    summary = snapshot.summary
    return summary is None or summary["added-data-files"] not in (None, "0")


def _is_of_others(snapshot: Snapshot) -> bool:
    return snapshot.summary is None or snapshot.summary[OWNER] is None
