"""Replace results by those of a checkpoint or savepoint, which synthetic attempts commit.

Invariant: synthetic attempts have try numbers below 1, so that a task's own tries come after them, and no try of a task
is taken for one of them. They record no inputs: nothing can make them stale.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, replace
from typing import Any

from weir.coordination.services import Services
from weir.formats.checkpoint import ResultInFlight, StatePartition
from weir.formats.codec import from_json, to_json
from weir.formats.manifest import DataFile, Manifest, RestoredWith, StateContent, Stored, parsed_digest
from weir.formats.paths import manifest_path, result_folder
from weir.formats.savepoint import FileCopy, FileLocation, copies_of, moved
from weir.ledger.runs import run_key
from weir.snapshots.savepoint import copy_files
from weir.snapshots.source import NotThere, Source
from weir.topology.ids import AttemptId
from weir.topology.regions import PartitionId, RegionId, Topology

CODE = "restored"
"""The fingerprint of code that a restored result records."""


@dataclass(frozen=True, slots=True)
class RestoredPartition:
    """A result partition to be committed, and the copies of files that belong to it."""

    partition: PartitionId
    region: RegionId
    folder: str
    manifest: Manifest
    copies: tuple[FileCopy, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """Where restored results belong: a dataflow, its topology and lineage, and the try numbers by region."""

    dataflow: str
    topology: Topology
    lineage: int
    numbers: Mapping[RegionId, int]


def restored_partitions(
    services: Services, source: Source, place: Place, wanted: Set[PartitionId]
) -> tuple[RestoredPartition, ...]:
    """Return the `wanted` partitions of a checkpoint or savepoint as results of a dataflow at its epoch.

    Nothing is written yet. The files of a savepoint, and results in flight, are to be copied; state files of a
    checkpoint are used where they are.
    """
    builder = _Builder(services, source, place)
    found = [builder.build(each, part) for each, part in source.checkpoint.parts.items() if each in wanted]
    together = RestoredWith(found[0].manifest.attempt, len(found)) if found else None
    return tuple(replace(each, manifest=replace(each.manifest, restored_with=together)) for each in found)


class _Builder:
    def __init__(self, services: Services, source: Source, place: Place) -> None:
        self._services, self._source, self._place = services, source, place
        self._states = {each.state.name: each for each in source.checkpoint.states}
        self._attempts: dict[RegionId, AttemptId] = {}
        self._files: dict[str, FileLocation] = {}

    def build(self, partition: PartitionId, part: StatePartition | ResultInFlight) -> RestoredPartition:
        """Return a partition of the snapshot."""
        place, epoch = self._place, self._source.checkpoint.epoch
        region = place.topology.producer(partition)
        if region not in self._attempts:
            self._attempts[region] = self._services.synthetic_attempt_id()
        attempt = self._attempts[region]
        names = (partition.stage, partition.layout, partition.subtask)
        folder = result_folder(place.dataflow, epoch, *names, attempt)
        made: dict[str, Any] = {
            "dataflow": place.dataflow,
            "run": run_key(place.dataflow, epoch),
            "attempt": attempt,
            "try_number": place.numbers[region],
            "lineage": place.lineage,
            "inputs": (),
            "versions": part.versions,
            "created_at": self._services.now().isoformat(),
        }
        if isinstance(part, ResultInFlight):
            unknown: dict[str, Any] = {"source": None, "resolved": {}, "pinned_to": "", "archive": "", "generation": 0}
            manifest = replace(self._manifest_of(part), **made, **unknown)
            copies = copies_of(part, self._source.folder.at(part.folder), folder)[1:]  # the manifest is written anew
            return RestoredPartition(partition, region, folder, manifest, tuple(copies))
        copied = self._own_copies(part, folder) if self._source.is_savepoint else {}
        manifest = self._manifest_of_state(partition, part, tuple(copied), made)
        return RestoredPartition(partition, region, folder, manifest, tuple(copied.values()))

    def _manifest_of_state(
        self, partition: PartitionId, part: StatePartition, copied: tuple[DataFile, ...], made: Mapping[str, Any]
    ) -> Manifest:
        state = self._states[partition.stage]
        return Manifest(
            epoch=self._source.checkpoint.epoch,
            stage=partition.stage,
            subtask=partition.subtask,
            layout=partition.layout,
            keys=state.layout.keys,
            max_parallelism=state.layout.max_parallelism,
            spark_schema=state.spark_schema,
            digest=parsed_digest(part.digest),
            files=copied,
            code=CODE,
            session={},
            parameters={},
            state=StateContent(tuple(moved(file, self._files) for file in part.files), part.tallies, 0, part.range),
            **made,
        )

    def _manifest_of(self, result: ResultInFlight) -> Manifest:
        folder = self._source.folder
        path = folder.at(manifest_path(result.folder))
        data = folder.store.read(path)
        if hashlib.sha256(data).hexdigest() != result.manifest_sha256:
            raise NotThere.of(
                "snapshots.manifest_damaged",
                store_url=folder.store.url,
                path=path,
                manifest_sha256=result.manifest_sha256,
            )
        return from_json(Manifest, data)

    def _own_copies(self, part: StatePartition, folder: str) -> dict[DataFile, FileCopy]:
        """Return the copies of files that no earlier partition copies: a file that several share is copied once."""
        found = {}
        for file in part.files:
            if file.path not in self._files:
                self._files[file.path] = FileLocation(folder, file.file.name)
                at = self._source.folder.at(file.path)
                found[file.file] = FileCopy(at, f"{folder}/{file.file.name}", file.file.bytes, file.file.sha256)
        return found


def copy_restored(services: Services, source: Source, restored: Iterable[RestoredPartition]) -> int:
    """Copy the data files of restored results to their folders; return the bytes. Raises Misconfigured."""
    copies = [copy for each in restored for copy in each.copies]
    return copy_files(source.folder.store, services.store, copies)


def write_restored(services: Services, restored: Iterable[RestoredPartition]) -> list[Stored]:
    """Write the manifests of restored results, and return the results to commit."""
    written = []
    for each in restored:
        manifest = replace(each.manifest, revision=services.ledger.seen(each.manifest.dataflow))
        data = to_json(manifest)
        services.store.create(manifest_path(each.folder), data)
        written.append(Stored(each.folder, hashlib.sha256(data).hexdigest(), manifest))
    return written


def discard_restored(services: Services, restored: Iterable[RestoredPartition]) -> None:
    """Delete what was written for results that are not committed, and never will be."""
    for each in restored:
        services.store.delete(manifest_path(each.folder))
        services.store.delete_folder(each.folder)
