"""An engine without Spark: it writes results that depend on their inputs and on nothing else.

Invariant: equal inputs, equal functions and equal worlds give equal digests, as deterministic stages do. Copies are
written, read and resumed from as the real job does. All expectations asked for are evaluated, and none that has passed
before; rows that were restored are compared with their record. A list state is a hash, then the elements as JSON, then
zeroes: each epoch adds one element to each subtask's list. Broadcast state depends on the epochs and the world only.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import replace
from typing import Any

from weir.code.archive import archive_of
from weir.dataflow.quality import Policy
from weir.dataflow.resolving import ResolveContext
from weir.dataflow.state import Incremental, StateKind
from weir.dataflow.state_schema import fields_of_ddl, spark_json
from weir.errors import Internal
from weir.formats.checks import BUILT_IN, CheckReason, CheckReport, CheckToRun, ExpectationResult
from weir.formats.codec import from_json, to_json
from weir.formats.manifest import (
    COPY_NAME,
    ContentDigest,
    DataFile,
    Manifest,
    Segment,
    StageCopy,
    UpdateDigest,
    WriteEstimate,
    is_chain,
    parsed_digest,
)
from weir.formats.paths import folder_of, source_copy_folder
from weir.formats.region_job import (
    CheckJob,
    CompactionJob,
    CopyToWrite,
    InputToRead,
    OutputReport,
    OutputToWrite,
    RegionJob,
    RegionReport,
    RestoredToCheck,
    SparkJob,
    StageToRun,
    StateReport,
    StateToRead,
    has_source_copy,
)
from weir.formats.suite import Severity
from weir.state.operator_state import own_elements
from weir.store.copying import copy_outputs
from weir.store.errors import AlreadyExists, NotFound
from weir.store.store import Store
from weir.testing.fakes.code import edit_of
from weir.topology.partitions import PLAIN

TAIL = 16
"""Bytes at the end of a fake file that stand for indexes and footer."""

SCHEMA = json.dumps({"type": "struct", "fields": [{"name": "k", "type": "long", "nullable": True, "metadata": {}}]})


class FakeEngine:
    """Computes a region: the content of a stage is a hash of its name, its inputs' contents, its split and its world.

    `world` maps a stage to anything that its content depends on besides its inputs; change it to change the content.
    The edits of the code that a job names count, too. What the world has under `schema of <stage>` is the fingerprint
    of the stage's columns, and under `<state> in <epoch>` all
    that the content of a keyed state depends on in that epoch.
    """

    def __init__(self, store: Store, world: Mapping[str, Any], code: str = "code") -> None:
        self._store = store
        self._world = world
        self.code = code
        self.computed: list[str] = []
        """Each stage that was computed, in order; one that was read from a copy is not among them."""
        self.looks_at: dict[str, Collection[str]] = {}
        """By stage, what its function looks at in its context of what differs between epochs."""
        self.padding: dict[str, int] = {}
        """By stage, how many bytes its results have besides their content."""
        self._edits: Mapping[str, int] = {}
        self.violated: dict[str, Collection[str]] = {}
        """By stage, the types of expectations that its rows violate; of what was restored under `restored <stage>`."""

    def run(self, job: SparkJob, during: Callable[[], None] = lambda: None) -> RegionReport:
        """Run a job of any kind: read all inputs, write all copies, call `during`, then write all outputs."""
        match job:
            case CompactionJob():
                return self._merged(job, during)
            case CheckJob():
                return self._checked(job, during)
            case RegionJob():
                return self._region(job, during)
        raise Internal.of("testing.no_such_fake", name=type(job).__name__)

    def _checked(self, job: CheckJob, during: Callable[[], None]) -> RegionReport:
        during()
        found = tuple(report for each in job.to_check for report in self._of_restored("", each, job.why))
        return RegionReport(attempt=job.attempt, outputs=(), code=self.code, session={}, metrics={}, checks=found)

    def _region(self, job: RegionJob, during: Callable[[], None]) -> RegionReport:
        found = self._restored(job)
        code = self._code_of(job)
        if any(each.violated for each in found):
            return RegionReport(attempt=job.attempt, outputs=(), code=code, session={}, metrics={}, checks=found)
        taken = self._taken(job, code)
        if taken is not None:
            during()
            rows = {each.stage: str(each.digest) for each in taken.outputs}
            published = {
                of: rows[each.name] for each in job.stages if not each.function for of in each.pipelined.values()
            }
            return replace(taken, checks=(*found, *stage_reports(job, taken.outputs, published, self.violated)))
        self._edits = self._edits_of(job)
        resumed = {
            each.name
            for each in job.stages
            if each.resume is not None and (each.resume.code == code or has_source_copy(each))
        }
        needed = _needed(job, resumed)
        contents: dict[str, str] = {}
        for stage in job.stages:
            if stage.name in needed:
                contents[stage.name] = (
                    self._resumed(stage) if stage.name in resumed else self._computed(stage, contents)
                )
                if stage.copy is not None and stage.name not in resumed:
                    contents[stage.name] = self._copy(job, stage, stage.copy, contents[stage.name])
        during()
        for stage in job.stages:
            self._read_copy(stage, resumed, needed)
        outputs = tuple(
            self._state(job, stage, output, contents)
            if stage.keeps_state_of and output.layout.keys
            else self._write(stage, output, *self._of_stage(job, stage, contents))
            for stage in job.stages
            for output in stage.outputs
        )
        resumed_here = tuple(each.name for each in job.stages if each.name in resumed & needed)
        checks = (*found, *stage_reports(job, outputs, contents, self.violated))
        return RegionReport(
            attempt=job.attempt,
            outputs=outputs,
            code=code,
            session={},
            metrics={"compute": 0.0},
            resumed=resumed_here,
            checks=checks,
            looked_at=self._looked_at(job, needed - resumed),
        )

    def _looked_at(self, job: RegionJob, computed: Set[str]) -> tuple[str, ...] | None:
        """Return what functions have looked at; None where one was not called, since its rows were copied before."""
        if any(stage.function and stage.name not in computed for stage in job.stages):
            return None
        return tuple(sorted({name for stage in job.stages for name in self.looks_at.get(stage.name, ())}))

    def _taken(self, job: RegionJob, code: str) -> RegionReport | None:
        """Copy what another attempt has made of the same; None where there is nothing, or it was made by other code."""
        take = job.take
        if take is None or take.code != code:
            return None
        own = [output for stage in job.stages for output in stage.outputs]
        if copy_outputs(self._store, take.outputs, own):
            return None
        outputs = tuple(replace(written, folder=to.folder) for written, to in zip(take.outputs, own, strict=True))
        found = RegionReport(attempt=job.attempt, outputs=outputs, code=code, session={}, metrics={"take": 0.0})
        return replace(found, taken=take.attempt, looked_at=take.looked_at)

    def _restored(self, job: RegionJob) -> tuple[CheckReport, ...]:
        """Return the checks of inputs that were restored."""
        return tuple(
            report
            for stage in job.stages
            for read in stage.inputs
            for each in read.restored
            for report in self._of_restored(read.argument, each, CheckReason.RESTORED)
        )

    def _of_restored(self, argument: str, restored: RestoredToCheck, why: CheckReason) -> Iterator[CheckReport]:
        unmet = {*self.violated.get(f"restored {restored.stage}", ()), *self._unlike_record(restored)}
        return restored_reports(argument, restored, why, unmet)

    def _unlike_record(self, restored: RestoredToCheck) -> Iterator[str]:
        """Find what is not as recorded: each result has one row, and the first digits of its content are the digest."""
        files = restored.files if restored.state is None else [file.path for file in restored.state.files]
        if files and not is_chain(restored.digest):
            if parsed_digest(restored.digest).xor != int(self._read(files[-1])[:15], 16):
                yield "weir_digest_as_recorded"
            if restored.rows != 1:
                yield "weir_rows_as_recorded"

    def _edits_of(self, job: RegionJob) -> dict[str, int]:
        """Return, by stage, the edits of the functions in the archive that the job names."""
        if job.code is None:
            return {}
        archive = archive_of(self._store.read(job.code.path), job.code.archive)
        return {each.name: edit_of(archive, each.function) for each in job.stages if each.function}

    def _code_of(self, job: RegionJob) -> str:
        return self.code if job.code is None else job.code.version

    def _computed(self, stage: StageToRun, contents: Mapping[str, str]) -> str:
        self.computed.append(stage.name)
        return self._content(stage, contents)

    def _resumed(self, stage: StageToRun) -> str:
        (file,) = stage.resume.files if stage.resume is not None else ()
        return self._store.read(self._path(file))[:64].decode()

    def _read_copy(self, stage: StageToRun, resumed: Set[str], needed: Set[str]) -> None:
        """Read a cached stage output as its consumers do; Spark reads lazily, so that it may be missing by then."""
        copy = stage.resume if stage.name in resumed else stage.copy
        if copy is None or stage.name not in needed:
            return
        binding = "" if stage.copy is None else stage.copy.binding
        described = from_json(StageCopy, self._store.read(binding or f"{copy.folder}/{COPY_NAME}"))
        folder = source_copy_folder(binding, described.attempt) if binding else copy.folder
        for file in described.files:
            if self._store.size(f"{folder}/{file.name}") != file.bytes:
                raise OSError(f"{folder}/{file.name} is truncated")

    def _copy(self, job: RegionJob, stage: StageToRun, copy: CopyToWrite, content: str) -> str:
        """Copy a stage, and return the content of its copy: that of a source is the one which was described first."""
        written = self._write(stage, OutputToWrite(PLAIN, copy.folder, copy.spark_folder), content)
        described = StageCopy(
            dataflow=job.dataflow,
            epoch=job.epoch,
            region=job.region,
            stage=stage.name,
            subtask=stage.subtask,
            attempt=job.attempt,
            made_from=copy.made_from,
            code=self._code_of(job),
            session={},
            spark_schema=written.spark_schema,
            digest=written.digest,
            files=written.files,
            inputs=tuple({part.attempt for each in job.stages for read in each.inputs for part in read.partitions}),
            copies=tuple(each.copy.folder for each in _before(job, stage) if each.copy is not None),
        )
        try:
            self._store.create(copy.binding or f"{copy.folder}/{COPY_NAME}", to_json(described))
        except AlreadyExists:
            first = from_json(StageCopy, self._store.read(copy.binding))
            self._store.delete_folder(copy.folder)
            folder = source_copy_folder(copy.binding, first.attempt)
            return self._store.read(f"{folder}/{first.files[0].name}")[:64].decode()
        return content

    def _state(
        self, job: RegionJob, stage: StageToRun, output: OutputToWrite, contents: Mapping[str, str]
    ) -> OutputReport:
        """Write a file that extends those of the previous epoch, with a row that describes all of them."""
        keeper = next(each for each in job.stages if each.name == stage.keeps_state_of)
        read = next(each.state for each in keeper.inputs if each.argument == stage.name)
        if read is None:
            raise Internal.of("testing.state_without_description", stage=stage.name)
        before = [self._read(file.path) for file in read.files]
        own = self._world.get(f"{stage.name} in {job.epoch}", [contents[stage.name], before[-1:]])
        content = hashlib.sha256(json.dumps(own).encode()).hexdigest()
        written = self._write(stage, output, content)
        tally = UpdateDigest(read.updated, 1, written.digest.xor, 0, 0)
        schema = spark_json(fields_of_ddl(read.state.schema))
        estimate = self._estimate(read, content)
        is_full = read.is_full or (estimate is not None and estimate.is_full)
        report = StateReport((tally,), 1, is_full, estimate=estimate)
        return replace(written, spark_schema=schema, state=report)

    @staticmethod
    def _estimate(read: StateToRead, content: str) -> WriteEstimate | None:
        """Estimate both ways to write by the content: by the sizes of these files one would always be less."""
        if read.state.incremental is not Incremental.AUTO or read.is_full or not read.files:
            return None
        return WriteEstimate(full=1000 + 100 * int(content[:2], 16), changes=10_000, compaction=4_000)

    def _merged(self, job: CompactionJob, during: Callable[[], None]) -> RegionReport:
        """Merge sorted runs of a state: the content of the result is that of the newest file."""
        newest = [[self._read(file.path) for file in merge.state.files][-1] for merge in job.merges]
        during()
        outputs = tuple(
            self._write_of(merge.stage, OutputToWrite(merge.layout, merge.folder, merge.spark_folder), content)
            for merge, content in zip(job.merges, newest, strict=True)
        )
        return RegionReport(attempt=job.attempt, outputs=outputs, code=self.code, session={}, metrics={})

    def _of_stage(self, job: RegionJob, stage: StageToRun, contents: Mapping[str, str]) -> tuple[str, bytes]:
        """Return a plain result's content, and further bytes of its file."""
        if not stage.keeps_state_of:
            return contents[stage.name], b""
        return next_operator_state(job, stage, contents, self._world, lambda file: self._store.read(self._path(file)))

    def _content(self, stage: StageToRun, contents: Mapping[str, str]) -> str:
        read = [contents[name] for name in stage.pipelined.values()]
        read += [self._read(file) for each in stage.inputs for file in _files(each)]
        nature = [stage.name, stage.subtask, self._world.get(stage.name)]
        if stage.split is not None:
            nature.append(stage.split)
        if self._edits.get(stage.name):
            nature.append(self._edits[stage.name])
        own = "" if stage.function == "" else json.dumps(nature)
        return hashlib.sha256(json.dumps([own, sorted(read)]).encode()).hexdigest()

    def _path(self, spark_path: str) -> str:
        return spark_path.removeprefix(self._store.spark_url("").rstrip("/") + "/")

    def _read(self, spark_path: str) -> str:
        path = self._path(spark_path)
        data = self._store.read(path)
        with suppress(NotFound):  # what a compaction has written has none
            manifest = from_json(Manifest, self._store.read(folder_of(path) + "/manifest.json"))
            if len(data) != manifest.files[0].bytes:
                raise OSError(f"{path} is truncated")
        return data[:64].decode()

    def _write(self, stage: StageToRun, output: OutputToWrite, content: str, more: bytes = b"") -> OutputReport:
        written = self._write_of(stage.name, output, content, more)
        return replace(written, digest=replace(written.digest, rule=stage.digest.fingerprint))

    def _write_of(self, stage: str, output: OutputToWrite, content: str, more: bytes = b"") -> OutputReport:
        data = content.encode() + more + b"\0" * (self.padding.get(stage, 0) + TAIL)
        self._store.create(f"{output.folder}/part-0.bin", data)
        body, tail = data[:-TAIL], data[-TAIL:]
        segments = (
            Segment(0, len(body), hashlib.sha256(body).hexdigest()),
            Segment(len(body), TAIL, hashlib.sha256(tail).hexdigest(), is_tail=True),
        )
        file = DataFile("part-0.bin", 1, len(data), hashlib.sha256(data).hexdigest(), segments)
        schema = str(self._world.get(f"schema of {stage}", "k:bigint"))
        xor, version = int(content[:15], 16), output.digest_version
        digest = ContentDigest(schema=schema, rows=1, xor=xor, low_sum=0, high_sum=0, version=version)
        return OutputReport(
            stage=stage, layout=output.layout, folder=output.folder, spark_schema=SCHEMA, digest=digest, files=(file,)
        )


