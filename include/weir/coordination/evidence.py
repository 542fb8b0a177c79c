"""Finds out from the store that the ledger has lost commits: files that only a registered attempt can have written.

Invariant 11: an attempt, a run, a checkpoint and a version are in the ledger before their files are written. So a whole
file of one that the ledger does not know is evidence. Only files that the ledger can catch up with count: what is
damaged, or was given up, never does, so that it is not found again and again. Nor do restored results, which are
written before they are entered.

Cost: before a pass of upkeep deletes anything of a dataflow, and before a savepoint, three listings of it, two for each
of its sinks, and one small file; each manifest of a checkpoint that was not completed or was given up, of which
there is hardly ever one. A begin lists the store only where its suspicion is aroused, and then one folder for
each partition.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import select

from weir.coordination.airflow import Clearer, ClearItem
from weir.coordination.services import Services
from weir.errors import Message, Misconfigured, WeirError
from weir.execution.run_state import CLOSE, AttemptState
from weir.formats.checkpoint import Checkpoint
from weir.formats.codec import from_json, region_job_from_json
from weir.formats.manifest import Manifest
from weir.formats.paths import (
    PROVISIONAL,
    attempt_of_folder,
    attempt_records_folder,
    checkpoint_number,
    checkpoint_path,
    checkpoints_folder,
    epoch_folder,
    manifest_path,
    numbers_folder,
    parse_attempt_path,
    pointer_folder,
    record_path,
    results_folder,
    sinks_folder,
)
from weir.formats.pointer import pointer_from_json
from weir.formats.region_job import JOB_NAME
from weir.formats.run_record import RunRecord
from weir.ledger.attempts import may_have_ended_well, unended_closes
from weir.ledger.checkpoints import is_other, numbers_taken, unfinished_checkpoints
from weir.ledger.database.tables import AttemptRow, PublicationRow, RunRow
from weir.ledger.runs import dataflow_of, epoch_of_run, run_key, topology_of
from weir.store.catalogue import ledgers_of
from weir.store.errors import NotFound
from weir.store.walk import files_in, folders_in
from weir.topology.ids import is_synthetic
from weir.topology.regions import PartitionId, RegionId

T = TypeVar("T")


def require_own_ledger(services: Services, dataflow: str) -> None:
    """Refuse a dataflow that another ledger has, as the records of its runs in the store say.

    Costs a listing and one or two small files. Raises Misconfigured, or Retryable.
    """
    with services.ledger.transaction() as session:
        known = set(session.scalars(select(RunRow.epoch).where(RunRow.dataflow == dataflow)))
    for other in ledgers_of(services.store, dataflow, known) - {services.ledger.id()}:
        raise Misconfigured.of("ledger.of_other_ledger", dataflow=dataflow, other=other, own=services.ledger.id())


def require_not_behind(services: Services, dataflow: str) -> None:
    """Compare the ledger with the newest files of a dataflow. Raises LedgerBehind, or Retryable."""
    store = services.store
    epochs = _epochs_in(services, dataflow)
    require_known_checkpoints(services, dataflow)
    if epochs:
        _see_record(services, dataflow, max(epochs))
    with services.ledger.transaction() as session:
        services.ledger.require_not_behind(session, dataflow)
        known = set(session.scalars(select(RunRow.epoch).where(RunRow.dataflow == dataflow)))
    for epoch in sorted(set(epochs) - known):
        _require_no_record(services, dataflow, epoch)
    for sink in folders_in(store, sinks_folder(dataflow)):
        newest = max(folders_in(store, f"{sinks_folder(dataflow)}/{sink}"), default=None)
        if newest in known:
            require_known_publications(services, run_key(dataflow, str(newest)), [sink])


def require_epoch_before_known(services: Services, dataflow: str, epoch: str) -> None:
    """Raise LedgerBehind if the store has a run of the epoch before this one that the ledger does not know.

    Costs a listing of the dataflow, and a small file if it is so. Raises Retryable.
    """
    before = max((each for each in _epochs_in(services, dataflow) if each < epoch), default=None)
    if before is None:
        return
    with services.ledger.transaction() as session:
        is_known = session.get(RunRow, run_key(dataflow, before)) is not None
    if not is_known:
        _require_no_record(services, dataflow, before)


def _epochs_in(services: Services, dataflow: str) -> list[str]:
    return [each for each in folders_in(services.store, dataflow) if not each.startswith("_")]


def _require_no_record(services: Services, dataflow: str, epoch: str) -> None:
    """Raise LedgerBehind if the store has a run of this epoch, which the ledger does not know."""
    if _see_record(services, dataflow, epoch) is not None:
        raise services.ledger.behind(
            dataflow, Message("coordination.run_unknown", epoch_folder=epoch_folder(dataflow, epoch))
        )


def require_known_checkpoints(services: Services, dataflow: str) -> None:
    """Raise LedgerBehind for a checkpoint or savepoint in the store that the ledger does not know. Raises Retryable."""
    numbers = _numbers_in(services, dataflow)
    with services.ledger.transaction() as session:
        services.ledger.require_not_behind(session, dataflow)
        unknown = numbers - numbers_taken(session, dataflow, numbers)
    if unknown:
        raise services.ledger.behind(dataflow, Message("coordination.checkpoint_unknown", number=min(unknown)))
    _require_own_manifests(services, dataflow, numbers)


def _require_own_manifests(services: Services, dataflow: str, numbers: set[int]) -> None:
    """Compare the manifests of checkpoints that the ledger does not call complete. Raises LedgerBehind, or Retryable.

    It may have given a number again whose checkpoint it has lost; the process is gone that would have found out.
    """
    with services.ledger.transaction() as session:
        rows = [row for row in unfinished_checkpoints(session, dataflow) if row.number in numbers]
    for row in rows:
        found = _read(services, checkpoint_path(dataflow, row.number), partial(from_json, Checkpoint))
        if found and (found.dataflow, found.number) == (dataflow, row.number) and is_other(row, found):
            services.ledger.saw(dataflow, found.revision)
            raise services.ledger.behind(
                dataflow,
                Message("coordination.checkpoint_of_attempt_unknown", number=found.number, attempt=found.attempt),
            )


def _numbers_in(services: Services, dataflow: str) -> set[int]:
    """Return the numbers of checkpoints in the store, and those that it keeps of what is elsewhere or deleted."""
    names = files_in(services.store, checkpoints_folder(dataflow))
    kept = files_in(services.store, numbers_folder(dataflow))
    there = {each for each in map(checkpoint_number, names) if each is not None}
    return there | {int(name) for name in kept if name.isdecimal()}


def require_closes_known(services: Services, dataflow: str, clearer: Clearer) -> None:
    """Raise LedgerBehind for a closing task that has not ended, and is a success in Airflow. Raises Retryable.

    A later try may be: it may have been lost, too. Of a try that has failed only a later one is looked for: a person
    who marks the task before that begins is obeyed. If another one is marked, the ledger catches up with nothing.
    """
    with services.ledger.transaction() as session:
        found = {
            row.id: (row.try_number if may_have_ended_well(row) else row.try_number + 1, run)
            for row, run in unended_closes(session, dataflow)
        }
    items = [ClearItem(run.dag_id, run.run_id, run.task_prefix + CLOSE.name, -1, None) for _, run in found.values()]
    try:
        answers = clearer.inspect(items) if items else []
    except WeirError:
        return  # the next pass asks again
    ended = {
        attempt
        for (attempt, (number, _)), answer in zip(found.items(), answers, strict=True)
        if answer.state == "success" and answer.try_number >= number
    }
    with services.ledger.transaction() as session:
        lost = [row.id for row, _ in unended_closes(session, dataflow) if row.id in ended]
    if lost:
        raise services.ledger.behind(dataflow, Message("coordination.close_unknown", lost=lost[0]))


def require_known_versions(services: Services, dataflow: str, unknown: Iterable[str]) -> None:
    """Raise LedgerBehind for a published version that the ledger does not know, if its pointer can be read."""
    for path in sorted(unknown):
        pointer = _read(services, path, pointer_from_json)
        if pointer is not None:
            services.ledger.saw(dataflow, pointer.revision)
            raise services.ledger.behind(dataflow, Message("coordination.version_unknown", path=path))


def require_known_publications(services: Services, run: str, sinks: Iterable[str]) -> None:
    """Raise LedgerBehind for a published version of a run and one of these sinks that the ledger does not know.

    Likewise for provisional rows, of which it does not know the number.
    """
    dataflow, epoch = dataflow_of(run), epoch_of_run(run)
    folders = (pointer_folder(dataflow, sink, epoch) for sink in sinks)
    names = ((each, name) for each in folders for name in files_in(services.store, each))
    found = {f"{folder}/{name}" for folder, name in names if re.fullmatch(rf"\d+(\.json|\{PROVISIONAL})", name)}
    with services.ledger.transaction() as session:
        known = set(session.scalars(select(PublicationRow.pointer).where(PublicationRow.run == run)))
    require_known_versions(services, dataflow, unknown_pointers(found, known))


def unknown_pointers(found: Iterable[str], known: Collection[str]) -> set[str]:
    """Return pointers that the ledger does not know, but none to provisional rows whose number something else has."""
    numbers = {each.rpartition(".")[0] for each in known}
    unknown = {*found}.difference(known)
    return {each for each in unknown if each.endswith(".json") or each.rpartition(".")[0] not in numbers}


def require_known_results(services: Services, run: str, folders: Iterable[str], *, running: bool = False) -> None:
    """Raise LedgerBehind for a whole result, in one of these folders, of an attempt that the ledger does not know.

    With `running`, also of one that it calls running: Airflow says that it has ended.
    """
    suspects = {each: attempt_of_folder(each) for each in folders if not is_synthetic(attempt_of_folder(each))}
    if not suspects:
        return
    with services.ledger.transaction() as session:
        row = session.get(RunRow, run)
        query = select(AttemptRow.id, AttemptRow.state).where(AttemptRow.run == run)
        found = session.execute(query.where(AttemptRow.id.in_(suspects.values())))
        known: dict[str, str] = dict(found.all())
    if row is None or row.expired_at is not None:
        return
    given_up, pinned = set(row.abandoned or ()), row.pinned
    if pinned is None and not row.is_record_due:
        record = _see_record(services, row.dataflow, row.epoch)
        pinned = None if record is None else record.pinned
    for folder, attempt in suspects.items():
        is_settled = attempt in known and not (running and known[attempt] == AttemptState.RUNNING.value)
        if is_settled or attempt in given_up:
            continue
        path = manifest_path(folder)
        manifest = (
            _read(services, path, partial(from_json, Manifest)) if str(parse_attempt_path(path)) == folder else None
        )
        if manifest is not None and _is_of(manifest, pinned):
            services.ledger.saw(manifest.dataflow, manifest.revision)
            raise services.ledger.behind(
                manifest.dataflow, Message("coordination.result_unknown", attempt=attempt, folder=folder)
            )


def look_for_results(services: Services, run: str, partitions: Iterable[PartitionId], *, running: bool = True) -> None:
    """Look for results of partitions that the ledger calls missing though Airflow calls their tasks a success.

    Raises LedgerBehind, or Retryable.
    """
    of, epoch = dataflow_of(run), epoch_of_run(run)
    found = [
        f"{place}/{attempt}"
        for place in {results_folder(of, epoch, each.stage, each.layout, each.subtask) for each in partitions}
        for attempt in folders_in(services.store, place)
    ]
    require_known_results(services, run, sorted(found), running=running)


def look_for_attempts(services: Services, run: str, region: RegionId, partitions: Iterable[PartitionId]) -> None:
    """Look for attempts of a region of which Airflow has counted more tries than the ledger. Raises as above.

    The job of one that has written no result carries a revision: the ledger is behind only if it has not reached that.
    """
    dataflow = dataflow_of(run)
    look_for_results(services, run, partitions, running=False)
    records = attempt_records_folder(dataflow, epoch_of_run(run), region.name, region.subtask)
    for attempt in folders_in(services.store, records):
        job: Any = _read(services, f"{records}/{attempt}/{JOB_NAME}", region_job_from_json)
        services.ledger.saw(dataflow, getattr(job, "revision", 0))


def _see_record(services: Services, dataflow: str, epoch: str) -> RunRecord | None:
    """Return the record of a run if there is one that can be read, and tell the ledger its revision."""
    record = _read(services, record_path(dataflow, epoch), partial(from_json, RunRecord))
    if record is not None:
        services.ledger.saw(dataflow, record.revision)
    return record


def _read(services: Services, path: str, decode: Callable[[bytes], T]) -> T | None:
    """Read a document; None where there is none, or it cannot be read. Raises Retryable."""
    try:
        return decode(services.store.read(path))
    except (NotFound, ValueError, KeyError, TypeError, Misconfigured):
        return None


def _is_of(manifest: Manifest, pinned: Mapping[str, Any] | None) -> bool:
    """Report whether a run that is pinned to this dataflow has such a partition."""
    if pinned is None:
        return False
    topology = topology_of(pinned)
    partition = PartitionId(manifest.stage, manifest.subtask, manifest.layout)
    return any(partition in topology.outputs(region) for region in topology.region_ids())
