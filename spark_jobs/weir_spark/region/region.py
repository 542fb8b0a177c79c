"""Runs a Spark job; the stages of a region as one plan. Invariant: a stage is computed once, however often used."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from weir.code.elsewhere import modules_elsewhere
from weir.code.functions import check_call, load
from weir.code.hints import hint_of
from weir.code.sql_rules import is_sql, text_of
from weir.code.time_and_chance import told_by_time_or_chance
from weir.code.version import code_version
from weir.connections import FROM_ENVIRONMENT, LookUps
from weir.dataflow.state import StateKind
from weir.errors import Internal, Misconfigured, WeirError, first_line
from weir.formats.region_job import (
    CheckJob,
    CodeToRun,
    CompactionJob,
    InputToRead,
    OutputReport,
    OutputToWrite,
    RegionJob,
    RegionReport,
    SparkJob,
    StageToRun,
    StateToRead,
)
from weir.intervals import interval_of
from weir.store.catalogue import read_archive
from weir.store.copying import copy_outputs
from weir.store.store import Store
from weir.units import format_size
from weir.wording import shortened
from weir_spark.checks.integrity import check_all
from weir_spark.files.failures import file_of, refusal_in
from weir_spark.files.misfits import PLACE, place_of
from weir_spark.region.archive import Imported, imported_from
from weir_spark.region.context import StageContext, observed
from weir_spark.region.copies import Copies
from weir_spark.region.names import NotItsOwn, OwnNames, fixed
from weir_spark.region.region_checks import RegionChecks, computed_for_checks, require_known_expectations
from weir_spark.region.sql import READ_FAILED, check_query, rows_of_query
from weir_spark.region.temporary import Temporary
from weir_spark.results import writer
from weir_spark.results.reader import read_input
from weir_spark.session import Log, active, configure, measured, packages, sql_settings
from weir_spark.state.compaction import compact
from weir_spark.state.keyed_state import KeyedState
from weir_spark.state.operator_state import BroadcastState, ListState, write_operator_state
from weir_spark.state.read_only import StateOfOther
from weir_spark.state.reader import StoredState
from weir_spark.state.writer import write_state

Handle = KeyedState | ListState | BroadcastState
"""The handle of a state for the stage that keeps it."""

ReadApplication = Callable[[str, StageToRun, SparkJob, SparkSession, Store], DataFrame]

_IN_KEY = frozenset({"subtask", "parallelism", "parameters", "create_file"})
"""What functions may look at that is the same for all results of one key."""

_OF_WEIR = "weir_spark."
"""Functions of these modules read sources, and make no names."""

_READS_FILES, _AS_LISTED = "weir_spark.sources.files:read", "weir_spark.sources.files:as_listed"


def run(
    job: SparkJob,
    session: SparkSession,
    store: Store,
    log: Log = print,
    look_ups: LookUps = FROM_ENVIRONMENT,
    read_application: ReadApplication | None = None,
) -> RegionReport:
    """Run a job of any kind: compute a region, merge its state, or check stored results.

    The outputs are written, the report is returned; `look_ups` is for functions. `read_application` gives the rows of
    a stage's application, which runs only where regions are submitted. Works on Spark Connect and on a session of its
    own. Raises Misconfigured if a stage is not what it should be; errors of the stages' own code
    and of Spark pass through.
    """
    match job:
        case CompactionJob():
            return compact(job, session, store, log)
        case CheckJob():
            return check_all(job, session, log)
        case RegionJob():
            code = _code_of(job)
            with active(session), imported_from(read_archive(code, store)) as imported:
                return _Execution(
                    job=job,
                    code=code.version,
                    imported=imported,
                    session=session,
                    store=store,
                    log=log,
                    look_ups=look_ups.hiding(),
                    read_application=read_application,
                ).run()
    raise Internal.of("region.job_of_other_kind", name=type(job).__name__)


@dataclass(slots=True, kw_only=True)
class _Execution:
    """One run of one job; `seconds` has the duration of each step."""

    job: RegionJob
    code: str
    imported: Imported
    session: SparkSession
    store: Store
    log: Log
    look_ups: LookUps
    read_application: ReadApplication | None
    seconds: dict[str, float] = field(default_factory=dict)
    states: dict[str, Handle] = field(default_factory=dict)
    """The handles of states, by name."""
    looked_at: set[str] = field(default_factory=set)
    """What functions have looked at in their context."""
    vouched_for: set[str] = field(default_factory=set)
    """What those have looked at that somebody vouches for: of them only what is of the epoch counts."""
    elsewhere: dict[str, bytes] = field(default_factory=dict)
    """The modules that the archive's import, and that no archive and no version of a distribution tells of."""
    not_shared: str = ""
    """Why nobody takes its results, and it takes none."""
    names: OwnNames = field(init=False)
    temporary: Temporary = field(init=False)

    def __post_init__(self) -> None:
        self.temporary = Temporary(self.job, self.store, self.log)
        texts = (text for name, text in self.imported.archive.files.items() if name.endswith(".py"))
        self.names = OwnNames(self.session, has_global=any(b"global" in text.lower() for text in texts))

    def run(self) -> RegionReport:
        with measured(self.seconds, "prepare"):
            _check_functions(self.job, self.imported)
            require_known_expectations(self.job)
            settings = configure(self.session, self.job.spark_conf)
            if self.job.made_of:
                archived = self.imported.archive.top_level
                settings |= {"python.packages": packages(archived), "spark.sql": sql_settings(self.session)}
                settings |= self._code_elsewhere()
            self.imported.ship(self.session)
            for note in self.job.notes:
                self.log(note)
        checks = RegionChecks(self.job, self.session, self.store, self.log, self.seconds)
        found = checks.restored()
        report = RegionReport(
            attempt=self.job.attempt,
            outputs=(),
            code=self.code,
            session=settings,
            metrics=self.seconds,
            checks=found,
        )
        if any(each.violated for each in found):
            return report
        taken = self._taken(settings)
        if taken is not None:
            return replace(report, **taken, checks=found + checks.taken(taken["outputs"], self._states_to_check()))
        copies = Copies(
            job=self.job, session=self.session, store=self.store, code=self.code, settings=settings, log=self.log
        )
        with self._located(copies.computed), self.temporary:
            results = self._results(copies)
            outputs = tuple(
                self._write(results[stage.name], stage, output) for stage in self.job.stages for output in stage.outputs
            )
            found += checks.written(results, outputs, self.states)
        self.imported.require_all()
        looked_at = self._looked_at(copies.computed)
        return replace(report, outputs=outputs, resumed=copies.resumed_from, checks=found, looked_at=looked_at)

    def _code_elsewhere(self) -> dict[str, str]:
        """Return, as what a session has, the version of the code that functions reach outside of the archive."""
        files = self.imported.archive.files
        try:
            self.elsewhere = modules_elsewhere(files)
        except WeirError as error:
            self.not_shared = str(error)
        if not self.elsewhere:
            return {}
        functions = [each.function for each in self.job.stages if each.function and not _is_of_weir(each)]
        return {"python.elsewhere": code_version({**self.elsewhere, **files}, functions)}

    def _taken(self, settings: dict[str, str]) -> dict[str, Any] | None:
        """Return what the report has of results that are taken; None where they are computed, and the log says why."""
        take = self.job.take
        if take is None:
            return None
        own = [output for stage in self.job.stages for output in stage.outputs]
        why = "it was made by other code, or in a session of other settings or versions"
        uncounted = [each.stage for each in take.outputs if each.state and each.state.tallies is None]
        if self.not_shared:
            why = self.not_shared
        elif any(_counting(self.job, name) for name in uncounted):
            why = f"a suite asks for the number of rows of {', '.join(uncounted)}, which it has not counted"
        elif (take.code, take.session) == (self.code, settings):
            with measured(self.seconds, "take"):
                why = copy_outputs(self.store, take.outputs, own)
        if why:
            self.log(f"what attempt {take.attempt} has made of the same is not taken: {why}")
            return None
        self.log(f"taken: attempt {take.attempt} of {take.run} has made it of the same")
        outputs = tuple(replace(each, folder=to.folder) for each, to in zip(take.outputs, own, strict=True))
        return {"outputs": outputs, "taken": take.attempt, "looked_at": take.looked_at}

    def _states_to_check(self) -> dict[str, Handle]:
        """Return the handles of states that are checked, as their stages would be given them."""
        checked = {stage.name for stage in self.job.stages if stage.checks and stage.keeps_state_of}
        return {
            read.argument: self._handle(stage, read, read.state)
            for stage in self.job.stages
            for read in stage.inputs
            if read.state is not None and read.state.epoch is not None and read.argument in checked
        }

    def _looked_at(self, computed: Collection[StageToRun]) -> tuple[str, ...] | None:
        """Return what functions have looked at in their context; None where another task may not take the results."""
        if not self.job.made_of or not self.looked_at <= {*self.job.context, *_IN_KEY}:
            return None
        if any(stage.function and stage not in computed for stage in self.job.stages):
            return None  # what the try has looked at whose copy this one reads is not known
        functions = [
            stage.function
            for stage in self.job.stages
            if stage.function and not stage.is_vouched_for and not _is_of_weir(stage)
        ]
        files = {**self.elsewhere, **self.imported.archive.files}
        told = self.not_shared or told_by_time_or_chance(files, functions) or self._changed_source()
        if told:
            self.log(f"no other task takes these results: {told}")
            return None
        return tuple(sorted((self.looked_at | self.vouched_for) & self.job.context.keys()))

    def _changed_source(self) -> str:
        """Say which files of a source have changed since it began to read them; empty where none has."""
        for stage in self.job.stages:
            if stage.function == _READS_FILES:
                try:
                    load(_AS_LISTED, _owner(stage))(stage.split, self.look_ups.connection)
                except WeirError as error:
                    return str(error)
        return ""

    def _results(self, copies: Copies) -> dict[str, DataFrame]:
        """Build the DataFrame of each stage that is needed; those used more than once are computed now, and once.

        By `localCheckpoint`, not `persist`: a persisted plan is shared by all sessions of a server and outlives a
        killed one, so that a try could be given rows of an edited function's old form; it is also computed again if
        an executor is lost, and two outputs could then disagree. A checkpoint goes with its session. Where a stage has
        a copy, all that follows reads that.
        """
        shared = _used_more_than_once(copies.computed)
        results: dict[str, DataFrame] = {}
        for stage in self.job.stages:
            if stage.name in copies.needed and stage.name in copies.resumed:
                results[stage.name] = copies.resume(stage)
            elif stage.name in copies.needed:
                rows = self._planned(stage, results)
                copies.computes(stage)
                results[stage.name] = self._kept(stage, rows, copies, shared)
        return results

    def _planned(self, stage: StageToRun, results: dict[str, DataFrame]) -> DataFrame:
        with measured(self.seconds, f"plan {stage.name}"):
            try:
                rows = self._call(stage, results)
                if (stage.outputs or stage.copy) and not stage.keeps_state_of:
                    writer.check_rows(rows, stage.name, [output.layout for output in stage.outputs], stage.digest)
            except AnalysisException as error:
                if error.getCondition() in READ_FAILED:
                    error.add_note(self._within([stage], error))
                    raise
                raise self._refused(stage, error) from error
            except NotItsOwn as error:
                where = self._where(error) or self._where(error.__cause__ or error)
                raise Misconfigured.of("region.not_its_own", error=error, where=where) from error
            except WeirError:
                raise
            except Exception as error:
                error.add_note(self._within([stage], error))
                raise
        return rows

    @contextmanager
    def _located(self, computed: Sequence[StageToRun]) -> Iterator[None]:
        """Let an error tell its stage, where Spark says enough: it computes those of a region as one plan."""
        try:
            yield
        except WeirError:
            raise
        except Exception as error:
            if not hasattr(error, "__notes__"):
                error.add_note(self._within([each for each in computed if each.function], error))
            raise

    def _within(self, stages: Sequence[StageToRun], error: Exception) -> str:
        site, place = self.imported.site_of(error), self.imported.place_of(error)
        if len(stages) > 1:
            own = [each for each in stages if site is not None and self.imported.has(site, each.function)]
            stages = own or _reading(stages, error) or stages
        names = ", ".join(each.name for each in stages)
        where = f"stage {names}" if len(stages) == 1 else f"one of the stages {names}, which Spark computes together"
        self._find_line_of(error)
        return (f"in {where}, {place}" if place else f"in {where}") + hint_of(error)

    def _find_line_of(self, error: Exception) -> None:
        """Have an error about a line of a file know its number, column and value: for who translates it."""
        refused = refusal_in(error)
        try:
            setattr(error, PLACE, place_of(self.session, refused) if refused else "")
        except Exception as trouble:  # noqa: BLE001  the error itself names the file and the text of the line
            self.log(f"The number of the line is not known: {trouble}")

    def _refused(self, stage: StageToRun, error: AnalysisException) -> Misconfigured:
        """Return the error about a plan that Spark refuses; on Connect it does so after the function has returned."""
        said, where = first_line(error), self._where(error)
        return Misconfigured.of("region.plan_refused", owner=_owner(stage), said=said, where=where)

    def _where(self, error: BaseException) -> str:
        place = self.imported.place_of(error)
        return f"\n{place}" if place else ""

    def _kept(self, stage: StageToRun, rows: DataFrame, copies: Copies, shared: Set[str]) -> DataFrame:
        """Return the rows as later stages and outputs read them."""
        if stage.copy is not None:
            with measured(self.seconds, f"copy {stage.name}"):
                return copies.write(stage, rows)
        # Spark computes anew what it loses of persisted rows: what is written could be others than are checked.
        if stage.is_persisted and not stage.checks:
            return self.temporary.persist(stage.name, rows)
        if stage.name not in shared:
            return rows
        self.log(f"computing {stage.name}, which is used more than once")
        with measured(self.seconds, f"compute {stage.name}"):
            return rows.localCheckpoint(eager=True)

    def _call(self, stage: StageToRun, results: dict[str, DataFrame]) -> DataFrame:
        inputs: dict[str, Any] = {argument: results[producer] for argument, producer in stage.pipelined.items()}
        if not stage.function:
            return _only(inputs, stage)
        if stage.application is not None:
            assert self.read_application is not None  # noqa: S101  other engines refuse it
            return self.read_application(_owner(stage), stage, self.job, self.session, self.store)
        inputs.update((read.argument, self._input(stage, read)) for read in stage.inputs)
        looked_at = self.vouched_for if stage.is_vouched_for else self.looked_at
        if is_sql(stage.function):
            text, context = _sql(stage, self.imported), self._context(stage)
            rows = rows_of_query(_owner(stage), stage.function, text, context, inputs, self.log, looked_at)
            return fixed(rows)
        function = load(stage.function, _owner(stage))
        is_of_weir = stage.function.startswith(_OF_WEIR)
        context = self._context(stage) if is_of_weir else observed(self._context(stage), looked_at)
        given = [context, stage.split][: len(_positional(stage))]
        if is_of_weir:
            result = function(*given, **inputs)
            _ = result.schema  # Spark Connect would refuse it later, as a plan of another stage
            return result  # type: ignore[no-any-return, unused-ignore]  # a function gives Any
        with self.names.of(_owner(stage)):
            result = function(*given, **inputs)
            _check_result(result, stage, self.session)
            for handle in (given for given in inputs.values() if isinstance(given, KeyedState | BroadcastState)):
                handle.fix(fixed)
            return fixed(result)

    def _input(self, stage: StageToRun, read: InputToRead) -> DataFrame | Handle | StateOfOther:
        if read.state is None:
            return read_input(self.session, read)
        handle = self._handle(stage, read, read.state)
        if read.state.epoch is None:
            return StateOfOther(handle, read.state.state.name, stage.name)
        self.states[read.argument] = handle
        return handle

    def _handle(self, stage: StageToRun, read: InputToRead, kept: StateToRead) -> Handle:
        if kept.state.kind is StateKind.KEYED:
            stored = StoredState(self.session, kept, read.key_groups)
            return KeyedState(stored, counted_by=_counting(self.job, kept.state.name))
        if kept.state.kind is StateKind.BROADCAST:
            return BroadcastState(kept.state, self.session, read)
        return ListState(
            state=kept.state, session=self.session, given_as=read, subtask=stage.subtask, parallelism=stage.parallelism
        )

    def _context(self, stage: StageToRun) -> StageContext:
        start, end = (datetime.fromisoformat(text) for text in self.job.interval)
        return StageContext(
            epoch=self.job.epoch,
            interval=interval_of(start, end),
            zone=self.job.zone,
            subtask=stage.subtask,
            parallelism=stage.parallelism,
            parameters=self.job.parameters,
            spark=self.session,
            connection=self.look_ups.connection,
            variable=self.look_ups.variable,
            create_file=partial(self.temporary.create_file, stage.name),
        )

    def _write(self, result: DataFrame, stage: StageToRun, output: OutputToWrite) -> OutputReport:
        name = f"{stage.name} ({output.layout.id})"
        self.log(f"writing {name}")
        if stage.keeps_state_of:
            return self._write_state(stage, output)
        with measured(self.seconds, f"write {name}"):
            written = writer.write(result, stage.name, output, stage.digest)
        with measured(self.seconds, f"seal {name}"):
            report = writer.report(written, stage.name, output, self.store)
        size = sum(file.bytes for file in report.files)
        self.log(f"wrote {name}: {report.digest.rows:,} rows, {format_size(size)}, {len(report.files)} file(s)")
        return report

    def _write_state(self, stage: StageToRun, output: OutputToWrite) -> OutputReport:
        handle = self.states[stage.name]
        with measured(self.seconds, f"write {stage.name}"):
            if not isinstance(handle, KeyedState):
                return write_operator_state(handle, stage.name, output, self.store)
            report = write_state(handle, stage.name, output, self.store)
        changed = 0 if report.state is None else report.state.changed
        bounds = None if report.state is None else report.state.rows
        rows = f"{report.digest.rows:,}" if bounds is None else f"at most {bounds.most:,}"
        self.log(f"wrote state {stage.name}: {changed:,} rows changed, {rows} in all")
        return report


