"""Runs the closing task: publishes the sinks once all results are valid and present.

Invariant 1: a published version was valid, as a whole, at one instant after its attempt began; publishing equal
content again does nothing. All steps are recorded and idempotent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from sqlalchemy.orm import Session

from weir.attempts.commit_check import require_unchanged
from weir.attempts.gathering import gather
from weir.attempts.registration import enter
from weir.attempts.rooms import Publishing, SinkResult
from weir.coordination.airflow import Clearer
from weir.coordination.registered import Gathered, Registered, require_newest
from weir.coordination.run_records import closed_clears, write_record
from weir.coordination.services import Services
from weir.coordination.values import Awaiting, BeginRequest, CloseOutcome, Published
from weir.errors import Conflict, Retryable
from weir.execution.run_state import CLOSE, AttemptState, RunState
from weir.formats.manifest import InputRead, Manifest
from weir.ledger.attempts import count_wait, end
from weir.ledger.database.tables import AttemptRow, PublicationRow, RunRow
from weir.ledger.leases import drop_leases
from weir.ledger.publications import complete_publications, is_expiring, last_publication
from weir.ledger.reads import record_reads
from weir.ledger.runs import note_close
from weir.ledger.snapshot import run_state
from weir.recovery.inputs import Part, require_intact
from weir.recovery.reconcile import reconcile
from weir.state.checkpoint import checkpoint_run
from weir.state.checkpoint_order import await_predecessor
from weir.state.operator_state import require_equal_broadcasts
from weir.topology.regions import PartitionId

CHECKPOINT = "weir_checkpoint"
"""The summary's key for the checkpoint that was completed, if one was: no sink has that name."""


def close(services: Services, publishing: Publishing, request: BeginRequest, clearer: Clearer) -> CloseOutcome:
    """Complete the run, publish its sinks, and commit them into their targets.

    All that can fail in a target fails before anything is completed. Once the run is complete there is no way back: a
    target that does not answer is waited for.
    Raises ResultUnavailable for all that is missing, Conflict if a result changed meanwhile, Fenced, Retryable, or
    Misconfigured for what a target refuses.
    """
    registered = enter(services, request, clearer)
    if not isinstance(registered, Registered):
        return registered
    gathered = await_predecessor(services, registered, clearer) or gather(services, registered, clearer)
    if isinstance(gathered, Awaiting):
        return gathered
    require_equal_broadcasts(gathered.state)
    sinks = [_sink_result(registered, sink, gathered.manifests) for sink in registered.topology.sinks]
    parts = _parts(gathered, sinks)
    require_intact(services, parts)
    intact = {folder: manifest for manifest, folder, _ in parts}
    publication = publishing.prepare(registered, gathered.state, sinks, intact)
    if isinstance(publication, Awaiting):
        return publication
    checkpoint = checkpoint_run(services, registered, gathered)
    reads = tuple(_read(gathered.state, partition) for sink in sinks for partition in sink.partitions)
    publication.write(reads)
    done = _complete(services, registered, reads, sinks)
    undelivered = publication.deliver()
    if undelivered is not None:
        return undelivered
    held = publication.outcomes({sink: told["version"] for sink, told in done.summary.items()})
    summary = {
        sink: {**told, **({"targets": held[sink]} if sink in held else {})} for sink, told in done.summary.items()
    }
    return replace(done, summary=summary if checkpoint is None else {**summary, CHECKPOINT: checkpoint})


def _parts(gathered: Gathered, sinks: Sequence[SinkResult]) -> list[Part]:
    """Return the partitions that are about to be published."""
    return [
        (manifest, gathered.state.results[partition].folder, None)
        for sink in sinks
        for partition, manifest in zip(sink.partitions, sink.manifests, strict=True)
    ]


def _sink_result(registered: Registered, sink: str, manifests: Mapping[PartitionId, Manifest]) -> SinkResult:
    (layout,) = registered.topology.layouts_of(sink)
    partitions = registered.topology.partitions_of(sink, layout.id)
    targets = registered.topology.dataflow.stage(sink).targets
    return SinkResult(sink, partitions, tuple(manifests[each] for each in partitions), targets)


def _read(state: RunState, partition: PartitionId) -> InputRead:
    current = state.results[partition]
    return InputRead(
        argument=f"{partition.stage}[{partition.subtask}]",
        run=state.run,
        stage=partition.stage,
        subtask=partition.subtask,
        layout=partition.layout,
        attempt=current.attempt,
        digest=current.digest,
    )


def _complete(
    services: Services,
    registered: Registered,
    reads: Sequence[InputRead],
    sinks: Sequence[SinkResult],
) -> Published:
    run, attempt = registered.run, registered.attempt
    with services.ledger.transaction(run.dataflow.name) as session:
        row = require_newest(session, run, CLOSE, attempt.id)
        complete_publications(session, run.id, attempt.id, services.now())
        last = _visible(session, run.id, sinks)
        state = run_state(session, run, registered.topology)
        require_unchanged(session, state, reads, CLOSE)
        record_reads(session, run.dataflow.name, attempt.id, reads)
        row.error, is_record_due = None, row.clear_number != closed_clears(session, run.id)
        count_wait(session, row, services.now())
        end(row, AttemptState.COMMITTED, services.now())
        drop_leases(session, attempt.id)
        note_close(session, run.id)
        session.get_one(RunRow, run.id).is_record_due |= is_record_due
        # A result may have been replaced since all were found valid, and others may be stale by now.
        reconcile(session, services, run, state)
        versions = {sink: _to_announce(session, found, row.max_tries) for sink, found in last.items()}
    if is_record_due:
        with suppress(Conflict, Retryable):  # then upkeep writes it
            write_record(services, run.id)
    summary = {
        sink.sink: {
            "rows": sum(manifest.rows for manifest in sink.manifests),
            "version": last[sink.sink].version,
            "digest": sink.fingerprint,
            "published": "a new version" if versions[sink.sink] else "nothing: equal content is published already",
        }
        for sink in sinks
    }
    return Published(summary, versions)


def _visible(session: Session, run: str, sinks: Sequence[SinkResult]) -> dict[str, PublicationRow]:
    """Return the newest version of each sink. Raises Conflict for one that has expired meanwhile."""
    found = {}
    for sink in sinks:
        last = last_publication(session, run, sink.sink)
        if last is None or is_expiring(last):
            raise Conflict.of("attempts.version_expired", sink=sink.sink)
        found[sink.sink] = last
    return found


def _to_announce(session: Session, last: PublicationRow, max_tries: int) -> int | None:
    """Return the version to announce in Airflow: this attempt's, or that of a try since the last clear.

    A version is announced when the task instance succeeds, so a try that was killed after its commit has not announced
    it. The tries of a deleted DagRun (below 1) have.
    """
    publisher = session.get(AttemptRow, last.attempt)
    if publisher is None or not publisher.is_of_dag_run:
        return None
    return last.version if publisher.max_tries == max_tries else None
