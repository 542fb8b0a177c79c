"""One attempt's commit (DESIGN 5.5).

Invariants 2 and 3: a commit happens in one transaction, for the newest attempt only, and only if every input still is
what was read. The clears that follow from a changed result are written in that transaction.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence, Set
from dataclasses import replace

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from weir.coordinator.begin import summary_of
from weir.coordinator.clearing import Clearer
from weir.coordinator.compacted_files import missing_files, require_present
from weir.coordinator.consequences import note_whether_closed, owe_clears
from weir.coordinator.copies import require_whole_copies
from weir.coordinator.inputs import Part, require_intact
from weir.coordinator.services import Services
from weir.coordinator.siblings import require_equal_schemas, require_none_since
from weir.coordinator.state_job import state_content
from weir.coordinator.values import Begun, Committed
from weir.errors import Conflict, Fault, Fenced, Internal, ResultUnavailable
from weir.ledger.attempts import attempts_of, end
from weir.ledger.leases import drop_leases
from weir.ledger.models import AttemptRow, DataflowRow
from weir.ledger.quality import has_checks
from weir.ledger.reads import record_reads
from weir.ledger.results import NewResult, damaged_attempts, replace_results
from weir.ledger.runs import Run
from weir.ledger.snapshot import run_state
from weir.quality.verdict import gate_results
from weir.recovery.run_state import AttemptState, RunState
from weir.recovery.staleness import restarts_consumers
from weir.results.codec import manifest_to_json
from weir.results.made_from import made_from
from weir.results.manifest import InputRead, Manifest
from weir.results.partition_state import PartitionState
from weir.results.region_job import OutputReport, RegionReport
from weir.store.probe import probe
from weir.topology.regions import PartitionId, RegionId

_LINEAGE = select(DataflowRow.__table__.c.lineage).where(DataflowRow.__table__.c.name == bindparam("dataflow"))


def check_inputs(services: Services, begun: Begun) -> None:
    """Say whether a computation failed because its inputs broke while it read them, or for want of room.

    Raises ResultUnavailable with all losses, DiskFull, or Retryable; returns where the inputs are as recorded. A full
    disk is looked for here too, since not every error that it makes says so ("Mkdirs failed").
    """
    references = list({each.reference(): each for each in begun.inputs})
    answers = probe(services.store, services.store_id(), references)
    losses = tuple(found for found in answers.values() if not isinstance(found, Manifest))
    if losses:
        raise ResultUnavailable(losses)
    require_intact(services, _read(begun))
    require_present(services, [file for share in begun.states.values() for file in share.files])
    require_whole_copies(services, begun.job)
    services.store.require_room()


def _read(begun: Begun) -> list[Part]:
    return [(each.manifest, each.folder, each.key_groups) for each in begun.inputs]


def commit(services: Services, begun: Begun, report: RegionReport, clearer: Clearer) -> Committed:
    """Make the written results the current ones.

    Raises Fenced if a newer attempt is registered, Conflict if an input has changed since it was read,
    ResultUnavailable if an input broke while it was read, and Misconfigured if siblings have other columns.
    """
    # A file that is gone by now does no harm: it was read. Of state, which is large, scrubbing compares the bytes; but
    # what of it stays as it was is named again.
    read = [part for part in _read(begun) if part[0].state is None]
    require_intact(services, read, frozenset({Fault.DAMAGED}))
    require_whole_copies(services, begun.job, report.resumed)
    manifests = [_manifest(services, begun, report, output) for output in report.outputs]
    _require_shared(services, begun, report.outputs, manifests)
    results = [_write(services, output, manifest) for output, manifest in zip(report.outputs, manifests, strict=True)]
    _require_all_outputs(begun, results)
    unlike = require_equal_schemas(services, begun, results, clearer)
    owed = services.ledger.perform(
        begun.run.dataflow.name, lambda session: _enter(session, services, begun, report, results, unlike)
    )
    by_partition = {result.partition: manifest for result, manifest in zip(results, manifests, strict=True)}
    summary = {"attempt": begun.attempt.id, **summary_of(results, by_partition), "seconds": dict(report.metrics)}
    return Committed({**summary, **_resumed(report)}, owed, _touched(begun))


def written_results(services: Services, begun: Begun, report: RegionReport) -> list[NewResult]:
    """Write the manifests of all outputs, as they are, for whatever becomes of them."""
    return [_write(services, output, _manifest(services, begun, report, output)) for output in report.outputs]


def _require_shared(
    services: Services, begun: Begun, outputs: Sequence[OutputReport], manifests: Sequence[Manifest]
) -> None:
    """Make sure that files of keyed state are there that earlier attempts wrote and the new manifests name.

    Raises ResultUnavailable for what was committed, and Retryable for what that had been compacted to.
    """
    written = {each.folder for each in outputs}
    named = [file for each in manifests if each.state is not None for file in each.state.files]
    shared = [file for file in named if file.folder not in written]
    if missing_files(services, shared):
        references = list({each.reference(): each for each in begun.inputs if each.manifest.state is not None})
        answers = probe(services.store, services.store_id(), references)
        losses = tuple(found for found in answers.values() if not isinstance(found, Manifest))
        if losses:
            raise ResultUnavailable(losses)
        require_present(services, shared)


def _touched(begun: Begun) -> tuple[str, ...]:
    """Its own run, and the one before where that was read."""
    before = begun.run.predecessor_run if begun.topology.reads_previous else None
    return (begun.run.id,) if before is None else (begun.run.id, before)


def _resumed(report: RegionReport) -> dict[str, list[str]]:
    """Behind which stages the attempt resumed, if it did."""
    return {"resumed": list(report.resumed)} if report.resumed else {}


def _enter(
    session: Session,
    services: Services,
    begun: Begun,
    report: RegionReport,
    results: Sequence[NewResult],
    unlike: frozenset[str],
) -> int:
    """Enter the commit; answers how many clears it owes.

    Where the connection broke, this may be the second time: what the first owed is in the ledger, so one is said.
    """
    tries = attempts_of(session, begun.run.id, begun.attempt.region)
    if any(each.id == begun.attempt.id and each.state == AttemptState.COMMITTED.value for each in tries):
        return 1
    row = _newest(session, begun.run, begun.attempt.region, begun.attempt.id, tries)
    _require_judged(session, begun)
    before = run_state(session, begun.run, begun.topology)
    require_unchanged(session, before, begun.reads, begun.attempt.region)
    require_none_since(before, results, unlike)
    marked = [_compared(before, result) for result in results]
    replace_results(session, begun.run.id, begun.attempt.id, marked, services.now())
    record_reads(session, begun.attempt.id, begun.reads)
    end(row, AttemptState.COMMITTED, services.now())
    row.metrics = {**report.metrics, **_resumed(report)}
    drop_leases(session, begun.attempt.id)
    session.flush()
    owed = owe_clears(session, services, begun, before, marked)
    note_whether_closed(session, services, begun.run, begun.topology)
    return owed


def _require_judged(session: Session, begun: Begun) -> None:
    if any(stage.checks for stage in begun.job.stages) and not has_checks(session, begun.attempt.id):
        raise Internal(f"{begun.attempt.id} was to be checked, and nobody has judged what was found")


def _compared(before: RunState, result: NewResult) -> NewResult:
    """Say so where equal inputs, code and settings gave something else before."""
    old = before.results.get(result.partition)
    if old is None or old.made_from is None or old.made_from != result.made_from or old.digest == result.digest:
        return result
    is_declared = not before.topology.dataflow.stage(result.partition.stage).deterministic
    return result if is_declared else replace(result, differs_from=old.attempt)


def require_newest(session: Session, run: Run, region: RegionId, attempt: str) -> AttemptRow:
    """The attempt's row, if it may still commit. Raises Fenced."""
    return _newest(session, run, region, attempt, attempts_of(session, run.id, region))


