"""Writes one result partition. Invariant: the reported digest, rows and bytes are those of the files.

Files are Parquet with zstd, page checksums and page indexes. A keyed layout is redistributed by key group (adaptive
execution merges what is small, so that a small result is one file, and splits what is skewed) and sorted by key group
and keys within each file. A plain layout keeps the order and the partitions of the stage's own plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from pyspark.sql.types import StructType

from weir.dataflow.digest_rule import PLAIN_RULE, DigestRule
from weir.dataflow.key_types import canonical_type
from weir.errors import Internal, Misconfigured
from weir.formats.manifest import ContentDigest, DataFile
from weir.formats.region_job import OutputReport, OutputToWrite
from weir.store.seal import seal
from weir.store.store import Store
from weir.topology.partitions import KEY_GROUP_COLUMN, Layout
from weir.wording import did_you_mean
from weir_spark.results import digest

RESERVED_PREFIX = "_weir_"

ROW_GROUP_BYTES = 32 * 2**20
"""Encoded, not yet compressed. A row group is verified as a whole, so that it should not be much of a result."""

PAGE_BYTES = 256 * 2**10

PAGE_ROWS = 2_000
"""A page is the least that a reader fetches: at Parquet's 20,000 rows a quarter of a file may be half of it.

2,000 rows a page cost 3 % of the bytes."""

OPTIONS = {
    "compression": "zstd",
    "parquet.block.size": str(ROW_GROUP_BYTES),
    "parquet.page.size": str(PAGE_BYTES),
    "parquet.page.row.count.limit": str(PAGE_ROWS),
    "parquet.page.write-checksum.enabled": "true",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    # A try of one of Spark's tasks that dies while it commits leaves nothing among the files, as with 2 it would.
    "mapreduce.fileoutputcommitter.algorithm.version": "1",
}


@dataclass(frozen=True, slots=True)
class Written:
    """Schema and digest of the rows that Spark wrote."""

    spark_schema: str
    digest: ContentDigest


def check_rows(df: DataFrame, stage: str, layouts: Sequence[Layout], rule: DigestRule = PLAIN_RULE) -> None:
    """Make sure that `df` can be written in each layout, and digested by the rule.

    Raises Misconfigured with the stage and the column.
    """
    schema = df.schema
    names = schema.fieldNames()
    if not names:
        raise Misconfigured.of("results.no_columns", stage=stage)
    _check_names(names, stage)
    for layout in layouts:
        _key_types(schema, stage, layout)
    try:
        digest.row_hash(schema, rule)
    except Misconfigured as error:
        raise Misconfigured.of("results.columns_refused", stage=stage, error=error) from error


def write(df: DataFrame, stage: str, output: OutputToWrite, rule: DigestRule = PLAIN_RULE) -> Written:
    """Write the rows of `df` in the output's layout into its folder, which must not exist, and observe their digest."""
    rows = _laid_out(df, stage, output.layout)
    seen = digest.observe(rows, rule, output.digest_version)
    seen.rows.write.mode("error").options(**OPTIONS).parquet(output.spark_folder)
    measures = seen.measures(seen.rows)
    return Written(df.schema.json(), digest.to_digest(rows.schema, measures, rule, output.digest_version))


def report(written: Written, stage: str, output: OutputToWrite, store: Store) -> OutputReport:
    """Seal the files and describe them. Raises Internal if their footers count other rows than Spark wrote."""
    files = seal(store, output.folder)
    _check_count(written.digest, files, f"{stage} ({output.layout.id})")
    return OutputReport(
        stage=stage,
        layout=output.layout,
        folder=output.folder,
        spark_schema=written.spark_schema,
        digest=written.digest,
        files=files,
    )


def key_group(schema: StructType, stage: str, layout: Layout) -> Column:
    """Return the key group of a row, 0 to max_parallelism - 1: pmod of Spark's Murmur3 of the canonical keys."""
    types = _key_types(schema, stage, layout)
    keys = [F.col(digest.quoted(key)).cast(kind) for key, kind in zip(layout.keys, types, strict=True)]
    return F.pmod(F.hash(*keys), F.lit(layout.max_parallelism))


def _laid_out(df: DataFrame, stage: str, layout: Layout) -> DataFrame:
    if not layout.keys:
        return df
    keyed = df.withColumn(KEY_GROUP_COLUMN, key_group(df.schema, stage, layout))
    by_group = keyed.hint("rebalance", F.col(KEY_GROUP_COLUMN))
    return by_group.sortWithinPartitions(KEY_GROUP_COLUMN, *[digest.quoted(key) for key in layout.keys])


def _check_names(names: Sequence[str], stage: str) -> None:
    seen: dict[str, str] = {}
    for name in names:
        if name.lower().startswith(RESERVED_PREFIX):
            raise Misconfigured.of("results.name_reserved", stage=stage, name=name, reserved_prefix=RESERVED_PREFIX)
        if name.lower() in seen:
            raise Misconfigured.of("results.columns_alike", stage=stage, seen=seen[name.lower()], name=name)
        seen[name.lower()] = name


def _key_types(schema: StructType, stage: str, layout: Layout) -> list[str]:
    names = schema.fieldNames()
    missing = [key for key in layout.keys if key not in names]
    if missing:
        hint = did_you_mean(missing[0], names, "return it, or let that stage read by another column", likeness=0.5)
        raise Misconfigured.of(
            "results.key_column_missing",
            stage=stage,
            missing=map(repr, missing),
            keys=list(layout.keys),
            names=names,
            hint=hint,
        )
    return [_key_type(schema, stage, key) for key in layout.keys]


def _key_type(schema: StructType, stage: str, key: str) -> str:
    try:
        return canonical_type(schema[key].dataType.simpleString())
    except Misconfigured as error:
        raise Misconfigured.of("results.key_column_refused", stage=stage, key=key, error=error) from error


def _check_count(found: ContentDigest, files: Sequence[DataFile], result: str) -> None:
    rows = sum(file.rows for file in files)
    if rows != found.rows:
        raise Internal.of("results.rows_differ", result=result, rows=rows, written=found.rows)
