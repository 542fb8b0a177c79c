"""Choose which stored results are current when the ledger is rebuilt.

Invariant 3: a result is chosen only if each input that its manifest names is chosen too, with the digest that was read.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from weir.formats.manifest import InputRead, Manifest, Stored, splits_fingerprint
from weir.topology.ids import AttemptId, is_task_try, run_ref
from weir.topology.regions import PartitionId, RegionId, Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """The results that an attempt of a region has written."""

    attempt: AttemptId
    region: RegionId
    lineage: int
    try_number: int
    created_at: str
    results: Mapping[PartitionId, Stored]

    @property
    def age(self) -> tuple[int, int, int, str]:
        """The order of the attempts of a region; one time may be of a clock that is ahead of another one's."""
        return self.lineage, self.try_number, self.manifest.revision, self.created_at

    @property
    def is_restored(self) -> bool:
        """Report whether its results were restored from a checkpoint or savepoint, not computed by a task."""
        return not is_task_try(self.try_number)

    @property
    def is_quarantined(self) -> bool:
        """Report whether rows of its region have failed a check: it may not become current."""
        return any(each.manifest.is_quarantined for each in self.results.values())

    @property
    def reads(self) -> tuple[InputRead, ...]:
        """The inputs that it read; all results of an attempt name the same."""
        return self.manifest.inputs

    @property
    def splits(self) -> Mapping[str, Any]:
        """What it has read of the sources in its region, by stage."""
        source = self.manifest.source
        return source if isinstance(source, Mapping) else {}

    @property
    def manifest(self) -> Manifest:
        """A manifest of it: those of all its results have the same attempt, inputs and code."""
        return next(iter(self.results.values())).manifest


def candidates(topology: Topology, stored: Iterable[Stored]) -> tuple[Candidate, ...]:
    """Group stored results by attempt, oldest first; partitions that this topology does not write are left out."""
    written = {partition: region for region in topology.region_ids() for partition in topology.outputs(region)}
    found: dict[tuple[RegionId, AttemptId], dict[PartitionId, Stored]] = defaultdict(dict)
    for each in stored:
        if each.partition in written:
            found[written[each.partition], each.manifest.attempt][each.partition] = each
    every = [_candidate(region, attempt, results) for (region, attempt), results in found.items()]
    return tuple(sorted(every, key=lambda candidate: (candidate.region, candidate.age)))


def _candidate(region: RegionId, attempt: AttemptId, results: Mapping[PartitionId, Stored]) -> Candidate:
    manifest = next(iter(results.values())).manifest
    created_at = max(each.manifest.created_at for each in results.values())
    return Candidate(
        attempt=attempt,
        region=region,
        lineage=manifest.lineage,
        try_number=manifest.try_number,
        created_at=created_at,
        results=results,
    )


def unfinished_restores(stored: Collection[Stored]) -> frozenset[AttemptId]:
    """Return the attempts of restores of which not all manifests are there.

    The process was killed while it wrote them, or files are gone. A part of it beside what it was to replace is the
    state of no run.
    """
    there = Counter(each.manifest.restored_with for each in stored)
    return frozenset(
        each.manifest.attempt
        for each in stored
        if (restore := each.manifest.restored_with) is not None and there[restore] < restore.partitions
    )


def other_pins(stored: Iterable[Stored], pinned_to: str) -> frozenset[AttemptId]:
    """Return the attempts that were made when the run was pinned to another record: of other subtasks, or layouts."""
    return frozenset(each.manifest.attempt for each in stored if each.manifest.pinned_to not in ("", pinned_to))


def splits_read(found: Iterable[Candidate], source: str, parallelism: int) -> list[Any] | None:
    """Return what the subtasks of a source have read.

    None where that is not known of all, and where two have not read of one listing: it was resolved twice.
    """
    readers = [each for each in found if source in each.splits]
    splits = {each.region.subtask: each.splits[source] for each in readers}
    is_of_one = len({each.manifest.resolved[source] for each in readers}) == 1
    return [splits[subtask] for subtask in range(parallelism)] if is_of_one and len(splits) == parallelism else None


