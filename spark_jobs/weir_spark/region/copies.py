"""Stored copies of a region's cached stages and sources: written while it is computed, read by later stages and tries.

Invariants: a copy is described only when all its bytes are in the store, and its description names all results and
copies that its rows were read from. Of all attempts that copy what a source has, one describes its copy, and all others
read that one's rows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import or_

from pyspark.sql import DataFrame, SparkSession

from weir.dataflow.graph import reachable
from weir.errors import Internal
from weir.formats.codec import from_json, to_json
from weir.formats.manifest import COPY_NAME, StageCopy
from weir.formats.paths import source_copy_folder
from weir.formats.region_job import (
    CopyToRead,
    CopyToWrite,
    OutputToWrite,
    RegionJob,
    StageToRun,
    has_source_copy,
)
from weir.store.errors import AlreadyExists
from weir.store.store import Store
from weir.topology.partitions import PLAIN
from weir.units import format_size
from weir_spark.results import writer
from weir_spark.results.reader import read_files, schema_of
from weir_spark.session import Log


@dataclass(frozen=True, slots=True)
class ReadFrom:
    """The sources of rows: attempts of results, and folders of copies."""

    attempts: frozenset[str] = frozenset()
    copies: frozenset[str] = frozenset()

    def __or__(self, other: ReadFrom) -> ReadFrom:
        return ReadFrom(self.attempts | other.attempts, self.copies | other.copies)


def usable(job: RegionJob, code: str, settings: Mapping[str, str], log: Log) -> dict[str, CopyToRead]:
    """Return the copies that replace stages: of sources, and of earlier attempts with the same code and settings."""
    found = {}
    for stage in job.stages:
        copy = stage.resume
        if copy is None:
            continue
        other = "by other code" if copy.code != code else "with other Spark settings"
        if has_source_copy(stage) or (copy.code, copy.session) == (code, dict(settings)):
            found[stage.name] = copy
        else:
            log(f"the copy of {stage.name} by attempt {copy.attempt} was made {other}: it is not used")
    return found


def needed(job: RegionJob, resumed: Collection[str]) -> frozenset[str]:
    """Return the stages to compute or to read: those that are written or checked, and all stages before them.

    Of a stage in `resumed` the copy is read, so that no stage before it is needed for it.
    """
    by_name = {stage.name: stage for stage in job.stages}
    used = [stage.name for stage in job.stages if stage.outputs or stage.checks]
    return frozenset(reachable(used, lambda name: () if name in resumed else by_name[name].pipelined.values()))


@dataclass(slots=True, kw_only=True)
class Copies:
    """The copies of one attempt: those that it writes and those that it resumes from. Call it for each stage in order.

    `code` and `settings` are what the job computes with, and what it may resume from.
    """

    job: RegionJob
    session: SparkSession
    store: Store
    code: str
    settings: Mapping[str, str]
    log: Log
    resumed: Mapping[str, CopyToRead] = field(init=False)
    needed: frozenset[str] = field(init=False)
    _read_from: dict[str, ReadFrom] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.resumed = usable(self.job, self.code, self.settings, self.log)
        self.needed = needed(self.job, self.resumed)

    @property
    def computed(self) -> tuple[StageToRun, ...]:
        """The stages that are computed."""
        return tuple(each for each in self.job.stages if each.name in self.needed and each.name not in self.resumed)

    @property
    def resumed_from(self) -> tuple[str, ...]:
        """The stages that are read from copies of earlier attempts."""
        return tuple(each.name for each in self.job.stages if each.name in self.needed and each.name in self.resumed)

    def resume(self, stage: StageToRun) -> DataFrame:
        """Read the rows of a stage from the copy of an earlier attempt."""
        copy = self.resumed[stage.name]
        self.log(f"resuming after {stage.name}: its rows are read from the copy of attempt {copy.attempt}")
        return self._read(stage, copy)

    def computes(self, stage: StageToRun) -> None:
        """Record the sources of a stage that is computed."""
        own = frozenset(part.attempt for read in stage.inputs for part in read.partitions)
        before = (self._read_from[producer] for producer in stage.pipelined.values())
        self._read_from[stage.name] = reduce(or_, before, ReadFrom(own))

    def write(self, stage: StageToRun, rows: DataFrame) -> DataFrame:
        """Copy a stage, and return its rows as the copy has them, so that it is computed once."""
        copy = stage.copy
        if copy is None:
            raise Internal.of("region.no_folder_for_copy", stage=stage.name)
        self.log(f"copying {stage.name}")
        output = OutputToWrite(PLAIN, copy.folder, copy.spark_folder)
        written = writer.report(writer.write(rows, stage.name, output), stage.name, output, self.store)
        read_from = self._read_from[stage.name]
        described = StageCopy(
            dataflow=self.job.dataflow,
            epoch=self.job.epoch,
            region=self.job.region,
            stage=stage.name,
            subtask=stage.subtask,
            attempt=self.job.attempt,
            made_from=copy.made_from,
            code=self.code,
            session=dict(self.settings),
            spark_schema=written.spark_schema,
            digest=written.digest,
            files=written.files,
            inputs=tuple(sorted(read_from.attempts)),
            copies=tuple(sorted(read_from.copies)),
        )
        try:
            self.store.create(copy.binding or f"{copy.folder}/{COPY_NAME}", to_json(described))
        except AlreadyExists:
            if not copy.binding:
                raise
            described = self._first(stage, copy)
        rows, size = f"{described.digest.rows:,} rows", format_size(described.bytes)
        self.log(f"copied {stage.name}: {rows}, {size}; a retry resumes after it")
        folder = source_copy_folder(copy.binding, described.attempt) if copy.binding else copy.folder
        return self._read(stage, CopyToRead.of(described, folder, self.store.spark_url))

    def _first(self, stage: StageToRun, copy: CopyToWrite) -> StageCopy:
        """Return the copy of the source that another attempt was first to describe, and delete the own one."""
        found = from_json(StageCopy, self.store.read(copy.binding))
        if found.attempt != self.job.attempt:
            self.log(f"attempt {found.attempt} was first to copy {stage.name}: its rows are read")
            self.store.delete_folder(copy.folder)
        return found

    def _read(self, stage: StageToRun, copy: CopyToRead) -> DataFrame:
        self._read_from[stage.name] = ReadFrom(frozenset(copy.inputs), frozenset((*copy.copies, copy.folder)))
        return read_files(self.session, copy.files, schema_of(copy.spark_schema))
