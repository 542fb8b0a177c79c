"""Reads a blocking input. Invariant: exactly the files that its manifests name, or an error; no more, no fewer."""

from __future__ import annotations

import json

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from pyspark.sql.types import IntegerType, StructType

from weir.results.layout import KEY_GROUP_COLUMN
from weir.results.region_job import InputToRead

_OPTIONS = {
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "mergeSchema": "false",
    "parquet.page.verify-checksum.enabled": "true",
}


def read_input(session: SparkSession, read: InputToRead) -> DataFrame:
    """Read the recorded files by their recorded schema, of the wanted key groups only; without the key-group column.

    No directory is listed, so that no schema and no partition column is ever guessed from what lies beside the files.
    """
    schema = StructType.fromJson(json.loads(read.spark_schema))
    files = [file for partition in read.partitions for file in partition.files]
    if not files:
        return session.createDataFrame([], schema)
    if read.key_groups is None or not read.layout.keys:
        return session.read.options(**_OPTIONS).schema(schema).parquet(*files)
    first, last = read.key_groups
    stored = StructType([*schema.fields]).add(KEY_GROUP_COLUMN, IntegerType())
    rows = session.read.options(**_OPTIONS).schema(stored).parquet(*files)
    return rows.where(F.col(KEY_GROUP_COLUMN).between(first, last)).drop(KEY_GROUP_COLUMN)
