"""Merges sorted runs of keyed state. Invariant: of each key exactly the row of the latest epoch is left.

All rows of a key group are in one file of the merged run, sorted by key group and keys as in every other.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention

from weir.formats.manifest import ContentDigest
from weir.formats.region_job import CompactionJob, MergeToWrite, OutputReport, RegionReport
from weir.store.seal import seal
from weir.store.store import Store
from weir.topology.partitions import KEY_GROUP_COLUMN
from weir_spark.results import digest, writer
from weir_spark.results.digest import quoted
from weir_spark.session import Log, active, configure, measured
from weir_spark.state.reader import DELETED, RANK, StoredState

_PLACE = "_weir_place"


def compact(job: CompactionJob, session: SparkSession, store: Store, log: Log = print) -> RegionReport:
    """Write the merged runs, and return the report."""
    seconds: dict[str, float] = {}
    with active(session):
        settings = configure(session, job.spark_conf)
        outputs = []
        for number, merge in enumerate(job.merges):
            with measured(seconds, f"merge {number}"):
                outputs.append(_merged(merge, session, store))
            rows, size = outputs[-1].digest.rows, sum(file.bytes for file in outputs[-1].files)
            log(f"merged {len(merge.state.files)} files of the state {merge.stage}: {rows} rows, {size} bytes")
    return RegionReport(attempt=job.attempt, outputs=tuple(outputs), code="", session=settings, metrics=seconds)


def _merged(merge: MergeToWrite, session: SparkSession, store: Store) -> OutputReport:
    stored = StoredState(session, merge.state)
    rows = _newest(stored, merge)
    if merge.is_bottom:
        rows = rows.where(~F.col(DELETED))
    columns = [*map(quoted, stored.stored_schema.fieldNames())]
    rows.select(*columns).write.mode("error").options(**writer.OPTIONS).parquet(merge.spark_folder)
    files = seal(store, merge.folder)
    content = ContentDigest(
        schema=digest.schema_fingerprint(stored.schema),
        rows=sum(file.rows for file in files),
        xor=0,
        low_sum=0,
        high_sum=0,
    )
    return OutputReport(
        stage=merge.stage,
        layout=merge.layout,
        folder=merge.folder,
        spark_schema=stored.schema.json(),
        digest=content,
        files=files,
    )


def _newest(stored: StoredState, merge: MergeToWrite) -> DataFrame:
    """Return of each key the row of the latest epoch: one shuffle and one sort, also the order in the files."""
    rows = stored.versions()
    by_group = rows.repartition(1) if merge.parts == 1 else rows.repartitionByRange(merge.parts, KEY_GROUP_COLUMN)
    keys = [F.col(KEY_GROUP_COLUMN), *(F.col(quoted(key)) for key in stored.keys)]
    place = F.row_number().over(Window.partitionBy(*keys).orderBy(F.col(RANK).desc()))
    return by_group.withColumn(_PLACE, place).where(F.col(_PLACE) == 1).sortWithinPartitions(*keys)
