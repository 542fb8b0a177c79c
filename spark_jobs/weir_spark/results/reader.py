"""Reads an input from the store. Invariant: exactly the files that its manifests name, or an error; no more, no fewer.

An input with a declared schema has these columns in every epoch, in the first one without rows. Where Spark cannot read
a file, the error names the result partition and the attempt; the store decides later whether the file is lost.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.errors import ParseException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from pyspark.sql.types import IntegerType, StructType

from weir.errors import InputUnreadable, Misconfigured
from weir.formats.manifest import READ_OPTIONS
from weir.formats.paths import folder_of
from weir.formats.region_job import InputToRead, OutputReport, RegionJob, SparkJob, StageToRun
from weir.store.store import Store
from weir.topology.partitions import KEY_GROUP_COLUMN, KeyFilter
from weir_spark.results.digest import quoted, type_signature
from weir_spark.results.writer import key_group

_UNREADABLE = re.compile(r"\[(FAILED_READ_FILE\.(?:FILE_NOT_EXIST|NO_HINT|CANNOT_READ_FILE_FOOTER)|PATH_NOT_FOUND)\]")
"""Spark's conditions; others of FAILED_READ_FILE are of types and file systems, and come again with each try."""

_FILE = re.compile(r"(?:[^/\s]+/){4}[^/\s]+\.parquet")
"""The end of a result file's path: stage, layout, subtask, attempt, file. Spark spells these as Weir does."""

_PARTS = 5


def read_input(session: SparkSession, read: InputToRead) -> DataFrame:
    """Read the recorded files by their recorded schema, of the wanted keys only; without the key-group column.

    No directory is listed, so that no schema and no partition column is guessed from other files in it.
    Raises Misconfigured if names or types are not those of the declared schema.
    """
    declared = _declared(session, read) if read.declared_schema else None
    if declared is not None and not read.partitions:
        return session.createDataFrame([], declared)
    schema = schema_of(read.spark_schema)
    rows = _rows(session, read, schema)
    if declared is None:
        return rows
    _require_equal(schema, declared, read)
    return rows.select(*[F.col(quoted(name)) for name in declared.fieldNames()])


def schema_of(spark_schema: str) -> StructType:
    """Return a recorded schema, which is Spark's JSON."""
    return StructType.fromJson(json.loads(spark_schema))


def with_key_groups(schema: StructType) -> StructType:
    """Return the columns of the files of a keyed layout."""
    return StructType([*schema.fields]).add(KEY_GROUP_COLUMN, IntegerType())


def read_files(session: SparkSession, files: Sequence[str], schema: StructType) -> DataFrame:
    """Read files, which may be none, by their schema; also only some of their columns."""
    if not files:
        return session.createDataFrame([], schema)
    return session.read.options(**READ_OPTIONS).schema(schema).parquet(*files)


def files_of(output: OutputReport, store: Store) -> tuple[str, ...]:
    """Return the paths of an output's files, as Spark spells them."""
    return tuple(store.spark_url(f"{output.folder}/{file.name}") for file in output.files)


def read_output(session: SparkSession, output: OutputReport, store: Store) -> DataFrame:
    """Read an output as it was written, without the key-group column."""
    return read_files(session, files_of(output, store), schema_of(output.spark_schema))


def _rows(session: SparkSession, read: InputToRead, schema: StructType) -> DataFrame:
    groups = read.key_groups if read.layout.keys else None
    divided = [file for part in read.partitions if groups is not None and not part.layout for file in part.files]
    whole = [file for part in read.partitions if groups is None or part.layout for file in part.files]
    rows = read_files(session, whole, schema)
    if whole and read.filter is not None:
        rows = rows.where(_is_kept(read, read.filter, schema))
    if groups is None or not divided:
        return rows
    own = read_files(session, divided, with_key_groups(schema))
    own = own.where(F.col(KEY_GROUP_COLUMN).between(*groups)).drop(KEY_GROUP_COLUMN)
    return own.union(rows) if whole else own


def _is_kept(read: InputToRead, wanted: KeyFilter, schema: StructType) -> Column:
    """Return the condition by which the writer of the wanted layout would have put a row in one of these key groups."""
    return key_group(schema, read.partitions[0].stage, wanted.layout).between(*wanted.key_groups)


def _declared(session: SparkSession, read: InputToRead) -> StructType:
    try:
        return session.createDataFrame([], read.declared_schema).schema
    except ParseException as error:
        raise Misconfigured.of(
            "results.schema_malformed", argument=read.argument, declared_schema=read.declared_schema, error=error
        ) from error


def _require_equal(found: StructType, declared: StructType, read: InputToRead) -> None:
    """Compare names and types, not order and nullability: a stage takes its columns by name."""
    if types_of(found) == types_of(declared):
        return
    written = read.partitions[0]
    raise Misconfigured.of(
        "results.schema_differs",
        argument=read.argument,
        declared=shown(declared),
        stage=written.stage,
        found=shown(found),
    )


def types_of(schema: StructType) -> dict[str, Any]:
    """Return the types of columns, without nullability and metadata."""
    return {field.name: type_signature(field.dataType) for field in schema.fields}


def shown(schema: StructType) -> str:
    """Return columns for a message."""
    return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema.fields)


def unreadable_input(error: Exception, job: SparkJob) -> InputUnreadable | None:
    """Return the error to raise in the place of `error` if Spark could not read an input or a copy, else None.

    Spark Connect gives the condition and the path their own fields, a classic session only the text of Java's trace.
    """
    message = str(error)
    condition = _UNREADABLE.search(message)
    if condition is None or not isinstance(job, RegionJob):
        return None
    read = {"/".join(file.split("/")[-_PARTS:]): what for file, what in _files(job)}
    for found in _FILE.finditer(message, condition.start()):
        what = read.get(found.group()) or _own_copy(job, found.group())
        if what is not None:
            return InputUnreadable.of(
                "results.input_unreadable",
                region=job.region,
                what=what,
                condition=condition[1],
                group=found.group(),
            )
    return None


def _files(job: RegionJob) -> Iterator[tuple[str, str]]:
    """Yield the files that the job reads, each with a description of the input or copy that it is of."""
    for stage in job.stages:
        for read in stage.inputs:
            for part in read.partitions:
                run, layout = f" of {part.run}" if part.run else "", part.layout or read.layout.id
                what = (
                    f"{part.stage}[{part.subtask}] ({layout}){run} of attempt {part.attempt}, which "
                    f"{stage.name} reads as {read.argument!r}"
                )
                yield from ((file, what) for file in part.files)
        if stage.resume is not None:
            yield from ((file, _copy(stage, stage.resume.attempt)) for file in stage.resume.files)


def _own_copy(job: RegionJob, file: str) -> str | None:
    folder = folder_of(file)
    own = (each for each in job.stages if each.copy is not None and each.copy.folder.endswith(f"/{folder}"))
    return next((_copy(stage, job.attempt) for stage in own), None)


def _copy(stage: StageToRun, attempt: str) -> str:
    return f"the copy of {stage.name}[{stage.subtask}] of attempt {attempt}"
