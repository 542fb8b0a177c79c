"""A lost state is recomputed from the newest retained state, and never from before a released one."""

from dataclasses import replace

import pytest

from weir.dataflow import Dataflow, Stage, blocking, keyed_state, sink, source
from weir.errors import Fault, Loss
from weir.execution.partition_state import PartitionState
from weir.execution.run_state import AttemptState, CurrentResult, EarlierRun, ReadResult, ReadSet, RegionState, RunState
from weir.recovery.rules.backtrack import Occasion
from weir.recovery.rules.decision import Failure, NeedsProbe, decide
from weir.recovery.rules.plan import Plan, StepKind
from weir.topology.regions import RegionId, Topology

AIRCRAFT = RegionId("aircraft-known", 0)
TOPOLOGY = Topology(
    Dataflow(
        "delays",
        [
            source("flights", "p:flights"),
            Stage(
                "aircraft",
                "p:aircraft",
                [blocking("flights", by="k")],
                state=keyed_state("history", key="k", schema="k BIGINT, n BIGINT"),
            ),
            sink("aircraft", "known"),
        ],
    )
)
OUTPUTS = {each.stage: each for region in TOPOLOGY.region_ids() for each in TOPOLOGY.outputs(region)}
DAYS = ("delays@1", "delays@2", "delays@3", "")
"""Three earlier runs, and the one that is spoken of."""


def history(day):
    return replace(OUTPUTS["history"], run=DAYS[day - 1])


def days(*, changed=(), without_tasks=(), **states):
    """Four days that have committed; `changed` days have other state by now than the next day has read."""
    named = {int(day.removeprefix("day")): state for day, state in states.items()}
    results, regions = {}, {}
    for day, run in enumerate(DAYS, 1):
        for stage, partition in OUTPUTS.items():
            reads = []
            if stage != "flights":
                flights = replace(OUTPUTS["flights"], run=run)
                reads.append(ReadSet((ReadResult(flights, "t1", "content"),)))
            if stage != "flights" and day > 1:
                reads.append(ReadSet((ReadResult(history(day - 1), "t1", "content"),)))
            each = replace(partition, run=run)
            state = named.get(day, PartitionState.FINISHED) if stage == "history" else PartitionState.FINISHED
            digest = "other" if stage == "history" and day in changed else "content"
            results[each] = CurrentResult(
                partition=each,
                result=1,
                attempt="t1",
                try_number=1,
                state=state,
                folder="f",
                manifest_sha256="sha",
                digest=digest,
                rows=1,
                bytes=1,
                reads=tuple(reads),
                versions=frozenset({"code"}),
            )
        for region in TOPOLOGY.region_ids():
            own = replace(region, run=run)
            regions[own] = RegionState(region=own, newest_try=1, newest_state=AttemptState.COMMITTED, ended_try=1)
    earlier = {
        run: EarlierRun(run, TOPOLOGY, DAYS[place - 1] if place else None, has_tasks=place + 1 not in without_tasks)
        for place, run in enumerate(DAYS[:-1])
    }
    return RunState(
        run="delays@4", topology=TOPOLOGY, results=results, regions=regions, predecessor=DAYS[2], earlier=earlier
    )


def lost(*gone):
    return {
        history(day): Loss(f"delays@{day}", "history", 0, history(day).layout, "t1", Fault.MISSING, "gone")
        for day in gone
    }


def plan_of(state, *gone, failed=AIRCRAFT, occasion=Occasion.LOSS):
    answer = decide(
        state,
        Failure(
            failed=failed, losses=lost(*gone), intact=frozenset(state.results) - lost(*gone).keys(), occasion=occasion
        ),
    )
    assert not isinstance(answer, NeedsProbe)
    return answer


def rerun(plan):
    return [f"{step.region.name} of {step.region.run[-1:] or 4}" for step in plan.of(StepKind.RERUN)]


