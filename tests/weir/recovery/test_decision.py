"""The whole decision: by strategy, by the rule for consumers, across runs, and for a person who asks."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.messages.kinds import of_kind

from weir.code.generation_rules import Code, Generation, RepairCode
from weir.dataflow import Dataflow, Stage, blocking, pipelined, previous, sink, source
from weir.errors import Fault, Loss, Misconfigured
from weir.execution.partition_state import PartitionState
from weir.execution.run_state import (
    CLOSE,
    AttemptState,
    CurrentResult,
    EarlierRun,
    MissingContext,
    ReadResult,
    ReadSet,
    RegionState,
    RunState,
)
from weir.recovery.rules.backtrack import Occasion
from weir.recovery.rules.decision import Failure, NeedsProbe, decide
from weir.recovery.rules.plan import Cost, Plan, Step, StepKind
from weir.topology.regions import PartitionId, RegionId, Topology

GOLDEN = Path(__file__).parents[2] / "golden" / "plan-v1.json"


def topology(*, deterministic=True, **options):
    return Topology(
        Dataflow(
            "flow",
            [
                source("raw", "m:raw", parallelism=2),
                Stage("clean", "m:clean", [pipelined("raw")], parallelism=2, deterministic=deterministic),
                source("weather", "m:weather"),
                Stage("joined", "m:joined", [blocking("clean", by="k"), blocking("weather", by="k")], parallelism=2),
                Stage("totals", "m:totals", [blocking("joined", by="k")], parallelism=2),
                Stage("report", "m:report", [blocking("totals")]),
                sink("report", "out"),
            ],
            **options,
        )
    )


def whole_run(of, *, changed=(), states=None, regions=(), run="run"):
    """A run that has committed and closed; `changed` producers have new content that was not read yet."""
    results = {}
    for region in of.region_ids():
        reads = tuple(
            ReadSet(tuple(ReadResult(each, "t0001", f"digest of {each}") for each in read.partitions))
            for read in of.inputs(region)
        )
        for each in of.outputs(region):
            state = (states or {}).get((each.stage, each.subtask), PartitionState.FINISHED)
            digest = "another" if (each.stage, each.subtask) in changed else f"digest of {each}"
            results[each] = CurrentResult(
                partition=each,
                result=1,
                attempt="t0001",
                try_number=1,
                state=state,
                folder="f",
                manifest_sha256="sha",
                digest=digest,
                rows=1,
                bytes=1,
                reads=reads,
                versions=frozenset({"code"}),
            )
    ended = {
        each: RegionState(region=each, newest_try=1, newest_state=AttemptState.COMMITTED, ended_try=1)
        for each in (*of.region_ids(), CLOSE)
    }
    return RunState(run=run, topology=of, results=results, regions=ended | {each.region: each for each in regions})


def gone(state, *names):
    return {
        each: Loss("run", each.stage, each.subtask, each.layout, "t0001", Fault.MISSING, "gone")
        for each in state.results
        if (each.stage, each.subtask) in names
    }


def of(plan, kind):
    return [str(step.region) for step in plan.of(kind)]


def decided(state, failed="totals[0]", lost=(), **more):
    """The plan where all that is not lost is there."""
    region = None if failed is None else named(failed)
    losses = gone(state, *lost)
    intact = frozenset(state.results) - losses.keys()
    return decide(state, Failure(failed=region, losses=losses, intact=intact, **more))


def named(text):
    name, _, rest = text.partition("[")
    return RegionId(name, int(rest.rstrip("]")))


def test_with_always_all_that_has_begun_behind_what_runs_again_runs_again():
    plan = decided(whole_run(topology(consumers="always")), lost=[("joined", 1)])
    assert of(plan, StepKind.RERUN) == ["joined[1]", "totals[1]", "report-out[0]", "weir_close[0]"]
    assert of(plan, StepKind.IF_CHANGED) == []
    [reason] = [step.reason for step in plan.steps if step.region == RegionId("totals", 1)]
    assert reason == "joined[1] runs again, and what reads it always restarts with it"


def test_with_always_what_has_not_begun_is_spared_and_what_is_at_work_goes_on():
    state = whole_run(
        topology(consumers="always"),
        regions=[
            RegionState(region=RegionId("report-out", 0)),
            RegionState(region=CLOSE),
            RegionState(region=RegionId("totals", 1), newest_try=2, newest_state=AttemptState.RUNNING, ended_try=1),
        ],
    )
    plan = decided(state, lost=[("joined", 1)])
    assert of(plan, StepKind.RERUN) == ["joined[1]"]
    assert of(plan, StepKind.JOINED) == ["totals[1]"]
    assert [step.reason for step in plan.steps if step.region.name == "report-out"] == ["it has not begun"]


def test_only_what_reads_a_stage_that_is_not_deterministic_restarts_with_it():
    plan = decided(whole_run(topology(deterministic=False)), failed="joined[0]", lost=[("clean", 1)])
    assert of(plan, StepKind.RERUN) == ["raw-clean[1]", "joined[1]"]
    assert of(plan, StepKind.IF_CHANGED) == ["totals[0]", "totals[1]", "report-out[0]", "weir_close[0]"]


def test_full_restarts_all_that_has_begun_and_is_finished_after_any_failure():
    state = whole_run(
        topology(failover="full"),
        regions=[
            RegionState(region=RegionId("joined", 1), newest_try=2, newest_state=AttemptState.RETRYING, ended_try=1),
            RegionState(region=RegionId("weather", 0), newest_try=2, newest_state=AttemptState.FAILED, ended_try=2),
            RegionState(region=RegionId("report-out", 0)),
            RegionState(region=CLOSE),
        ],
    )
    plan = decided(state, occasion=Occasion.FAILURE, cause="application: boom")
    assert of(plan, StepKind.RERUN) == ["raw-clean[0]", "raw-clean[1]", "joined[0]", "totals[1]"]
    assert of(plan, StepKind.JOINED) == ["joined[1]"]
    assert {str(step.region): step.reason for step in plan.of(StepKind.SPARED)} == {
        "weather[0]": "try 2 has failed for good",
        "report-out[0]": "it has not begun",
    }
    assert plan.cause == "application: boom"
    assert of(decided(state, lost=[("joined", 0)]), StepKind.RERUN) == of(plan, StepKind.RERUN)


def test_a_failure_without_a_loss_restarts_nobody_else_by_region():
    plan = decided(whole_run(topology()), occasion=Occasion.FAILURE)
    assert of(plan, StepKind.RERUN) == []
    assert of(plan, StepKind.IF_CHANGED) == ["report-out[0]", "weir_close[0]"]


def test_individual_names_producers_and_holds_the_plan_back():
    plan = decided(whole_run(topology(failover="individual")), lost=[("joined", 1), ("weather", 0)])
    assert of(plan, StepKind.RERUN) == ["weather[0]", "joined[1]"]
    assert of(plan, StepKind.IF_CHANGED) == []
    assert plan.held_back == "failover is individual: Weir clears nothing by itself"


def test_what_is_stale_only_through_what_is_at_work_is_suspended():
    """The weather has changed and joined[0] is under repair: totals were made of the old joined[0]."""
    repair = RegionState(
        region=RegionId("joined", 0), newest_try=1, newest_state=AttemptState.COMMITTED, ended_try=1, repair_after_try=1
    )
    other = RegionState(
        region=RegionId("joined", 1), newest_try=1, newest_state=AttemptState.COMMITTED, ended_try=1, repair_after_try=1
    )
    state = whole_run(topology(), changed=[("weather", 0)], regions=[repair, other])
    plan = decided(state, failed="report-out[0]", lost=[("totals", 1)])
    assert of(plan, StepKind.RERUN) == ["totals[1]"]
    assert of(plan, StepKind.JOINED) == ["joined[0]", "joined[1]"]
    assert of(plan, StepKind.SUSPENDED) == ["totals[0]"]
    assert plan.of(StepKind.SUSPENDED)[0].depends_on == (RegionId("joined", 0), RegionId("joined", 1))


def test_a_step_names_what_it_depends_on():
    plan = decided(whole_run(topology()), lost=[("joined", 1)])
    reasons = {str(step.region): step.reason for step in plan.of(StepKind.IF_CHANGED)}
    assert reasons == {
        "totals[1]": "if the digest of joined[1] changes",
        "report-out[0]": "if the digest of totals[0] or totals[1] changes",
        "weir_close[0]": "if the digest of report-out[0] changes",
    }


def wide(parallelism=8, **options):
    return Topology(
        Dataflow(
            "flow",
            [source("a", "m:a", parallelism=parallelism), Stage("b", "m:b", [blocking("a")]), sink("b", "out")],
            **options,
        )
    )


@pytest.mark.parametrize(
    ("lost", "largest", "is_held_back"),
    [(4, 0.5, False), (5, 0.5, True), (5, 1, False), (8, 0.9, False), (4, 0.2, True), (3, 0.2, False)],
)
def test_losses_of_most_of_a_run_at_once_wait_for_a_person(lost, largest, is_held_back):
    """There are nine regions; a plan of fewer than four needs no approval."""
    state = whole_run(wide())
    plan = decided(state, failed="b-out[0]", lost=[("a", i) for i in range(lost)], largest=largest)
    assert bool(plan.held_back) is is_held_back
    assert f"the results of {lost} of 9 regions are lost at once" in plan.held_back or not is_held_back


def test_what_was_never_made_or_what_follows_from_one_loss_waits_for_nobody():
    state = whole_run(topology(consumers="always"))
    plan = decided(state, failed="joined[0]", lost=[("weather", 0)], largest=0.5)
    assert len(plan.of(StepKind.RERUN)) > 4
    assert plan.held_back == ""
    everything = [("a", i) for i in range(8)]
    assert decided(whole_run(wide(failover="full")), "b-out[0]", everything, largest=0.5).held_back == ""
    state = replace(whole_run(wide()), results={})
    assert decide(state, Failure(failed=RegionId("b-out", 0), losses={}, largest=0.5)).held_back == ""


def test_a_person_is_told_all_that_a_run_misses_and_what_has_failed_for_good():
    failed = RegionState(region=RegionId("weather", 0), newest_try=2, newest_state=AttemptState.FAILED, ended_try=2)
    state = whole_run(topology(), states={("clean", 0): PartitionState.LOST}, regions=[failed])
    asked = Failure(failed=None, losses={}, occasion=Occasion.QUESTION)
    answer = decide(state, asked)
    assert isinstance(answer, NeedsProbe)
    assert answer.partitions == frozenset(state.results)
    plan = decided(state, failed=None, lost=[("clean", 0)], occasion=Occasion.QUESTION)
    assert of(plan, StepKind.RERUN) == ["raw-clean[0]", "weather[0]"]
    assert plan.failed is None
    assert of(plan, StepKind.SPARED) == ["raw-clean[1]"]


def test_a_person_who_asks_before_a_task_has_begun_is_not_told_that_it_is_missing():
    state = whole_run(topology())
    begun = {region: known for region, known in state.regions.items() if region.name in ("raw-clean", "weather")}
    results = {each: result for each, result in state.results.items() if each.stage in ("clean", "weather")}
    state = replace(state, results=results, regions=begun)
    for failed in ("totals[0]", None):
        plan = decided(state, failed=failed, occasion=Occasion.QUESTION)
        assert of(plan, StepKind.RERUN) == []


def test_the_closing_task_runs_again_where_published_files_are_gone():
    plan = decided(whole_run(topology()), failed=None, lost=[("out", 0)], occasion=Occasion.QUESTION)
    assert of(plan, StepKind.RERUN) == ["report-out[0]", "weir_close[0]"]


# Across runs


def epochs():
    return Topology(
        Dataflow(
            "flow",
            [
                source("raw", "m:raw"),
                Stage("sums", "m:sums", [blocking("raw"), previous("sums", schema="k bigint")]),
                Stage("report", "m:report", [blocking("sums")]),
                sink("report", "out"),
            ],
        )
    )


def two_runs(*, earlier_regions=(), without=()):
    shape = epochs()
    first, second = whole_run(shape, run="flow@1"), whole_run(shape, run="flow@2")
    of_first = {
        replace(each, run="flow@1"): replace(
            result,
            partition=replace(each, run="flow@1"),
            reads=tuple(
                ReadSet(tuple(replace(read, partition=replace(read.partition, run="flow@1")) for read in reads.members))
                for reads in result.reads
            ),
        )
        for each, result in first.results.items()
        if each.stage not in without
    }
    regions = {replace(region, run="flow@1"): known for region, known in first.regions.items()}
    return replace(
        second,
        results=of_first | second.results,
        regions=regions | second.regions | {each.region: each for each in earlier_regions},
        predecessor="flow@1",
        earlier={"flow@1": EarlierRun("flow@1", shape, None)},
    )


def loss_of(partition):
    return {
        partition: Loss(
            partition.run, partition.stage, partition.subtask, partition.layout, "t0001", Fault.MISSING, "gone"
        )
    }


YESTERDAY = PartitionId("sums", 0, "plain", "flow@1")


def test_a_loss_in_the_epoch_before_restarts_its_producer_there_and_names_all_that_may_follow():
    state = two_runs()
    intact = frozenset(state.results) - {YESTERDAY}
    plan = decide(state, Failure(failed=RegionId("sums", 0), losses=loss_of(YESTERDAY), intact=intact))
    assert of(plan, StepKind.RERUN) == ["sums[0] of flow@1"]
    assert of(plan, StepKind.IF_CHANGED) == [
        "report-out[0] of flow@1",
        "weir_close[0] of flow@1",
        "report-out[0]",
        "weir_close[0]",
    ]
    assert of(plan, StepKind.SPARED) == ["raw[0]"]


def test_an_earlier_run_that_is_still_to_come_is_waited_for():
    producer = RegionId("sums", 0, "flow@1")
    state = two_runs(earlier_regions=[RegionState(region=producer)], without=["sums"])
    plan = decide(state, Failure(failed=RegionId("sums", 0), losses={}, intact=frozenset(state.results)))
    assert (of(plan, StepKind.JOINED), of(plan, StepKind.RERUN)) == (["sums[0] of flow@1"], [])
    void = replace(state, void=frozenset({producer}))
    plan = decide(void, Failure(failed=RegionId("sums", 0), losses={}, intact=frozenset(state.results)))
    assert of(plan, StepKind.RERUN) == ["sums[0] of flow@1"]


def test_a_decision_that_needs_an_epoch_that_was_not_looked_at_says_so():
    state = two_runs()
    state = replace(state, earlier={"flow@1": replace(state.earlier["flow@1"], predecessor="flow@0")})
    with pytest.raises(MissingContext, match="flow@0"):
        decide(state, Failure(failed=RegionId("sums", 0), losses=loss_of(YESTERDAY), intact=frozenset()))


def test_readers_of_later_epochs_are_named():
    later = {
        ("sums", "plain"): (
            RegionState(
                region=RegionId("sums", 0, "flow@3"), newest_try=1, newest_state=AttemptState.COMMITTED, ended_try=1
            ),
        )
    }
    state = two_runs()
    intact = frozenset(state.results)
    lost = PartitionId("sums", 0, "plain")
    plan = decide(
        state, Failure(failed=RegionId("report-out", 0), losses=loss_of(lost), intact=intact - {lost}, later=later)
    )
    assert of(plan, StepKind.RERUN) == ["sums[0]"]
    assert of(plan, StepKind.IF_CHANGED) == ["weir_close[0]", "sums[0] of flow@3"]


# The code of what runs again


def test_a_plan_for_the_newest_code_says_which_subtasks_run_again_if_it_makes_other_results():
    plan = decided(whole_run(topology()), lost=[("joined", 1)], code=RepairCode.NEWEST)
    assert of(plan, StepKind.RERUN) == ["joined[1]"]
    [sibling] = [step for step in plan.of(StepKind.IF_CHANGED) if str(step.region) == "joined[0]"]
    assert sibling.reason == "if newer code is deployed, by which the digest of joined[1] changes"
    assert sibling.depends_on == (RegionId("joined", 1),)
    # What is pinned to the code of its results leaves the other subtasks alone.
    assert "joined[0]" in of(decided(whole_run(topology()), lost=[("joined", 1)]), StepKind.SPARED)


def test_readers_of_subtasks_that_newer_code_may_restart_may_run_again_too():
    flow = Dataflow(
        "flow",
        [
            source("raw", "m:raw", parallelism=2),
            Stage("clean", "m:clean", [blocking("raw", pointwise=True)], parallelism=2),
            Stage("out", "m:out", [blocking("clean")]),
            sink("out", "data"),
        ],
    )
    plan = decided(whole_run(Topology(flow)), failed="clean[1]", lost=[("raw", 1)], code=RepairCode.NEWEST)
    assert of(plan, StepKind.RERUN) == ["raw[1]"]
    assert set(of(plan, StepKind.IF_CHANGED)) >= {"raw[0]", "clean[0]", "out-data[0]"}


# The plan as data


def a_plan():
    plan = decided(whole_run(topology()), lost=[("joined", 1)])
    history = {each: Cost(10, 2000, 1.5) for each in topology().region_ids() if each.name != "weather"}
    code = {RegionId("joined", 1): Generation(2, Code("code:1", "archive"))}
    return plan.with_costs(history).with_findings([RegionId("joined", 1), RegionId("joined", 0)]).with_code(code)


def test_the_json_of_a_plan_is_a_contract():
    assert a_plan().to_json() == json.loads(GOLDEN.read_text())


def test_a_plan_is_read_as_it_was_written():
    for plan in (a_plan(), decided(two_runs(), failed=None, occasion=Occasion.QUESTION)):
        assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


def test_a_plan_of_another_version_is_refused():
    with pytest.raises(Misconfigured, check=of_kind("recovery.plan_of_other_version", found=2, version="1")):
        Plan.from_json({**a_plan().to_json(), "version": 2})


def test_a_plan_sums_up_what_it_costs():
    plan = a_plan()
    assert plan.total(StepKind.RERUN) == replace(plan.total(StepKind.RERUN), regions=1, rows=10, bytes=2000)
    assert plan.full_restart().regions == len(topology().region_ids()) + 1
    assert plan.full_restart().unknown == 2  # the weather, and the closing task
    assert plan.not_deterministic == (RegionId("joined", 1),)
    assert plan.summary() == "re-running joined[1]; 7 region(s) spared, 3 of them unless an input changes"


def test_two_plans_do_the_same_if_they_clear_the_same_tries():
    plan = a_plan()
    assert plan.does_the_same(replace(plan, cause="another"))
    later = tuple(replace(step, after_try=2) for step in plan.steps)
    assert not plan.does_the_same(replace(plan, steps=later))


def test_what_has_not_begun_is_neither_spared_nor_restarted():
    cost = Cost(rows=1, bytes=10, seconds=2.0)
    kinds = ((StepKind.RERUN, 1), (StepKind.IF_CHANGED, 1), (StepKind.SPARED, 3), (StepKind.SPARED, 0))
    steps = tuple(
        Step(kind=kind, region=RegionId(f"r{number}", 0), after_try=tries, reason="", cost=cost)
        for number, (kind, tries) in enumerate(kinds)
    )
    plan = Plan(failed=None, cause="", steps=steps)
    totals = plan.to_json()["totals"]
    assert [step.region.name for step in plan.spared()] == ["r1", "r2"]
    assert sum(totals[name]["seconds"] for name in ("rerun", "if_changed", "spared")) == 6.0
    assert totals["full_restart"]["seconds"] == 6.0
