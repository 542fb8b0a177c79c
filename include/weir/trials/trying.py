"""`weir.run_stage`: computes one stage in a notebook; and what `weir try` has in common with it.

Invariants: the store that a trial writes to is a folder of its own, which is deleted at its end: with the process,
where a DataFrame may still read it. Each trial has a process of its own (`python -m weir_spark.region.trial`), on a
local Spark: Python workers of another one would keep the modules that they have imported, and the settings of a session
of the user stay as they are.
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, cast

import pyarrow as pa
import pyarrow.parquet as pq
from sqlalchemy.orm import Session

from weir.coordination.services import Services
from weir.environment import opened_services
from weir.errors import EngineLost, Misconfigured
from weir.formats.checks import CheckReport
from weir.formats.manifest import ContentDigest, together
from weir.formats.programs import RowsToCompare, TrialAnswer, TrialRequest
from weir.formats.region_job import OutputReport, RegionReport
from weir.java import spark_environment
from weir.ledger.runs import runs_of
from weir.reading.choosing import run_named
from weir.secrecy import without_secrets
from weir.state.spark_schema import arrow_schema, spark_ddl
from weir.store.store import Store
from weir.trials.declared import AS_IT_WAS, NEWEST, Declared, Wanted, declared_in, modules_beside
from weir.trials.on_run import opened_on_run
from weir.trials.on_samples import interval_of, reads_stored, trial_on_samples
from weir.trials.trial import Trial
from weir.typed_json import message_from_json, message_to_json


def scratch_in(folder: Path) -> Store:
    """Make a store of a trial's own in a folder."""
    scratch = Store.open(str(folder / "store"))
    scratch.initialise()
    return scratch


@contextmanager
def opened_trial(
    wanted: Wanted, scratch: Store, services: Services | None = None, environ: Mapping[str, str] = os.environ
) -> Iterator[Trial]:
    """Describe what is to be computed, of a DAG file; raises as `trial_of`."""
    with trial_of(declared_in(wanted.file, wanted.stage, wanted.dataflow, environ), wanted, scratch, services) as trial:
        yield trial


@contextmanager
def trial_of(declared: Declared, wanted: Wanted, scratch: Store, services: Services | None = None) -> Iterator[Trial]:
    """Describe what is to be computed, and lease what it reads until the end.

    Raises Misconfigured, which says what to do where a stage cannot be tried so, Unreadable and Retryable.
    """
    if wanted.code not in (NEWEST, AS_IT_WAS):
        raise Misconfigured.of("trials.code_choice_unknown", code=wanted.code, newest=NEWEST, as_it_was=AS_IT_WAS)
    if wanted.code == AS_IT_WAS and wanted.samples is not None:
        raise Misconfigured.of("trials.code_without_run")
    with modules_beside(declared.file), ExitStack() as closing:
        if wanted.samples is not None:
            yield trial_on_samples(declared, wanted, scratch)
        elif not reads_stored(declared.flow, wanted.stage) and wanted.code == NEWEST:
            yield _on_any(declared, wanted, scratch, services, closing)
        else:
            services = services or _services(closing)
            yield closing.enter_context(_on_run(services, declared, wanted, scratch))


def _services(closing: ExitStack) -> Services:
    try:
        return closing.enter_context(opened_services())
    except Misconfigured as error:
        raise Misconfigured.of("trials.no_ledger", error=error) from error


def _on_any(declared: Declared, wanted: Wanted, scratch: Store, services: Services | None, closing: ExitStack) -> Trial:
    """Describe the trial of a stage that reads nothing stored: of the run, or of the interval alone without one."""
    try:
        services = services or closing.enter_context(opened_services())
        with services.ledger.transaction() as session:
            _require_run(session, declared, wanted)
    except Misconfigured as error:
        start, end = interval_of(wanted.epoch, wanted.until)
        trial = trial_on_samples(declared, wanted, scratch)
        until = "" if wanted.until else ": --until names another end"
        note = (
            f"there is no run to take the interval from ({error}). It is {start:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M}"
        )
        return replace(trial, notes=(f"{note}{until}", *trial.notes))
    return closing.enter_context(_on_run(services, declared, wanted, scratch))