def _newest(session: Session, run: Run, region: RegionId, attempt: str, tries: Sequence[AttemptRow]) -> AttemptRow:
    newest = next(reversed(tries), None)
    if newest is None:
        raise Fenced(f"attempt {attempt} of {region} may not commit: the ledger, built again, does not know it")
    lineage = session.connection().execute(_LINEAGE, {"dataflow": run.dataflow.name}).scalar_one()
    if newest.id != attempt or newest.state != AttemptState.RUNNING.value:
        raise Fenced(
            f"attempt {attempt} of {region} may not commit: {newest.id} is {newest.state}. Nothing was changed"
        )
    if newest.lineage != lineage:
        raise Fenced(
            f"attempt {attempt} of {region} is of lineage {newest.lineage}; {run.dataflow.name} is at {lineage} now"
        )
    return newest


def require_unchanged(session: Session, state: RunState, reads: Iterable[InputRead], region: RegionId) -> None:
    """Check that every input is what was read: the same attempt's, or one with the same digest. Raises Conflict.

    Where consumers always restart only the same attempt's will do; and nothing that was read of bytes which were found
    damaged meanwhile is trusted.
    """
    distrusted = damaged_attempts(session, {read.attempt for read in reads})
    for read in reads:
        partition = PartitionId(read.stage, read.subtask, read.layout, "" if read.run == state.run else read.run)
        why = _why_changed(state, read, partition, distrusted)
        if why:
            raise Conflict(f"{region} read {partition} of {read.attempt} ({read.digest}), but {why}: it begins anew")


