"""Commits an attempt.

Invariants 2 and 3: a commit is one transaction, of the newest attempt only, and only if all inputs are as they were
read. The clears that follow from a changed result are recorded in that transaction.

Invariant of schemas: a reader never finds two schemas in one input. Siblings, the partitions of one stage in one
layout, may have different columns only while the whole stage runs again; siblings with the old schema are then pending
or running. Where they are of older code, the commit owes their clears, and the stage is invalid until they have run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any, TypeVar

from sqlalchemy.orm import Session

from weir.attempts.choosing_code import require_archive
from weir.attempts.commit_check import require_committable
from weir.attempts.copies import require_whole_copies
from weir.attempts.rooms import Gates
from weir.code.generation_rules import versions_after
from weir.coordination.airflow import ClearAnswer, Clearer
from weir.coordination.registered import summary_of
from weir.coordination.services import Services
from weir.coordination.source_copies import whole_copies
from weir.coordination.values import Attempt, Begun, Committed
from weir.errors import Conflict, Corrupt, Fault, Internal, Misconfigured, ResultUnavailable
from weir.execution.airflow_words import FINAL
from weir.execution.run_state import UNNUMBERED, AttemptState, CurrentResult, RunState, coming_result
from weir.formats.checks import gate_results
from weir.formats.codec import to_json
from weir.formats.made_of import with_context
from weir.formats.manifest import Manifest, Stored, digest_schema, digest_version, inputs_fingerprint, is_chain
from weir.formats.region_job import OutputReport, RegionReport
from weir.ledger.attempts import attempts_of, end
from weir.ledger.leases import drop_leases
from weir.ledger.reads import record_reads
from weir.ledger.results import NewResult, replace_results
from weir.ledger.snapshot import run_state
from weir.ledger.sources import note_copies
from weir.recovery.awaiting import clear_item
from weir.recovery.datasets import unavailable
from weir.recovery.failovers import count_recomputed
from weir.recovery.inputs import Part, require_intact
from weir.recovery.reconcile import reconcile
from weir.recovery.versions import with_versions_declared_equal
from weir.state.assigned import state_content
from weir.state.compactions import missing_files, require_present
from weir.store.probe import probe
from weir.topology.ids import Digest
from weir.topology.regions import PartitionId

K = TypeVar("K")


def check_inputs(services: Services, begun: Begun) -> None:
    """Check whether a computation failed because its inputs or code were lost meanwhile, or because a disk is full.

    Raises ResultUnavailable with all losses, DiskFull, or Retryable; returns if the inputs are as recorded. The disk
    is checked here too, since not every error of a full disk says so ("Mkdirs failed").
    """
    references = list({each.reference(): each for each in begun.inputs})
    answers = probe(services.store, services.store_id(), references)
    losses = tuple(found for found in answers.values() if not isinstance(found, Manifest))
    if losses:
        raise unavailable(services, begun.run, losses)
    _require_intact(services, begun, _read(begun), frozenset(Fault))
    require_present(services, [file for share in begun.states.values() for file in share.files])
    require_whole_copies(services, begun.job)
    whole_copies(services, begun.run.id, begun.job)
    if begun.attempt.code is not None:
        require_archive(services, begun.run.dataflow.name, begun.attempt.code)
    services.store.require_free_space()


def _require_intact(services: Services, begun: Begun, read: Sequence[Part], faults: Set[Fault]) -> None:
    try:
        require_intact(services, read, faults)
    except Corrupt as error:
        raise unavailable(services, begun.run, error.losses) from error


def _read(begun: Begun) -> list[Part]:
    return [(each.manifest, each.folder, each.key_groups) for each in begun.inputs]


def commit(services: Services, gates: Gates, begun: Begun, report: RegionReport, clearer: Clearer) -> Committed:
    """Make the written results current.

    Raises Fenced and Conflict as the attempt's heartbeats do (`weir.attempts.commit_check`), ResultUnavailable if an
    input was damaged while it was read, and Misconfigured if siblings of the same code have other columns.
    """
    # A file that was deleted after it was read is no error. The bytes of state, which is large, are compared by
    # scrubbing; the files of it that the new manifests name again are checked below.
    read = [part for part in _read(begun) if part[0].state is None]
    _require_intact(services, begun, read, frozenset({Fault.DAMAGED}))
    require_whole_copies(services, begun.job, report.resumed)
    copied = whole_copies(services, begun.run.id, begun.job)
    manifests = [_manifest(services, begun, report, output) for output in report.outputs]
    _require_shared(services, begun, report.outputs, manifests)
    results = [_write(services, output, manifest) for output, manifest in zip(report.outputs, manifests, strict=True)]
    _require_all_outputs(begun, results)
    unlike = require_equal_schemas(services, begun, results, clearer)
    owed = services.ledger.perform(
        begun.run.dataflow.name,
        lambda session: _enter(session, services, gates, begun, report, results, unlike, copied),
    )
    by_partition = {result.partition: manifest for result, manifest in zip(results, manifests, strict=True)}
    summary = {"attempt": begun.attempt.id, **summary_of(results, by_partition), "seconds": dict(report.metrics)}
    return Committed({**summary, **_resumed(report)}, owed, _touched(begun))


def written_results(services: Services, begun: Begun, report: RegionReport) -> list[NewResult]:
    """Write the manifests of all outputs, for a commit or for quarantine."""
    return [_write(services, output, _manifest(services, begun, report, output)) for output in report.outputs]


def _require_shared(
    services: Services, begun: Begun, outputs: Sequence[OutputReport], manifests: Sequence[Manifest]
) -> None:
    """Check that the files of keyed state exist that earlier attempts wrote and the new manifests name.

    Raises ResultUnavailable for files of committed results, and Retryable for files of a compaction.
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
    """Return the attempt's run, and the run before where that was read."""
    before = begun.run.predecessor_run if begun.topology.reads_previous else None
    return (begun.run.id,) if before is None else (begun.run.id, before)


