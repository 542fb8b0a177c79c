"""Reads the Parquet files that a table's version or a listing names. Invariant: all of them, or an error; never fewer.

Spark's readers may be told to ignore files that are missing or damaged, and they leave out files with a hidden name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from pyspark.sql.types import StructType

from weir.errors import Misconfigured
from weir_spark.files.paths import WHOLE
from weir_spark.files.texts import with_texts
from weir_spark.results.digest import quoted

_ESCAPED = re.compile(r"\\(.)")
_PLAIN_NAME = re.compile(r"[\w.-]+", re.ASCII)

_FILE, _FOUND, _VALUE = "_weir_file", "_weir_found", "_weir_value_"
"""Columns that exist while the values of partitions are joined."""


def read_groups(
    spark: SparkSession, schema: Mapping[str, Any], groups: Sequence[Mapping[str, Any]], what: str
) -> DataFrame:
    """Read `groups` of files, each with the `values` of the columns that are not in its files, as one DataFrame.

    Columns that a file lacks are null. Raises Misconfigured where a file is gone; `what` names what was to be read.
    """
    whole = StructType.fromJson(dict(schema))
    by_columns: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for each in groups:
        by_columns.setdefault(tuple(each["values"]), []).append(each)
    try:
        # A session of its own looks for the files here, Spark Connect when it is asked for the schema.
        frames = [_rows(spark, whole, names, some) for names, some in by_columns.items()]
        found = reduce(lambda one, other: one.unionAll(other), frames or [spark.createDataFrame([], whole)])
        found.schema  # noqa: B018
    except Exception as error:
        if getattr(error, "getCondition", lambda: None)() != "PATH_NOT_FOUND":
            raise
        gone = (error.getMessageParameters() or {}).get("path", error)  # type: ignore[attr-defined]  # PySparkException
        raise Misconfigured.of("sources.table_file_gone", what=what, gone=gone) from error
    return found


def _rows(
    spark: SparkSession, whole: StructType, names: Sequence[str], groups: Sequence[Mapping[str, Any]]
) -> DataFrame:
    """Read groups that have values of the same columns, by one scan: a scan for each takes 50 ms of planning."""
    stored = StructType([field for field in whole.fields if field.name not in names])
    files = (file for each in groups for file in each["files"])
    rows = with_texts(spark.read.schema(stored).options(**WHOLE).parquet(*files), stored)
    if len(groups) == 1:
        values = {name: F.lit(groups[0]["values"][name]) for name in names}
    elif names:
        rows = _with_values(rows, names, groups)
        # The guard: a row whose file is not found would get nulls for values.
        guard = F.when(
            F.col(_FOUND).isNull(), F.raise_error(F.lit("a file has no values of its partition: report this"))
        )
        values = {name: guard.otherwise(F.col(f"{_VALUE}{at}")) for at, name in enumerate(names)}
    else:
        values = {}
    columns = {field.name: F.col(quoted(field.name)) for field in stored.fields}
    columns |= {name: value.cast(whole[name].dataType).alias(name) for name, value in values.items()}
    return rows.select(*(columns[name] for name in whole.fieldNames()))


def _with_values(rows: DataFrame, names: Sequence[str], groups: Sequence[Mapping[str, Any]]) -> DataFrame:
    """Join the values of each row's file: by the file's name where it is short and unique, else by its path."""
    metadata = rows.metadataColumn("_metadata")
    files = [(file, each) for each in groups for file in each["files"]]
    short = [file.rpartition("/")[2] for file, _ in files]
    if len(set(short)) == len(short) and all(_PLAIN_NAME.fullmatch(each) for each in short):
        keys, key = short, metadata["file_name"]
    else:
        keys = [_comparable(file) for file, _ in files]
        # Spark's path is that of a URI, in which a plus sign means itself.
        path = F.url_decode(F.replace(metadata["file_path"], F.lit("+"), F.lit("%2B")))
        key = F.regexp_replace(path, "^file:/+", "/")
    columns = [_FILE, *(f"{_VALUE}{at}" for at in range(len(names)))]
    known = [(name, *(each["values"][column] for column in names)) for name, (_, each) in zip(keys, files, strict=True)]
    values = rows.sparkSession.createDataFrame(known, ", ".join(f"{column} STRING" for column in columns))
    values = values.withColumn(_FOUND, F.lit(True))  # noqa: FBT003  Spark's
    return rows.withColumn(_FILE, key).join(F.broadcast(values), _FILE, "left")


def _comparable(file: str) -> str:
    """Return the path of a file as it is compared: not escaped, and without the scheme of a local one."""
    return re.sub("^file:/+", "/", _ESCAPED.sub(r"\g<1>", file))
