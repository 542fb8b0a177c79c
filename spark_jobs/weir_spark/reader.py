"""Reads an input from the store. Invariant: exactly the files that its manifests name, or an error; no more, no fewer.

An input with a declared schema has these columns in every epoch, in the first one without rows.
"""

from __future__ import annotations

import json

from pyspark.errors import ParseException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from pyspark.sql.types import IntegerType, StructType

from weir.errors import Misconfigured
from weir.results.layout import KEY_GROUP_COLUMN
from weir.results.region_job import InputToRead
from weir_spark.digest import quoted, type_signature

READ_OPTIONS = {
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "mergeSchema": "false",
    "parquet.page.verify-checksum.enabled": "true",
}


def read_input(session: SparkSession, read: InputToRead) -> DataFrame:
    """Read the recorded files by their recorded schema, of the wanted key groups only; without the key-group column.

    No directory is listed, so that no schema and no partition column is ever guessed from what lies beside the files.
    Raises Misconfigured if names or types are not those of the declared schema.
    """
    declared = _declared(session, read) if read.declared_schema else None
    if declared is not None and not read.partitions:
        return session.createDataFrame([], declared)
    schema = StructType.fromJson(json.loads(read.spark_schema))
    rows = _rows(session, read, schema)
    if declared is None:
        return rows
    _require_equal(schema, declared, read)
    return rows.select(*[F.col(quoted(name)) for name in declared.fieldNames()])


def _rows(session: SparkSession, read: InputToRead, schema: StructType) -> DataFrame:
    files = [file for partition in read.partitions for file in partition.files]
    if not files:
        return session.createDataFrame([], schema)
    if read.key_groups is None or not read.layout.keys:
        return session.read.options(**READ_OPTIONS).schema(schema).parquet(*files)
    first, last = read.key_groups
    stored = StructType([*schema.fields]).add(KEY_GROUP_COLUMN, IntegerType())
    rows = session.read.options(**READ_OPTIONS).schema(stored).parquet(*files)
    return rows.where(F.col(KEY_GROUP_COLUMN).between(first, last)).drop(KEY_GROUP_COLUMN)


def _declared(session: SparkSession, read: InputToRead) -> StructType:
    try:
        return session.createDataFrame([], read.declared_schema).schema
    except ParseException as error:
        raise Misconfigured(
            f"the schema of the input {read.argument!r} is not one: expected a Spark DDL string, like "
            f"'id BIGINT, seen TIMESTAMP', found {read.declared_schema!r}: {error}"
        ) from error


def _require_equal(found: StructType, declared: StructType, read: InputToRead) -> None:
    """Whatever their order and nullability: a stage takes its columns by name."""
    types = [{field.name: type_signature(field.dataType) for field in each.fields} for each in (found, declared)]
    if types[0] == types[1]:
        return
    written = read.partitions[0]
    raise Misconfigured(
        f"the input {read.argument!r} is declared with the schema {_shown(declared)}, but the result of "
        f"{written.stage} of the epoch before has {_shown(found)}: correct previous({written.stage!r}, schema=...), or "
        f"let the epoch before be computed by the present stages (clear {written.stage} of that run)"
    )


def _shown(schema: StructType) -> str:
    return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema.fields)
