"""The simulator's twin of windows, without faults: what it gives, and what is found of results like its own."""

from dataclasses import replace
from itertools import pairwise

import pytest
from tests.simulation.event_time import epochs_of
from tests.simulator.dataflows import scene_from_text
from tests.simulator.event_time.outcome import (
    OF_WINDOWS,
    a_window_fires_on_time_once,
    no_window_is_left_out,
    what_is_in_the_side_output_was_late,
    windows_are_those_of_all_rows,
)
from tests.simulator.event_time.windows import Fired
from tests.simulator.events import events_from_text, events_to_text
from tests.simulator.simulate import WINDOWED, scene_and_events


def broken(epochs):
    return [each for each in OF_WINDOWS if any(each(epochs))]


@pytest.mark.parametrize("number", range(40))
def test_windows_from_epoch_to_epoch_are_those_of_all_rows_at_once_however_they_are_divided(number):
    alone = epochs_of(f"e{number}")
    assert broken(alone) == []
    assert epochs_of(f"e{number}", 2) == epochs_of(f"e{number}", 3) == alone


@pytest.mark.parametrize("number", range(40))
def test_a_query_that_comes_changes_and_goes_is_answered_by_the_rows_since_it_is_as_it_is(number):
    alone = epochs_of(f"e{number}", asks=f"q{number}")
    assert broken(alone) == []
    assert epochs_of(f"e{number}", 3, f"q{number}") == alone


def test_queries_come_change_stay_and_go():
    found = [[each.query for each in epochs_of("e1", asks=f"q{number}")] for number in range(20)]
    changes = [(one, other) for each in found for one, other in pairwise(each)]
    assert sum(one == other for one, other in changes) > 20
    assert sum(other.left_out is None for one, other in changes if one != other) > 5
    assert sum(None not in (one.left_out, other.left_out) for one, other in changes if one != other) > 15


def test_rows_come_in_time_late_for_what_has_fired_and_too_late_for_any_window():
    found = [each for number in range(40) for each in epochs_of(f"e{number}")]
    firings = [fired.is_late for each in found for fired in each.fired.values()]
    assert firings.count(False) > 5 * firings.count(True) > 100
    assert 100 < sum(len(each.late) for each in found) < sum(len(each.rows) for each in found) / 4


def again(first, second, third):
    """What the second epoch has fired on time fires once more."""
    cell = next(cell for cell, each in second.fired.items() if not each.is_late)
    return first, second, replace(third, fired={**third.fired, cell: second.fired[cell]})


def gone(first, second, third):
    """A window of the second epoch does not fire."""
    return first, replace(second, fired={}), third


def too_early(first, second, third):
    """A row goes to the side output that is not late by the epoch before."""
    row = next(row for row in third.rows if row.hour >= 48)
    return first, second, replace(third, late=sorted([*third.late, row]))


def of_fewer_rows(first, second, third):
    """What fires lacks a row."""
    (cell, fired), *_ = second.fired.items()
    return first, replace(second, fired={**second.fired, cell: Fired((fired.sum + 1) % 7, fired.is_late)}), third


@pytest.mark.parametrize(
    ("fault", "finds"),
    [
        (again, a_window_fires_on_time_once),
        (gone, no_window_is_left_out),
        (too_early, what_is_in_the_side_output_was_late),
        (of_fewer_rows, windows_are_those_of_all_rows),
    ],
)
def test_what_is_published_twice_not_at_all_or_too_early_is_found(fault, finds):
    assert finds in broken(fault(*epochs_of("e7")[:3]))


@pytest.mark.parametrize("seed", range(20))
def test_a_scene_over_event_time_is_read_as_it_is_printed(seed):
    scene, happens = scene_and_events(seed, WINDOWED)
    assert scene.is_windowed
    assert scene_from_text(str(scene).splitlines()) == scene
    assert events_from_text(events_to_text(happens)) == happens