def _files(read: InputToRead) -> list[str]:
    """Return the files that determine an input's content: of keyed state only the newest file."""
    if read.state is not None and read.layout.keys:
        return [file.path for file in read.state.files[-1:]]
    return [file for part in read.partitions for file in part.files]


def _before(job: RegionJob, stage: StageToRun) -> list[StageToRun]:
    return [each for each in job.stages[: job.stages.index(stage)] if each.copy is not None]


def _needed(job: RegionJob, resumed: Set[str]) -> set[str]:
    """Return the stages that must run: producers of results, up to stages read from the cache, and checked stages."""
    needed: set[str] = set()
    for stage in reversed(job.stages):
        is_read = any(
            stage.name in each.pipelined.values()
            for each in job.stages
            if each.name in needed and each.name not in resumed
        )
        if stage.outputs or stage.checks or is_read:
            needed.add(stage.name)
    return needed


def splits_by_day(context: ResolveContext) -> list[str]:
    """Resolve a source: each subtask reads its part of the interval's first day."""
    return [f"{context.interval[0]:%Y-%m-%d}/{subtask}" for subtask in range(context.parallelism)]


BUILT_IN_TYPES = ("weir_digest_as_recorded", "weir_rows_as_recorded", "weir_schema_as_recorded")
Violated = Mapping[str, Collection[str]]


