"""Reads the Parquet files that a table's version or a listing names. Invariant: all of them, or an error; never fewer.

Spark's readers may be told to ignore files that are missing or damaged, and they leave out files with a hidden name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from weir.errors import Misconfigured
from weir.store.urls import spark_root

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

WHOLE: Mapping[str, str] = {"ignoreMissingFiles": "false", "ignoreCorruptFiles": "false"}
"""Options of Spark's reader with which each file is read, or the reading fails."""

_PATTERN = re.compile(r"[{}\[\]*?\\]")
"""What Spark takes for a pattern in a path; it has an option against that, which Spark Connect does not pass on."""


def is_hidden(path: str) -> bool:
    """Report whether Spark leaves out a file of this name, without a word."""
    return path.rpartition("/")[2].startswith(("_", "."))


def spark_path(path: str) -> str:
    """Return the path or URL of one file as Spark spells it: a plain path is of a local disk, whatever its default."""
    escaped = _PATTERN.sub(r"\\\g<0>", path)
    if path.startswith("/"):
        return f"file://{escaped}"
    return spark_root(escaped) if "://" in path else escaped


def missing_path(error: Exception) -> str | None:
    """Return the path that Spark says is missing; None for another error."""
    condition = getattr(error, "getCondition", lambda: None)()
    if condition != "PATH_NOT_FOUND":
        return None
    return str((error.getMessageParameters() or {}).get("path", error))  # type: ignore[attr-defined]  # PySparkException


def read_groups(
    spark: SparkSession, schema: Mapping[str, Any], groups: Sequence[Mapping[str, Any]], what: str
) -> DataFrame:
    """Read `groups` of files, each with the `values` of the columns that are not in its files, as one DataFrame.

    Columns that a file lacks are null. Raises Misconfigured where a file is gone; `what` names what was to be read.
    """
    from pyspark.sql.types import StructType  # noqa: PLC0415  resolvers of this package need no Spark

    whole = StructType.fromJson(dict(schema))
    if not groups:
        return spark.createDataFrame([], whole)
    frames = [_group(spark, whole, each["values"], each["files"]) for each in groups]
    found = _united(frames)
    try:
        found.schema  # noqa: B018  Spark looks for the files now
    except Exception as error:
        gone = missing_path(error)
        if gone is None:
            raise
        raise Misconfigured(
            f"{what} cannot be read any more: {gone} is gone, so that it was vacuumed, expired or deleted. Bring the "
            "file back, or let the run read the present version: `weir run adopt RUN`, then clear the run in Airflow"
        ) from error
    return found


def _group(spark: SparkSession, whole: StructType, values: Mapping[str, Any], files: Sequence[str]) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415
    from pyspark.sql.types import StructType  # noqa: PLC0415

    stored = StructType([field for field in whole.fields if field.name not in values])
    rows = spark.read.schema(stored).options(**WHOLE).parquet(*files)
    columns = [
        F.lit(values[field.name]).cast(field.dataType).alias(field.name)
        if field.name in values
        else F.col(f"`{field.name.replace('`', '``')}`")
        for field in whole.fields
    ]
    return rows.select(*columns)


def _united(frames: Sequence[DataFrame]) -> DataFrame:
    """Unite pairwise: a plan that is nested a thousand deep is refused by Spark Connect."""
    while len(frames) > 1:
        pairs = [frames[at : at + 2] for at in range(0, len(frames), 2)]
        frames = [pair[0].unionAll(pair[1]) if len(pair) > 1 else pair[0] for pair in pairs]
    return frames[0]