def _why_changed(state: RunState, read: InputRead, partition: PartitionId, distrusted: Set[str]) -> str:
    current = state.results.get(partition)
    if current is None:
        return "nothing is current now"
    must_be_same = restarts_consumers(state.topology_of(partition.run), partition.stage)
    is_other = current.digest != read.digest or (must_be_same and current.attempt != read.attempt)
    if is_other or current.state is PartitionState.QUARANTINED:
        return f"{current.attempt} ({current.digest}) is current now"
    return "its bytes were found damaged meanwhile" if read.attempt in distrusted else ""


def _manifest(services: Services, begun: Begun, report: RegionReport, output: OutputReport) -> Manifest:
    run, attempt = begun.run, begun.attempt
    return Manifest(
        dataflow=run.dataflow.name,
        epoch=run.epoch,
        run=run.id,
        stage=output.stage,
        subtask=attempt.region.subtask,
        layout=output.layout.id,
        attempt=attempt.id,
        try_number=attempt.try_number,
        lineage=attempt.lineage,
        keys=output.layout.keys,
        max_parallelism=output.layout.max_parallelism,
        spark_schema=output.spark_schema,
        digest=output.digest,
        files=output.files,
        inputs=begun.reads,
        code=report.code,
        session=dict(report.session),
        parameters=dict(run.parameters),
        created_at=services.now().isoformat(),
        source={each.name: each.slice for each in begun.job.stages if each.slice is not None},
        metrics=dict(report.metrics),
        state=state_content(run, begun.states[output.stage], output) if output.stage in begun.states else None,
        quality=gate_results(report.checks, output.stage),
    )


def _write(services: Services, output: OutputReport, manifest: Manifest) -> NewResult:
    data = manifest_to_json(manifest)
    services.store.create(f"{output.folder}/manifest.json", data)
    return NewResult(
        PartitionId(manifest.stage, manifest.subtask, manifest.layout),
        output.folder,
        hashlib.sha256(data).hexdigest(),
        str(manifest.digest),
        manifest.rows,
        manifest.bytes,
        made_from(manifest),
    )


def _require_all_outputs(begun: Begun, results: Sequence[NewResult]) -> None:
    expected = set(begun.topology.outputs(begun.attempt.region))
    found = {result.partition for result in results}
    if expected != found:
        raise Internal(f"{begun.attempt.id} was to write {sorted(expected)} but reports {sorted(found)}")
