"""Replace results by those of a checkpoint or savepoint, which synthetic attempts commit.

Invariant: synthetic attempts have try numbers below 1, so that a task's own tries come after them, and no try of a task
is taken for one of them. They record no inputs: nothing can make them stale.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, replace

from sqlalchemy import select
from sqlalchemy.orm import Session

from weir.coordination.services import Services
from weir.errors import Message
from weir.execution.run_state import AttemptState
from weir.formats.checkpoint import Checkpoint, KeyedSnapshot, ResultInFlight, StatePartition
from weir.formats.codec import from_json, to_json
from weir.formats.manifest import DataFile, Manifest, RestoredWith, StateContent, parsed_digest
from weir.formats.paths import manifest_path, result_folder
from weir.formats.savepoint import FileCopy, FileLocation, copies_of, moved
from weir.ledger.attempts import Origin, free_number, synthetic_attempt
from weir.ledger.database.tables import AttemptRow, RunRow
from weir.ledger.results import NewResult, replace_results
from weir.ledger.runs import run_key
from weir.snapshots.savepoint import copy_files
from weir.snapshots.source import NotThere, Source
from weir.topology.ids import AttemptId, Digest, is_task_try
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

    @property
    def digest(self) -> Digest:
        """The digest of its rows, as text."""
        return Digest(str(self.manifest.digest))


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
    checkpoint = source.checkpoint
    keyed = [(_keyed_id(state, part), state, part) for state in checkpoint.states for part in state.partitions]
    in_flight = [(PartitionId(each.stage, each.subtask, each.layout), each) for each in checkpoint.results]
    found = (
        *(builder.keyed(partition, state, part) for partition, state, part in keyed if partition in wanted),
        *(builder.in_flight(partition, each) for partition, each in in_flight if partition in wanted),
    )
    together = RestoredWith(found[0].manifest.attempt, len(found)) if found else None
    return tuple(replace(each, manifest=replace(each.manifest, restored_with=together)) for each in found)


def is_restored(manifest: Manifest) -> bool:
    """Report whether a result was restored, and not computed by a task."""
    return not is_task_try(manifest.try_number)


def partitions_in(checkpoint: Checkpoint) -> dict[PartitionId, str]:
    """Return the partitions of a checkpoint with their digests."""
    return {partition: part.digest for partition, part in _parts(checkpoint)}


def versions_in(checkpoint: Checkpoint) -> dict[PartitionId, frozenset[str]]:
    """Return the partitions of a checkpoint with the versions of code that made them."""
    return {partition: frozenset(part.versions) for partition, part in _parts(checkpoint)}


def makers_in(checkpoint: Checkpoint) -> dict[PartitionId, str]:
    """Return the partitions of a checkpoint with the attempts that committed them."""
    return {partition: part.attempt for partition, part in _parts(checkpoint)}


def _parts(checkpoint: Checkpoint) -> Iterator[tuple[PartitionId, StatePartition | ResultInFlight]]:
    yield from ((_keyed_id(state, part), part) for state in checkpoint.states for part in state.partitions)
    yield from ((PartitionId(each.stage, each.subtask, each.layout), each) for each in checkpoint.results)


def _keyed_id(state: KeyedSnapshot, part: StatePartition) -> PartitionId:
    return PartitionId(state.state.name, part.subtask, state.layout.id)


class _Builder:
    def __init__(self, services: Services, source: Source, place: Place) -> None:
        self._services, self._source, self._place, self._target = services, source, place, place.dataflow
        self._epoch = source.checkpoint.epoch
        self._attempts: dict[RegionId, AttemptId] = {}
        self._places: dict[str, FileLocation] = {}

    def keyed(self, partition: PartitionId, state: KeyedSnapshot, part: StatePartition) -> RestoredPartition:
        """Return a partition of keyed state."""
        layout = state.layout
        region, attempt, folder = self._where(partition)
        copies = self._own_copies(part, folder) if self._source.is_savepoint else {}
        manifest = Manifest(
            dataflow=self._target,
            epoch=self._epoch,
            run=run_key(self._target, self._epoch),
            stage=partition.stage,
            subtask=partition.subtask,
            layout=partition.layout,
            attempt=attempt,
            try_number=self._place.numbers[region],
            lineage=self._place.lineage,
            keys=layout.keys,
            max_parallelism=layout.max_parallelism,
            spark_schema=state.spark_schema,
            digest=parsed_digest(part.digest),
            files=tuple(copies),
            inputs=(),
            code=CODE,
            session={},
            parameters={},
            created_at=self._services.now().isoformat(),
            state=StateContent(tuple(moved(file, self._places) for file in part.files), part.tallies, 0, part.range),
            versions=part.versions,
        )
        return RestoredPartition(partition, region, folder, manifest, tuple(copies.values()))

    def in_flight(self, partition: PartitionId, result: ResultInFlight) -> RestoredPartition:
        """Return a partition that the next epoch reads as a result."""
        region, attempt, folder = self._where(partition)
        source = self._source.folder
        manifest = replace(
            self._manifest_of(result),
            dataflow=self._target,
            run=run_key(self._target, self._epoch),
            attempt=attempt,
            try_number=self._place.numbers[region],
            lineage=self._place.lineage,
            inputs=(),
            source=None,
            resolved={},
            pinned_to="",
            archive="",
            generation=0,
            versions=result.versions,
            created_at=self._services.now().isoformat(),
        )
        copies = copies_of(result, source.at(result.folder), folder)[1:]  # the manifest is written anew
        return RestoredPartition(partition, region, folder, manifest, tuple(copies))

    def _manifest_of(self, result: ResultInFlight) -> Manifest:
        folder = self._source.folder
        path = folder.at(manifest_path(result.folder))
        data = folder.store.read(path)
        if hashlib.sha256(data).hexdigest() != result.manifest_sha256:
            raise NotThere(
                Message(
                    "snapshots.manifest_damaged",
                    store_url=folder.store.url,
                    path=path,
                    manifest_sha256=result.manifest_sha256,
                )
            )
        return from_json(Manifest, data)

    def _own_copies(self, part: StatePartition, folder: str) -> dict[DataFile, FileCopy]:
        """Return the copies of files that no earlier partition copies: a file that several share is copied once."""
        found = {}
        for file in part.files:
            if file.path not in self._places:
                self._places[file.path] = FileLocation(folder, file.file.name)
                at = self._source.folder.at(file.path)
                found[file.file] = FileCopy(at, f"{folder}/{file.file.name}", file.file.bytes, file.file.sha256)
        return found

    def _where(self, partition: PartitionId) -> tuple[RegionId, AttemptId, str]:
        region = self._place.topology.producer(partition)
        if region not in self._attempts:
            self._attempts[region] = self._services.synthetic_attempt_id()
        attempt = self._attempts[region]
        folder = result_folder(self._target, self._epoch, partition.stage, partition.layout, partition.subtask, attempt)
        return region, attempt, folder


def copy_restored(services: Services, source: Source, restored: Iterable[RestoredPartition]) -> int:
    """Copy the data files of restored results to their folders; return the bytes. Raises Misconfigured."""
    copies = [copy for each in restored for copy in each.copies]
    return copy_files(source.folder.store, services.store, copies)


def write_restored(services: Services, restored: Iterable[RestoredPartition]) -> dict[PartitionId, NewResult]:
    """Write the manifests of restored results, and return the results to commit."""
    return {each.partition: _write(services, each) for each in restored}


def discard_restored(services: Services, restored: Iterable[RestoredPartition]) -> None:
    """Delete what was written for results that are not committed, and never will be."""
    for each in restored:
        services.store.delete(manifest_path(each.folder))
        services.store.delete_folder(each.folder)


def commit_restored(
    session: Session,
    services: Services,
    row: RunRow,
    restored: Iterable[RestoredPartition],
    written: Mapping[PartitionId, NewResult],
) -> list[NewResult]:
    """Make restored results the current ones of a run; their manifests are in the store already."""
    by_region: dict[RegionId, list[RestoredPartition]] = {}
    for each in restored:
        by_region.setdefault(each.region, []).append(each)
    results = []
    indexes = _indexes(session, row, by_region)
    for region, parts in sorted(by_region.items()):
        made, now = parts[0].manifest, services.now()
        attempt, number, lineage = made.attempt, made.try_number, made.lineage
        state, origin = AttemptState.COMMITTED, Origin.RESTORED
        session.add(synthetic_attempt(row, region, attempt, indexes[region], number, lineage, now, state, origin))
        session.flush()
        new = [written[each.partition] for each in parts]
        replace_results(session, row.id, attempt, new, services.now())
        results += new
    return results


def _indexes(
    session: Session, row: RunRow, by_region: Mapping[RegionId, list[RestoredPartition]]
) -> dict[RegionId, int]:
    """Return the map indexes of the run's own attempts of these regions; -1 without any."""
    found = {}
    for region in by_region:
        query = select(AttemptRow.map_index).where(
            AttemptRow.run == row.id, AttemptRow.region == region.name, AttemptRow.subtask == region.subtask
        )
        known = session.scalar(query.order_by(AttemptRow.try_number.desc()).limit(1))
        found[region] = -1 if known is None else known
    return found


def next_numbers(session: Session, run: str, regions: Iterable[RegionId]) -> dict[RegionId, int]:
    """Return the try numbers of the next synthetic attempts of regions of a run."""
    return {region: free_number(session, run, region) for region in regions}


def _write(services: Services, restored: RestoredPartition) -> NewResult:
    revision = services.ledger.seen(restored.manifest.dataflow)
    data = to_json(replace(restored.manifest, revision=revision))
    services.store.create(manifest_path(restored.folder), data)
    return NewResult(
        partition=restored.partition,
        folder=restored.folder,
        manifest_sha256=hashlib.sha256(data).hexdigest(),
        digest=restored.digest,
        rows=restored.manifest.rows,
        bytes=restored.manifest.bytes,
        versions=restored.manifest.versions,
    )
