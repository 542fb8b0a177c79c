"""Which regions a failure restarts, decided in rounds without I/O."""

from random import Random

import pytest

from weir.dataflow import Dataflow, Stage, blocking, pipelined, sink, source
from weir.errors import Fault, Loss
from weir.execution.partition_state import PartitionState
from weir.execution.run_state import CLOSE, AttemptState, CurrentResult, ReadResult, ReadSet, RegionState, RunState
from weir.recovery.rules.backtrack import Occasion, known_loss
from weir.recovery.rules.decision import Failure, NeedsProbe, decide
from weir.recovery.rules.plan import Plan, StepKind
from weir.topology.regions import RegionId, Topology

TOPOLOGY = Topology(
    Dataflow(
        "ladder",
        [
            source("raw", "m:raw", parallelism=2),
            Stage("clean", "m:clean", [pipelined("raw")], parallelism=2),
            source("weather", "m:weather"),
            Stage("joined", "m:joined", [blocking("clean", by="k"), blocking("weather", by="k")], parallelism=2),
            Stage("totals", "m:totals", [blocking("joined", by="k")], parallelism=2),
            Stage("report", "m:report", [blocking("totals")]),
            sink("report", "out"),
        ],
    )
)
PARTITIONS = {(each.stage, each.subtask): each for region in TOPOLOGY.region_ids() for each in TOPOLOGY.outputs(region)}
REGIONS = TOPOLOGY.region_ids()
TOTALS = RegionId("totals", 0)
RELEASED = PartitionState.RELEASED


def whole_run(*, changed=(), states=None, without=(), regions=None):
    """A run in which everything has committed once; `changed` producers have new content that was not read yet."""
    results = {}
    for region in REGIONS:
        reads = tuple(
            ReadSet(tuple(ReadResult(each, "t0001", f"digest of {each}") for each in read.partitions))
            for read in TOPOLOGY.inputs(region)
        )
        for each in TOPOLOGY.outputs(region):
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
    for each in without:
        del results[PARTITIONS[each]]
    ended = {
        region: RegionState(region=region, newest_try=1, newest_state=AttemptState.COMMITTED, ended_try=1)
        for region in REGIONS
    }
    return RunState(
        run="run", topology=TOPOLOGY, results=results, regions=ended | {each.region: each for each in regions or ()}
    )


def lost(*names):
    return {
        PARTITIONS[each]: Loss("run", *each, PARTITIONS[each].layout, "t0001", Fault.MISSING, "gone") for each in names
    }


def intact(*names):
    return frozenset(PARTITIONS[each] for each in names)


SOURCES = intact(("clean", 0), ("clean", 1), ("weather", 0))


def backtrack(state, failed, losses, intact):
    return decide(state, Failure(failed=failed, losses=losses, intact=intact))


def names(plan, kind):
    return [str(step.region) for step in plan.of(kind)]


def test_the_first_round_asks_for_the_inputs_of_what_would_restart():
    assert backtrack(whole_run(), TOTALS, lost(("joined", 1)), frozenset()) == NeedsProbe(SOURCES)


def test_a_lost_input_restarts_its_producer_alone():
    plan = backtrack(whole_run(), TOTALS, lost(("joined", 1)), SOURCES)
    assert names(plan, StepKind.RERUN) == ["joined[1]"]
    assert names(plan, StepKind.IF_CHANGED) == ["totals[1]", "report-out[0]"]
    assert names(plan, StepKind.SPARED) == ["raw-clean[0]", "raw-clean[1]", "weather[0]", "joined[0]"]


COMING = (
    {"newest_state": AttemptState.RUNNING, "ended_try": 1},
    {"newest_state": AttemptState.RETRYING, "ended_try": 1},
    {"newest_state": AttemptState.FAILED, "ended_try": 2},
    {"newest_state": AttemptState.COMMITTED, "ended_try": 2, "repair_after_try": 2},
)


@pytest.mark.parametrize("seed", range(20))
def test_what_a_reader_reports_runs_again_and_what_it_waits_for_is_joined(seed):
    """A reader reports no loss of what is coming, or of what only a person has computed: it waits."""
    random = Random(seed)
    inputs = (("clean", 0), ("clean", 1), ("weather", 0))
    reported = random.sample(inputs, random.randint(1, 2))
    awaited = [each for each in inputs if each not in reported and random.random() < 0.7]
    producers = {each: TOPOLOGY.producer(PARTITIONS[each]) for each in inputs}
    coming = [RegionState(region=producers[each], newest_try=2, **random.choice(COMING)) for each in awaited]
    state = whole_run(states=dict.fromkeys(awaited, PartitionState.LOST), regions=coming)
    plan = backtrack(state, RegionId("joined", 0), lost(*reported), frozenset())
    assert set(names(plan, StepKind.RERUN)) == {str(producers[each]) for each in reported}
    assert set(names(plan, StepKind.JOINED)) == {str(producers[each]) for each in awaited}


def test_losses_behind_losses_are_followed_round_by_round():
    losses = lost(("joined", 1), ("weather", 0))
    plan = backtrack(whole_run(), TOTALS, losses, intact(("clean", 0), ("clean", 1)))
    assert names(plan, StepKind.RERUN) == ["weather[0]", "joined[1]"]


