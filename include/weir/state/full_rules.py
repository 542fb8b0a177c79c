"""Compare, for `incremental="auto"`, writing all of a keyed state with writing what an epoch has changed of it.

Invariant: what is compared are the bytes that are written for the epoch: all of the state, or its changes and the
merges that the rules of compaction would then choose. All of the state is written only where that is not more; it is
one sorted run afterwards, as after a merge of all, and nothing is left to merge.
"""

from __future__ import annotations

from collections.abc import Sequence

from weir.dataflow.state import State
from weir.formats.manifest import DataFile, StateFile, WriteEstimate
from weir.state.compaction_rules import Limits, Merge, bytes_of, merges_of
from weir.state.file_rules import KeyGroups
from weir.topology.ids import Epoch
from weir.units import size_from_text


def estimate(
    state: State, files: Sequence[StateFile], new: tuple[Epoch, KeyGroups], changed: int, live: int
) -> WriteEstimate:
    """Estimate the bytes of both ways to write an epoch of a state that has `files`, at least one.

    `new` are the epoch and the key groups of the sorted run that its changes would be, of `changed` rows; `live` rows
    are visible after it. A row has as many bytes as in the file with the most rows.
    """
    largest = max(files, key=lambda file: file.file.rows).file
    full, changes = (-(-rows * largest.bytes // max(1, largest.rows)) for rows in (live, changed))
    known = (*files, StateFile("", DataFile("", changed, changes, "", ()), *new))
    stored = sum(bytes_of(each, each.key_groups) for each in known)
    limits = Limits(max(1, state.runs), size_from_text("budget", state.budget), changes)
    merges = merges_of(known, live, limits)
    return WriteEstimate(full, changes, sum(_written(each, full, stored) for each in merges))


def _written(merge: Merge, full: int, stored: int) -> int:
    """Estimate the bytes of a merge; of one that includes the oldest files only visible rows are left."""
    read = sum(bytes_of(each, each.key_groups) for each in merge.files)
    return min(read, full * read // max(1, stored)) if merge.is_bottom else read