def other_splits(found: Iterable[Candidate], known: Mapping[str, list[Any] | None]) -> frozenset[AttemptId]:
    """Return the attempts that have read their sources by other splits than those that are known.

    What is not known is resolved anew. Beside a result of the new splits, one of the old ones has rows twice, and
    lacks others.
    """
    resolved = {source: splits_fingerprint(splits) for source, splits in known.items() if splits is not None}
    return frozenset(
        each.attempt
        for each in found
        if any(resolved.get(source) != of for source, of in each.manifest.resolved.items())
    )


def choose(
    topology: Topology,
    run: str,
    found: Iterable[Candidate],
    refused: Collection[str] = (),
    earlier: Mapping[PartitionId, str | None] = MappingProxyType({}),
) -> dict[RegionId, Candidate]:
    """Choose the newest candidate of each region that is complete and whose inputs are chosen, without `refused` ids.

    `earlier` are the digests that were chosen in earlier runs, by ids with their run; None where a manifest was found,
    but not chosen. For a partition without any manifest, as in an expired run, any digest is accepted.
    """
    by_region: dict[RegionId, list[Candidate]] = defaultdict(list)
    restored: dict[RegionId, list[Candidate]] = defaultdict(list)
    for candidate in found:
        if candidate.attempt not in refused:
            (restored if candidate.is_restored else by_region)[candidate.region].append(candidate)
    chosen: dict[RegionId, Candidate] = {}
    taken: dict[PartitionId, str | None] = dict(earlier)
    for region in topology.region_ids():
        newest_first = sorted(by_region[region], key=lambda candidate: candidate.age, reverse=True)
        fitting = [each for each in newest_first if _holds(topology, run, each, taken)]
        if fitting:
            chosen[region] = fitting[0]
            taken |= _digests(fitting[0])
        over = _restored_over(restored[region], chosen.get(region))
        taken |= _digests(over) if over is not None else {}
    return chosen


def restored_over(
    found: Iterable[Candidate], chosen: Mapping[RegionId, Candidate], refused: Collection[str] = ()
) -> dict[RegionId, Candidate]:
    """Return the restored candidates that replace the chosen ones, or none: they are of a later lineage."""
    by_region: dict[RegionId, list[Candidate]] = defaultdict(list)
    for candidate in found:
        if candidate.is_restored and candidate.attempt not in refused:
            by_region[candidate.region].append(candidate)
    over = {region: _restored_over(each, chosen.get(region)) for region, each in by_region.items()}
    return {region: each for region, each in over.items() if each is not None}


def without(candidate: Candidate, over: Candidate | None) -> Candidate:
    """Return the candidate without the results that a restored one replaces."""
    kept = {each: stored for each, stored in candidate.results.items() if over is None or each not in over.results}
    return replace(candidate, results=kept)


def _restored_over(restored: Iterable[Candidate], chosen: Candidate | None) -> Candidate | None:
    newest = max(restored, key=lambda candidate: candidate.age, default=None)
    if newest is None or (chosen is not None and chosen.lineage >= newest.lineage):
        return None
    return newest


def _digests(candidate: Candidate) -> dict[PartitionId, str | None]:
    return {each: str(stored.manifest.digest) for each, stored in candidate.results.items()}


def _holds(topology: Topology, run: str, candidate: Candidate, taken: Mapping[PartitionId, str | None]) -> bool:
    if not candidate.results.keys() >= set(topology.outputs(candidate.region)):
        return False
    wanted = {partition for read in topology.inputs(candidate.region) for partition in read.partitions}
    reads = {
        PartitionId(read.stage, read.subtask, read.layout, run_ref(read.run, run)): read.digest
        for read in candidate.reads
    }
    return wanted == {partition for partition in reads if partition.is_of_own_run} and all(
        taken.get(partition) == digest or (not partition.is_of_own_run and partition not in taken)
        for partition, digest in reads.items()
    )