def _require_run(session: Session, declared: Declared, wanted: Wanted) -> str:
    """Return the name of the run: the newest that has begun, unless one is named. Raises Misconfigured."""
    if wanted.epoch is not None:
        try:
            return str(run_named(session, declared.flow.name, wanted.epoch).id)
        except Misconfigured as error:
            raise Misconfigured.of("trials.run_unknown", error=error) from error
    begun = [row.id for row in runs_of(session, declared.flow.name) if row.pinned is not None]
    if not begun:
        raise Misconfigured.of("trials.no_run", flow=declared.flow.name)
    return str(begun[-1])


@contextmanager
def _on_run(services: Services, declared: Declared, wanted: Wanted, scratch: Store) -> Iterator[Trial]:
    if wanted.until is not None:
        raise Misconfigured.of("trials.interval_of_run")
    with services.ledger.transaction() as session:
        run = _require_run(session, declared, wanted)
    with opened_on_run(services, declared, wanted, run, scratch) as trial:
        yield trial


# What has come out


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the jobs of a trial have computed."""

    trial: Trial
    reports: tuple[RegionReport, ...]

    @property
    def rows(self) -> int:
        """The number of rows of all subtasks that were computed."""
        return sum(each.digest.rows for each in self._outputs)

    @property
    def schema(self) -> str:
        """The columns of the stage, as Spark DDL."""
        return spark_ddl(self._outputs[0].spark_schema)

    @property
    def digests(self) -> dict[int, str]:
        """The digest of each subtask that was computed: that which a task would record."""
        pairs = zip(self.trial.request.jobs, self._outputs, strict=True)
        return {job.subtask: str(output.digest) for job, output in pairs}

    @property
    def digest(self) -> str:
        """The digest of all rows."""
        return together(self.content_digests)

    @property
    def content_digests(self) -> tuple[ContentDigest, ...]:
        """The digests of the subtasks, in order."""
        return tuple(each.digest for each in self._outputs)

    @property
    def rows_to_compare(self) -> RowsToCompare:
        """The rows of all subtasks, which lie in the store of the trial."""
        store = Store.open(self.trial.request.jobs[0].store)
        files = [store.spark_url(f"{each.folder}/{file.name}") for each in self._outputs for file in each.files]
        return RowsToCompare(files=tuple(files), spark_schema=self._outputs[0].spark_schema, columns=())

    @property
    def is_as_recorded(self) -> bool | None:
        """Whether all digests are those that the run has recorded; None where it has none of one of them."""
        found = self.digests
        if not found.keys() <= self.trial.recorded.keys():
            return None
        return all(self.trial.recorded[subtask] == digest for subtask, digest in found.items())

    @property
    def changes(self) -> dict[str, tuple[int | None, int]]:
        """By state: how many rows would be written (None: not counted), and how many it would have."""
        found: dict[str, tuple[int | None, int]] = {}
        for output in (each for report in self.reports for each in report.outputs):
            if output.stage != self.trial.request.stage:
                changed, rows = found.get(output.stage, (0, 0))
                own = None if output.state is None else output.state.changed
                total = None if changed is None or own is None else changed + own
                found[output.stage] = (total, rows + output.digest.rows)
        return found

    @property
    def checks(self) -> tuple[CheckReport, ...]:
        """The results of the quality gates of the stage and its states."""
        return tuple(each for report in self.reports for each in report.checks)

    @property
    def seconds(self) -> dict[str, float]:
        """The seconds that each step took, of all subtasks."""
        found: dict[str, float] = {}
        for step, seconds in (each for report in self.reports for each in report.metrics.items()):
            found[step] = round(found.get(step, 0.0) + seconds, 3)
        return found

    @property
    def _outputs(self) -> Sequence[OutputReport]:
        stage = self.trial.request.stage
        return [next(each for each in report.outputs if each.stage == stage) for report in self.reports]


class TriedStage(Outcome):
    """What `weir.run_stage` returns: the rows, and what a task would record about them.

    The rows lie in a folder that is deleted when the process ends.
    """

    def arrow(self) -> pa.Table:
        """Read all rows into memory."""
        schema = arrow_schema(self._outputs[0].spark_schema)
        read = partial(pq.read_table, columns=schema.names, coerce_int96_timestamp_unit="us")
        tables = (read(file).select(schema.names).cast(schema) for file in self.files)
        return pa.concat_tables([schema.empty_table(), *tables])

    def spark(self, session: Any) -> Any:
        """Give all rows as a DataFrame of `session`, which must be able to read this machine's files."""
        if not self.files:
            return session.createDataFrame([], self.schema)
        return session.read.schema(self.schema).parquet(*self.files)

    @property
    def files(self) -> list[str]:
        """The Parquet files with the rows."""
        return [each.removeprefix("file://") for each in self.rows_to_compare.files]


