"""Files of an hourly state in many subtasks, at rest and written, by the rules of compaction alone.

    pytest tests/benchmarks/state/test_small_files.py --benchmark-only -s --state-keys 5000000

Each hour for 30 days changes one key in ten thousand; three checkpoints are retained. A row has 11 bytes, and a file
1,500 besides, as Spark wrote them (docs/measurements.md). Nothing is computed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from statistics import median

import pytest

from weir.formats.manifest import DataFile, Segment, StateFile
from weir.state.compaction_rules import Limits, Merge, after, merges_of
from weir.state.file_rules import oldest_first
from weir.topology.key_groups import key_group_range

GROUPS, HOURS, RETAINED = 128, 720, 3
SHARE, ROW_BYTES, FILE_BYTES, SMALL = 0.0001, 11, 1_500, 2**20
BUDGET = 64 * 2**20
_NUMBERS = count(1)


def made(hour, rows, groups) -> StateFile:
    epoch = (datetime(2013, 1, 1, tzinfo=UTC) + timedelta(hours=hour)).strftime("%Y%m%dT%H%M%SZ")
    size = rows * ROW_BYTES + FILE_BYTES
    segments = (Segment(0, size - 1, "", False, groups), Segment(size - 1, 1, "", True))
    return StateFile("f", DataFile(f"{next(_NUMBERS)}.parquet", rows, size, "", segments), epoch, groups)


def merged(hour, merge: Merge, live: int, groups) -> StateFile:
    """The file of a merge: all rows of its key groups, at the bottom each once."""
    wide = merge.key_groups[1] - merge.key_groups[0] + 1
    rows = sum(each.file.rows * wide // (each.key_groups[1] - each.key_groups[0] + 1) for each in merge.files)
    return made(hour, min(rows, live * wide // (groups[1] - groups[0] + 1)), merge.key_groups)


@dataclass
class Hour:
    """The files that the checkpoint of an hour names, how many a subtask has read, and what compaction has written."""

    named: dict[str, StateFile]
    read: list[int]
    compacted: list[StateFile]


def hours(keys: int, subtasks: int, runs: int) -> Iterator[Hour]:
    live, changed = keys // subtasks, max(1, int(keys * SHARE / subtasks))
    ranges = [key_group_range(GROUPS, subtasks, each) for each in range(subtasks)]
    state = [(made(0, live, groups),) for groups in ranges]
    for hour in range(1, HOURS + 1):
        read, compacted = [len(files) for files in state], []
        for subtask, groups in enumerate(ranges):
            new = made(hour, changed, groups)
            files = oldest_first((*state[subtask], new))
            merges = merges_of(files, live, Limits(runs, BUDGET, new.file.bytes))
            written = [merged(hour, each, live, groups) for each in merges]
            state[subtask] = after(files, merges, written)
            compacted += written
        yield Hour({each.path: each for files in state for each in files}, read, compacted)


@pytest.mark.parametrize("runs", [8, 2])
@pytest.mark.parametrize("subtasks", [1, 4, 16])
def test_files_at_rest_and_written(benchmark, request, subtasks, runs) -> None:
    keys = request.config.getoption("--state-keys")
    found = benchmark.pedantic(lambda: list(hours(keys, subtasks, runs)), rounds=1)
    at_rest = []
    for last in range(RETAINED, HOURS + 1):
        named: dict[str, StateFile] = {}
        for each in found[last - RETAINED : last]:
            named |= each.named
        at_rest.append(named)
    small = [sum(each.file.bytes < SMALL for each in named.values()) for named in at_rest]
    compacted = sum(len(each.compacted) for each in found) / HOURS
    moved = sum(n.file.bytes for each in found for n in each.compacted)
    files, read = [*map(len, at_rest)], median(n for each in found for n in each.read)
    print(
        f"\n{subtasks} subtasks, runs={runs}: at rest {median(files):.0f} files, at most {max(files)},"
        f" small: {median(small):.0f}; a subtask reads {read:.0f}; an hour writes {subtasks},"
        f" its compaction {compacted:.1f} with {moved / HOURS / 2**20:.2f} MiB"
    )
    assert max(n for each in found for n in each.read) <= runs