def test_a_lost_state_is_made_again_from_the_newest_one_that_is_kept():
    plan = plan_of(days(), 3)
    assert (rerun(plan), plan.impossible) == (["aircraft-known of 3"], "")
    plan = plan_of(days(), 2, 3)
    assert (rerun(plan), plan.impossible) == (["aircraft-known of 2", "aircraft-known of 3"], "")


def test_what_all_earlier_days_have_lost_is_made_again_since_the_first():
    plan = plan_of(days(), 1, 2, 3)
    assert (len(rerun(plan)), plan.impossible) == (3, "")


def test_a_released_state_ends_the_walk_and_says_who_needs_it():
    plan = plan_of(days(day1=PartitionState.RELEASED), 2, 3)
    assert "history[0] (by-k-128-128657) of delays@1: missing, it was released" in plan.impossible
    assert "needed by aircraft-known[0] of delays@2" in plan.impossible
    assert "flights of 1" not in rerun(plan)


def test_a_state_that_was_released_further_back_than_is_needed_hinders_nobody():
    plan = plan_of(days(day1=PartitionState.RELEASED), 3)
    assert (rerun(plan), plan.impossible) == (["aircraft-known of 3"], "")


def test_a_released_state_that_is_stale_is_made_again_with_what_has_changed():
    plan = plan_of(days(changed={1}, day2=PartitionState.RELEASED))
    assert (rerun(plan), plan.impossible) == (["aircraft-known of 2", "aircraft-known of 3"], "")


def test_what_a_dataflow_has_begun_with_is_nobodys_to_make_again():
    plan = plan_of(days(without_tasks={2}), 2, 3)
    assert "history[0] (by-k-128-128657) of delays@2: missing, gone" in plan.impossible
    assert "aircraft-known of 2" not in rerun(plan)
    assert plan_of(days(without_tasks={2}), 3).impossible == ""


@pytest.mark.parametrize("occasion", [Occasion.REPAIR, Occasion.QUESTION])
def test_a_repair_and_a_person_hear_of_it_too(occasion):
    state = days(day1=PartitionState.RELEASED)
    plan = plan_of(state, 2, 3, failed=AIRCRAFT if occasion is Occasion.QUESTION else None, occasion=occasion)
    assert "it was released" in plan.impossible


def test_what_may_run_again_says_what_it_would_miss():
    state = days(day3=PartitionState.RELEASED)
    plan = plan_of(state, failed=RegionId("flights", 0), occasion=Occasion.QUESTION)
    assert plan.impossible == ""
    (step,) = plan.of(StepKind.IF_CHANGED)
    assert step.reason.startswith("if the digest of flights[0] changes, but could not: history[0]")
    assert "history[0] (by-k-128-128657) of delays@3: missing, it was released" in step.reason


def replaying(state):
    """The same days of a dataflow that has its states replayed."""
    return replace(state, topology=Topology(replace(TOPOLOGY.dataflow, replay="automatic")))


def test_a_released_state_is_made_again_where_the_dataflow_has_it_replayed():
    released = {f"day{day}": PartitionState.RELEASED for day in (1, 2)}
    plan = plan_of(replaying(days(**released)), 3)
    assert rerun(plan) == [f"aircraft-known of {day}" for day in (1, 2, 3)]
    assert plan.impossible == ""


def test_what_a_dataflow_has_begun_with_is_not_replayed_either():
    released = {f"day{day}": PartitionState.RELEASED for day in (2, 3)}
    plan = plan_of(replaying(days(without_tasks={2}, **released)))
    assert "history[0] (by-k-128-128657) of delays@2: missing, it was released" in plan.impossible
    assert "aircraft-known of 2" not in rerun(plan)


def test_a_plan_reads_back_as_impossible():
    plan = plan_of(days(day1=PartitionState.RELEASED), 2, 3)
    assert Plan.from_json(plan.to_json()).impossible == plan.impossible
