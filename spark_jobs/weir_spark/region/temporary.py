"""Files in the store that a source loads for Spark. Invariant: they are deleted when the attempt ends.

They lie in a folder of the attempt that has no manifest: the sweep deletes what a killed attempt has left.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from weir.errors import WeirError
from weir.formats.paths import LOADED, result_folder
from weir.formats.region_job import RegionJob
from weir.store.store import Store
from weir_spark.session import Log


@dataclass(slots=True)
class TemporaryFiles:
    """The files of one attempt; as a context manager it deletes them, also on failure."""

    job: RegionJob
    store: Store
    log: Log
    folders: set[str] = field(default_factory=set)

    def create(self, stage: str, name: str, data: bytes) -> str:
        """Write a file for a stage and return its path as Spark spells it. Raises AlreadyExists or Retryable."""
        job = self.job
        folder = result_folder(job.dataflow, job.epoch, stage, LOADED, job.subtask, job.attempt)
        self.folders.add(folder)
        self.store.create(f"{folder}/{name}", data)
        return self.store.spark_url(f"{folder}/{name}")

    def __enter__(self) -> TemporaryFiles:
        return self

    def __exit__(self, *_: object) -> None:
        for folder in self.folders:
            try:
                self.store.delete_folder(folder)
            except WeirError as error:
                self.log(f"The temporary files in {folder} remain until the next sweep: {error}")
