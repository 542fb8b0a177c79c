"""What is due by the state of a run alone: which changes are news to which regions."""

import itertools
from dataclasses import replace
from random import Random

import pytest
from tests.weir.recovery.test_decision import named, topology, whole_run

from weir.execution.run_state import AttemptState, coming_result
from weir.recovery.rules.staleness import older_than_siblings, stale_consumers

READERS = ("report-out[0]",)
"""What reads `totals`."""


def changed(state, stage="totals", number=7, digest="another", **more):
    """The state after another attempt has committed subtask 0 of a stage, as the result of this number."""
    place = next(each for each in state.results if (each.stage, each.subtask) == (stage, 0))
    more = {"versions": state.results[place].versions} | more
    new = replace(coming_result(place, "t0002", digest, **more), result=number, reads=state.results[place].reads)
    return replace(state, results={**state.results, place: new})


def with_region(state, name, **known):
    region = named(name)
    return replace(state, regions={**state.regions, region: replace(state.region(region), **known)})


def due(state):
    return {str(region): why for region, why in stale_consumers(state).items()}


def test_a_change_is_due_for_what_has_read_another_result_and_for_nobody_behind_it():
    found = due(changed(whole_run(topology()), "joined"))
    assert set(found) == {"totals[0]", "totals[1]"}
    assert "joined[0]" in found["totals[0]"]
    assert found["totals[0]"].endswith("try 1 read another one")


def test_equal_content_is_no_change_unless_consumers_always_restart():
    place = next(each for each in whole_run(topology()).results if (each.stage, each.subtask) == ("totals", 0))
    equal = {"digest": f"digest of {place}"}
    assert not due(changed(whole_run(topology()), **equal))
    assert set(due(changed(whole_run(topology(consumers="always")), **equal))) == set(READERS)


STATES = [
    dict(zip(("newest_state", "ended_try"), each, strict=True)) for each in itertools.product(AttemptState, (1, 2))
]


@pytest.mark.parametrize("known", STATES, ids=lambda known: f"{known['newest_state'].value}-{known['ended_try']}")
def test_a_change_is_news_to_what_began_or_was_decided_before_it_whatever_has_become_of_that(known):
    state = changed(whole_run(topology()), number=7)
    for newest_result, is_due in ((6, True), (7, False), (8, False)):
        seen = with_region(state, READERS[0], newest_try=2, newest_result=newest_result, **known)
        assert set(due(seen)) == (set(READERS) if is_due else set())


def test_what_an_earlier_change_has_restarted_is_due_again_for_the_next_one():
    seen = with_region(changed(whole_run(topology()), number=7), READERS[0], newest_result=7)
    assert not due(seen)
    assert set(due(changed(seen, number=8, digest="yet another"))) == set(READERS)


UNENDED = (AttemptState.RUNNING, AttemptState.WAITING, AttemptState.RETRYING)


def drawn_region(random):
    """A region whose newest attempt was registered, or newest clear decided, when there were so many results."""
    return {
        "newest_try": 2,
        "newest_state": random.choice(tuple(AttemptState)),
        "ended_try": random.choice((1, 2)),
        "repair_after_try": random.choice((None, 1, 2)),
        "is_to_be_cleared": random.choice((True, False)),
        "newest_result": random.choice((6, 7, 8)),
    }


@pytest.mark.parametrize("seed", range(100))
def test_a_subtask_of_older_code_is_due_if_and_only_if_it_knows_nothing_of_the_newer_and_no_attempt_of_it_goes_on(seed):
    """One that was cleared before is due as well: its try may have failed before it was registered."""
    known = drawn_region(Random(seed))
    newer = changed(whole_run(topology()), number=7, versions=frozenset({"newer"}), code="newer", generation=2)
    found = older_than_siblings(with_region(newer, "totals[1]", **known))
    is_due = known["newest_result"] < 7 and known["newest_state"] not in UNENDED
    assert {str(each) for each in found} == ({"totals[1]"} if is_due else set())
