"""Reads the listed files of a source. Invariant: all of its subtasks have the same columns, with or without files.

A column may be in the names of folders. Where the files have it, too, theirs is read, and a row that contradicts its
folder is an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any, Final
from urllib.parse import unquote

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from pyspark.sql.types import (
    ByteType,
    DataType,
    DateType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
)

from weir.errors import Misconfigured
from weir_spark.files.exact import ExactReading, has_null
from weir_spark.files.failures import raising
from weir_spark.files.lines import CORRUPT_FILE, CORRUPT_RECORD, Lines, read_lines
from weir_spark.files.paths import WHOLE, spark_path
from weir_spark.files.texts import decoded, file_of_row, refusing, with_texts
from weir_spark.results.digest import quoted
from weir_spark.sources.folders import NULL, values_of

_OF_FOLDERS: Final = {"INT": IntegerType(), "BIGINT": LongType(), "DATE": DateType(), "STRING": StringType()}
"""The types that names of folders have where no schema is given."""


def rows_of(spark: SparkSession, split: Mapping[str, Any], paths: Sequence[str]) -> DataFrame:
    """Return the rows of the files at `paths`, which may be none, with the columns of all files of the source.

    Raises Misconfigured where files disagree, and for the text of csv and JSON.
    """
    whole = _schema(spark, split)
    if not paths:
        return spark.createDataFrame([], _with_malformed(whole, split))
    apart = {each["name"] for each in split["folders"] if not each["in_file"]}
    stored = StructType([each for each in whole.fields if each.name not in apart])
    if split["format"] == "parquet":
        rows = _parquet(spark, split, paths, stored)
    else:
        rows = read_lines(spark, _lines(split, paths, apart), stored)
    if not split["folders"]:
        return _without_nulls(rows, whole, split)
    columns = _with_malformed(whole, split).fieldNames()
    rows = _without_nulls(_with_folders(rows, split["folders"], whole, paths), whole, split)
    return rows.select(*map(quoted, columns))


def _parquet(spark: SparkSession, split: Mapping[str, Any], paths: Sequence[str], schema: StructType) -> DataFrame:
    """Return the rows of Parquet files.

    Whole numbers that a narrower column has not are refused, as Spark wraps them, and so are texts that are none, which
    Spark's functions change: where they are used, so that no column is read for its texts.
    """
    narrow = [each for each in schema.fields if isinstance(each.dataType, (ByteType, ShortType))]
    wide = StructType([StructField(each.name, IntegerType()) if each in narrow else each for each in schema.fields])
    rows = spark.read.schema(wide).options(**WHOLE).options(**split["reader"]).parquet(*map(spark_path, paths))
    for each in narrow:
        value, kind = F.col(quoted(each.name)), each.dataType
        fits = value.try_cast(kind) == value
        rows = _where_held(rows, each, fits, F.concat(F.lit("has the value "), value.cast("string")))
        rows = rows.withColumn(each.name, value.try_cast(kind))
    return with_texts(rows, schema)


def _without_nulls(rows: DataFrame, schema: StructType, split: Mapping[str, Any]) -> DataFrame:
    """Return rows that are refused where a column is null that is declared NOT NULL: Spark forgets that of files."""
    for each in schema.fields if "schema" in split else ():
        column = F.col(quoted(each.name))
        inside = has_null(column, each.dataType)
        if each.nullable and inside is None:
            continue
        is_held = F.lit(True) if each.nullable else column.isNotNull()  # noqa: FBT003
        if inside is not None:
            is_held &= ~F.coalesce(inside, F.lit(False))  # noqa: FBT003
        if split["on_malformed"] == "keep":
            is_held |= F.col(CORRUPT_RECORD).isNotNull()
        told = F.concat(F.lit(f"the column {each.name} has null where schema= says NOT NULL, in "), file_of_row(rows))
        rows = rows.where(F.when(is_held, F.lit(True)).otherwise(raising(told)))  # noqa: FBT003
    return rows


def _where_held(rows: DataFrame, column: StructField, holds: Column, found: Column) -> DataFrame:
    """Return rows that are refused where a column has a value that is not of its type."""
    value = F.col(quoted(column.name))
    is_held = F.when(value.isNull() | holds, F.lit(True))  # noqa: FBT003
    return rows.where(is_held.otherwise(refusing(rows, column, found)))


def _schema(spark: SparkSession, split: Mapping[str, Any]) -> StructType:
    """Return the columns that the split's source has in all subtasks. Raises Misconfigured where files disagree."""
    if "schema" in split:
        return spark.createDataFrame([], split["schema"]).schema
    like = [split["like"]] if isinstance(split["like"], str) else split["like"]
    reader = spark.read.options(**WHOLE).options(**split["reader"])
    if len(like) > 1:
        reader = reader.option("mergeSchema", "true")
    try:
        found = reader.parquet(*map(spark_path, like)).schema
    except Exception as error:  # a classic session raises py4j's
        if "CANNOT_MERGE" not in str(error):
            raise
        types = str(error)[str(error).find("[CANNOT_MERGE") :].partition("\n\tat ")[0].strip()  # without Java's lines
        raise Misconfigured.of("sources.types_differ", like=like[:5], types=types) from error
    for each in split["folders"]:
        if not each["in_file"]:
            found = found.add(each["name"], _OF_FOLDERS[each["type"]])
    return found