def run_stage(
    file: str | Path,
    stage: str,
    epoch: str | None = None,
    *,
    samples: str | Path | None = None,
    until: str | None = None,
    dataflow: str | None = None,
    code: Literal["newest", "as_it_was"] = "newest",
    subtask: int | None = None,
    services: Services | None = None,
) -> TriedStage:
    """Compute one stage of the dataflow that a DAG file declares, on a local Spark, and store nothing.

    `epoch` names a run as in `weir.open` (None: the newest): its results are read, leased meanwhile. With `samples`, a
    folder with a Parquet, CSV or JSON file for each input, no run is needed; `epoch` and `until` are the interval then.
    `code` is the code on this machine, or that which has computed the stage in the run. `subtask` is one of several
    (None: all). The rows are given by `arrow()` and `spark(session)`; `schema`, `digest`, `digests`, `is_as_recorded`,
    `changes`, `checks` and `seconds` describe them. Ledger and store are those of the environment, or of the local
    stack, unless `services` are given.

    Raises Misconfigured for what cannot be tried and for an error of the stage's own code, with its lines; Unreadable
    for inputs that cannot be read, Retryable, and EngineLost.
    """
    wanted = Wanted(
        file=Path(file),
        stage=stage,
        epoch=epoch,
        until=until,
        samples=None if samples is None else Path(samples),
        dataflow=dataflow,
        code=code,
        subtask=subtask,
        shown=0,
    )
    folder = Path(tempfile.mkdtemp(prefix="weir-try-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with opened_trial(wanted, scratch_in(folder), services) as trial:
        answer, _ = computed(trial.request, folder, os.environ)
    if answer.error:
        raise Misconfigured.of(
            "trials.stage_failed",
            stage=stage,
            run=trial.run or trial.dataflow,
            error=answer.error,
            traceback=answer.traceback,
        )
    return TriedStage(trial, answer.reports)


_STANDARD_ERROR: Final = 2


def computed(request: TrialRequest, folder: Path, environ: Mapping[str, str]) -> tuple[TrialAnswer, pa.Table | None]:
    """Try a stage on a local Spark; return the answer and the rows to show (None after an error of the stage).

    `folder` is that of the trial. What the stage's code prints goes to the standard error. Raises EngineLost if
    the program fails.
    """
    asked, answer, rows, log = (folder / name for name in ("request.json", "answer.json", "rows.arrow", "log"))
    asked.write_text(message_to_json(request))
    with log.open("wb") as errors:
        done = subprocess.run(
            [sys.executable, "-m", "weir_spark.region.trial", str(asked), str(answer), str(rows)],
            env=spark_environment(environ, folder, None),
            stdin=subprocess.DEVNULL,
            stdout=_STANDARD_ERROR,
            stderr=errors,
            check=False,
        )
    if done.returncode:
        said = without_secrets(" ".join(log.read_text(errors="replace").split()))[-500:] or "without a message"
        raise EngineLost.of("trials.spark_ended", returncode=done.returncode, said=said)
    found = message_from_json(TrialAnswer, answer.read_text())
    if found.error:
        return found, None
    with pa.OSFile(str(rows)) as file, pa.ipc.open_stream(file) as stream:
        return found, cast("pa.Table", stream.read_all())