def stage_reports(
    job: RegionJob, outputs: Iterable[OutputReport], contents: Mapping[str, str], violated: Violated
) -> tuple[CheckReport, ...]:
    """Return the reports of all checks of a job; for rows that are not written the content is the digest."""
    digests = {each.stage: str(each.digest) for each in outputs}
    return tuple(
        _report(stage.name, stage.subtask, digests.get(stage.name) or contents[stage.name], check, violated)
        for stage in job.stages
        for check in stage.checks
    )


def _report(stage: str, subtask: int, digest: str, check: CheckToRun, violated: Violated) -> CheckReport:
    is_same = digest in check.passed
    found = () if is_same else tuple(_results(check, violated.get(stage, ())))
    suite = check.suite
    return CheckReport(
        stage, subtask, suite.name, suite.fingerprint, check.policy, check.why, digest, 1, found, 0.0, is_same
    )


def _results(check: CheckToRun, violated: Collection[str]) -> Iterator[ExpectationResult]:
    for each in check.suite.expectations:
        is_met = each.type not in violated
        count = None if is_met else 1
        yield ExpectationResult(
            each.type, each.kwargs, each.severity, is_met, None, 1, count, ("bad",)[:count], each.blames
        )


def restored_reports(
    argument: str, restored: RestoredToCheck, why: CheckReason, unmet: Collection[str]
) -> Iterator[CheckReport]:
    """Give the checks of what was restored: first what is built in, then the suites."""
    stage, subtask = restored.stage, restored.subtask
    found = tuple(ExpectationResult(each, {}, Severity.FAIL, each not in unmet) for each in BUILT_IN_TYPES)
    built_in = CheckReport(stage, subtask, BUILT_IN, "", Policy.FAIL, why, restored.digest, 1, found, 0.0)
    suites = [_report(stage, subtask, restored.digest, check, {stage: unmet}) for check in restored.checks]
    for report in (built_in, *suites):
        yield replace(report, argument=argument, run=restored.run, layout=restored.layout.id, attempt=restored.attempt)


