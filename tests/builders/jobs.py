"""Region jobs as the coordinator describes them, for tests of what runs them. Invariant: no folder is used twice."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from weir.code.archive import pack, top_level
from weir.code.version import code_version
from weir.formats.codec import from_json
from weir.formats.manifest import COPY_NAME, StageCopy
from weir.formats.paths import COPY, archive_path, attempt_record_folder, name_of, result_folder
from weir.formats.region_job import (
    CodeToRun,
    CopyToRead,
    CopyToWrite,
    InputToRead,
    OutputReport,
    OutputToWrite,
    PartitionToRead,
    RegionJob,
    StageToRun,
)
from weir.topology.ids import FIRST_TRY, AttemptId, AttemptKind, Epoch, new_attempt_id
from weir.topology.partitions import PLAIN, Layout

if TYPE_CHECKING:
    from weir.store.store import Store


EPOCH = Epoch("20130101T000000Z")


def new_task_attempt() -> AttemptId:
    """Make the id of a first try that no other attempt has."""
    return new_attempt_id(AttemptKind.TASK, uuid.uuid4().hex[:12], FIRST_TRY)


@dataclass(frozen=True)
class Jobs:
    """Builds what a task would ask for, of results in one store."""

    store: Store

    def output(self, stage: str, layout: Layout = PLAIN, *, subtask: int = 0) -> OutputToWrite:
        """Return a result partition to write."""
        folder = result_folder("flow", EPOCH, stage, layout.id, subtask, new_task_attempt())
        return OutputToWrite(layout, folder, self.store.spark_url(folder))

    def stage(self, name: str, function: str, *outputs: OutputToWrite, **more: object) -> StageToRun:
        """Return a stage; it has no inputs unless `more` has some."""
        given = {"is_source": False, "subtask": 0, "parallelism": 1, "pipelined": {}, "inputs": (), **more}
        return StageToRun(name=name, function=function, outputs=outputs, **given)  # type: ignore[arg-type]

    def region(self, *stages: StageToRun, **more: object) -> RegionJob:
        """Return a job of these stages, with a new attempt."""
        attempt = new_task_attempt()
        given = {
            "attempt": attempt,
            "dataflow": "flow",
            "epoch": EPOCH,
            "interval": ("2013-01-01T00:00:00+00:00", "2013-01-02T00:00:00+00:00"),
            "region": "-".join(stage.name for stage in stages)[:60],
            "subtask": 0,
            "store": self.store.url,
            "report": attempt_record_folder("flow", EPOCH, "r", 0, attempt) + "/report.json",
            "parameters": {},
            "code": self.code(*(stage.function for stage in stages)),
            **more,
        }
        return RegionJob(stages=stages, **given)  # type: ignore[arg-type]

    def code(self, *functions: str, applications: Mapping[str, bytes] = MappingProxyType({})) -> CodeToRun:
        """Pack the modules of functions, store them, and return the code of a task that calls these."""
        archive = pack(top_level(functions), applications=applications)
        path = archive_path("flow", archive.fingerprint, uuid.uuid4().hex[:8])
        self.store.create(path, archive.data)
        version = code_version(archive.files, functions)
        return CodeToRun(version=version, archive=archive.fingerprint, path=path)

    def read(self, argument: str, *reports: OutputReport, key_groups: tuple[int, int] | None = None) -> InputToRead:
        """Return an input of the partitions in these reports."""
        partitions = tuple(
            PartitionToRead(each.stage, subtask, self.files(each), name_of(each.folder))
            for subtask, each in enumerate(reports)
        )
        first = reports[0]
        return InputToRead(
            argument=argument,
            layout=first.layout,
            spark_schema=first.spark_schema,
            partitions=partitions,
            key_groups=key_groups,
        )

    def copy(self, stage: str, made_from: str = "from this") -> CopyToWrite:
        """Return the location to which a job writes the cached output of a stage."""
        folder = result_folder("flow", EPOCH, stage, COPY, 0, new_task_attempt())
        return CopyToWrite(folder, self.store.spark_url(folder), made_from)

    def resume(self, copy: CopyToWrite) -> CopyToRead:
        """Return a cached stage output as the coordinator offers it to a later attempt."""
        found = from_json(StageCopy, self.store.read(f"{copy.folder}/{COPY_NAME}"))
        files = tuple(f"{copy.spark_folder}/{file.name}" for file in found.files)
        return CopyToRead(
            attempt=found.attempt,
            folder=copy.folder,
            files=files,
            spark_schema=found.spark_schema,
            code=found.code,
            session=found.session,
            inputs=found.inputs,
            copies=found.copies,
        )

    def files(self, report: OutputReport) -> tuple[str, ...]:
        """Return the files of a result, as Spark spells their paths."""
        return tuple(self.store.spark_url(f"{report.folder}/{file.name}") for file in report.files)
