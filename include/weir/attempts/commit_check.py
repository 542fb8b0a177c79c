"""Checks whether an attempt may commit: at its commit, and before that at each of its heartbeats.

Invariants 2 and 3: only the newest attempt of a region commits, and only if all inputs are as they were read. Commit
and heartbeat ask the same function, so that a heartbeat stops an attempt only where its commit would be refused.

Invariant 4: files of keyed state that new manifests name again were retained from the begin of the attempt until its
commit. Other inputs may be released or lost after they were read: no result names their files.
"""

from __future__ import annotations

from collections.abc import Iterable, Set

from sqlalchemy.orm import Session

from weir.code.generation_rules import short
from weir.coordination.registered import newest_of
from weir.coordination.services import Services
from weir.coordination.values import Begun
from weir.errors import Conflict
from weir.execution.partition_state import PartitionState
from weir.execution.run_state import ReadResult, RunState
from weir.formats.manifest import InputRead, splits_fingerprint
from weir.ledger.attempts import attempts_of
from weir.ledger.database.tables import AttemptRow
from weir.ledger.leases import hold_leases
from weir.ledger.results import ResultKey, damaged_results
from weir.ledger.snapshot import run_state
from weir.ledger.sources import splits_of
from weir.recovery.rules.staleness import restarts_consumers
from weir.topology.ids import run_ref
from weir.topology.regions import PartitionId, RegionId

_RETAINED = (PartitionState.FINISHED, PartitionState.LOST, PartitionState.QUARANTINED)
"""The states of results whose files no process deletes."""


def heartbeat(services: Services, begun: Begun) -> None:
    """Renew the attempt's read leases and record its heartbeat. Raises as `require_committable`, or Retryable."""
    with services.ledger.transaction(begun.run.dataflow.name) as session:
        tries = attempts_of(session, begun.run.id, begun.attempt.region)
        row, _ = require_committable(session, services, begun, tries)
        row.heard_at = services.now()


def require_committable(
    session: Session, services: Services, begun: Begun, tries: list[AttemptRow]
) -> tuple[AttemptRow, RunState]:
    """Return the attempt's row and the state of its run if it may commit now; renew its leases.

    `tries` are the attempts of its region. Raises Fenced if a newer attempt is registered, and Conflict if an input or
    the lineage has changed, if the run before has a partition that it had not, if a state was released whose lease had
    run out, if its task runs newer code by now, or if its sources were resolved anew.
    """
    region = begun.attempt.region
    row = newest_of(session, begun.run, region, begun.attempt.id, tries)
    _require_held(session, services, begun)
    state = run_state(session, begun.run, begun.topology)
    _require_newest_code(state, begun)
    require_unchanged(session, state, begun.reads, region)
    _require_all_read(state, begun)
    _require_own_splits(session, begun)
    return row, state


def _require_all_read(state: RunState, begun: Begun) -> None:
    """Check that the run before has no partition of an input that it had not when the attempt began. Raises Conflict.

    It may have got a state, or more subtasks of a stage, since it was pinned anew; and so may what is published.
    """
    if not (state.topology.reads_previous or state.topology.reads_datasets):
        return
    region = begun.attempt.region
    read = {(run_ref(each.run, state.run), each.stage, each.subtask) for each in begun.reads}
    published = (each for read in state.dataset_inputs(region) for each in read.partitions)
    for each in (*state.inputs_of(region), *published):
        if not each.is_of_own_run and (each.run, each.stage, each.subtask) not in read:
            raise Conflict.of(
                "attempts.partition_new_since", region=region, stage=each.stage, subtask=each.subtask, run=each.run
            )


def _require_own_splits(session: Session, begun: Begun) -> None:
    """Check that no source was resolved anew since, as the ledger had lost what it was resolved to. Raises Conflict."""
    region = begun.attempt.region
    for stage in begun.job.stages:
        if stage.split is None:
            continue
        known = splits_of(session, begun.run.id, stage.name)
        if known is None or splits_fingerprint(known) != stage.resolved:
            raise Conflict.of("attempts.source_resolved_anew", stage=stage.name, region=region)


def _require_newest_code(state: RunState, begun: Begun) -> None:
    """Check that no other subtask has committed with newer code since the attempt began. Raises Conflict."""
    region, code = begun.attempt.region, begun.attempt.code
    if code is None:
        return
    subtasks = range(begun.topology.region(region.name).parallelism)
    newest = max(state.region(RegionId(region.name, each)).committed_generation for each in subtasks)
    if newest > begun.attempt.generation:
        raise Conflict.of(
            "attempts.newer_code_committed",
            region=region,
            short=short(code.version),
            generation=begun.attempt.generation,
            newest=newest,
        )


def _require_held(session: Session, services: Services, begun: Begun) -> None:
    """Renew the leases, and take those again that ran out while the process was suspended. Raises Conflict."""
    # What other dataflows publish is renewed as well, and never leased again here, outside of their locks: once it was
    # read, it may go.
    own = begun.run.dataflow.name
    results = {each.result: each.manifest for each in begun.inputs if each.manifest.dataflow == own}
    released = hold_leases(session, begun.attempt.id, results, _RETAINED, services.now())
    for number in sorted(released):
        found = results[number]
        if found.state is not None:
            raise Conflict.of(
                "attempts.state_released",
                region=begun.attempt.region,
                stage=found.stage,
                subtask=found.subtask,
                attempt=found.attempt,
            )


def require_unchanged(session: Session, state: RunState, reads: Iterable[InputRead], region: RegionId) -> None:
    """Check that all inputs are as they were read: of the same attempt, or with the same digest. Raises Conflict.

    With `consumers="always"` only the same attempt is accepted; bytes that were found damaged meanwhile never are.
    """
    damaged = damaged_results(session, {read.attempt for read in reads})
    for read in reads:
        partition = PartitionId(read.stage, read.subtask, read.layout, run_ref(read.run, state.run))
        why = _why_changed(state, read, partition, damaged)
        if why:
            raise Conflict.of(
                "attempts.input_changed",
                region=region,
                partition=partition,
                attempt=read.attempt,
                digest=read.digest,
                why=why,
            )


def _why_changed(state: RunState, read: InputRead, partition: PartitionId, damaged: Set[ResultKey]) -> str:
    if partition.is_of_other_dataflow(state.run):
        is_same = state.holds_published(ReadResult(partition, read.attempt, read.digest))
        return "" if is_same else "another version of it is published now"
    current = state.results.get(partition)
    if current is None:
        return "nothing is current now"
    must_be_same = restarts_consumers(state.topology_of(partition.run), partition.stage)
    is_other = current.digest != read.digest or (must_be_same and current.attempt != read.attempt)
    if is_other or current.state is PartitionState.QUARANTINED:
        return f"{current.attempt} ({current.digest}) is current now"
    is_damaged = (read.attempt, read.stage, read.subtask, read.layout) in damaged
    return "its bytes were found damaged meanwhile" if is_damaged else ""