def _resumed(report: RegionReport) -> dict[str, Any]:
    """Return the stages that were read from copies, and the attempt whose results were taken, for the summary."""
    resumed: dict[str, Any] = {"resumed": list(report.resumed)} if report.resumed else {}
    return {**resumed, "taken": report.taken} if report.taken else resumed


def _enter(
    session: Session,
    services: Services,
    gates: Gates,
    begun: Begun,
    report: RegionReport,
    results: Sequence[NewResult],
    unlike: frozenset[str],
    copied: Mapping[str, int],
) -> int:
    """Record the commit and return the number of clears that follow from it.

    After a broken connection this may be the second time: the clears of the first are in the ledger, so 1 is returned.
    """
    tries = attempts_of(session, begun.run.id, begun.attempt.region)
    if any(each.id == begun.attempt.id and each.state == AttemptState.COMMITTED.value for each in tries):
        return 1
    row, before = require_committable(session, services, begun, tries)
    gates.require_evaluated(session, begun)
    row.code = row.code or report.code
    compared = [_compared(before, result) for result in results]
    marked = with_versions_declared_equal(session, begun, before, compared)
    require_none_since(before, begun.attempt, marked, unlike)
    replace_results(session, begun.run.id, begun.attempt.id, marked, services.now())
    record_reads(session, begun.run.dataflow.name, begun.attempt.id, begun.reads)
    note_copies(session, begun.run.id, begun.attempt.region.subtask, copied)
    end(row, AttemptState.COMMITTED, services.now())
    row.metrics = {**report.metrics, **_resumed(report)}
    if begun.job.made_of and report.looked_at is not None:
        row.made_of = with_context(begun.job, report.looked_at)
    drop_leases(session, begun.attempt.id)
    session.flush()
    count_recomputed(session, tries)
    after = _after(before, begun.attempt, marked, row.code)
    return reconcile(session, services, begun.run, after, [each.partition for each in marked])


def _after(before: RunState, attempt: Attempt, results: Sequence[NewResult], code: str) -> RunState:
    """Return the state of a run after a commit: to read it again would cost as much as before.

    What the commit has read was current just now, so that its reads say nothing new.
    """
    new = {
        each.partition: coming_result(
            each.partition,
            attempt.id,
            each.digest,
            versions=frozenset(each.versions),
            differs_from=each.differs_from,
            code=code,
            generation=attempt.generation,
        )
        for each in results
    }
    known = before.region(attempt.region)
    committed = replace(known, newest_state=AttemptState.COMMITTED, newest_result=UNNUMBERED)
    regions = {**before.regions, attempt.region: committed}
    return replace(before, results={**before.results, **new}, regions=regions)


def _compared(before: RunState, result: NewResult) -> NewResult:
    """Mark a result that differs from an earlier one of equal inputs, code and settings."""
    old = before.results.get(result.partition)
    if old is None or old.made_from is None or old.made_from != result.made_from or old.digest == result.digest:
        return result
    if is_chain(old.digest) != is_chain(result.digest):
        return result  # which says nothing
    is_declared = not before.topology.dataflow.stage(result.partition.stage).deterministic
    return result if is_declared else replace(result, differs_from=old.attempt)


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
        source={each.name: each.split for each in begun.job.stages if each.split is not None},
        resolved={each.name: each.resolved for each in begun.job.stages if each.split is not None},
        metrics=dict(report.metrics),
        state=state_content(run, begun.states[output.stage], output) if output.stage in begun.states else None,
        quality=gate_results(report.checks, output.stage),
        archive="" if attempt.code is None else attempt.code.archive,
        generation=attempt.generation,
        versions=tuple(sorted(_versions(begun, report.code, output))),
        pinned_to=run.pinned_to,
        revision=services.ledger.seen(run.dataflow.name),
        clear_number=attempt.clear_number,
    )


