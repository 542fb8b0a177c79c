"""Enter into a ledger the runs, attempts, results, publications and checks that a store holds.

Invariant: afterwards exactly the chosen results are current, no attempt is running, and a second rebuild changes
nothing. Of checks only passed ones are entered, so that equal rows are not checked again: of a failed check the
manifest does not record enough to decide by.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from weir.coordination.import_rules import Candidate
from weir.coordination.run_records import owe_record
from weir.dataflow.quality import Policy
from weir.execution.partition_state import PartitionState
from weir.execution.run_state import CLOSE, AttemptState
from weir.formats.checks import BUILT_IN, CheckOutcome, CheckReason, GateResult
from weir.formats.manifest import InputRead, Manifest, splits_fingerprint
from weir.formats.paths import attempt_of_folder, layout_of_folder, pointer_path
from weir.formats.pointer import Pointer
from weir.formats.run_record import RunRecord
from weir.ledger.attempts import LIVE, Origin, attempts_known, end, free_number, synthetic_attempt, unended_closes
from weir.ledger.code import archive_row, archives_of, enter_archive, forget_archive, forget_generations
from weir.ledger.database.tables import (
    UNKNOWN_SNAPSHOT,
    AttemptRow,
    ConsumptionRow,
    DataflowRow,
    LeaseRow,
    PendingClearRow,
    PublicationRow,
    QualityCheckRow,
    RestoreRow,
    ResultEventRow,
    ResultRow,
    RunRow,
)
from weir.ledger.deliveries import deliveries_of, enter_deliveries
from weir.ledger.publications import begin_publication, note_untold
from weir.ledger.reads import enter_input, forget_inputs, record_reads
from weir.ledger.restores import FORK, SAME, last_restore, origins_of
from weir.ledger.results import (
    NewResult,
    enter_superseded,
    quarantine_results,
    replace_results,
    results_in,
    supersede,
    transition,
)
from weir.ledger.runs import dataflow_of, run_key, start_of
from weir.ledger.sources import enter_correction, enter_ranges, forget_splits
from weir.store.catalogue import StoredArchive
from weir.topology.ids import Epoch, RunId, parse_attempt_id
from weir.topology.regions import RegionId, Topology

REASON = "the ledger was rebuilt"
"""Why attempts, leases and clears end, and results are taken out of use."""
UNKNOWN_RUN = "not known, since the ledger was rebuilt"
"""The name of a DagRun that no record tells; Airflow has none of this name."""
_PASSED = (CheckOutcome.PASSED, CheckOutcome.SAME)


def stop_running(session: Session, dataflow: str, now: datetime) -> None:
    """Start a new lineage, and end the attempts of `dataflow` that are running: none of them can commit any more.

    So are closing tasks that are to be tried again, or the ledger would be found to be behind for ever.
    """
    session.get_one(DataflowRow, dataflow).lineage += 1
    _end(session, dataflow, (AttemptState.RUNNING.value,), now)
    for row, _ in unended_closes(session, dataflow):
        end(row, AttemptState.FENCED, now, error=row.error or REASON)


def _end(session: Session, dataflow: str, states: Collection[str], now: datetime) -> None:
    runs = select(RunRow.id).where(RunRow.dataflow == dataflow)
    for attempt in session.scalars(select(AttemptRow).where(AttemptRow.run.in_(runs), AttemptRow.state.in_(states))):
        end(attempt, AttemptState.FENCED, now, error=REASON)


def settled_attempts(session: Session, run: str) -> frozenset[str]:
    """Return the attempts of which the ledger knows that their results are not current, and need not be.

    Those that were running when they were stopped may have committed, which the ledger has lost.
    """
    current = select(ResultRow.attempt).where(ResultRow.run == run, ResultRow.is_current)
    was_stopped = (AttemptRow.state == AttemptState.FENCED.value) & (AttemptRow.error == REASON)
    query = select(AttemptRow.id).where(AttemptRow.run == run, AttemptRow.id.not_in(current))
    return frozenset(session.scalars(query.where(~func.coalesce(was_stopped, False))))


def stop_everything(session: Session, dataflow: str, now: datetime) -> int:
    """Start a new lineage, and end all attempts, leases and pending clears of `dataflow`; return the lineage."""
    row = session.get_one(DataflowRow, dataflow)
    row.lineage += 1
    runs = select(RunRow.id).where(RunRow.dataflow == dataflow)
    _end(session, dataflow, (*LIVE, AttemptState.RETRYING.value), now)
    results = select(ResultRow.id).where(ResultRow.run.in_(runs))
    session.execute(delete(LeaseRow).where(LeaseRow.result.in_(results)))
    for owed in session.scalars(select(PendingClearRow).where(PendingClearRow.dataflow == dataflow)):
        owed.is_void = True
        if owed.settled_at is None:
            owed.settled_at, owed.outcome = now, f"dropped: {REASON}"
    return row.lineage


def give_up(session: Session, row: RunRow, attempts: Collection[str]) -> None:
    """Note attempts of a run that are of another pin, which the ledger had lost or had never known."""
    if not {*attempts} <= {*(row.abandoned or ())}:
        row.abandoned = sorted({*attempts, *(row.abandoned or ())})
        owe_record(session, row, abandons=False)


def enter_run(session: Session, record: RunRecord) -> tuple[RunRow, bool]:
    """Enter a run from its record, and the epoch before it where that never began and so has no record.

    Return it, and whether a ledger that had lost that the run was freed or pinned anew has gone on with the pin before:
    what it knows of the run is given up then, as at a pin, since a partition of the same name may have other rows.
    """
    if record.predecessor is not None:
        _enter_unbegun(session, record, record.predecessor)
    row = session.get(RunRow, record.run)
    is_pinned_anew = row is not None and row.is_pinned and _is_of_later_pin(session, record, row)
    if row is None:
        row = RunRow(id=record.run, dataflow=record.dataflow, epoch=record.epoch)
        session.add(row)
    row.interval_start, row.interval_end = (datetime.fromisoformat(each) for each in record.interval)
    row.dag_id, row.run_id, row.task_prefix = record.dag_id, record.run_id, record.task_prefix
    row.pinned, row.parameters, row.predecessor = record.pinned, record.parameters, record.predecessor
    if is_pinned_anew or record.restored_in >= (row.restored_in or 0):
        row.archive, row.restored_in = record.archive or None, record.restored_in
    else:  # the store does not tell yet of the last restore, which has taken the code's pin away
        row.is_record_due = True
    seal = record.seal
    row.sealed_at = None if seal is None else datetime.fromisoformat(seal.at)
    row.sealed_why, row.sealed_clears = (None, None) if seal is None else (seal.why, seal.clears)
    row.created_at = datetime.fromisoformat(record.created_at)
    row.abandoned = sorted({*record.abandoned, *(row.abandoned or ())})
    dataflow = session.get_one(DataflowRow, record.dataflow)
    dataflow.first_epoch = min(dataflow.first_epoch or record.epoch, record.epoch)
    if is_pinned_anew:
        forget_splits(session, row.id)
        forget_generations(session, row.id)
        owe_record(session, row)
    session.flush()
    enter_ranges(session, row.id, record.ranges)
    forget_inputs(session, row.id)
    for each in record.datasets:
        enter_input(session, row.id, each, row.created_at)
    return row, is_pinned_anew


def _is_of_later_pin(session: Session, record: RunRecord, row: RunRow) -> bool:
    """Report whether a run was freed after the pin that the ledger knows; it may have been pinned to the same again.

    Each time abandons all attempts that there are.
    """
    if row.pinned != record.pinned:
        return True
    abandoned = {*record.abandoned} - {*(row.abandoned or ())}
    return not abandoned.isdisjoint(attempts_known(session, row.id))


def enter_corrections(
    session: Session, record: RunRecord, topology: Topology, found: Collection[Candidate], *, is_known: bool
) -> set[RegionId]:
    """Enter what sources read that were corrected, as files had come late; return the tasks that have yet to read it.

    In a ledger in which the run `is_known` only a correction counts that a task has read: else the late files are found
    again. In any other one, results of what was read before are left out.
    """
    to_clear: set[RegionId] = set()
    for source, corrected in record.corrected.items():
        resolved = splits_fingerprint(list(corrected.splits))
        readers = {each.region for each in found if each.manifest.resolved.get(source) == resolved}
        if (readers or not is_known) and enter_correction(session, record.run, source, corrected) and is_known:
            region = topology.logical_region_of(source)
            to_clear |= {RegionId(region.name, each) for each in range(region.parallelism)} - readers
    return to_clear


def _enter_unbegun(session: Session, record: RunRecord, epoch: Epoch) -> None:
    """Enter the run of an epoch that is known only as the one before: its first task, or the next epoch's, owns it."""
    run = run_key(record.dataflow, epoch)
    if session.get(RunRow, run) is None:
        end_of = datetime.fromisoformat(record.interval[0])
        session.add(
            RunRow(
                id=run,
                dataflow=record.dataflow,
                epoch=epoch,
                interval_start=start_of(epoch),
                interval_end=end_of,
                dag_id=record.dag_id,
                run_id=UNKNOWN_RUN,
                task_prefix=record.task_prefix,
                parameters={},
                created_at=datetime.fromisoformat(record.created_at),
            )
        )
        session.flush()


