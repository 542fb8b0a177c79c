"""Runs the checks of a region. Invariant: written rows are checked as they are read back from their files.

Restored inputs are checked before any stage is computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from weir.errors import Internal, Misconfigured
from weir.formats.checks import CheckReport
from weir.formats.region_job import OutputReport, RegionJob, StageToRun
from weir.store.store import Store
from weir_spark.checks import gx
from weir_spark.checks.gate import Checked, check
from weir_spark.checks.integrity import check_restored
from weir_spark.results.digest import digest_of, quoted
from weir_spark.results.reader import read_output
from weir_spark.session import Log, measured
from weir_spark.state.keyed_state import KeyedState


@dataclass(frozen=True, slots=True)
class RegionChecks:
    """The checks of a job; `seconds` gets the duration of each stage's checks."""

    job: RegionJob
    session: SparkSession
    store: Store
    log: Log
    seconds: dict[str, float]

    def restored(self) -> tuple[CheckReport, ...]:
        """Run the checks of restored inputs."""
        found: list[CheckReport] = []
        for stage in self.job.stages:
            for read in stage.inputs:
                if not read.restored:
                    continue
                with measured(self.seconds, f"check {read.argument} of {stage.name}"):
                    for each in read.restored:
                        found += check_restored(self.session, each, read.argument, log=self.log)
        return tuple(found)

    def taken(self, outputs: Sequence[OutputReport], states: Mapping[str, object]) -> tuple[CheckReport, ...]:
        """Run the checks of outputs that another attempt has computed; `states` are the handles of those checked.

        The rows of a stage that writes nothing are those of its sink.
        """
        written = {each.stage: each for each in outputs}
        published = {
            stage: read_output(self.session, written[sink.name], self.store)
            for sink in self.job.stages
            if not sink.function and sink.name in written
            for stage in sink.pipelined.values()
        }
        return self.written(published, outputs, states)

    def written(
        self,
        results: Mapping[str, DataFrame],
        outputs: Sequence[OutputReport],
        handles: Mapping[str, object],
    ) -> tuple[CheckReport, ...]:
        """Run the checks of written outputs, and of stages that write nothing."""
        found: list[CheckReport] = []
        for stage in self.job.stages:
            if not stage.checks:
                continue
            with measured(self.seconds, f"check {stage.name}"):
                rows, about = self._rows(stage, results, outputs, handles)
                found += [check(rows, each, about, self.log) for each in stage.checks]
        return tuple(found)

    def _rows(
        self,
        stage: StageToRun,
        results: Mapping[str, DataFrame],
        outputs: Sequence[OutputReport],
        handles: Mapping[str, object],
    ) -> tuple[DataFrame, Checked]:
        output = next((each for each in outputs if each.stage == stage.name), None)
        if output is None:
            return results[stage.name], _of_rows(results[stage.name], stage)
        about = Checked(stage=stage.name, subtask=stage.subtask, digest=str(output.digest), rows=output.digest.rows)
        handle = handles.get(stage.name) if stage.keeps_state_of else None
        if isinstance(handle, KeyedState):
            return self._state(output, handle), about
        return read_output(self.session, output, self.store), about

    def _state(self, output: OutputReport, handle: KeyedState) -> DataFrame:
        """Return all visible rows of a keyed state: of the files before this epoch and of those just written."""
        if output.state is None:
            raise Internal.of("region.state_without_tallies", stage=output.stage)
        now = handle.stored.with_written(self.job.epoch, output, self.store)
        return now.rows().select(*map(quoted, now.schema.fieldNames()))


def require_known_expectations(job: RegionJob) -> None:
    """Find mistakes in suites that only Great Expectations finds; a suite that rows have passed has none.

    Raises Misconfigured.
    """
    for stage in job.stages:
        restored = [check for read in stage.inputs for each in read.restored for check in each.checks]
        gx.require_known(check.suite for check in (*stage.checks, *restored) if not check.passed)


def computed_for_checks(stages: Sequence[StageToRun]) -> set[str]:
    """Return the stages that are checked and write nothing: their rows are computed once and read by all checks."""
    return {stage.name for stage in stages if stage.checks and not stage.outputs}


def _of_rows(rows: DataFrame, stage: StageToRun) -> Checked:
    """Describe the rows of a stage that writes nothing; the digest is empty where their types have none."""
    try:
        digest = digest_of(rows, stage.digest)
    except Misconfigured:
        return Checked(stage=stage.name, subtask=stage.subtask, digest="", rows=rows.count())
    return Checked(stage=stage.name, subtask=stage.subtask, digest=str(digest), rows=digest.rows)