def _versions(begun: Begun, version: str, output: OutputReport) -> frozenset[str]:
    """Return the versions that are known to make a result: those before, too, if it is made alike of the same."""
    old = begun.replaced.get(PartitionId(output.stage, begun.attempt.region.subtask, output.layout.id))
    if old is None:
        return versions_after(frozenset(), version, is_same=False)
    is_deterministic = all(each.deterministic for each in begun.topology.stages_of(begun.attempt.region.name))
    before = {(part.run_id(begun.run.id), part.stage, part.subtask, part.layout, digest) for part, digest in _of(old)}
    now = {(read.run, read.stage, read.subtask, read.layout, read.digest) for read in begun.reads}
    is_same = is_deterministic and old.digest == str(output.digest) and before == now
    return versions_after(old.versions, version, is_same=is_same)


def _of(result: CurrentResult) -> Iterator[tuple[PartitionId, Digest]]:
    return ((read.partition, read.digest) for reads in result.reads for read in reads.members)


def _write(services: Services, output: OutputReport, manifest: Manifest) -> NewResult:
    data = to_json(manifest)
    services.store.create(f"{output.folder}/manifest.json", data)
    stored = Stored(output.folder, hashlib.sha256(data).hexdigest(), manifest)
    return NewResult.of(stored, inputs_fingerprint(manifest))


def _require_all_outputs(begun: Begun, results: Sequence[NewResult]) -> None:
    expected = set(begun.topology.outputs(begun.attempt.region))
    found = {result.partition for result in results}
    if expected != found:
        raise Internal.of(
            "attempts.outputs_differ", attempt_id=begun.attempt.id, expected=sorted(expected), found=sorted(found)
        )


def require_equal_schemas(
    services: Services, begun: Begun, results: Sequence[NewResult], clearer: Clearer
) -> frozenset[str]:
    """Raise Misconfigured if a sibling of the same code that is not about to run again has other columns.

    Returns the attempts that have other columns and whose tasks are about to run again.
    """
    if not any(_has_siblings(begun, result.partition) for result in results):
        return frozenset()
    with services.ledger.transaction() as session:
        state = run_state(session, begun.run, begun.topology)
        marked = with_versions_declared_equal(session, begun, state, results)
        unlike = {other: result for result in marked for other in _unlike(state, begun.attempt, result)}
        items = {partition: clear_item(session, begun.run, state.producer(partition)) for partition in unlike}
    if not unlike:
        return frozenset()
    answers = dict(zip(items, clearer.inspect(list(items.values())), strict=True))
    finished = sorted(partition for partition, answer in answers.items() if _has_ended(state, partition, answer))
    if finished:
        one = unlike[finished[0]]
        raise Misconfigured.of(
            "attempts.columns_differ", partition=one.partition, finished=finished, stage=one.partition.stage
        )
    return frozenset(state.results[each].attempt for each in unlike)


def require_none_since(before: RunState, attempt: Attempt, results: Sequence[NewResult], known: frozenset[str]) -> None:
    """Raise Conflict if a sibling has committed other columns since the comparison. `before` is the run now."""
    for result in results:
        for partition in _unlike(before, attempt, result):
            by = before.results[partition].attempt
            if by not in known:
                raise Conflict.of(
                    "attempts.committed_with_other_columns", partition=partition, by=by, other=result.partition
                )


def _has_ended(state: RunState, partition: PartitionId, answer: ClearAnswer) -> bool:
    """Report whether a try has ended; one that has committed has, even if Airflow still calls it running."""
    is_ending = answer.state == "running" and answer.try_number == state.region(state.producer(partition)).newest_try
    return is_ending or answer.state in FINAL


def _has_siblings(begun: Begun, partition: PartitionId) -> bool:
    return len(begun.topology.partitions_of(partition.stage, partition.layout)) > 1


def _unlike(state: RunState, attempt: Attempt, result: NewResult) -> list[PartitionId]:
    """Return the siblings of the same code with other columns whose producers are not known to be running."""
    siblings = {
        each: state.results[each].digest
        for each in state.topology.partitions_of(result.partition.stage, result.partition.layout)
        if each != result.partition
        and each in state.results
        and _is_of_same_code(state.results[each], attempt, result)
        and not state.region(state.producer(each)).is_running
    }
    return list(other_schemas(siblings, result.digest))


def _is_of_same_code(sibling: CurrentResult, attempt: Attempt, result: NewResult) -> bool:
    """Report whether a commit neither makes a sibling stale, which is of older code, nor is refused for it."""
    if attempt.code is None or sibling.generation == attempt.generation:
        return True
    return sibling.generation < attempt.generation and not sibling.versions.isdisjoint(result.versions)


def other_schemas(siblings: Mapping[K, str], digest: str) -> tuple[K, ...]:
    """Return the siblings with other columns or types than a new result, in the order given.

    `siblings` are digests of current results, as text, and so is `digest`. Siblings whose digests are of another
    version are left out.
    """
    return tuple(
        sibling
        for sibling, other in siblings.items()
        if digest_version(other) == digest_version(digest) and digest_schema(other) != digest_schema(digest)
    )
