"""What an attempt keeps for its own time: files that a source loads for Spark, and rows that Spark persists.

Invariant: both go when the attempt ends. The files lie in a folder of the attempt that has no manifest: the sweep
deletes what a killed attempt has left.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention

from weir.errors import WeirError
from weir.formats.paths import LOADED, result_folder
from weir.formats.region_job import RegionJob
from weir.store.store import Store
from weir.wording import shortened
from weir_spark.results.writer import RESERVED_PREFIX
from weir_spark.session import Log


@dataclass(slots=True)
class Temporary:
    """What one attempt keeps; as a context manager it lets all of it go, also on failure."""

    job: RegionJob
    store: Store
    log: Log
    folders: set[str] = field(default_factory=set)
    persisted: dict[str, DataFrame] = field(default_factory=dict)

    def create_file(self, stage: str, name: str, data: bytes) -> str:
        """Write a file for a stage and return its path as Spark spells it. Raises AlreadyExists or Retryable."""
        job = self.job
        folder = result_folder(job.dataflow, job.epoch, stage, LOADED, job.subtask, job.attempt)
        self.folders.add(folder)
        self.store.create(f"{folder}/{name}", data)
        return self.store.spark_url(f"{folder}/{name}")

    def persist(self, stage: str, rows: DataFrame) -> DataFrame:
        """Have Spark persist the rows once they are first computed.

        All sessions of a server share what they persist, plan by plan, also with those of killed attempts and edited
        functions: a condition that is always true, and that names the attempt, makes the plan this attempt's own. And
        Spark Connect resolves a plan at each use, with another seed of `rand()` or `uuid()`, so that it would not be
        the one that was persisted: a view holds it as it was resolved once.
        """
        view = self._view(stage)
        rows.where(F.lit(f"weir {self.job.attempt}") != F.lit("")).createOrReplaceTempView(view)
        self.persisted[stage] = rows.sparkSession.table(view).persist()
        return self.persisted[stage]

    def _view(self, stage: str) -> str:
        return f"{RESERVED_PREFIX}{stage}_{self.job.attempt}".replace("-", "_")

    def __enter__(self) -> Temporary:
        return self

    def __exit__(self, *_: object) -> None:
        for folder in self.folders:
            try:
                self.store.delete_folder(folder)
            except WeirError as error:
                self.log(f"The temporary files in {folder} remain until the next sweep: {error}")
        for stage, rows in self.persisted.items():
            try:
                rows.unpersist(blocking=True)
                rows.sparkSession.catalog.dropTempView(self._view(stage))
            except Exception as error:  # noqa: BLE001  # the server may be gone, and what failed before counts more
                self.log(f"Spark may still keep rows of {stage}: {type(error).__name__}: {shortened(str(error), 200)}")
