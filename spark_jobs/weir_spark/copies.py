"""What a region keeps of its stages beside its results: durable copies, and rows that Spark holds for one attempt.

Invariant: a copy is described only when all its bytes are in the store; nothing that Spark was told to keep is kept
longer than the attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention

from weir.results.codec import stage_copy_to_json
from weir.results.layout import PLAIN
from weir.results.region_job import (
    CopyToRead,
    CopyToWrite,
    InputToRead,
    OutputReport,
    OutputToWrite,
    PartitionToRead,
    RegionJob,
    StageToRun,
)
from weir.results.stage_copy import COPY_NAME, StageCopy
from weir.store.store import Store
from weir_spark.reader import read_input


def usable(job: RegionJob, code: str, session: Mapping[str, str], say: Callable[[str], None]) -> dict[str, CopyToRead]:
    """The copies of earlier attempts that stand for stages: those that this code has made, in such a session."""
    found = {}
    for stage in job.stages:
        copy = stage.resume
        if copy is None:
            continue
        other = "by other code" if copy.code != code else "with other Spark settings"
        if (copy.code, copy.session) == (code, dict(session)):
            found[stage.name] = copy
        else:
            say(f"the copy of {stage.name} by attempt {copy.attempt} was made {other}: it is not used")
    return found


def needed(job: RegionJob, resumed: Collection[str]) -> frozenset[str]:
    """The stages that results come from, up to the newest copies: nothing behind one of `resumed` is computed."""
    by_name = {stage.name: stage for stage in job.stages}
    waiting = [stage.name for stage in job.stages if stage.outputs]
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += [] if name in resumed else by_name[name].pipelined.values()
    return frozenset(seen)


def output_of(copy: CopyToWrite) -> OutputToWrite:
    """A copy as something to write: in the order and the partitions of the stage's own plan."""
    return OutputToWrite(PLAIN, copy.folder, copy.spark_folder)


def describe(
    job: RegionJob, stage: StageToRun, copy: CopyToWrite, written: OutputReport, code: str, session: Mapping[str, str]
) -> StageCopy:
    """What there is to know of a copy whose files are sealed."""
    return StageCopy(
        dataflow=job.dataflow,
        epoch=job.epoch,
        region=job.region,
        stage=stage.name,
        subtask=stage.subtask,
        attempt=job.attempt,
        made_from=copy.made_from,
        code=code,
        session=dict(session),
        spark_schema=written.spark_schema,
        digest=written.digest,
        files=written.files,
    )


def complete(store: Store, folder: str, copy: StageCopy) -> None:
    """Make the files a copy: from now on an attempt may resume from it."""
    store.create(f"{folder}/{COPY_NAME}", stage_copy_to_json(copy))


def to_read(copy: StageCopy, written: CopyToWrite) -> CopyToRead:
    """A copy as the attempt itself reads it that has written it."""
    files = tuple(f"{written.spark_folder}/{file.name}" for file in copy.files)
    return CopyToRead(copy.attempt, written.folder, files, copy.spark_schema, copy.code, copy.session)


def read_copy(session: SparkSession, stage: StageToRun, copy: CopyToRead) -> DataFrame:
    """The rows of a stage as they were copied."""
    part = PartitionToRead(stage.name, stage.subtask, copy.files, copy.attempt)
    return read_input(session, InputToRead(stage.name, PLAIN, copy.spark_schema, (part,)))


@dataclass(slots=True)
class Persisted:
    """The DataFrames that Spark keeps for one attempt; as a context it lets them all go in the end, also on failure."""

    attempt: str
    say: Callable[[str], None]
    kept: dict[str, DataFrame] = field(default_factory=dict)

    def keep(self, stage: str, rows: DataFrame) -> DataFrame:
        """Let Spark keep the rows from when they are first computed.

        All sessions of a server share what they persist, plan by plan, also with those of killed attempts and edited
        functions: a condition that is always true, and that names the attempt, makes the plan this attempt's own.
        """
        own = rows.where(F.lit(f"weir {self.attempt}") != F.lit(""))
        self.kept[stage] = own.persist()
        return self.kept[stage]

    def __enter__(self) -> Persisted:
        return self

    def __exit__(self, *_: object) -> None:
        for stage, rows in self.kept.items():
            try:
                rows.unpersist(blocking=True)
            except Exception as error:  # noqa: BLE001  # the server may be gone, and what failed before counts more
                self.say(f"Spark may still keep rows of {stage}: {type(error).__name__}: {str(error)[:200]}")
