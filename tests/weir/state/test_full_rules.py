"""When all of a state is written instead of its changes: against a plain model that pays for both ways."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from tests.weir.state.test_compaction_rules import GROUPS, ROW, Model, epoch, uniform

from weir.dataflow.state import keyed_state
from weir.formats.manifest import WriteEstimate
from weir.state.full_rules import estimate

KEYS = 500
EPOCHS = 20


@dataclass(kw_only=True)
class Chosen(Model):
    """A model whose epochs are written as an estimate says; `wholes` counts those that were written whole."""

    wholes: int = 0

    def epoch(self, changes):
        after = {key: value for key, value in (self.truth | changes).items() if value is not None}
        if not (self.files and changes and self.estimate(changes, after).is_full):
            return super().epoch(changes)
        self.wholes += 1
        at = epoch(self.number)
        self.number += 1
        self.truth = after
        self.files = (self.file(after, at, self.key_groups),) if after else ()
        written = sum(each.file.bytes for each in self.files)
        assert self.compact(written) == ()
        return ()

    def estimate(self, changes, after):
        state = keyed_state("s", key="k", schema="k INT", runs=self.runs, budget=f"{self.budget} B")
        return estimate(state, self.files, (epoch(self.number), self.key_groups), len(changes), len(after))


def after_days(kind, days, **settings):
    """The bytes of all epochs but the first, and of their compactions, in states; and the model."""
    model = kind(**settings)
    model.epoch(dict.fromkeys(range(KEYS), 0))
    model.changed = 0
    for day in days:
        model.epoch(day)
    return (model.changed + model.compacted) / (KEYS * ROW), model


def days_of(share, seed=1):
    chosen = random.Random(seed)
    return [uniform(chosen, KEYS, share) for _ in range(EPOCHS)]


def test_all_of_it_is_written_where_that_is_as_much_as_the_changes_and_their_compaction():
    assert WriteEstimate(full=10, changes=6, compaction=4).is_full
    assert not WriteEstimate(full=11, changes=6, compaction=4).is_full


def test_the_bytes_are_those_of_rows_in_the_largest_file_and_of_the_merges_that_would_be_chosen():
    model = Chosen(budget=10**9)
    model.epoch(dict.fromkeys(range(KEYS), 0))
    changes = dict.fromkeys(range(KEYS // 2), 1)
    assert model.estimate(changes, model.truth) == WriteEstimate(KEYS * ROW, KEYS * ROW // 2, 0)
    Model.epoch(model, dict.fromkeys(range(KEYS), 2))
    assert model.estimate(changes, model.truth) == WriteEstimate(KEYS * ROW, KEYS * ROW // 2, KEYS * ROW)


@pytest.mark.parametrize("budget", [0, KEYS * ROW // 5, 10**8])
@pytest.mark.parametrize("share", [0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0])
def test_of_what_changes_evenly_no_more_is_written_than_in_either_way_alone(share, budget):
    days = days_of(share)
    incremental, _ = after_days(Model, days, budget=budget)
    written, model = after_days(Chosen, days, budget=budget)
    assert written <= min(incremental, EPOCHS)
    assert model.wholes == 0 or share >= 0.1
    assert share < 0.5 or (model.wholes and model.figures.space <= 2.1)


def test_where_most_rows_change_half_as_much_is_written():
    days = days_of(0.9)
    incremental, _ = after_days(Model, days)
    written, model = after_days(Chosen, days)
    assert written <= 0.7 * incremental
    assert 0 < model.wholes < EPOCHS


def test_a_day_that_changes_nearly_all_is_written_whole_once_the_garbage_would_be_merged_anyway():
    chosen = random.Random(3)
    days = [uniform(chosen, KEYS, 0.9 if day % 5 == 4 else 0.01) for day in range(EPOCHS)]
    incremental, _ = after_days(Model, days)
    written, model = after_days(Chosen, days)
    assert written <= 0.8 * incremental
    assert 0 < model.wholes <= EPOCHS // 5


def test_rows_that_are_only_added_are_never_written_again_with_all_others():
    days = [dict.fromkeys(range(KEYS + day * KEYS, 2 * KEYS + day * KEYS), 0) for day in range(6)]
    _, model = after_days(Chosen, days, budget=10**9)
    assert model.wholes == 0


def test_a_state_of_which_most_is_deleted_is_written_whole():
    _, model = after_days(Chosen, [dict.fromkeys(range(KEYS * 3 // 4), None)], budget=10**9)
    assert model.wholes == 1
    assert len(model.files) == 1


@pytest.mark.parametrize("seed", range(12))
def test_whatever_changes_the_rows_are_right_and_hardly_more_is_written(seed):
    """Not never more: what an epoch has left unmerged for want of a budget may never have to be merged."""
    chosen = random.Random(seed)
    settings = {"runs": chosen.choice([2, 3, 8]), "budget": chosen.choice([0, 20, 300, 10_000]) * ROW}
    days = [
        {chosen.randrange(2 * KEYS): chosen.choice([None, 1, 2]) for _ in range(chosen.choice([0, 5, 60, 400, 900]))}
        for _ in range(EPOCHS)
    ]
    incremental, _ = after_days(Model, days, **settings)
    written, model = after_days(Chosen, days, **settings)
    assert written <= 1.1 * incremental
    assert {key % GROUPS for key in model.truth} <= set(range(GROUPS))
