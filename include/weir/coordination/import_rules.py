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
from weir.topology.ids import AttemptId, parse_attempt_id, run_ref
from weir.topology.regions import PartitionId, RegionId, Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """The results that an attempt of a region has written."""

    attempt: AttemptId
    region: RegionId
    results: Mapping[PartitionId, Stored]

    @property
    def age(self) -> tuple[int, int, int, str]:
        """The order of the attempts of a region; one time may be of a clock that is ahead of another one's."""
        made = self.manifest
        return made.lineage, made.try_number, made.revision, self.created_at

    @property
    def created_at(self) -> str:
        """The time of its last manifest."""
        return max(each.manifest.created_at for each in self.results.values())

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
    def digests(self) -> dict[PartitionId, str]:
        """The digests of its results."""
        return {each: str(stored.manifest.digest) for each, stored in self.results.items()}

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
    every = [Candidate(attempt=attempt, region=region, results=results) for (region, attempt), results in found.items()]
    return tuple(sorted(every, key=lambda candidate: (candidate.region, candidate.age)))


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


@dataclass(frozen=True, slots=True)
class _Seen:
    """A result as it was read or published, and the revision of the dataflow that its reader had seen."""

    try_number: int
    digest: str
    revision: int

    def is_instead_of(self, candidate: Candidate, partition: PartitionId) -> bool:
        """Report whether it is of a later try than an earlier result of a candidate, and has other rows."""
        made = candidate.manifest
        is_later = self.try_number > made.try_number and self.revision > made.revision
        return is_later and self.digest != candidate.digests[partition]


def outdated(
    run: str,
    found: Collection[Candidate],
    published: Iterable[tuple[Iterable[InputRead], int]],
    given_up: Collection[str],
) -> frozenset[AttemptId]:
    """Return the attempts of which a later try had other rows, as was read or published, also where it is gone.

    In place of a result that is gone they would bring back what was corrected since. `published` are the reads of
    closing tasks, each with its revision. What was read of attempts that were `given_up` does not count.
    """
    seen: dict[PartitionId, list[_Seen]] = defaultdict(list)
    readers = [(each.reads, each.manifest.revision) for each in found if each.attempt not in given_up]
    for reads, revision in (*readers, *published):
        for read in reads:
            parsed = parse_attempt_id(read.attempt)
            if parsed is not None and read.attempt not in given_up:
                partition = PartitionId(read.stage, read.subtask, read.layout, run_ref(read.run, run))
                seen[partition].append(_Seen(parsed.try_number, read.digest, revision))
    return frozenset(
        each.attempt
        for each in found
        if not each.manifest.is_restored
        and any(one.is_instead_of(each, partition) for partition in each.results for one in seen[partition])
    )


@dataclass(frozen=True, slots=True)
class Choice:
    """The candidates that become current, by region: computed ones, and restored ones, which replace results of these.

    `current` have only those results that no restored candidate replaces.
    """

    computed: Mapping[RegionId, Candidate]
    restored: Mapping[RegionId, Candidate]

    @property
    def current(self) -> list[Candidate]:
        """The candidates with the results that become current; those without any are left out."""
        kept = map(self._kept, self.computed.values())
        return [*(each for each in kept if each.results), *self.restored.values()]

    def _kept(self, candidate: Candidate) -> Candidate:
        over = self.restored.get(candidate.region)
        kept = {each: stored for each, stored in candidate.results.items() if over is None or each not in over.results}
        return replace(candidate, results=kept)


def choose(
    topology: Topology,
    run: str,
    found: Iterable[Candidate],
    refused: Collection[str] = (),
    earlier: Mapping[PartitionId, str | None] = MappingProxyType({}),
) -> Choice:
    """Choose the newest candidate of each region that is complete and whose inputs are chosen, without `refused` ids.

    A restored one of a later lineage comes over it. `earlier` are the digests that were chosen in earlier runs, by ids
    with their run; None where a manifest was found, but not chosen. For a partition without any manifest, as in an
    expired run, any digest is accepted.
    """
    newest_first: dict[RegionId, list[Candidate]] = defaultdict(list)
    for candidate in sorted(found, key=lambda each: each.age, reverse=True):
        if candidate.attempt not in refused:
            newest_first[candidate.region].append(candidate)
    computed: dict[RegionId, Candidate] = {}
    restored: dict[RegionId, Candidate] = {}
    taken: dict[PartitionId, str | None] = dict(earlier)
    for region in topology.region_ids():
        of_region = newest_first[region]
        of_tasks = (each for each in of_region if not each.manifest.is_restored)
        best = next((each for each in of_tasks if _holds(topology, run, each, taken)), None)
        over = next((each for each in of_region if each.manifest.is_restored), None)
        if best is not None:
            computed[region] = best
            taken |= best.digests
        if over is not None and (best is None or best.manifest.lineage < over.manifest.lineage):
            restored[region] = over
            taken |= over.digests
    return Choice(computed, restored)


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
