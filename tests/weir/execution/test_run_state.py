"""What follows from a run's results: what is valid, what is good, and who is awaited."""

from dataclasses import replace

import pytest

from weir.dataflow import Dataflow, Stage, blocking, sink, source
from weir.execution.partition_state import PartitionState
from weir.execution.run_state import CLOSE, AttemptState, CurrentResult, ReadResult, ReadSet, RegionState, RunState
from weir.topology.regions import PartitionId, RegionId, Topology

CHAIN = Topology(
    Dataflow(
        "chain",
        [
            source("a", "m:a"),
            Stage("b", "m:b", [blocking("a")]),
            Stage("c", "m:c", [blocking("b")]),
            Stage("d", "m:d", [blocking("c")]),
            Stage("e", "m:e", [blocking("d")]),
            sink("e", "out"),
        ],
    )
)
NAMES = ("a", "b", "c", "d")
PARTITION = {name: PartitionId(name, 0, "plain") for name in NAMES}
REGION = {name: RegionId(name, 0) for name in NAMES}


def read(name):
    """What a stage of the chain holds, as its reader recorded it."""
    return ReadSet((ReadResult(PARTITION[name], f"t0001-{name}", f"digest of {name}"),))


def result(name, digest=None, reads=None, state=PartitionState.FINISHED):
    """The result of a stage of the chain, made from what the stage before it holds by default."""
    before = NAMES[NAMES.index(name) - 1] if name != "a" else None
    if reads is None:
        reads = () if before is None else (read(before),)
    return CurrentResult(
        partition=PARTITION[name],
        result=1,
        attempt=f"t0001-{name}",
        try_number=1,
        state=state,
        folder=name,
        manifest_sha256="sha",
        digest=digest or f"digest of {name}",
        rows=1,
        bytes=1,
        reads=reads,
        versions=frozenset({"code"}),
    )


def run_of(*results, regions=()):
    return RunState(
        run="run",
        topology=CHAIN,
        results={each.partition: each for each in results},
        regions={each.region: each for each in regions},
    )


def all_of(*others):
    """The whole chain, with some results replaced."""
    return {**{name: result(name) for name in NAMES}, **{each.partition.stage: each for each in others}}.values()


def validity(state):
    return [name for name in NAMES if state.is_valid(PARTITION[name])]


def test_results_made_from_what_is_current_are_valid():
    assert validity(run_of(*all_of())) == ["a", "b", "c", "d"]


def test_a_changed_input_makes_everything_behind_it_stale_over_many_hops():
    assert validity(run_of(*all_of(result("a", digest="another")))) == ["a"]
    assert validity(run_of(*all_of(result("b", digest="another")))) == ["a", "b"]


def test_results_become_valid_again_when_the_digest_comes_back():
    changed = all_of(result("a", digest="another"))
    assert validity(run_of(*changed)) == ["a"]
    back = replace(result("a"), attempt="t0003-a", try_number=3)
    assert validity(run_of(*all_of(back))) == ["a", "b", "c", "d"]


def test_a_stale_middle_stays_stale_when_only_the_end_is_made_again():
    again = result("d", reads=(read("c"),))
    assert validity(run_of(*all_of(result("a", digest="another"), again))) == ["a"]


def test_a_result_whose_input_has_no_result_is_stale():
    assert validity(run_of(result("a"), result("c"), result("d"))) == ["a"]


@pytest.mark.parametrize("state", [PartitionState.LOST, PartitionState.RELEASED])
def test_lost_bytes_change_availability_and_not_validity(state):
    found = run_of(*all_of(result("b", state=state)))
    assert validity(found) == ["a", "b", "c", "d"]
    assert [name for name in NAMES if found.is_good(PARTITION[name])] == ["a", "c", "d"]


def test_a_quarantined_result_is_invalid_and_so_is_what_was_made_from_it():
    assert validity(run_of(*all_of(result("b", state=PartitionState.QUARANTINED)))) == ["a"]


def test_the_closing_task_needs_all_results():
    assert set(run_of().inputs_of(CLOSE)) == {*PARTITION.values(), PartitionId("out", 0, "plain")}
    assert run_of().inputs_of(REGION["c"]) == (PARTITION["b"],)


# Running regions


@pytest.mark.parametrize(
    ("region", "is_running"),
    [
        (RegionState(region=REGION["a"]), False),
        (RegionState(region=REGION["a"], newest_try=1, newest_state=AttemptState.RUNNING), True),
        (RegionState(region=REGION["a"], newest_try=1, newest_state=AttemptState.WAITING), True),
        (RegionState(region=REGION["a"], newest_try=1, newest_state=AttemptState.RETRYING), True),
        (RegionState(region=REGION["a"], newest_try=1, newest_state=AttemptState.FAILED, ended_try=1), False),
        (RegionState(region=REGION["a"], newest_try=1, newest_state=AttemptState.FENCED), False),
        (RegionState(region=REGION["a"], newest_try=1, newest_state=AttemptState.COMMITTED, ended_try=1), False),
        (
            RegionState(
                region=REGION["a"], newest_try=1, newest_state=AttemptState.COMMITTED, ended_try=1, repair_after_try=1
            ),
            True,
        ),
        (
            RegionState(
                region=REGION["a"], newest_try=2, newest_state=AttemptState.COMMITTED, ended_try=2, repair_after_try=1
            ),
            False,
        ),
        (
            RegionState(
                region=REGION["a"], newest_try=2, newest_state=AttemptState.FAILED, ended_try=2, repair_after_try=1
            ),
            False,
        ),
    ],
)
def test_a_region_is_at_work_until_its_newest_attempt_or_repair_has_ended(region, is_running):
    assert region.is_running is is_running


def test_a_region_that_never_began_is_not_at_work():
    assert not run_of().region(REGION["a"]).is_running


def running(name):
    return RegionState(region=REGION[name], newest_try=2, newest_state=AttemptState.RUNNING, ended_try=1)


def test_a_producer_at_work_is_awaited():
    assert run_of(regions=[running("b")]).awaited_for(PARTITION["b"]) == {REGION["b"]}


def test_a_stale_result_waits_for_what_makes_its_inputs_again_however_far_away():
    stale = all_of(result("a", digest="another"))
    assert run_of(*stale, regions=[running("a")]).awaited_for(PARTITION["d"]) == {REGION["a"]}
    assert run_of(*stale, regions=[running("b")]).awaited_for(PARTITION["d"]) == {REGION["b"]}


def test_nobody_is_awaited_for_what_nobody_makes():
    assert run_of().awaited_for(PARTITION["b"]) == set()
    assert run_of(*all_of(result("a", digest="another"))).awaited_for(PARTITION["d"]) == set()


def test_a_valid_result_waits_for_nobody_though_its_inputs_are_made_again():
    """They may be recomputed with equal content; its own producer is not running."""
    assert run_of(*all_of(), regions=[running("a")]).awaited_for(PARTITION["d"]) == set()