def test_every_region_is_in_the_plan_once_but_the_failed_one():
    plan = backtrack(whole_run(), TOTALS, lost(("joined", 1)), SOURCES)
    assert sorted(step.region for step in plan.steps) == sorted(set(REGIONS) - {TOTALS})
    assert (plan.failed, plan.cause) == (TOTALS, str(lost(("joined", 1))[PARTITIONS["joined", 1]]))


def test_a_clear_names_the_try_that_it_must_find():
    state = whole_run(
        regions=[
            RegionState(region=RegionId("joined", 1), newest_try=7, newest_state=AttemptState.COMMITTED, ended_try=7)
        ]
    )
    [step] = backtrack(state, TOTALS, lost(("joined", 1)), SOURCES).of(StepKind.RERUN)
    assert step.after_try == 7


@pytest.mark.parametrize(
    "is_running",
    [
        RegionState(region=RegionId("joined", 1), newest_try=2, newest_state=AttemptState.RUNNING, ended_try=1),
        RegionState(
            region=RegionId("joined", 1),
            newest_try=1,
            newest_state=AttemptState.COMMITTED,
            ended_try=1,
            repair_after_try=1,
        ),
    ],
)
def test_a_region_under_repair_is_joined_and_nothing_before_it_is_asked_for(is_running):
    plan = backtrack(whole_run(regions=[is_running]), TOTALS, lost(("joined", 1)), frozenset())
    assert isinstance(plan, Plan)
    assert names(plan, StepKind.JOINED) == ["joined[1]"]
    assert names(plan, StepKind.RERUN) == []
    assert names(plan, StepKind.IF_CHANGED) == ["totals[1]", "report-out[0]"]


def test_one_loss_is_joined_while_another_restarts():
    is_running = RegionState(region=RegionId("joined", 0), newest_try=2, newest_state=AttemptState.RUNNING, ended_try=1)
    plan = backtrack(whole_run(regions=[is_running]), TOTALS, lost(("joined", 0), ("joined", 1)), SOURCES)
    assert (names(plan, StepKind.JOINED), names(plan, StepKind.RERUN)) == (["joined[0]"], ["joined[1]"])


def test_what_never_committed_restarts_without_being_probed():
    """And with it all that names it as an input: the result that they read is not current."""
    state = whole_run(without=[("weather", 0)])
    plan = backtrack(state, TOTALS, lost(("joined", 1)), intact(("clean", 0), ("clean", 1)))
    assert names(plan, StepKind.RERUN) == ["weather[0]", "joined[0]", "joined[1]"]


def test_stale_results_restart_from_what_has_changed():
    """The new weather itself is there: only what was made from the old one runs again."""
    state = whole_run(changed=[("weather", 0)])
    plan = backtrack(state, TOTALS, {}, SOURCES)
    assert names(plan, StepKind.RERUN) == ["joined[0]", "joined[1]"]


def test_a_released_input_is_a_loss():
    state = whole_run(states={("joined", 0): PartitionState.RELEASED})
    plan = backtrack(state, TOTALS, {}, SOURCES)
    assert names(plan, StepKind.RERUN) == ["joined[0]"]


def test_consumers_that_never_began_are_spared_and_not_maybe():
    state = whole_run(
        regions=[RegionState(region=RegionId("totals", 1)), RegionState(region=RegionId("report-out", 0))]
    )
    plan = backtrack(state, TOTALS, lost(("joined", 1)), SOURCES)
    assert names(plan, StepKind.IF_CHANGED) == []


def test_the_closing_task_restarts_all_that_is_missing():
    state = whole_run(without=[("joined", 0)])
    plan = backtrack(state, CLOSE, {}, SOURCES | intact(("joined", 1)))
    assert names(plan, StepKind.RERUN) == ["joined[0]", "totals[0]", "totals[1]", "report-out[0]"]
    assert plan.failed == CLOSE


@pytest.mark.parametrize(
    ("state", "fault"),
    [
        (whole_run(), None),
        (whole_run(states={("joined", 0): PartitionState.LOST}), None),
        (whole_run(states={("joined", 0): PartitionState.RELEASED}), Fault.MISSING),
        (whole_run(states={("joined", 0): PartitionState.QUARANTINED}), Fault.STALE),
        (whole_run(without=[("joined", 0)]), Fault.NEVER_COMMITTED),
        (whole_run(changed=[("clean", 1)]), Fault.STALE),
    ],
)
def test_the_ledger_alone_says_what_cannot_be_read(state, fault):
    """Of a lost one the store is asked again: the files may be back."""
    found = known_loss(state, PARTITIONS["joined", 0])
    assert (found.fault if found else None) is fault


def test_what_was_released_is_made_again_when_a_person_names_it():
    """Nobody needs its bytes, so that only its name asks for them; with what it is made from, if that went as well."""
    states = dict.fromkeys(
        [*((name, 0) for name in ("joined", "clean", "weather")), ("joined", 1), ("clean", 1)], RELEASED
    )
    state = whole_run(states=states)
    present = intact(*(name for name in PARTITIONS if name not in states))
    nothing = decide(state, Failure(failed=None, losses={}, intact=present, occasion=Occasion.QUESTION))
    assert nothing.of(StepKind.RERUN) == ()
    plan = decide(state, Failure(failed=None, losses=lost(("joined", 0)), intact=present, occasion=Occasion.QUESTION))
    assert {str(step.region) for step in plan.of(StepKind.RERUN)} == {
        "joined[0]",
        "weather[0]",
        "raw-clean[0]",
        "raw-clean[1]",
    }
