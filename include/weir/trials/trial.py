"""A trial: the jobs that compute one stage, into a scratch store that is deleted when the trial ends.

Invariants: a job of a trial has only the stages that the tried one needs, and only that one, with its states, is
written and checked. Nothing is written anywhere else.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from weir.code.archive import Archive
from weir.code.version import code_version
from weir.dataflow import Dataflow
from weir.dataflow.stage import Stage, StageKind
from weir.errors import Misconfigured
from weir.formats.checks import CheckReason, CheckToRun
from weir.formats.paths import archive_path, result_folder
from weir.formats.programs import TrialRequest
from weir.formats.region_job import CodeToRun, OutputToWrite, RegionJob, StageToRun, has_source_copy
from weir.quality.suites import suite_in
from weir.store.store import Store
from weir.topology.ids import FIRST_TRY, AttemptId, AttemptKind, new_attempt_id
from weir.topology.partitions import PLAIN, Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What is computed, and on what; `recorded` are the digests that the run has of the stage, by subtask.

    `run` is empty where no run's inputs are read. `notes` say what a person should know before believing the result.
    """

    request: TrialRequest
    dataflow: str
    run: str
    code: str
    interval: tuple[str, str]
    recorded: Mapping[int, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def plan_of(flow: Dataflow, stage: str) -> tuple[Stage, ...]:
    """Return the stages of the Spark plan that ends with a stage, in order: those that it reads in one task."""
    wanted = {stage}
    for each in reversed(flow.stages):
        if each.name in wanted:
            wanted |= {exchange.stage for exchange in each.exchanges.values() if exchange.joins_plan}
    return tuple(each for each in flow.stages if each.name in wanted)


def new_attempt() -> AttemptId:
    """Return the id of an attempt that no ledger knows."""
    return new_attempt_id(AttemptKind.TASK, uuid.uuid4().hex[:12], FIRST_TRY)


def stored_code(scratch: Store, dataflow: str, archive: Archive, functions: tuple[str, ...]) -> CodeToRun:
    """Put an archive into the scratch store, from which the jobs import."""
    path = archive_path(dataflow, archive.fingerprint, uuid.uuid4().hex[:8])
    scratch.create(path, archive.data)
    return CodeToRun(version=code_version(archive.files, functions), archive=archive.fingerprint, path=path)


def _copies(stage: StageToRun) -> dict[str, Any]:
    """Return which copies a trial uses: it reads what the run has copied of a source, and writes none."""
    return {} if has_source_copy(stage) else {"copy": None, "resume": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trimming:
    """How a region's job becomes one of a trial of `stage`: what is left of it, and where it writes.

    `layouts` are those in which the stage and its states are written; `digest_version` is that of the run's digests.
    """

    flow: Dataflow
    stage: Stage
    layouts: Mapping[str, tuple[Layout, ...]]
    digest_version: int
    expectations: str
    scratch: Store
    code: CodeToRun

    def trimmed(self, job: RegionJob) -> RegionJob:
        """Return the job of the trial."""
        plan = {each.name for each in plan_of(self.flow, self.stage.name)}
        own = {self.stage.name, *(state.name for state in self.stage.states)}
        kept = (
            self._written(job, each) if each.name in own else replace(each, outputs=(), **_copies(each))
            for each in job.stages
            if each.name in plan | own
        )
        return replace(
            job, store=self.scratch.url, code=self.code, stages=tuple(kept), region=self.stage.name, notes=()
        )

    def _written(self, job: RegionJob, stage: StageToRun) -> StageToRun:
        def output(layout: Layout) -> OutputToWrite:
            folder = result_folder(job.dataflow, job.epoch, stage.name, layout.id, job.subtask, job.attempt)
            return OutputToWrite(layout, folder, self.scratch.spark_url(folder), self.digest_version)

        layouts = self.layouts.get(stage.name) or (PLAIN,)
        checks = tuple(self._checks(stage.name))
        return replace(stage, outputs=tuple(map(output, layouts)), checks=checks, **_copies(stage))

    def _checks(self, stage: str) -> Iterator[CheckToRun]:
        for gate in self.flow.stage(stage).gates:
            try:
                suite = suite_in(self.expectations, gate.suite)
            except Misconfigured as error:
                raise Misconfigured.of("trials.checks_unusable", stage=stage, error=error) from error
            yield CheckToRun(suite, gate.policy, CheckReason.FRESH)


def keeper_of(stage: Stage) -> str:
    """Return the stage whose handle has the content of a state; empty for a stage of another kind."""
    return next(iter(stage.exchanges.values())).stage if stage.kind is StageKind.STATE else ""
