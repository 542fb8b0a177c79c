"""Which runs of keyed state are merged: against a plain model of what the files hold."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from weir.formats.manifest import DataFile, Segment, StateFile
from weir.state.compaction_rules import WORTH_CLEANING, Limits, after, amplification, bytes_of, merges_of
from weir.state.file_rules import assigned_files, sorted_runs

GROUPS = 16
ROW = 2_000
"""Bytes of a row: so many that cleaning is worth it."""


def epoch(number):
    return f"{number:08d}T000000Z"


@dataclass(kw_only=True)
class Model:
    """Files with what they hold: of each key its value, or None where it was deleted; `truth` is what is visible."""

    runs: int = 8
    budget: int = 0
    key_groups: tuple[int, int] = (0, GROUPS - 1)
    files: tuple[StateFile, ...] = ()
    truth: dict[int, int] = field(default_factory=dict)
    content: dict[str, dict[int, int | None]] = field(default_factory=dict)
    number: int = 0
    changed: int = 0
    compacted: int = 0
    most_runs: int = 0

    def file(self, rows, at, key_groups):
        name = f"part-{len(self.content)}"
        counts = {}
        for key in rows:
            counts[key % GROUPS] = counts.get(key % GROUPS, 0) + 1
        segments, offset = [], 0
        for group, count in sorted(counts.items()):
            segments.append(Segment(offset, count * ROW, "", key_groups=(group, group)))
            offset += count * ROW
        found = StateFile("folder", DataFile(name, len(rows), offset, "", tuple(segments)), at, key_groups)
        self.content[found.path] = rows
        return found

    def read(self, files):
        seen = {}
        for each in sorted(files, key=lambda file: file.epoch):
            rows = self.content[each.path].items()
            seen |= {key: value for key, value in rows if each.key_groups[0] <= key % GROUPS <= each.key_groups[1]}
        return seen

    def epoch(self, changes):
        """An epoch of changes, then its compaction; the merges that it did."""
        at = epoch(self.number)
        self.number += 1
        mine = {key: value for key, value in changes.items() if self._has(key)}
        for key, value in mine.items():
            self.truth.pop(key, None)
            if value is not None:
                self.truth[key] = value
        changed = 0
        if mine:
            own = self.file(mine, at, self.key_groups)
            self.files, changed = (*self.files, own), own.file.bytes
        return self.compact(changed)

    def compact(self, changed):
        merges = merges_of(self.files, len(self.truth), Limits(self.runs, self.budget, changed))
        written = [each for each in map(self._merged, merges) if each is not None]
        size = sum(each.file.bytes for each in written)
        assert size <= 2 * changed + self.budget
        self.files = after(self.files, merges, written)
        self.changed, self.compacted = self.changed + changed, self.compacted + size
        self.most_runs = max(self.most_runs, sorted_runs(self.files))
        assert {key: value for key, value in self.read(self.files).items() if value is not None} == self.truth
        return merges

    def _merged(self, merge):
        rows = self.read(merge.files)
        if merge.is_bottom:
            rows = {key: value for key, value in rows.items() if value is not None}
        return self.file(rows, merge.epoch, merge.key_groups) if rows else None

    def _has(self, key):
        return self.key_groups[0] <= key % GROUPS <= self.key_groups[1]

    @property
    def figures(self):
        return amplification(self.files, len(self.truth), self.changed, self.compacted)


def uniform(chosen, keys, share):
    return {key: chosen.random() for key in chosen.sample(range(keys), int(keys * share))}


def with_base(keys=2_000, **more):
    model = Model(**more)
    model.epoch(dict.fromkeys(range(keys), 0))
    model.changed = model.compacted = 0
    return model


@pytest.mark.parametrize("budget", [0.02, 0.1, 1.0])
def test_over_fifty_epochs_of_one_per_cent_three_bytes_are_written_for_one_that_changed(budget):
    model, chosen = with_base(budget=int(2_000 * ROW * budget)), random.Random(1)
    for _ in range(50):
        model.epoch(uniform(chosen, 2_000, 0.01))
    assert model.most_runs <= 8
    assert model.figures.writing <= 3.0
    assert model.figures.space <= 2.0


def test_where_much_changes_invisible_rows_are_removed_by_slices():
    model, chosen = with_base(budget=2_000 * ROW // 5), random.Random(2)
    for _ in range(30):
        model.epoch(uniform(chosen, 2_000, 0.1))
    assert model.most_runs <= 8
    assert model.figures.writing <= 3.5
    assert model.figures.space <= 2.2
    assert len({each.key_groups for each in model.files}) > 1


@pytest.mark.parametrize("seed", range(12))
def test_nothing_is_lost_and_no_epoch_writes_too_much_whatever_changes(seed):
    """Small and large epochs, empty ones, deletions, few runs and many, budgets from none to plenty."""
    chosen = random.Random(seed)
    model = Model(runs=chosen.choice([2, 3, 5, 8]), budget=chosen.choice([0, 20, 300, 10_000]) * ROW)
    for _ in range(40):
        count = chosen.choice([0, 1, 5, 5, 60, 400])
        model.epoch({chosen.randrange(500): chosen.choice([None, 1, 2, 3]) for _ in range(count)})
    assert model.number == 40


@pytest.mark.parametrize("runs", [2, 4, 8])
def test_runs_are_bounded_where_the_budget_is_the_size_of_the_state(runs):
    chosen = random.Random(runs)
    model = Model(runs=runs, budget=1_000 * ROW)
    for _ in range(40):
        model.epoch({chosen.randrange(500): chosen.choice([None, 1]) for _ in range(chosen.choice([0, 1, 30, 200]))})
        assert sorted_runs(model.files) <= runs


def test_without_a_budget_the_most_urgent_slices_come_first_and_all_have_their_turn():
    model, chosen = with_base(budget=0, runs=3), random.Random(4)
    for _ in range(10):
        model.epoch(uniform(chosen, 2_000, 0.05))
    runs = sorted_runs(model.files)
    assert runs > 3
    model.budget = 2_000 * ROW
    for _ in range(4):
        model.epoch({})
    assert sorted_runs(model.files) <= 3


def test_the_oldest_files_are_left_alone_while_what_is_above_them_is_small():
    model, chosen = with_base(budget=10**9), random.Random(5)
    base = model.files[0].path
    for _ in range(30):
        assert not any(merge.is_bottom for merge in model.epoch(uniform(chosen, 2_000, 0.01)))
    assert model.files[0].path == base


def test_deleted_keys_are_remembered_until_nothing_is_below_them():
    model = Model(runs=2, budget=10**9)
    model.epoch(dict.fromkeys(range(300), 0))
    model.epoch({1: None})
    model.epoch({2: None})
    above = [value for each in model.files[1:] for value in model.content[each.path].values()]
    assert above == [None, None]
    model.runs = 1
    model.epoch({3: None})
    assert [None] not in [list(model.content[each.path].values()) for each in model.files]
    assert len(model.content[model.files[0].path]) == 297


def test_where_all_is_deleted_nothing_is_left():
    model = Model(runs=1, budget=10**9)
    model.epoch({1: 1})
    model.epoch({1: None})
    assert model.files == ()
    assert merges_of((), 0, Limits(8, 0, 0)) == ()


def test_a_small_state_is_not_merged_for_invisible_rows():
    model = Model(budget=10**9)
    for number in range(5):
        assert model.epoch({1: number}) == ()
    assert sum(each.file.bytes for each in model.files) < WORTH_CLEANING


def test_after_a_change_of_parallelism_shares_of_old_files_are_merged_and_counted_as_shares():
    old = [Model(budget=10**9, key_groups=groups) for groups in ((0, 7), (8, 15))]
    chosen = random.Random(8)
    for number in range(4):
        changes = dict.fromkeys(range(3_000), 0) if number == 0 else uniform(chosen, 3_000, 0.01)
        for model in old:
            model.epoch(changes)
    for groups in ((0, 5), (6, 10), (11, 15)):
        model = Model(budget=10**9, key_groups=groups, number=4)
        for each in old:
            model.content |= {f"folder/{path}-{each.key_groups[0]}": rows for path, rows in each.content.items()}
            renamed = [
                StateFile("folder", _named(file, f"{file.path}-{each.key_groups[0]}"), file.epoch, file.key_groups)
                for file in each.files
            ]
            model.files = assigned_files([*model.files, *renamed], groups, None)
            model.truth |= {key: value for key, value in each.truth.items() if groups[0] <= key % GROUPS <= groups[1]}
        assert model.compact(0) == ()
        model.runs = 2
        assert model.compact(0)
        assert sorted_runs(model.files) <= 2


def _named(file, name):
    return DataFile(name, file.file.rows, file.file.bytes, file.file.sha256, file.file.segments)


def test_the_bytes_of_key_groups_are_those_of_their_row_groups():
    file = Model().file(dict.fromkeys(range(160), 0), epoch(0), (0, 15))
    assert bytes_of(file, (0, 3)) == 40 * ROW
    assert bytes_of(file, (0, 15)) == file.file.bytes
    assert bytes_of(StateFile("folder", file.file, epoch(0), (4, 7)), (0, 5)) == 20 * ROW
    assert bytes_of(file, (20, 30)) == 0


def test_of_files_that_do_not_say_where_their_key_groups_are_each_has_its_share():
    file = StateFile("folder", DataFile("part", 10, 1_600, "", ()), epoch(0), (0, 15))
    assert bytes_of(file, (0, 3)) == 400


def test_a_state_without_changes_and_one_without_rows_have_no_amplification():
    found = amplification((), 0, 0, 0)
    assert (found.reading, found.writing, found.space) == (0, 1.0, 1.0)