def enter_archives(session: Session, dataflow: str, found: Collection[StoredArchive], now: datetime) -> None:
    """Enter the archives of code in the store, and forget those whose files are not there.

    A file that is about to be deleted is not entered again.
    """
    there = {each.path for each in found}
    for row in archives_of(session, dataflow):
        if row.path not in there:
            forget_archive(session, dataflow, row.fingerprint, row.path)
    for each in found:
        known = archive_row(session, dataflow, each.fingerprint)
        if known is None or (known.deleting_at is not None and known.path != each.path):
            enter_archive(session, dataflow, each.fingerprint, each.path, each.bytes, now)


# Attempts and results


def quarantined_attempts(session: Session, run: str) -> frozenset[str]:
    """Return the attempts whose results are quarantined in the ledger."""
    query = select(ResultRow.attempt).where(ResultRow.run == run, ResultRow.state == PartitionState.QUARANTINED.value)
    return frozenset(session.scalars(query))


def enter_attempts(
    session: Session,
    run: RunRow,
    topology: Topology,
    found: Collection[Candidate],
    chosen: Mapping[RegionId, Candidate],
) -> None:
    """Enter all candidates, chosen and restored ones as committed, others as fenced.

    Of two attempts with the same try number the chosen one keeps it, else the one that is known; the other gets a
    number below 1, as those of a deleted DagRun. Generations of before the last restore of the run do not count.
    """
    chosen_ids = {each.attempt for each in chosen.values()}
    for candidate in found:
        if session.get(AttemptRow, candidate.attempt) is not None:
            continue
        row = _attempt_row(run, topology, candidate)
        taken = session.scalar(_attempt(run.id, candidate.region, candidate.manifest.try_number))
        if taken is not None:
            aside = taken if candidate.attempt in chosen_ids else row
            aside.try_number = free_number(session, run.id, candidate.region)
            session.flush()
        session.add(row)
        session.flush()
    for region, candidate in chosen.items():
        for row in session.scalars(_attempt(run.id, region)):
            if row.id == candidate.attempt:
                row.state, row.error = AttemptState.COMMITTED.value, None
            elif row.state == AttemptState.COMMITTED.value and row.try_number > candidate.manifest.try_number:
                row.state = AttemptState.FENCED.value
    if run.restored_in:
        forget_generations(session, run.id, before=run.restored_in)