def _counting(job: RegionJob, state: str) -> tuple[str, ...]:
    """Return the expectations of the number of rows of a state."""
    suites = [check.suite for stage in job.stages if stage.name == state for check in stage.checks]
    return tuple(each.type for suite in suites for each in suite.expectations if "table_row_count" in each.type)


def _code_of(job: RegionJob) -> CodeToRun:
    if job.code is None:
        raise Misconfigured.of("region.job_without_code", region=job.region)
    return job.code


def _check_functions(job: RegionJob, imported: Imported) -> None:
    """Find the errors that can be found before a stage is computed: names and parameters of functions, SQL files."""
    for stage in job.stages:
        arguments = (*stage.pipelined, *(read.argument for read in stage.inputs))
        if is_sql(stage.function):
            check_query(_owner(stage), stage.function, _sql(stage, imported), arguments, job.parameters)
        elif stage.function and stage.application is None:
            check_call(load(stage.function, _owner(stage)), _owner(stage), _positional(stage), arguments)


def _sql(stage: StageToRun, imported: Imported) -> str:
    found = imported.archive.files.get(stage.function)
    if found is None:
        raise Misconfigured.of("region.sql_file_missing", owner=_owner(stage), function=stage.function)
    return text_of(found, f"{_owner(stage)}: {stage.function}")


