"""What keyed state costs beside what it is: of reading, of writing, and of space."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from weir.results.manifest import StateFile
from weir.state.files import runs_to_merge


@dataclass(frozen=True, slots=True)
class Amplification:
    """How many runs a reader merges, how many bytes are written for one that changed, how many rows are kept for one.

    Of a state without rows the space is 1.0; of an epoch that changed nothing the writing is 1.0.
    """

    reading: int
    writing: float
    space: float


def amplification(
    files: Iterable[StateFile], live_rows: int, changed_bytes: int, compacted_bytes: int
) -> Amplification:
    """The figures of one partition, or of several together: `files` stand for `live_rows` visible rows.

    `changed_bytes` are what epochs wrote themselves, `compacted_bytes` what compactions of them wrote.
    """
    known = tuple(files)
    stored = sum({each.path: each.file.rows for each in known}.values())
    return Amplification(
        runs_to_merge(known),
        (changed_bytes + compacted_bytes) / changed_bytes if changed_bytes else 1.0,
        stored / live_rows if live_rows else 1.0,
    )
