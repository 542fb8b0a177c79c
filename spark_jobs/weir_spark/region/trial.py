"""Tries a stage: computes its jobs as a task would, into a store that nothing else reads.

Invariant: a job is run by the same code as in a task; only its store is another one, and its samples take the place of
inputs. An error of the stage's own code is answered with the lines of that code.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial, reduce
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from weir.connections import FROM_ENVIRONMENT, LookUps
from weir.errors import Message, Misconfigured, WeirError
from weir.formats.programs import Sample, TrialAnswer, TrialRequest
from weir.formats.region_job import (
    InputToRead,
    OutputReport,
    OutputToWrite,
    PartitionToRead,
    RegionJob,
    RegionReport,
    StageToRun,
)
from weir.store.store import Store
from weir.topology.partitions import PLAIN
from weir.typed_json import message_from_json, message_to_json
from weir.wording import shortened
from weir_spark.files.samples import rows_of_sample, told
from weir_spark.region import region
from weir_spark.results import writer
from weir_spark.results.reader import read_input
from weir_spark.session import SPARK_ERRORS, Log, active, configure, session_of_program

_SHOWN: Final = 2000


@dataclass(frozen=True, slots=True)
class Tried:
    """The reports of the jobs, and the rows of the stage in all of them; they are read when they are used."""

    reports: tuple[RegionReport, ...]
    rows: DataFrame


def compute(
    request: TrialRequest,
    session: SparkSession,
    store: Store,
    log: Log = print,
    look_ups: LookUps = FROM_ENVIRONMENT,
) -> Tried:
    """Run all jobs of a request in a session that has run none before; they write into `store`.

    Raises as `region.run` does, and Misconfigured for a sample that cannot be read.
    """
    with active(session):
        configure(session, {})
        stored = {each.argument: _stored(session, each, store) for each in request.samples}
        jobs = [_with_samples(job, request.stage, stored, store) for job in request.jobs]
        reports = tuple(region.run(job, session, store, log, look_ups) for job in jobs)
        return Tried(reports, _rows(session, store, outputs_of(request.stage, reports)))


def outputs_of(stage: str, reports: Iterable[RegionReport]) -> list[OutputReport]:
    """Return what the jobs wrote of a stage, in one layout each."""
    return [next(each for each in report.outputs if each.stage == stage) for report in reports]


def _stored(session: SparkSession, sample: Sample, store: Store) -> OutputReport:
    """Write a sample as a result, so that it is read, and divided among subtasks, as a result is."""
    folder = f"samples/{sample.argument}"
    output = OutputToWrite(PLAIN, folder, store.spark_url(folder))
    try:
        rows = rows_of_sample(session, sample)
        writer.check_rows(rows, sample.argument, [PLAIN])
        written = writer.write(rows, sample.argument, output)
    except Exception as error:
        said = told(error)
        if said is None and not isinstance(error, (*SPARK_ERRORS, Misconfigured)):
            raise
        raise Misconfigured(
            Message(
                "region.sample_unusable",
                argument=sample.argument,
                sample_path=sample.path,
                said=said or _first_lines(error),
            )
        ) from error
    return writer.report(written, sample.argument, output, store)


def _with_samples(job: RegionJob, stage: str, stored: Mapping[str, OutputReport], store: Store) -> RegionJob:
    def read(each: InputToRead) -> InputToRead:
        found = stored.get(each.argument)
        if found is None:
            return each
        part = PartitionToRead(f"the sample {each.argument}", 0, _files(store, found), job.attempt)
        return replace(each, spark_schema=found.spark_schema, partitions=(part,))

    def given(each: StageToRun) -> StageToRun:
        return replace(each, inputs=tuple(map(read, each.inputs))) if each.name == stage else each

    return replace(job, stages=tuple(map(given, job.stages)))


def _files(store: Store, output: OutputReport) -> tuple[str, ...]:
    return tuple(store.spark_url(f"{output.folder}/{file.name}") for file in output.files)


def _rows(session: SparkSession, store: Store, outputs: Sequence[OutputReport]) -> DataFrame:
    frames = []
    for output in outputs:
        part = PartitionToRead(output.stage, 0, _files(store, output))
        frames.append(
            read_input(
                session,
                InputToRead(
                    argument=output.stage, layout=output.layout, spark_schema=output.spark_schema, partitions=(part,)
                ),
            )
        )
    return reduce(DataFrame.unionByName, frames)


def explained(error: Exception) -> TrialAnswer:
    """Return the answer about an error: what it says, and the lines of the stage's own code that led to it."""
    kind = "" if isinstance(error, WeirError) else f"{type(error).__name__}: "
    return TrialAnswer(error=f"{kind}{_first_lines(error)}", traceback=_own_lines(error))


def _own_lines(error: Exception) -> str:
    """Return the traceback from the stage's function on, with file names as in the archive."""
    traced = [each for each in (error, error.__cause__) if each is not None]
    frames = [frame for each in traced for frame in traceback.extract_tb(each.__traceback__)]
    own = [place for place, each in enumerate(frames) if "weir-code-" in each.filename]
    if not own:
        return ""
    lines = "".join(traceback.format_list([frames[place] for place in own]))
    roots = {frames[place].filename.partition("/modules/")[0] + "/modules/" for place in own}
    return reduce(lambda text, root: text.replace(root, ""), roots, lines)


def _first_lines(error: Exception) -> str:
    """Return what an error says, without the plans and stack traces that Spark appends."""
    text = str(error).strip()
    for mark in (";\n'", ";\n+-", "\n\nJVM stacktrace", "\n\tat "):
        text = text.partition(mark)[0]
    return shortened(text, _SHOWN)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the trial that the command line names; return the exit code."""
    parser = argparse.ArgumentParser(description="Try a stage on a Spark of its own.")
    for name in ("request", "answer", "rows"):
        parser.add_argument(name)
    given = parser.parse_args(arguments)
    request = message_from_json(TrialRequest, Path(given.request).read_text())
    # What only a start can set is set here, too.
    quick = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "8"}
    session = session_of_program("weir try", None, {**quick, **request.jobs[0].spark_conf})
    try:
        tried = compute(request, session, Store.open(request.jobs[0].store), partial(print, file=sys.stderr))
        _write(tried.rows.limit(request.shown).toArrow(), Path(given.rows))
        answer = TrialAnswer(tried.reports)
    except Exception as error:  # noqa: BLE001  the stage's code may raise anything
        answer = explained(error)
    finally:
        with suppress(Exception):
            session.stop()
    Path(given.answer).write_text(message_to_json(answer))
    return 0


def _write(table: pa.Table, path: Path) -> None:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table)


if __name__ == "__main__":
    sys.exit(main())