def _with_malformed(schema: StructType, split: Mapping[str, Any]) -> StructType:
    if split["on_malformed"] != "keep":
        return schema
    return StructType([*schema.fields]).add(CORRUPT_RECORD, "string").add(CORRUPT_FILE, "string")


def _lines(split: Mapping[str, Any], paths: Sequence[str], apart: Set[str]) -> Lines:
    return Lines(
        format=split["format"],
        reader=split["reader"],
        paths=paths,
        keeps_malformed=split["on_malformed"] == "keep",
        requires_fields=split["if_missing"] != "null",
        is_whole=split["is_whole"],
        of_folders=frozenset(apart),
    )


def _with_folders(
    rows: DataFrame, columns: Sequence[Mapping[str, Any]], schema: StructType, paths: Sequence[str]
) -> DataFrame:
    """Return rows, straight from their files, with these columns; those that are `in_file` are compared only."""
    for each in columns:
        value = _value(rows, each["folder"], paths)
        typed = _typed(value, schema[each["name"]].dataType)
        where = F.concat(F.lit(f"the folder's {each['folder']}="), value, F.lit(" of "), file_of_row(rows))
        wrong = raising(F.concat(where, F.lit(f" is no {each['type'].upper()}, as schema= says")))
        known = F.when(value.isNotNull() & typed.isNull(), wrong).otherwise(typed)
        if each["in_file"]:
            column = F.col(quoted(each["name"]))
            text = F.coalesce(column.cast("string"), F.lit("null"))
            told = F.concat(where, F.lit(" is contradicted by a row: "), text)
            rows = rows.where(F.when(column.eqNullSafe(known), F.lit(True)).otherwise(raising(told)))  # noqa: FBT003
        else:
            rows = rows.withColumn(each["name"], known)
    return rows


def _typed(text: Column, kind: DataType) -> Column:
    """Return the value of a folder's text, null if it would be another one, as for a value of csv."""
    exact = ExactReading("csv", frozenset(), frozenset({"NaN", "Infinity", "-Infinity"}))
    return text.try_cast(kind) if exact.is_plain(kind) else exact.value(text, kind)


def _value(rows: DataFrame, folder: str, paths: Sequence[str]) -> Column:
    """Return the text of the folder's value: of all rows where there is one, else by the path of each row's file."""
    found = {values_of(path).get(folder, NULL) for path in paths}
    if len(found) == 1:
        text = found.pop()
        return F.lit(None if text in (NULL, "") else unquote(text)).cast("string")
    name = "".join(f"\\x{{{ord(each):x}}}" for each in folder)
    text = F.regexp_extract(file_of_row(rows), f"(?s)^.*/{name}=([^/]*)/", 1)
    return F.when(text.isin(NULL, ""), F.lit(None)).otherwise(F.coalesce(decoded(text), text))