def _attempt(run: str, region: RegionId, try_number: int | None = None) -> Any:
    query = select(AttemptRow).where(
        AttemptRow.run == run, AttemptRow.region == region.name, AttemptRow.subtask == region.subtask
    )
    return query if try_number is None else query.where(AttemptRow.try_number == try_number)


def _attempt_row(run: RunRow, topology: Topology, candidate: Candidate) -> AttemptRow:
    region, at = candidate.region, datetime.fromisoformat(candidate.created_at)
    index = topology.region(region.name).map_index(region.subtask)
    state, origin = AttemptState.FENCED, Origin.REBUILT
    if candidate.manifest.is_restored:
        state, origin = AttemptState.COMMITTED, Origin.RESTORED
    manifest, number = candidate.manifest, candidate.manifest.try_number
    row = synthetic_attempt(run, region, candidate.attempt, index, number, manifest.lineage, at, state, origin)
    row.clear_number = manifest.clear_number
    if manifest.generation:
        row.code, row.archive, row.generation = manifest.code, manifest.archive, manifest.generation
    return row


def enter_results(session: Session, run: str, chosen: Iterable[Candidate], now: datetime) -> int:
    """Make the results of the chosen attempts current; released ones are released again.

    What was made after later clears of a person gets higher numbers.

    Returns how many of them were known to be lost or damaged, which the store does not tell.
    """
    were_bad = 0
    for candidate in sorted(chosen, key=lambda each: each.manifest.clear_number):
        stored = {each.folder: each for each in candidate.results.values()}
        known = {row.folder: row for row in results_in(session, run, stored)}
        for row in known.values():
            if row.is_current:
                continue
            supersede(session, run, stored[row.folder].partition, REASON, now)
            session.flush()
            if row.state != PartitionState.FINISHED.value:
                event = ResultEventRow(result=row.id, state=PartitionState.FINISHED.value, at=now, reason=REASON)
                session.add(event)
            row.is_current, row.state, row.state_at, row.state_reason = True, PartitionState.FINISHED.value, now, ""
            were_bad += row.fault is not None
            row.fault, row.deleted_at = None, None
        session.flush()
        new = [NewResult.of(each) for each in stored.values() if each.folder not in known]
        replace_results(session, run, candidate.attempt, new, now)
        _release_again(session, run, candidate, now)
        _enter_reads(session, run, candidate.attempt, candidate.reads)
    return were_bad


