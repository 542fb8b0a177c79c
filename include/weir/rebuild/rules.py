"""Which stored results are taken when the ledger is built again.

Invariant 3: a result is taken only if each input that its manifest names is taken too, with the digest that was read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from weir.formats.manifest import InputRead, Stored
from weir.topology.ids import AttemptId, is_task_try, run_ref
from weir.topology.regions import PartitionId, RegionId, Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """All that one attempt of a region has written."""

    attempt: AttemptId
    region: RegionId
    lineage: int
    try_number: int
    created_at: str
    results: Mapping[PartitionId, Stored]

    @property
    def age(self) -> tuple[int, int, str]:
        """What orders the attempts of a region."""
        return self.lineage, self.try_number, self.created_at

    @property
    def is_restored(self) -> bool:
        """Whether it is what a checkpoint or savepoint had: no task has made it."""
        return not is_task_try(self.try_number)

    @property
    def is_quarantined(self) -> bool:
        """Whether rows of its region have failed a check: nobody may make it current."""
        return any(each.manifest.is_quarantined for each in self.results.values())

    @property
    def reads(self) -> tuple[InputRead, ...]:
        """What it was made from; all results of an attempt say the same."""
        return next(iter(self.results.values())).manifest.inputs


def candidates(topology: Topology, stored: Iterable[Stored]) -> tuple[Candidate, ...]:
    """The attempts that wrote `stored`, oldest first; what this topology does not write is left out."""
    written = {partition: region for region in topology.region_ids() for partition in topology.outputs(region)}
    found: dict[tuple[RegionId, AttemptId], dict[PartitionId, Stored]] = defaultdict(dict)
    for each in stored:
        if each.partition in written:
            found[written[each.partition], each.manifest.attempt][each.partition] = each
    every = [_candidate(region, attempt, results) for (region, attempt), results in found.items()]
    return tuple(sorted(every, key=lambda candidate: (candidate.region, candidate.age)))


def _candidate(region: RegionId, attempt: AttemptId, results: Mapping[PartitionId, Stored]) -> Candidate:
    one = next(iter(results.values())).manifest
    created_at = max(each.manifest.created_at for each in results.values())
    return Candidate(
        attempt=attempt,
        region=region,
        lineage=one.lineage,
        try_number=one.try_number,
        created_at=created_at,
        results=results,
    )


def choose(
    topology: Topology,
    run: str,
    found: Iterable[Candidate],
    refused: Collection[str] = (),
    earlier: Mapping[PartitionId, str | None] = MappingProxyType({}),
) -> dict[RegionId, Candidate]:
    """The newest candidate of each region whose results are whole and whose inputs hold; `refused` are attempt ids.

    `earlier` are the digests that were taken in earlier runs, by ids with their run; None where a manifest was found,
    but none was taken. Of what has no manifest at all any more, as in an expired run, any digest is believed.
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
    """What was restored in the place of results that were chosen, or of none: it is of a later lineage."""
    by_region: dict[RegionId, list[Candidate]] = defaultdict(list)
    for candidate in found:
        if candidate.is_restored and candidate.attempt not in refused:
            by_region[candidate.region].append(candidate)
    over = {region: _restored_over(each, chosen.get(region)) for region, each in by_region.items()}
    return {region: each for region, each in over.items() if each is not None}


def without(candidate: Candidate, over: Candidate | None) -> Candidate:
    """The candidate without the results in whose place others were restored."""
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
