"""Builds and parses the paths of all documents in the store."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from weir.topology.ids import AttemptId
from weir.topology.partitions import PLAIN

MANIFEST: Final = "manifest.json"
COPY: Final = "copy"
"""The name that the folders of copies have where those of results have a layout's id."""

SOURCE_COPY: Final = "source-copy"
"""The name that the folders of copies of what a source has read have where those of results have a layout's id."""

LOADED: Final = "loaded"
"""The name that the folders of files which a source loads for Spark have where those of results have a layout's id."""

RUN_RECORD: Final = "_run.json"

SINKS: Final = "_sinks"
"""The folder of the pointers of all published data sets."""

PROVISIONAL: Final = ".provisional"
"""How the name of a pointer to provisional rows ends: readers of versions pass over it."""

_REGIONS: Final = "_regions"
"""The folder, in that of a run, of the records of attempts."""

NUMBERS: Final = "_numbers"
"""No savepoint has such a name."""

_ARCHIVES: Final = "_code"

_POSITIONS: Final = "_positions"

_ARCHIVE: Final = re.compile(r"([0-9a-f]{64})-[0-9a-f]+\.zip")

_DEPTH = 6
"""How many names the path of an attempt's folder has."""

_DIGITS = 8
"""Of a number in the name of a file, so that names sort as numbers do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultPath:
    """The folder in which an attempt writes a result partition, or a copy of a cached stage.

    That of a source's copy is of all attempts that read one split; instead of an attempt's id it has the copy's.
    """

    dataflow: str
    epoch: str
    stage: str
    layout: str
    subtask: str
    attempt: str

    @property
    def is_copy(self) -> bool:
        """Report whether it is the folder of a copy of a cached stage."""
        return self.layout == COPY

    @property
    def is_source_copy(self) -> bool:
        """Report whether it is the folder of a copy of what a source has read."""
        return self.layout == SOURCE_COPY

    def __str__(self) -> str:
        return f"{stage_folder(self.dataflow, self.epoch, self.stage)}/{self.layout}/{self.subtask}/{self.attempt}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRecordPath:
    """The folder in which the job of an attempt is described and reports."""

    dataflow: str
    epoch: str
    region: str
    subtask: str
    attempt: str

    def __str__(self) -> str:
        return f"{attempt_records_folder(self.dataflow, self.epoch, self.region, self.subtask)}/{self.attempt}"


AttemptPath = ResultPath | AttemptRecordPath


def parse_attempt_path(path: str) -> AttemptPath | None:
    """Parse the folder of an attempt, or a path below it; None for a path where no attempt writes."""
    names = path.split("/")
    if len(names) < _DEPTH:
        return None
    dataflow, epoch, first, second, third, fourth, *_ = names
    if first == _REGIONS:
        return AttemptRecordPath(dataflow=dataflow, epoch=epoch, region=second, subtask=third, attempt=fourth)
    if first.startswith(("_", ".")):
        return None
    return ResultPath(dataflow=dataflow, epoch=epoch, stage=first, layout=second, subtask=third, attempt=fourth)


def epoch_folder(dataflow: str, epoch: str) -> str:
    """Return the folder of a run."""
    return f"{dataflow}/{epoch}"


def stage_folder(dataflow: str, epoch: str, stage: str) -> str:
    """Return the folder of all results of a stage in a run."""
    return f"{epoch_folder(dataflow, epoch)}/{stage}"


def results_folder(dataflow: str, epoch: str, stage: str, layout: str, subtask: int) -> str:
    """Return the folder of the results of one subtask in one layout, of all attempts."""
    return f"{stage_folder(dataflow, epoch, stage)}/{layout}/{subtask}"


def result_folder(dataflow: str, epoch: str, stage: str, layout: str, subtask: int, attempt: str) -> str:
    """Return the folder in which an attempt writes a result partition; `layout` is COPY for a cached stage's copy."""
    return f"{results_folder(dataflow, epoch, stage, layout, subtask)}/{attempt}"


def manifest_path(folder: str) -> str:
    """Return the path of the manifest of the result in a folder."""
    return f"{folder}/{MANIFEST}"


def source_copy_folder(binding: str, attempt: str) -> str:
    """Return the folder of an attempt's copy of what a source has read; `binding` is the path of the description."""
    return f"{folder_of(binding)}/{attempt}"


def folder_of(path: str) -> str:
    """Return the folder that holds a file."""
    return path.rpartition("/")[0]


def name_of(path: str) -> str:
    """Return the name of a file or folder, without the folders above it."""
    return path.rpartition("/")[2]


def copies_folder(dataflow: str, epoch: str, stage: str, subtask: int) -> str:
    """Return the folder of all copies of one subtask of a cached stage in a run."""
    return results_folder(dataflow, epoch, stage, COPY, subtask)