def enter_published(
    session: Session, run: str, found: Iterable[Candidate], pointers: Iterable[Pointer], now: datetime
) -> None:
    """Enter published results that the ledger does not have and that are not current: readers go on from them."""
    published = {part.folder for pointer in pointers for part in pointer.partitions}
    published -= {row.folder for row in results_in(session, run, published)}
    for candidate in found if published else ():
        unknown = {part: each for part, each in candidate.results.items() if each.folder in published}
        enter_superseded(session, run, candidate.attempt, map(NewResult.of, unknown.values()), now)
        _release_again(session, run, replace(candidate, results=unknown), now)


def enter_quarantine(session: Session, run: str, found: Iterable[Candidate], now: datetime) -> None:
    """Enter quarantined results that the ledger does not have; released ones are released again."""
    for candidate in found:
        stored = {each.folder: each for each in candidate.results.values()}
        known = {row.folder for row in results_in(session, run, stored)}
        unknown = {part: each for part, each in candidate.results.items() if each.folder not in known}
        new = map(NewResult.of, unknown.values())
        quarantine_results(session, run, candidate.attempt, new, "a check of it has failed", now)
        session.flush()
        _release_again(session, run, replace(candidate, results=unknown), now)


def _release_again(session: Session, run: str, candidate: Candidate, now: datetime) -> None:
    """Release results again whose data files were deleted on purpose, so that they do not count as lost."""
    reasons = {stored.folder: stored.released for stored in candidate.results.values() if stored.released is not None}
    for row in results_in(session, run, reasons) if reasons else ():
        if row.state == PartitionState.FINISHED.value:
            transition(session, row, PartitionState.RELEASED, reasons[row.folder], now)


def _enter_reads(session: Session, run: str, attempt: str, reads: Iterable[InputRead]) -> None:
    if session.scalar(select(ConsumptionRow.attempt).where(ConsumptionRow.attempt == attempt).limit(1)) is None:
        record_reads(session, dataflow_of(run), attempt, reads)


# Publications


def enter_publications(session: Session, run: RunRow, pointers: Iterable[Pointer]) -> None:
    """Enter published versions, and the newest attempt of the closing task as the reader of the visible ones.

    Provisional rows that the ledger does not have are entered, too: they are taken back, or confirmed, as any are.
    """
    found = sorted(pointers, key=lambda pointer: pointer.version)
    every = [pointer for pointer in found if not pointer.lacks]
    for pointer in every:
        _enter_publication(session, run.id, pointer)
    _enter_provisional(session, run.id, [pointer for pointer in found if pointer.lacks])
    if not every:
        return
    # Not the attempt of the highest try: a deleted DagRun may have had more tries than the run that replaced it.
    newest = max(every, key=lambda pointer: (pointer.revision, pointer.published_at))
    at, closing = datetime.fromisoformat(newest.published_at), newest.attempt
    row = session.get(AttemptRow, closing)
    parsed, state = parse_attempt_id(closing), AttemptState.COMMITTED
    number = 0 if parsed is None else parsed.try_number
    if row is None and session.scalar(_attempt(run.id, CLOSE, number)) is None:
        row = synthetic_attempt(run, CLOSE, closing, -1, number, 0, at, state, Origin.REBUILT)
        session.add(row)
        session.flush()
    if row is not None:
        row.state = AttemptState.COMMITTED.value
        visible = {pointer.sink: pointer for pointer in every}
        _enter_reads(
            session, run.id, closing, [read for each in visible.values() for read in published_reads(run.id, each)]
        )
    if row is None or row.is_of_dag_run:  # one of a deleted DagRun has not closed the run that replaced it
        run.closed_at = run.closed_at or at


