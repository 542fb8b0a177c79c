"""Reads samples, which have no schema. Invariant: a value is as the sample says it, or the sample is refused.

Spark guesses the types of csv and JSON from all lines. Lines and quotes are read as `files_source` reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from pyspark.sql.types import DoubleType, StringType, StructField, StructType, TimestampNTZType, TimestampType

from weir.errors import Message, Misconfigured
from weir.formats.programs import Sample
from weir_spark.files.failures import refused_rows, unreadable_file
from weir_spark.files.lines import READER, Lines, read_lines
from weir_spark.files.paths import WHOLE, spark_path
from weir_spark.files.texts import with_texts
from weir_spark.results.digest import quoted

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
            raise Misconfigured(Message("files.sample_not_exact", name=name, kind=kind, value=value))


def _is_inexact(field: StructField) -> Column | None:
    text = F.col(quoted(field.name))
    if isinstance(field.dataType, (TimestampType, TimestampNTZType)):
        return text.rlike(r"[.,]\d{6}\d*[1-9]")
    if not isinstance(field.dataType, DoubleType):
        return None
    digits = F.regexp_replace(F.regexp_replace(text, "[eE].*$|[^0-9]", ""), "^0+|0+$", "")
    is_beyond = text.rlike(r"\d") & (F.abs(text.try_cast("double")) == F.lit(float("inf")))
    return (F.length(digits) > _EXACT_DIGITS) | is_beyond
