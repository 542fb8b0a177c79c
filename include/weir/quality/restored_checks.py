"""Checks of restored inputs: compare their rows with the snapshot before anything is computed from them.

Invariant: the first reader of a restored result compares its rows with the record in the checkpoint or savepoint, once;
a result that differs from its record is not read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from sqlalchemy.orm import Session

from weir.coordination.registered import Registered
from weir.coordination.services import Services
from weir.errors import Fault, Loss, Misconfigured
from weir.execution.run_state import RunState
from weir.formats.checkpoint import Checkpoint
from weir.formats.checks import CheckReport, CheckToRun
from weir.formats.manifest import Manifest
from weir.formats.region_job import InputToRead, RegionJob, RestoredToCheck
from weir.ledger.checkpoints import what_is_kept
from weir.ledger.database.tables import RestoreRow
from weir.ledger.restores import last_restore
from weir.ledger.runs import dataflow_of, epoch_of_run
from weir.quality.check_queries import was_checked
from weir.quality.rules import described
from weir.quality.stored_checks import recorded_by, recorded_in, to_check
from weir.snapshots.source import Folder, read_checkpoint, read_savepoint
from weir.state.file_rules import overlap
from weir.topology.regions import PartitionId, Topology

ChecksOf = Callable[[Topology, PartitionId], tuple[CheckToRun, ...]]
"""Gives the suites for a restored partition, besides the built-in check."""


def with_restored_checks(
    services: Services,
    registered: Registered,
    state: RunState,
    manifests: Mapping[PartitionId, Manifest],
    job: RegionJob,
    checks_of: ChecksOf,
) -> RegionJob:
    """Return a job that checks restored inputs before it computes. Raises Retryable."""
    restored = {part: manifest for part, manifest in manifests.items() if manifest.is_restored}
    if not restored:
        return job
    with services.ledger.transaction() as session:
        restored = {part: each for part, each in restored.items() if not was_checked(session, each)}
        sources = {
            (each.run, each.lineage): last_restore(session, each.dataflow, each.epoch, each.lineage)
            for each in restored.values()
        }
    records = {key: _checkpoint(services, source) for key, source in sources.items()}
    wanted = {
        part: _to_check(services, state, part, manifest, records[manifest.run, manifest.lineage], checks_of)
        for part, manifest in restored.items()
    }
    reads = {(each.stage, each.argument): each.partitions for each in state.inputs(registered.attempt.region)}

    def checked(stage: str, read: InputToRead) -> InputToRead:
        found = [wanted[each] for each in reads.get((stage, read.argument), ()) if each in wanted]
        return replace(read, restored=tuple(each for each in found if _is_read(each, read.key_groups)))

    stages = tuple(
        replace(stage, inputs=tuple(checked(stage.name, each) for each in stage.inputs)) for stage in job.stages
    )
    return replace(job, stages=stages)


def _is_read(stored: RestoredToCheck, key_groups: tuple[int, int] | None) -> bool:
    """Report whether a reader of these key groups reads the partition; each reader checks its own inputs."""
    return stored.key_groups is None or key_groups is None or overlap(stored.key_groups, key_groups)


def _to_check(
    services: Services,
    state: RunState,
    partition: PartitionId,
    manifest: Manifest,
    checkpoint: Checkpoint | None,
    checks_of: ChecksOf,
) -> RestoredToCheck:
    topology = state.topology_of(partition.run)
    recorded = recorded_in(manifest) if checkpoint is None else recorded_by(checkpoint, manifest)
    folder, checks = state.results[partition].folder, checks_of(topology, partition)
    return to_check(services.store, topology.dataflow, manifest, folder, recorded, checks)


def _checkpoint(services: Services, source: RestoreRow | None) -> Checkpoint | None:
    """Return the restored snapshot if its manifest is still in the store."""
    if source is None or source.is_rebuilt:
        return None
    try:
        if source.is_of_checkpoint:
            return read_checkpoint(services, source.origin, source.number).checkpoint
        path = services.store.path_of(source.source)
        if path is None:
            return None
        found = read_savepoint(Folder(services.store, path)).checkpoint
    except Misconfigured:
        return None  # subsumed, dropped or moved since
    # Another savepoint may have been written to its folder since.
    return found if (found.dataflow, found.number) == (source.origin, source.number) else None


def restored_loss(session: Session, report: CheckReport) -> Loss:
    """Return the loss for a restored partition that has failed a check; it says what to restore instead."""
    run = report.run
    row = last_restore(session, dataflow_of(run), epoch_of_run(run))
    detail = (
        f"it was restored from {_snapshot_name(row)}, and {described(report, report.violated)}. Nothing was computed "
        "from it: restore another one"
    )
    if row is not None and row.origin != row.dataflow:
        kept = what_is_kept(session, row.origin)
        detail += f", as another fork. {kept}. `weir restore {row.origin} NUMBER --as NAME` does that"
    return Loss(run, report.stage, report.subtask, report.layout, report.attempt, Fault.SUSPECTED, detail)


def _snapshot_name(row: RestoreRow | None) -> str:
    if row is None or row.is_rebuilt:
        return "a checkpoint"
    kind = "checkpoint" if row.is_of_checkpoint else f"the savepoint {row.source},"
    return f"{kind} {row.number} of {row.origin}"