def _enter_provisional(session: Session, run: RunId, pointers: Iterable[Pointer]) -> None:
    session.flush()
    query = select(PublicationRow.sink, PublicationRow.version).where(PublicationRow.run == run)
    known = set(session.execute(query).tuples())
    for each in pointers:
        digest = "|".join(part.digest for part in each.partitions)
        if (each.sink, each.version) not in known:
            begin_publication(session, run, each.sink, each.version, each.attempt, digest, each)
            enter_deliveries(session, run, each.sink, each.version, each.deliveries)


def _enter_publication(session: Session, run: str, pointer: Pointer) -> None:
    query = select(PublicationRow).where(
        PublicationRow.run == run, PublicationRow.sink == pointer.sink, PublicationRow.version == pointer.version
    )
    row = session.scalar(query)
    is_new = row is None
    if row is None:
        row = PublicationRow(run=run, sink=pointer.sink, version=pointer.version)
        session.add(row)
    row.attempt = pointer.attempt
    row.digest = "|".join(partition.digest for partition in pointer.partitions)
    row.pointer = pointer_path(pointer.dataflow, pointer.sink, pointer.epoch, pointer.version)
    row.published_at = datetime.fromisoformat(pointer.published_at)
    row.folders = [partition.folder for partition in pointer.partitions]
    if is_new:
        note_untold(session, row)
    if not deliveries_of(session, run, pointer.sink, pointer.version):
        # The target alone knows whether it has the version: that is asked when it is delivered again.
        enter_deliveries(session, run, pointer.sink, pointer.version, pointer.deliveries)


def published_reads(run: RunId, pointer: Pointer) -> Iterator[InputRead]:
    """Yield what a closing task had read of a sink when it published a version."""
    for part in pointer.partitions:
        yield InputRead(
            argument=f"{pointer.sink}[{part.subtask}]",
            run=run,
            stage=pointer.sink,
            subtask=part.subtask,
            layout=layout_of_folder(part.folder),
            attempt=attempt_of_folder(part.folder),
            digest=part.digest,
        )


# Checks


def enter_checks(session: Session, run: RunRow, found: Iterable[Candidate]) -> None:
    """Enter the passed checks in the manifests of a run that the ledger does not have."""
    query = select(QualityCheckRow.attempt, QualityCheckRow.stage, QualityCheckRow.suite)
    known = {tuple(each) for each in session.execute(query.where(QualityCheckRow.run == run.id))}
    for candidate in found:
        for stored in candidate.results.values():
            manifest = stored.manifest
            for each in manifest.quality:
                key = (manifest.attempt, manifest.stage, each.suite)
                if each.outcome in _PASSED and each.suite != BUILT_IN and key not in known:
                    known.add(key)
                    session.add(_row(run, manifest, each))
    session.flush()


def _row(run: RunRow, manifest: Manifest, result: GateResult) -> QualityCheckRow:
    return QualityCheckRow(
        dataflow=run.dataflow,
        run=run.id,
        epoch=run.epoch,
        stage=manifest.stage,
        subtask=manifest.subtask,
        attempt=manifest.attempt,
        by_attempt=manifest.attempt,
        suite=result.suite,
        fingerprint=result.fingerprint,
        why=CheckReason.REBUILT.value,
        policy=Policy.FAIL.value,
        outcome=result.outcome.value,
        digest=str(manifest.digest),
        rows=manifest.rows,
        results=[],
        blamed=[],
        seconds=0.0,
        checked_at=datetime.fromisoformat(manifest.created_at),
    )


# Pins


def enter_pins(session: Session, dataflow: str, epoch: str, restored: Collection[Manifest], now: datetime) -> list[str]:
    """Enter the pins of an epoch that was restored with these manifests; return the origins, none if it has them.

    A restore of an earlier lineage had pins of its own, which may have ended since.
    """
    lineage = max((each.lineage for each in restored), default=0)
    known = last_restore(session, dataflow, epoch)
    if not restored or (known is not None and known.lineage >= lineage):
        return []
    origins = origins_of(dataflow, restored)
    for origin in origins or [dataflow]:
        session.add(
            RestoreRow(
                dataflow=dataflow,
                epoch=epoch,
                lineage=lineage,
                origin=origin,
                number=UNKNOWN_SNAPSHOT,
                source="what the store tells",
                mode=SAME if origin == dataflow else FORK,
                left_out=[],
                restored_at=now,
            )
        )
    session.flush()
    return origins
