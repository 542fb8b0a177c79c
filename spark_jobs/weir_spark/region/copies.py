"""The durable copies of a region's cached stages: written on the way, and read by whoever comes behind.

Invariant: a copy is described only when all its bytes are in the store, and its description names everything that its
rows were read from, through other copies too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import or_

from pyspark.sql import DataFrame, SparkSession

from weir.errors import Internal
from weir.formats.codec import stage_copy_to_json
from weir.formats.manifest import COPY_NAME, StageCopy
from weir.formats.region_job import CopyToRead, InputToRead, OutputToWrite, PartitionToRead, RegionJob, StageToRun
from weir.store.store import Store
from weir.topology.partitions import PLAIN
from weir_spark.results import writer
from weir_spark.results.reader import read_input
from weir_spark.session import Log


@dataclass(frozen=True, slots=True)
class ReadFrom:
    """What rows were read from: attempts of results, and folders of copies."""

    attempts: frozenset[str] = frozenset()
    copies: frozenset[str] = frozenset()

    def __or__(self, other: ReadFrom) -> ReadFrom:
        return ReadFrom(self.attempts | other.attempts, self.copies | other.copies)


def usable(job: RegionJob, code: str, settings: Mapping[str, str], log: Log) -> dict[str, CopyToRead]:
    """The copies of earlier attempts that stand for stages: those that this code has made, in such a session."""
    found = {}
    for stage in job.stages:
        copy = stage.resume
        if copy is None:
            continue
        other = "by other code" if copy.code != code else "with other Spark settings"
        if (copy.code, copy.session) == (code, dict(settings)):
            found[stage.name] = copy
        else:
            log(f"the copy of {stage.name} by attempt {copy.attempt} was made {other}: it is not used")
    return found


def needed(job: RegionJob, resumed: Collection[str]) -> frozenset[str]:
    """The stages that results come from, or that are checked, up to the newest copies.

    Nothing else behind one of `resumed` is computed.
    """
    by_name = {stage.name: stage for stage in job.stages}
    waiting = [stage.name for stage in job.stages if stage.outputs or stage.checks]
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += [] if name in resumed else by_name[name].pipelined.values()
    return frozenset(seen)


@dataclass(slots=True, kw_only=True)
class Copies:
    """The copies of one attempt, its own and those it resumes from; told of each stage in order.

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
        """The rows of a stage that an earlier attempt has copied."""
        copy = self.resumed[stage.name]
        self.log(f"resuming behind {stage.name}: its rows are those that attempt {copy.attempt} has copied")
        return self._read(stage, copy)

    def computes(self, stage: StageToRun) -> None:
        """Take note of what a stage is read from that is computed."""
        own = frozenset(part.attempt for read in stage.inputs for part in read.partitions)
        before = (self._read_from[producer] for producer in stage.pipelined.values())
        self._read_from[stage.name] = reduce(or_, before, ReadFrom(own))

    def write(self, stage: StageToRun, rows: DataFrame) -> DataFrame:
        """Copy a stage; its rows as they are read from the copy, so that it is computed once."""
        copy = stage.copy
        if copy is None:
            raise Internal(f"stage {stage.name} is to be copied, but nobody has said where to")
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
        self.store.create(f"{copy.folder}/{COPY_NAME}", stage_copy_to_json(described))
        self.log(f"copied {stage.name}: {written.digest.rows} rows, {described.bytes} bytes; a retry resumes behind it")
        files = tuple(f"{copy.spark_folder}/{file.name}" for file in written.files)
        return self._read(
            stage,
            CopyToRead(
                attempt=described.attempt,
                folder=copy.folder,
                files=files,
                spark_schema=described.spark_schema,
                code=described.code,
                session=described.session,
                inputs=described.inputs,
                copies=described.copies,
            ),
        )

    def _read(self, stage: StageToRun, copy: CopyToRead) -> DataFrame:
        self._read_from[stage.name] = ReadFrom(frozenset(copy.inputs), frozenset((*copy.copies, copy.folder)))
        part = PartitionToRead(stage.name, stage.subtask, copy.files, copy.attempt)
        return read_input(
            self.session,
            InputToRead(argument=stage.name, layout=PLAIN, spark_schema=copy.spark_schema, partitions=(part,)),
        )
