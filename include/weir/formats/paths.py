"""Where each document lies in the store: builds and parses the paths."""

from __future__ import annotations

from datetime import datetime
from typing import Final

MANIFEST: Final = "manifest.json"
RUN_RECORD: Final = "_run.json"

PAGES: Final = "_quality"
"""The folder of all pages about checks."""

NUMBERS: Final = "_numbers"
"""No savepoint has such a name."""

_DIGITS = 8
"""Of a number in the name of a file, so that names sort as numbers do."""


def checkpoints_folder(dataflow: str) -> str:
    """Where the checkpoints of a dataflow are listed, relative to the store."""
    return f"{dataflow}/_checkpoints"


def checkpoint_path(dataflow: str, number: int) -> str:
    """Where a checkpoint is described: made exclusively, so that a number is never that of two."""
    return f"{checkpoints_folder(dataflow)}/{number:0{_DIGITS}d}.json"


def checkpoint_number(path: str) -> int | None:
    """The number of the checkpoint that is described at a path; None where that is no checkpoint's."""
    name, dot, kind = path.rpartition("/")[2].partition(".")
    return int(name) if dot and kind == "json" and len(name) >= _DIGITS and name.isdecimal() else None


def savepoints_folder(dataflow: str) -> str:
    """Where the savepoints of a dataflow are if nobody says otherwise, relative to the store."""
    return f"{dataflow}/_savepoints"


def numbers_folder(dataflow: str) -> str:
    """Where the numbers are of savepoints that the store itself does not hold, or no more."""
    return f"{savepoints_folder(dataflow)}/{NUMBERS}"


def number_path(dataflow: str, number: int) -> str:
    """What says that a number was that of a savepoint, and of which folder: a ledger that is built again knows it."""
    return f"{numbers_folder(dataflow)}/{number:08d}"


def record_path(dataflow: str, epoch: str) -> str:
    """Where the record of a run is, relative to the store."""
    return f"{dataflow}/{epoch}/{RUN_RECORD}"


def page_path(
    dataflow: str, epoch: str, stage: str, subtask: int, attempt: str, suite: str, number: int, at: datetime
) -> str:
    """Where the page about a check is in the store. A ledger that was built again counts anew: hence the time."""
    return f"{run_pages(dataflow, epoch)}/{stage}/{subtask}/{attempt}/{suite}-{at:%Y%m%dT%H%M%SZ}-{number}.html"


def run_pages(dataflow: str, epoch: str) -> str:
    """The folder of all pages about a run."""
    return f"{PAGES}/{dataflow}/{epoch}"


def index_path(dataflow: str) -> str:
    """Where the list of a dataflow's pages is."""
    return f"{PAGES}/{dataflow}/index.html"


def pointer_folder(dataflow: str, sink: str, epoch: str) -> str:
    """Where the pointers of an epoch are, relative to the store."""
    return f"_sinks/{dataflow}/{sink}/{epoch}"


def pointer_path(dataflow: str, sink: str, epoch: str, version: int) -> str:
    """The pointer of one version; names sort as versions do."""
    return f"{pointer_folder(dataflow, sink, epoch)}/{version:06d}.json"