def attempt_records_folder(dataflow: str, epoch: str, region: str, subtask: int | str) -> str:
    """Return the folder in which the jobs of all attempts of a region are described."""
    return f"{epoch_folder(dataflow, epoch)}/{_REGIONS}/{region}/{subtask}"


def attempt_record_folder(dataflow: str, epoch: str, region: str, subtask: int, attempt: str) -> str:
    """Return the folder in which the job of an attempt is described and reports."""
    return f"{attempt_records_folder(dataflow, epoch, region, subtask)}/{attempt}"


def attempt_of_folder(folder: str) -> AttemptId:
    """Return the attempt that has written a folder of results."""
    return AttemptId(name_of(folder))


def layout_of_folder(folder: str) -> str:
    """Return the id of the layout of a folder of results."""
    path = parse_attempt_path(folder)
    return path.layout if isinstance(path, ResultPath) else PLAIN.id


def dataflow_of_path(path: str) -> str:
    """Return the dataflow whose folder holds a path."""
    return path.partition("/")[0]


def is_below_dataflow(path: str, dataflow: str) -> bool:
    """Report whether a path lies in the folder of a dataflow."""
    return path.startswith(f"{dataflow}/")


def checkpoints_folder(dataflow: str) -> str:
    """Return the folder of the checkpoints of a dataflow, relative to the store."""
    return f"{dataflow}/_checkpoints"


def checkpoint_path(dataflow: str, number: int) -> str:
    """Return the path of a checkpoint's description. It is created exclusively: no two checkpoints share a number."""
    return f"{checkpoints_folder(dataflow)}/{number:0{_DIGITS}d}.json"


def checkpoint_number(path: str) -> int | None:
    """Return the number of the checkpoint that is described at a path; None where that is no checkpoint's."""
    name, dot, kind = name_of(path).partition(".")
    return int(name) if dot and kind == "json" and len(name) >= _DIGITS and name.isdecimal() else None


def savepoints_folder(dataflow: str) -> str:
    """Return the default folder of the savepoints of a dataflow, relative to the store."""
    return f"{dataflow}/_savepoints"


def numbers_folder(dataflow: str) -> str:
    """Return the folder of the numbers of savepoints, and of checkpoints that the store does not hold any more."""
    return f"{savepoints_folder(dataflow)}/{NUMBERS}"


def number_path(dataflow: str, number: int) -> str:
    """Return the path of the file that records a number for a rebuild of the ledger.

    It has the folder of a savepoint, and is empty for a checkpoint.
    """
    return f"{numbers_folder(dataflow)}/{number:08d}"


def archives_folder(dataflow: str) -> str:
    """Return the folder of the archives of a dataflow's code, relative to the store."""
    return f"{dataflow}/{_ARCHIVES}"


def archive_path(dataflow: str, fingerprint: str, unique: str) -> str:
    """Return the path of an archive of code. No two writers share one, so that none waits for a deletion."""
    return f"{archives_folder(dataflow)}/{fingerprint}-{unique}.zip"


def archive_fingerprint(path: str) -> str | None:
    """Return the fingerprint of the archive at a path; None where that is no archive's."""
    found = _ARCHIVE.fullmatch(name_of(path))
    return found[1] if found else None


def positions_folder(dataflow: str) -> str:
    """Return the folder of the large positions of a dataflow's sources, relative to the store."""
    return f"{dataflow}/{_POSITIONS}"


def position_path(dataflow: str, sha256: str, unique: str) -> str:
    """Return the path of a large position. No two writers share one, so that none waits for a deletion."""
    return f"{positions_folder(dataflow)}/{sha256}-{unique}.json.gz"


def record_path(dataflow: str, epoch: str) -> str:
    """Return the path of the record of a run, relative to the store."""
    return f"{epoch_folder(dataflow, epoch)}/{RUN_RECORD}"


def sinks_folder(dataflow: str) -> str:
    """Return the folder of the pointers of all published data sets of a dataflow."""
    return f"{SINKS}/{dataflow}"


def pointer_folder(dataflow: str, sink: str, epoch: str) -> str:
    """Return the folder of the pointers of an epoch, relative to the store."""
    return f"{sinks_folder(dataflow)}/{sink}/{epoch}"


def pointer_path(dataflow: str, sink: str, epoch: str, version: int, *, is_provisional: bool = False) -> str:
    """The pointer of one version, or of provisional rows, which have no version; names sort as versions do."""
    suffix = PROVISIONAL if is_provisional else ".json"
    return f"{pointer_folder(dataflow, sink, epoch)}/{version:06d}{suffix}"
