"""The copies of what sources have read that cannot be read the same again: where they are, and whether they are whole.

Invariants: each split of such a source has an id of its own, which it gets when it is resolved. Of all attempts that
read it, the first one to describe its copy under that id binds all others: they read its rows, and never ask the
source. A copy that is missing or damaged is an error that a person decides about, since the source may have other rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from weir.coordination.registered import Registered
from weir.coordination.services import Services, attempt_folder
from weir.dataflow.stage import Stage
from weir.errors import Fault, Misconfigured
from weir.formats.codec import from_json
from weir.formats.manifest import COPY_NAME, StageCopy
from weir.formats.paths import SOURCE_COPY, folder_of, source_copy_folder
from weir.formats.region_job import CopyToRead, CopyToWrite, RegionJob, StageToRun
from weir.ledger.runs import Run
from weir.ledger.sources import COPY_ID, copied_subtasks, is_copied
from weir.store.errors import NotFound
from weir.store.probe import StoreFinding, verify_files
from weir.store.worker_threads import in_parallel

_NOT_THERE: Final = "its description, of which the ledger knows, is not there"


def with_copy_ids(services: Services, stage: Stage, splits: Sequence[Any]) -> list[Any]:
    """Return the splits of a source as they were resolved, each with the id of its copy if it is to have one."""
    if not stage.keeps_copy:
        return list(splits)
    return [{**each, COPY_ID: services.new_uuid().hex} for each in splits]


def binding_of(run: Run, stage: str, subtask: int, split: Any) -> str | None:
    """Return the path of the description of a split's copy; None for a split that has none."""
    if not is_copied(split):
        return None
    return f"{attempt_folder(run, stage, SOURCE_COPY, subtask, split[COPY_ID])}/{COPY_NAME}"


def is_any_copied(services: Services, run: Run, stage: Stage, splits: Sequence[Any]) -> bool:
    """Report whether a split of a source has a copy, so that they bind. Raises Retryable."""
    if not stage.keeps_copy:
        return False
    with services.ledger.transaction() as session:
        if copied_subtasks(session, run.id, stage.name):
            return True
    paths = [binding_of(run, stage.name, subtask, split) for subtask, split in enumerate(splits)]
    found = in_parallel(
        lambda path: _is_there(services, path), [each for each in paths if each], services.store.workers
    )
    services.store_id()  # the disk may not be mounted
    return any(found)


def _is_there(services: Services, path: str) -> bool:
    try:
        services.store.size(path)
    except NotFound:
        return False
    return True


def with_source_copies(services: Services, registered: Registered, job: RegionJob) -> RegionJob:
    """Add to the job where its sources are copied, and the copies that it reads instead of asking them.

    Raises Misconfigured for a copy that is not whole, and Retryable where the store does not answer.
    """
    kept = {each.name for each in registered.topology.stages_of(registered.attempt.region.name) if each.keeps_copy}
    return replace(job, stages=tuple(_with_copy(services, registered, each, kept) for each in job.stages))


def _with_copy(services: Services, registered: Registered, stage: StageToRun, kept: set[str]) -> StageToRun:
    run = registered.run
    binding = binding_of(run, stage.name, stage.subtask, stage.split) if stage.name in kept else None
    if binding is None:
        return stage
    folder = source_copy_folder(binding, registered.attempt.id)
    copy = CopyToWrite(folder, services.store.spark_url(folder), made_from="", binding=binding)
    found = whole_copy(services, run.id, stage.name, binding)
    if found is None:
        with services.ledger.transaction() as session:
            if stage.subtask in copied_subtasks(session, run.id, stage.name):
                raise _not_whole(run.id, stage.name, binding, _NOT_THERE)
    if found is None:
        return replace(stage, copy=copy, resume=None)
    read_from = source_copy_folder(binding, found.attempt)
    return replace(stage, copy=copy, resume=CopyToRead.of(found, read_from, services.store.spark_url))


def whole_copies(services: Services, run: str, job: RegionJob) -> dict[str, int]:
    """Compare byte for byte the copies from which a job reads its sources; return their bytes, by source.

    One that is not described yet is left out. Raises as `with_source_copies`.
    """
    bindings = {each.name: each.copy.binding for each in job.stages if each.copy is not None and each.copy.binding}
    found = {stage: whole_copy(services, run, stage, binding) for stage, binding in bindings.items()}
    return {stage: copy.bytes for stage, copy in found.items() if copy is not None}


def whole_copy(services: Services, run: str, stage: str, binding: str) -> StageCopy | None:
    """Return the copy of which there is a description; None where there is none. Raises as `with_source_copies`."""
    found = checked_copy(services, binding)
    if isinstance(found, StoreFinding):
        raise _not_whole(run, stage, binding, found.detail)
    return found


def checked_copy(services: Services, binding: str) -> StageCopy | StoreFinding | None:
    """Return the copy that is described, or what is wrong with it; None where there is none. Raises Retryable."""
    try:
        found = from_json(StageCopy, services.store.read(binding))
    except NotFound:
        services.store_id()  # the disk may not be mounted
        return None
    except Misconfigured as error:
        return StoreFinding(Fault.DAMAGED, str(error))
    folder = source_copy_folder(binding, found.attempt)
    return verify_files(services.store, services.store_id(), {folder: found.files}).get(folder, found)


def _not_whole(run: str, stage: str, binding: str, detail: str) -> Misconfigured:
    folder = folder_of(binding)
    return Misconfigured.of("coordination.source_copy_not_whole", stage=stage, run=run, folder=folder, detail=detail)
