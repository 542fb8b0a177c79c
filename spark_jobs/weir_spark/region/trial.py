"""Tries a stage: computes its jobs as a task would, into a store that nothing else reads.

Invariant: a job is run by the same code as in a task; only its store is another one, and its samples take the place of
inputs. An error of the stage's own code is answered with the lines of that code.

A value of a sample, which has no schema, is as the sample says it, or the sample is refused. Spark guesses the types of
csv and JSON from all lines. Lines and quotes are read as `files_source` reads them.
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

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from pyspark.sql.types import DoubleType, StringType, StructField, StructType, TimestampNTZType, TimestampType

from weir.connections import FROM_ENVIRONMENT, LookUps
from weir.errors import Misconfigured, WeirError
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
from weir_spark.files.failures import refused_rows, unreadable_file
from weir_spark.files.lines import READER, Lines, read_lines
from weir_spark.files.paths import WHOLE, spark_path
from weir_spark.files.texts import with_texts
from weir_spark.program import session_of_program, write_rows
from weir_spark.region import region
from weir_spark.results import writer
from weir_spark.results.digest import quoted
from weir_spark.results.reader import files_of, read_output
from weir_spark.session import SPARK_ERRORS, Log, active, configure

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
        outputs = outputs_of(request.stage, reports)
        return Tried(reports, reduce(DataFrame.unionByName, [read_output(session, each, store) for each in outputs]))


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
        raise Misconfigured.of(
            "region.sample_unusable",
            argument=sample.argument,
            sample_path=sample.path,
            said=said or _first_lines(error),
        ) from error
    return writer.report(written, sample.argument, output, store)


def _with_samples(job: RegionJob, stage: str, stored: Mapping[str, OutputReport], store: Store) -> RegionJob:
    def read(each: InputToRead) -> InputToRead:
        found = stored.get(each.argument)
        if found is None:
            return each
        part = PartitionToRead(f"the sample {each.argument}", 0, files_of(found, store), job.attempt)
        return replace(each, spark_schema=found.spark_schema, partitions=(part,))

    def given(each: StageToRun) -> StageToRun:
        return replace(each, inputs=tuple(map(read, each.inputs))) if each.name == stage else each

    return replace(job, stages=tuple(map(given, job.stages)))


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
        write_rows(tried.rows.limit(request.shown).toArrow(), given.rows)
        answer = TrialAnswer(tried.reports)
    except Exception as error:  # noqa: BLE001  the stage's code may raise anything
        answer = explained(error)
    finally:
        with suppress(Exception):
            session.stop()
    Path(given.answer).write_text(message_to_json(answer))
    return 0


_CSV: Final[Mapping[str, str]] = {"header": "true", "inferSchema": "true"}
_GUESSED_WRONG: Final = "_corrupt_record"
"""The column that Spark adds where a line of JSON is none."""

_EXACT_DIGITS: Final = 17
"""As many digits as tell one DOUBLE from all others."""


def rows_of_sample(session: SparkSession, sample: Sample) -> DataFrame:
    """Return the rows of a sample. Raises Misconfigured for what Spark would change."""
    if sample.format == "parquet":
        found = session.read.options(**WHOLE, mergeSchema="true").parquet(spark_path(sample.path))
        return with_texts(found, found.schema)
    options = {**READER[sample.format], **(_CSV if sample.format == "csv" else _json_options(sample))}
    path = spark_path(sample.path)
    found = session.read.options(**WHOLE, **options).format(sample.format).load(path).schema
    schema = StructType([each for each in found.fields if each.name != _GUESSED_WRONG])
    lines = Lines(format=sample.format, reader=options, paths=[sample.path], requires_fields=False)
    rows = read_lines(session, lines, schema)
    _require_exact(session, sample, options, schema)
    return rows


def told(error: Exception) -> str | None:
    """Return what an error says of a sample's bytes and lines; None if it is of another kind."""
    return refused_rows(error) or unreadable_file(error, "no store")


def _json_options(sample: Sample) -> Mapping[str, str]:
    """Return the options to read JSON with: it is one object a line, or one array a file."""
    path = Path(sample.path)
    first = next(iter(sorted(each for each in path.rglob("*.json*") if each.is_file())), path)
    with first.open("rb") as file:
        return {"multiLine": str(file.read(100).lstrip().startswith(b"[")).lower()}


def _require_exact(session: SparkSession, sample: Sample, options: Mapping[str, str], schema: StructType) -> None:
    """Refuse numbers and times that have more digits than the type that Spark guesses for their column."""
    inexact = {each.name: _is_inexact(each) for each in schema.fields}
    suspects = {name: condition for name, condition in inexact.items() if condition is not None}
    if not suspects:
        return
    as_text = StructType(
        [StructField(each.name, StringType()) if each.name in suspects else each for each in schema.fields]
    )
    cells = session.read.options(**WHOLE, **options).schema(as_text).format(sample.format).load(spark_path(sample.path))
    found = cells.agg(
        *(F.first(F.when(wrong, F.col(quoted(name))), ignorenulls=True) for name, wrong in suspects.items())
    ).collect()[0]
    for name, value in zip(suspects, found, strict=True):
        if value is not None:
            kind = schema[name].dataType.simpleString().upper()
            raise Misconfigured.of("files.sample_not_exact", name=name, kind=kind, value=value)


def _is_inexact(field: StructField) -> Column | None:
    text = F.col(quoted(field.name))
    if isinstance(field.dataType, (TimestampType, TimestampNTZType)):
        return text.rlike(r"[.,]\d{6}\d*[1-9]")
    if not isinstance(field.dataType, DoubleType):
        return None
    digits = F.regexp_replace(F.regexp_replace(text, "[eE].*$|[^0-9]", ""), "^0+|0+$", "")
    is_beyond = text.rlike(r"\d") & (F.abs(text.try_cast("double")) == F.lit(float("inf")))
    return (F.length(digits) > _EXACT_DIGITS) | is_beyond


if __name__ == "__main__":
    sys.exit(main())
