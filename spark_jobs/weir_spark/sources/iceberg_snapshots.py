"""The files that snapshots of an Iceberg table have added.

Invariant: what is returned are the rows that came, each once, or there is an error: a snapshot that overwrote or
deleted rows is one, and one that only rewrote files adds nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from weir.errors import Message, Misconfigured

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot


def appended_files(table: Table, name: str, since: int | None) -> list[DataFile]:
    """Return the files that came after the snapshot `since`, up to the current one. Raises Misconfigured.

    None stands for a table that had no snapshot yet.
    """
    found: list[DataFile] = []
    for snapshot in _after(table, name, since):
        found += _added(table, name, snapshot)
    return found


def _after(table: Table, name: str, since: int | None) -> list[Snapshot]:
    """Return the snapshots after `since`, oldest first."""
    chain: list[Snapshot] = []
    snapshot = table.current_snapshot()
    while snapshot is not None and snapshot.snapshot_id != since:
        chain.append(snapshot)
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else table.snapshot_by_id(parent)
    if (None if snapshot is None else snapshot.snapshot_id) != since or (since is None and _is_cut(chain)):
        raise Misconfigured(Message("sources.iceberg_not_followed", name=name, snapshot=since))
    return chain[::-1]


def _is_cut(chain: list[Snapshot]) -> bool:
    """Report whether the first snapshot of the table was expired: the oldest that is left was not its first."""
    return bool(chain) and chain[-1].sequence_number not in (None, 0, 1)


def _added(table: Table, name: str, snapshot: Snapshot) -> Iterator[DataFile]:
    from pyiceberg.manifest import ManifestContent, ManifestEntryStatus  # noqa: PLC0415
    from pyiceberg.table.snapshots import Operation  # noqa: PLC0415

    operation = None if snapshot.summary is None else snapshot.summary.operation
    if operation is Operation.REPLACE:
        return
    manifests = [each for each in snapshot.manifests(table.io) if each.added_snapshot_id == snapshot.snapshot_id]
    if operation is not Operation.APPEND or any(each.content is not ManifestContent.DATA for each in manifests):
        number = snapshot.snapshot_id
        raise Misconfigured(Message("sources.iceberg_not_appended", name=name, snapshot=number, operation=operation))
    for manifest in manifests:
        for entry in manifest.fetch_manifest_entry(table.io):
            if entry.status is ManifestEntryStatus.ADDED and entry.snapshot_id == snapshot.snapshot_id:
                yield entry.data_file