def _owner(stage: StageToRun) -> str:
    return f"stage {stage.name}"


def _positional(stage: StageToRun) -> tuple[str, ...]:
    return ("ctx",) if stage.split is None else ("ctx", "split")


def _is_of_weir(stage: StageToRun) -> bool:
    return stage.function.startswith(_OF_WEIR)


def _only(inputs: dict[str, DataFrame], stage: StageToRun) -> DataFrame:
    if len(inputs) != 1:
        raise Internal.of("region.sink_inputs", stage=stage.name, inputs=sorted(inputs))
    return next(iter(inputs.values()))


def _check_result(result: Any, stage: StageToRun, session: SparkSession) -> None:
    if not isinstance(result, DataFrame):
        raise Misconfigured.of(
            "region.no_dataframe",
            stage=stage.name,
            function=stage.function,
            type=type(result).__name__,
            result=" (is a `return` missing?)" if result is None else f" {shortened(str(result), 100)!r}",
        )
    if result.sparkSession is not session:
        raise Misconfigured.of("region.dataframe_of_other_session", stage=stage.name, function=stage.function)


def _reading(stages: Sequence[StageToRun], error: Exception) -> list[StageToRun]:
    """Return the sources that were given a file which Spark could not read."""
    path = file_of(error).rpartition("://")[2]
    named = json.dumps(path)[1:-1]
    return [each for each in stages if each.split is not None and path and named in json.dumps(each.split)]


def _used_more_than_once(computed: Sequence[StageToRun]) -> set[str]:
    uses = Counter(producer for stage in computed for producer in stage.pipelined.values())
    uses.update({stage.name: len(stage.outputs) for stage in computed})
    uses.subtract({stage.keeps_state_of: 1 for stage in computed if stage.keeps_state_of})  # that reads its handle
    return {name for name, count in uses.items() if count > 1} | computed_for_checks(computed)