def next_operator_state(
    job: RegionJob,
    stage: StageToRun,
    contents: Mapping[str, str],
    world: Mapping[str, Any],
    read: Callable[[str], bytes],
) -> tuple[str, bytes]:
    """Return the new value of a state that is not keyed: the content's hash, and its elements as bytes.

    An element of a list is the epoch, the subtask that added it, and the content of the stage that keeps it. The
    value in `world` for a broadcast state is part of its content; for "name[1]" only in subtask 1, as in a wrong stage.
    """
    keeper = next(each for each in job.stages if each.name == stage.keeps_state_of)
    given = next(each for each in keeper.inputs if each.argument == stage.name)
    if given.state is None:
        raise Internal.of("testing.state_without_description", stage=stage.name)
    lists = [
        [element for file in part.files for element in elements_of(read(file))]
        for part in sorted(given.partitions, key=lambda each: each.subtask)
    ]
    if given.state.state.kind is StateKind.BROADCAST:
        of_all = world.get(stage.name)
        elements = [*(lists[0] if lists else []), job.epoch, str(world.get(f"{stage.name}[{stage.subtask}]", of_all))]
    else:
        mine = f"{job.epoch}/{stage.subtask}/{contents[keeper.name][:6]}"
        elements = [*own_elements(lists, stage.parallelism, stage.subtask), mine]
    data = json.dumps(elements).encode()
    return hashlib.sha256(data).hexdigest(), data


def elements_of(data: bytes) -> list[str]:
    """Return the elements in a file of such a state."""
    elements: list[str] = json.loads(data[64:].rstrip(b"\0"))
    return elements
