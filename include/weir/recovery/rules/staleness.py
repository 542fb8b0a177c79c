"""Derives what has to run again in a run since it was made of something else than what is current.

Invariant 3: when a transaction has ended, each finished consumer that has read other content than the current one is
cleared, or was when that content came. Consumers downstream of a stale consumer are suspended: they become valid again
with it, or its own commit makes them stale.

A change counts once for a region: it is news until an attempt begins, or a clear is decided, that is younger.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from weir.code.generation_rules import short
from weir.dataflow.dataflow import Consumers, FailoverStrategy
from weir.dataflow.state import OnReprocess
from weir.execution.run_state import CurrentResult, ReadResult, ReadSet, Results, RunState
from weir.formats.manifest import digest_version, is_chain
from weir.topology.ids import OWN_RUN
from weir.topology.regions import RegionId, Topology

USUAL_CAUSES = (
    "current_timestamp, rand, uuid or monotonically_increasing_id; row_number, limit or first over rows whose order is "
    "not total; sums of floating-point numbers; reads of services or files outside of Weir"
)
"""The usual reasons why equal inputs give unequal results."""


def restarts_consumers(topology: Topology, stage: str) -> bool:
    """Report whether consumers of `stage` restart with it, whatever its digest (Flink's rule)."""
    dataflow = topology.dataflow
    return dataflow.consumers is Consumers.ALWAYS or not dataflow.stage(stage).deterministic


def clears_consumers(topology: Topology) -> bool:
    """Report whether Weir clears consumers at all."""
    return topology.dataflow.failover_strategy is not FailoverStrategy.INDIVIDUAL


def clears_later_epochs(topology: Topology) -> bool:
    """Report whether Weir clears the regions of a run whose inputs from an earlier epoch have changed."""
    return clears_consumers(topology) and topology.dataflow.on_reprocess is OnReprocess.CASCADE


Change = tuple[int, str]
"""The number of a result that was made instead of one that was read, and why its reader has to run again."""


def stale_consumers(state: RunState) -> dict[RegionId, str]:
    """Return the regions whose current results were made of other results of their run than the current ones."""
    changes: dict[int, list[Change]] = {}
    found: dict[RegionId, str] = {}
    for result in state.results.values():
        for reads in result.reads if result.partition.is_of_own_run else ():
            if id(reads) not in changes:
                changes[id(reads)] = list(changes_of(state.topology, reads.members, state.results))
            if changes[id(reads)]:
                region = state.producer(result.partition)
                known = state.region(region).newest_result
                why = next((why for number, why in changes[id(reads)] if number > known), None)
                if why is not None:
                    found.setdefault(region, f"{why}; {_name_of(result)} read another one")
    return found


def of_a_former_epoch(state: RunState) -> dict[RegionId, str]:
    """Return the regions whose current results were made of an epoch that is not the one before any more.

    One that is to run again anyway, or has failed for good, needs no clear.
    """
    found: dict[RegionId, str] = {}
    for result in state.results.values():
        for reads in result.reads if result.partition.is_of_own_run else ():
            read = next((each.partition.run for each in reads.members), OWN_RUN)
            known = state.region(state.producer(result.partition))
            is_former = read not in (OWN_RUN, state.predecessor) and not _is_published(state, reads)
            if is_former and not (known.is_running or known.has_failed):
                now = state.predecessor or "none"
                found.setdefault(known.region, f"weir: the epoch before is {now} now; {_name_of(result)} read {read}")
    return found


def _is_published(state: RunState, reads: ReadSet) -> bool:
    return any(each.partition.is_of_other_dataflow(state.run) for each in reads.members)


def of_older_versions(state: RunState) -> dict[RegionId, str]:
    """Return the regions whose current results were made of other versions of data sets than are published now.

    One that is to run again anyway, or has failed for good, needs no clear.
    """
    found: dict[RegionId, str] = {}
    for result in state.results.values() if state.published else ():
        for reads in result.reads if result.partition.is_of_own_run else ():
            known = state.region(state.producer(result.partition))
            changed = _is_published(state, reads) and not state.is_as_published(reads)
            if changed and not (known.is_running or known.has_failed):
                of = reads.members[0].partition
                why = f"weir: {of.stage} of {of.run} has a new version; {_name_of(result)} read another one"
                found.setdefault(known.region, why)
    return found


def older_than_siblings(state: RunState) -> dict[RegionId, str]:
    """Return the regions whose results older code has made than the newest of their stage, which makes other ones.

    One with an unended attempt needs no clear: it commits with the newer code, or gets Conflict and begins again.
    """
    found: dict[RegionId, str] = {}
    for newest, older in state.stages_of_two_codes():
        version = short(newest.version)
        for region in map(state.producer, older):
            known = state.region(region)
            if newest.result > known.newest_result and not known.is_unended:
                found[region] = (
                    f"weir: {newest.attempt} has computed {newest.partition} with other code (version {version}), and "
                    "differently"
                )
    return found


def _name_of(result: CurrentResult) -> str:
    """Name the attempt of a result: a number below 1 is no try of the present DagRun."""
    return f"try {result.try_number}" if result.try_number > 0 else result.attempt


def changes_of(topology: Topology, reads: Iterable[ReadResult], results: Results) -> Iterator[Change]:
    """Yield the current results of the own run that are not what was read."""
    for read in reads:
        new = results.get(read.partition) if read.partition.is_of_own_run else None
        if new is not None and new.attempt != read.attempt and (why := _why_stale(topology, read, new)) is not None:
            yield new.result, why


def _why_stale(topology: Topology, read: ReadResult, new: CurrentResult) -> str | None:
    is_chained = is_chain(read.digest) or is_chain(new.digest)
    if digest_version(read.digest) != digest_version(new.digest) and not is_chained:
        return f"weir: another version of Weir has digested {new.partition}: whether it has changed is unknown"
    if read.digest != new.digest:
        return f"weir: {new.partition} has changed{not_deterministic(new)}"
    if restarts_consumers(topology, new.partition.stage):
        return f"weir: {new.partition} was recomputed, and what reads it always restarts with it"
    return None


def not_deterministic(new: CurrentResult) -> str:
    """Describe a result that differs from an earlier one of equal inputs; return empty text for any other."""
    if new.differs_from is None:
        return ""
    return (
        f" (not deterministic: {new.differs_from} was made from equal inputs by equal code. Usual causes: "
        f"{USUAL_CAUSES}; a stage that is meant to be so is declared with deterministic=False)"
    )
