"""Inputs that a restore has put there, and at which nobody has looked since.

Invariant: nothing is computed from a restored result before its rows have been compared with what the checkpoint or
savepoint says of them, once; what does not come out as recorded is read by nobody.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy.orm import Session

from weir.coordinator.registration import Registered
from weir.coordinator.restored_results import is_restored
from weir.coordinator.services import Services
from weir.coordinator.snapshot_source import Folder, read_checkpoint, read_savepoint
from weir.coordinator.stored_checks import recorded_by, recorded_in, to_check
from weir.coordinator.suites import read_suite
from weir.errors import Fault, Loss, Misconfigured
from weir.ledger.kept import what_is_kept
from weir.ledger.quality import passed_digests, was_checked
from weir.ledger.restores import last_restore, restore_of
from weir.ledger.runs import dataflow_of, epoch_of_run
from weir.ledger.state_models import RestoreRow
from weir.quality.check import CheckReport, CheckToRun, Why
from weir.quality.verdict import told
from weir.recovery.run_state import RunState
from weir.results.checkpoint import Checkpoint
from weir.results.manifest import Manifest
from weir.results.region_job import RestoredToCheck
from weir.topology.regions import PartitionId


def restored_checks(
    services: Services, registered: Registered, state: RunState, manifests: Mapping[PartitionId, Manifest]
) -> dict[PartitionId, RestoredToCheck]:
    """What is to be checked of the inputs of an attempt before it computes, by partition.

    Raises Misconfigured for a suite that is missing or bad, and Retryable where the store does not answer.
    """
    restored = {part: manifest for part, manifest in manifests.items() if is_restored(manifest)}
    if not restored:
        return {}
    with services.ledger.transaction() as session:
        restored = {part: each for part, each in restored.items() if not _is_checked(session, each)}
        sources = {(each.run, each.lineage): _source(session, each) for each in restored.values()}
        checks = {part: _suites(services, session, registered, part) for part in restored}
    records = {key: _checkpoint(services, source) for key, source in sources.items()}
    found = {}
    for part, manifest in restored.items():
        record = records[manifest.run, manifest.lineage]
        recorded = recorded_in(manifest) if record is None else recorded_by(record, manifest)
        dataflow, folder = state.topology_of(part.run).dataflow, state.results[part].folder
        found[part] = to_check(services.store, dataflow, manifest, folder, recorded, checks[part])
    return found


def _suites(
    services: Services, session: Session, registered: Registered, partition: PartitionId
) -> tuple[CheckToRun, ...]:
    """The suites of the stage as the run that reads it declares them, whenever they are for."""
    name, found = registered.run.dataflow.name, []
    for gate in registered.run.dataflow.stage(partition.stage).gates:
        suite = read_suite(services, gate.suite)
        passed = passed_digests(session, name, partition.stage, partition.subtask, suite.name, suite.fingerprint)
        found.append(CheckToRun(suite, gate.policy, Why.RESTORED, passed))
    return tuple(found)


def _is_checked(session: Session, manifest: Manifest) -> bool:
    return was_checked(session, manifest.attempt, manifest.stage, manifest.subtask)


def _source(session: Session, manifest: Manifest) -> RestoreRow | None:
    return restore_of(session, manifest.dataflow, manifest.epoch, manifest.lineage)


def _checkpoint(services: Services, source: RestoreRow | None) -> Checkpoint | None:
    """What was restored, as far as its manifest is still in the store."""
    if source is None or source.number < 1:
        return None
    own = f"{services.store.url}/"
    try:
        if source.source.startswith(own):
            return read_savepoint(Folder(services.store, source.source.removeprefix(own))).checkpoint
        if ":" not in source.source:
            return read_checkpoint(services, source.origin, source.number).checkpoint
    except Misconfigured:
        pass  # subsumed, dropped or moved since
    return None


def distrusted(services: Services, report: CheckReport) -> Loss:
    """Why nobody may read a restored partition, by the check that it has failed, and what to restore instead."""
    run = report.run
    with services.ledger.transaction() as session:
        row = last_restore(session, dataflow_of(run), epoch_of_run(run))
        kept = what_is_kept(session, row.origin) if row is not None and row.origin != row.dataflow else ""
    failed = told(report, report.violated)
    detail = f"it was restored from {_told(row)}, and {failed}. Nothing was computed from it: restore another one"
    if kept:
        detail += f", as another fork. {kept}"
    return Loss(run, report.stage, report.subtask, report.layout, report.attempt, Fault.DISTRUSTED, detail)


def _told(row: RestoreRow | None) -> str:
    if row is None or row.number < 1:
        return "a checkpoint"
    kind = "checkpoint" if row.source.endswith(".json") else f"the savepoint {row.source},"
    return f"{kind} {row.number} of {row.origin}"
