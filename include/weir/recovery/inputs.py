"""Checks the inputs of an attempt, first in the ledger and then in the store.

Invariant: a result is a loss only if it is definitely missing, damaged or never computed. A store that does not answer
raises Retryable; a running producer is awaited.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from weir.coordination.services import Services
from weir.errors import Corrupt, Fault, Loss
from weir.execution.partition_state import PartitionState
from weir.execution.run_state import CLOSE, CurrentResult, RunState
from weir.formats.manifest import Manifest
from weir.recovery.rules.backtrack import is_expired, known_loss
from weir.store.probe import KeyGroups, PartitionRef, probe, verify_segments
from weir.topology.ids import run_ref
from weir.topology.regions import PartitionId, RegionId, Topology

Part = tuple[Manifest, str, KeyGroups]
"""The part of a partition that is read: its manifest, its folder, and an inclusive range of key groups (None: all)."""


@dataclass(frozen=True, slots=True)
class Sorted:
    """The inputs of a region by their state in the ledger: to probe in the store, to wait for, or lost."""

    to_probe: frozenset[PartitionId]
    awaited: Mapping[PartitionId, frozenset[RegionId]]
    losses: Mapping[PartitionId, Loss]


def sort_inputs(state: RunState, region: RegionId) -> Sorted:
    """Sort the inputs of `region` by their state in the ledger."""
    to_probe, awaited, losses = set(), {}, {}
    for partition in state.with_older_siblings(state.inputs_of(region)):
        loss = known_loss(state, partition, region)
        waits_for = state.awaited_for(partition)
        if loss is None and state.results[partition].state is PartitionState.FINISHED:
            to_probe.add(partition)
        elif waits_for:
            awaited[partition] = waits_for
        elif loss is not None:
            losses[partition] = loss
        else:
            to_probe.add(partition)
    if region == CLOSE:
        # It reads no released result, whose validity is enough.
        to_probe = {each for each in to_probe if _is_worth_probing(state, each)}
    return Sorted(frozenset(to_probe), awaited, losses)


def expired_producers(state: RunState, inputs: Sorted) -> frozenset[RegionId]:
    """Return the producers of lost inputs that Weir does not recompute: only a person has them run again."""
    return frozenset(state.producer(each) for each in inputs.losses if is_expired(state, each))


def _is_worth_probing(state: RunState, partition: PartitionId) -> bool:
    """Report whether the closing task reads a partition: those of sinks, and unreleased ones of its checkpoint.

    It probes other results only if the ledger has recorded a loss.
    """
    known = state.results[partition].state
    is_of_checkpoint = partition in checkpointed(state.topology) and known is not PartitionState.RELEASED
    return partition.stage in state.topology.sinks or is_of_checkpoint or known is PartitionState.LOST


def checkpointed(topology: Topology) -> Set[PartitionId]:
    """Return the partitions that a checkpoint of this topology names: none where no stage keeps state."""
    return topology.carried if topology.dataflow.keeps_state else frozenset()


def reference(result: CurrentResult, run: str) -> PartitionRef:
    """Return the reference by which the store is probed for a result."""
    partition = result.partition
    return PartitionRef(
        run=partition.run_id(run),
        stage=partition.stage,
        subtask=partition.subtask,
        layout=partition.layout,
        attempt=result.attempt,
        folder=result.folder,
        manifest_sha256=result.manifest_sha256,
    )


@dataclass(frozen=True, slots=True)
class Probed:
    """The answers of the store."""

    manifests: Mapping[PartitionId, Manifest]
    losses: Mapping[PartitionId, Loss]


def probe_partitions(services: Services, store_id: str, state: RunState, partitions: Iterable[PartitionId]) -> Probed:
    """Probe the store for the current results of `partitions`. Raises Retryable where it does not answer."""
    references = {reference(state.input_result(each), state.run): each for each in partitions}
    answers = probe(services.store, store_id, list(references))
    manifests = {references[ref]: found for ref, found in answers.items() if isinstance(found, Manifest)}
    losses = {references[ref]: found for ref, found in answers.items() if isinstance(found, Loss)}
    return Probed(manifests, losses)


def require_intact(services: Services, parts: Sequence[Part], faults: Set[Fault] = frozenset(Fault)) -> None:
    """Compare parts byte for byte: Parquet has no checksum of page headers, for example.

    Raises Corrupt for parts with one of `faults`, and Retryable where the store does not answer.
    """
    found = verify_segments(services.store, services.store_id(), parts)
    broken = tuple(loss for loss in found if loss.fault in faults)
    if broken:
        raise Corrupt(broken)


def losses_by_partition(losses: Iterable[Loss], current: str) -> dict[PartitionId, Loss]:
    """Return losses by partition; partitions of the run `current` have ids without a run."""
    return {PartitionId(loss.stage, loss.subtask, loss.layout, run_ref(loss.run, current)): loss for loss in losses}
