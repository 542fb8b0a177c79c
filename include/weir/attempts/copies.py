"""Selects the cached stage outputs (copies) of earlier attempts that a new attempt may resume from.

Invariant: a copy is used only if it was computed from the inputs and settings that the stage has now, and if all of
its bytes are as they were written; a copy that is found damaged while it is read costs a try, never the task.

Only the job knows its code and the settings of its session: it compares them with those of the copy, and recomputes
the stage where they differ.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from weir.coordination.registered import Registered
from weir.coordination.services import Services, attempt_folder
from weir.dataflow.graph import reachable
from weir.errors import Fault, Misconfigured, Retryable
from weir.formats.codec import from_json
from weir.formats.manifest import COPY_NAME, StageCopy
from weir.formats.paths import COPY
from weir.formats.region_job import CopyToRead, CopyToWrite, InputToRead, RegionJob, StageToRun
from weir.ledger.attempts import Origin, attempts_of
from weir.ledger.results import damaged_results
from weir.store.errors import NotFound
from weir.store.probe import verify_files

Digests = Mapping[tuple[str, str], Sequence[str]]
"""The digests of the partitions of each input, by stage and argument, in the order of the job.

With `consumers="always"` a digest is followed by its attempt."""


@dataclass(frozen=True, slots=True)
class _Found:
    """A usable copy, and the try that wrote it."""

    try_number: int
    folder: str
    copy: StageCopy


def with_copies(services: Services, registered: Registered, job: RegionJob, digests: Digests) -> RegionJob:
    """Add to the job the stages to copy and the copies of earlier attempts that it may resume from.

    Raises Retryable where the store does not answer.
    """
    cached = registered.topology.copies_of(registered.attempt.region.name)
    if not cached:
        return job
    made_from = {name: _made_from(job, name, digests) for name in cached}
    earlier = _tries_since_person(services, registered)
    search = _Search(
        services=services, registered=registered, job=job, made_from=made_from, earlier=earlier, after={}, notes=[]
    )
    found = search.run()
    return replace(
        job,
        stages=tuple(_with_copy(services, registered, stage, made_from, found) for stage in job.stages),
        notes=(*job.notes, *search.notes),
    )


def require_whole_copies(services: Services, job: RegionJob, resumed: Collection[str] | None = None) -> None:
    """Compare byte for byte the copies that the job may have read, its own and those of earlier attempts.

    `resumed` are the stages that it has read from copies of earlier attempts: a copy that was deleted after that is no
    error. None: it is not known which copies were read. Raises Retryable if a copy is damaged: the next try ignores it.
    """
    read = {folder: stage.name for stage in job.stages for folder in _folders_read(stage, resumed)}
    found = {folder: _described(services, folder) for folder in read}
    copies = {folder: copy.files for folder, copy in found.items() if isinstance(copy, StageCopy)}
    broken = {
        folder: finding.detail
        for folder, finding in verify_files(services.store, services.store_id(), copies).items()
        if resumed is None or finding.fault is not Fault.MISSING
    }
    broken |= {folder: copy for folder, copy in found.items() if isinstance(copy, str)}
    for folder, detail in broken.items():
        raise Retryable.of(
            "attempts.copy_not_whole", attempt=job.attempt, read=read[folder], folder=folder, detail=detail
        )


def _folders_read(stage: StageToRun, resumed: Collection[str] | None) -> Iterator[str]:
    """Yield the folders of the copies that the job reads of a stage; its own copy may not have been written yet."""
    if stage.copy is not None and stage.copy.binding:
        return  # `whole_copies` compares it
    if stage.resume is not None and (resumed is None or stage.name in resumed):
        yield stage.resume.folder
    if stage.copy is not None and (resumed is None or stage.name not in resumed):
        yield stage.copy.folder


def _with_copy(
    services: Services,
    registered: Registered,
    stage: StageToRun,
    made_from: Mapping[str, str],
    found: Mapping[str, _Found],
) -> StageToRun:
    if stage.name not in made_from:
        return stage
    folder = _folder(registered, stage, registered.attempt.id)
    own = CopyToWrite(folder, services.store.spark_url(folder), made_from[stage.name])
    usable = found.get(stage.name)
    resume = None if usable is None else CopyToRead.of(usable.copy, usable.folder, services.store.spark_url)
    return replace(stage, copy=own, resume=resume)


def _folder(registered: Registered, stage: StageToRun, attempt: str) -> str:
    return attempt_folder(registered.run, stage.name, COPY, stage.subtask, attempt)


def _tries_since_person(services: Services, registered: Registered) -> list[tuple[int, str]]:
    """Return the earlier tries whose copies may be used, newest first; a clear by a person excludes those before it."""
    if registered.origin not in (Origin.RETRY, Origin.CLEARED_BY_WEIR):
        return []
    tries: list[tuple[int, str]] = []
    with services.ledger.transaction() as session:
        for row in attempts_of(session, registered.run.id, registered.attempt.region):
            if row.origin == Origin.CLEARED_BY_PERSON.value:
                tries.clear()
            tries.append((row.try_number, row.id))
    return [each for each in reversed(tries) if each[1] != registered.attempt.id]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Search:
    """Searches for copies from the results backwards.

    Copies of stages before a usable copy are searched in later tries only than the one that wrote it: if the code of
    the usable copy is outdated, that of later tries may be current.
    """

    services: Services
    registered: Registered
    job: RegionJob
    made_from: Mapping[str, str]
    earlier: Sequence[tuple[int, str]]
    after: dict[str, int]
    notes: list[str]

    def run(self) -> dict[str, _Found]:
        """Return the newest usable copy of each stage that has one."""
        self.after.update({stage.name: 0 for stage in self.job.stages if stage.outputs})
        found: dict[str, _Found] = {}
        for stage in reversed(self.job.stages) if self.earlier else ():
            copy = self._newest(stage) if stage.name in self.made_from else None
            if copy is not None:
                found[stage.name] = copy
            for producer in stage.pipelined.values():
                after = self.after[stage.name] if copy is None else copy.try_number
                self.after[producer] = min(after, self.after.get(producer, after))
        return found

    def _newest(self, stage: StageToRun) -> _Found | None:
        for try_number, attempt in self.earlier:
            if try_number > self.after[stage.name]:
                folder = _folder(self.registered, stage, attempt)
                copy = self._usable(stage, folder)
                if copy is not None:
                    return _Found(try_number, folder, copy)
        return None

    def _usable(self, stage: StageToRun, folder: str) -> StageCopy | None:
        copy = _described(self.services, folder)
        if copy is None:
            return None
        why = copy if isinstance(copy, str) else self._why_not(stage, folder, copy)
        if why:
            self.notes.append(f"the copy of {stage.name} in {folder} is not used: {why}")
            return None
        return copy if isinstance(copy, StageCopy) else None

    def _why_not(self, stage: StageToRun, folder: str, copy: StageCopy) -> str:
        if copy.made_from != self.made_from[stage.name]:
            return "it was made from other inputs or settings"
        damaged = self._damaged_inputs(stage, copy)
        if damaged:
            return f"it was read from results of {', '.join(sorted(damaged))}, whose bytes were found damaged later"
        return self._why_not_whole(folder, copy)

    def _damaged_inputs(self, stage: StageToRun, copy: StageCopy) -> set[str]:
        """Return the attempts with a damaged result that the copy was computed from: it reads what the job reads."""
        by_name = {each.name: each for each in self.job.stages}
        inputs = [read for name in _with_upstream(by_name, stage.name) for read in by_name[name].inputs]
        read_from = {
            (part.stage, part.subtask, part.layout or read.layout.id) for read in inputs for part in read.partitions
        }
        with self.services.ledger.transaction() as session:
            found = damaged_results(session, copy.inputs)
        return {attempt for attempt, *partition in found if tuple(partition) in read_from}

    def _why_not_whole(self, folder: str, copy: StageCopy) -> str:
        """Check that its bytes are present and correct, and that copies that it was computed from are not damaged."""
        before = {each: _described(self.services, each) for each in copy.copies}
        files = {each: found.files for each, found in before.items() if isinstance(found, StageCopy)}
        broken = verify_files(self.services.store, self.services.store_id(), {folder: copy.files, **files})
        for each, finding in broken.items():
            if each == folder:
                return f"{finding.fault.value}, {finding.detail}"
            if finding.fault is Fault.DAMAGED:
                return f"it was made from the copy in {each}, and that is damaged: {finding.detail}"
        return next(
            (f"it was made from the copy in {each}: {why}" for each, why in before.items() if isinstance(why, str)), ""
        )


def _described(services: Services, folder: str) -> StageCopy | str | None:
    """Read the copy in a folder; returns the error if it cannot be read, and None if there is none."""
    try:
        return from_json(StageCopy, services.store.read(f"{folder}/{COPY_NAME}"))
    except NotFound:
        return None
    except Misconfigured as error:
        return str(error)


def _made_from(job: RegionJob, stage: str, digests: Digests) -> str:
    """Return the SHA-256 of all inputs and settings of a stage that the coordinator knows, as the job states them."""
    by_name = {each.name: each for each in job.stages}
    upstream = _with_upstream(by_name, stage)
    document = {
        "epoch": job.epoch,
        "interval": job.interval,
        "parameters": job.parameters,
        "spark": job.spark_conf,
        "stages": [_definition(each, digests) for each in job.stages if each.name in upstream],
    }
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def _with_upstream(by_name: Mapping[str, StageToRun], stage: str) -> Iterable[str]:
    return reachable([stage], lambda name: by_name[name].pipelined.values())


def _definition(stage: StageToRun, digests: Digests) -> dict[str, object]:
    return {
        "name": stage.name,
        "function": stage.function,
        "subtask": stage.subtask,
        "parallelism": stage.parallelism,
        "pipelined": stage.pipelined,
        "split": stage.split,
        "inputs": [_input(each, digests[stage.name, each.argument]) for each in stage.inputs],
    }


def _input(read: InputToRead, digests: Sequence[str]) -> list[object]:
    partitions = [[part.stage, part.subtask, part.run] for part in read.partitions]
    kept = None if read.filter is None else [read.filter.layout.id, read.filter.key_groups]
    read_from = [read.argument, read.layout.id, read.key_groups, kept, read.declared_schema]
    return [*read_from, partitions, list(digests)]
