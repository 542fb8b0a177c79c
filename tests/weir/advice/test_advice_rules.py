"""What is advised costs less in its own replay, follows from what was measured, and can be declared."""

import json
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.simulator.dataflows import random_scene, stateful_scene

from weir.advice.advice_rules import LEAST_CLEARS, advise
from weir.advice.replay_rules import LateClear, Measured, Replay, Strike
from weir.dataflow import Dataflow, Stage, blocking, cached, keyed_state, pipelined, sink, source
from weir.dataflow.retention import RetentionPolicy
from weir.topology.regions import RegionId, Topology

TWO_RUNS = RetentionPolicy.from_text("2 runs")
END = RetentionPolicy.from_text("end_of_run")


def two(exchange, parallelism=1, **settings):
    """A producer and its consumer, which publishes."""
    made = source("made", "p.two:made", parallelism=parallelism)
    used = Stage("used", "p.two:used", [exchange], parallelism=parallelism)
    return Dataflow("two", [made, used, sink(used, "out")], **settings)


def measured(flow, seconds, *, fixed=0.0, runs=10, strikes=(), rate=1000.0, **more):
    names = [each.name for each in Topology(flow).regions]
    return Measured(
        dataflow=flow,
        runs=runs,
        seconds=dict(zip(names, seconds, strict=True)),
        fixed=fixed,
        bytes=more.pop("bytes", {"made": 1000.0}),
        rate=rate,
        strikes=tuple(strikes),
        **more,
    )


def of(advice):
    return {each.what: (each.declared, each.advised) for each in advice.changes}


APART = two(blocking("made"))
[MADE, USED] = (RegionId(each.name, 0) for each in Topology(APART).regions)


def test_two_tasks_that_never_fail_are_advised_to_be_one():
    advice = advise(measured(APART, (10, 10), fixed=2.0), TWO_RUNS)
    assert of(advice) == {"made -> used": ("blocking", "pipelined")}
    assert (advice.before.total, advice.after.total) == (20.0, 18.0)
    assert [stage.exchanges for stage in advice.advised.stages][1]["made"] == pipelined("made")


def test_tasks_stay_apart_where_failures_would_repeat_what_is_stored():
    strikes = [Strike(USED, 8.0)] * 5
    advice = advise(measured(APART, (10, 10), fixed=2.0, strikes=strikes), TWO_RUNS)
    assert advice.changes == ()
    assert advice.before == advice.after
    assert advice.before.recovery == pytest.approx(5 * 8.0 / 10)


def test_a_task_that_fails_late_is_advised_to_keep_a_copy_of_what_it_has_done():
    flow = two(pipelined("made"))
    [region] = Topology(flow).region_ids()
    strikes = [Strike(region, 19.0)] * 5
    advice = advise(measured(flow, (20,), strikes=strikes, bytes={"used": 1000.0}), TWO_RUNS)
    assert of(advice) == {"made -> used": ("pipelined", "cached")}
    # Half of the work is that of each stage: 9 of the 10 seconds of the second one are lost instead of 19.
    assert advice.before.recovery == pytest.approx(9.5)
    assert advice.after.recovery == pytest.approx(4.5)
    assert advice.after.work == pytest.approx(advice.before.work + 1.0)  # the copy: 1000 bytes at 1000 a second


def test_a_copy_from_which_nothing_has_resumed_is_advised_against():
    advice = advise(measured(two(cached("made")), (20,), bytes={"used": 4000.0}), TWO_RUNS)
    assert of(advice) == {"made -> used": ("cached", "pipelined")}


def counts(parallelism, **settings):
    """A source of one subtask, and a consumer of several that divides its rows."""
    made = source("made", "p.two:made")
    used = Stage("used", "p.two:used", [blocking(made, by="k")], parallelism=parallelism, **settings)
    return Dataflow("two", [made, used, sink(used, "out")])


def test_fewer_subtasks_are_advised_where_most_of_their_time_is_fixed_and_more_where_they_fail():
    idle = advise(measured(counts(4), (10, 10), fixed=2.0), TWO_RUNS)
    assert of(idle) == {"parallelism of used-out": ("4", "1"), "made -> used": ("blocking, by=k", "pipelined")}
    failing = [Strike(RegionId("used-out", 3), 90.0)] * 20
    busy = advise(measured(counts(4), (4, 400), fixed=1.0, strikes=failing), TWO_RUNS)
    [change] = busy.changes
    assert (change.what, change.declared) == ("parallelism of used-out", "4")
    assert int(change.advised) > 4


@pytest.mark.parametrize("flow", [counts(1), two(pipelined("made"), parallelism=4)], ids=["one", "a source"])
def test_what_may_compute_other_rows_if_it_is_divided_otherwise_is_not(flow):
    [*_, region] = Topology(flow).region_ids()
    strikes = [Strike(region, 90.0)] * 20
    seconds = [400.0] * len(Topology(flow).regions)
    advice = advise(measured(flow, seconds, strikes=strikes), TWO_RUNS)
    assert not any(each.what.startswith("parallelism") for each in advice.changes)


def test_a_stage_with_state_keeps_its_parallelism():
    flow = counts(4, state=keyed_state("seen", key="k", schema="k BIGINT, n BIGINT"))
    assert advise(measured(flow, (1, 20), fixed=2.0), TWO_RUNS).changes == ()


def test_a_copy_whose_price_is_not_known_is_not_advised():
    flow = two(pipelined("made"))
    strikes = [Strike(region, 19.0) for region in Topology(flow).region_ids()] * 5
    assert advise(measured(flow, (20,), strikes=strikes, bytes={}), TWO_RUNS).changes == ()
    assert advise(measured(flow, (20,), strikes=strikes, rate=0.0), TWO_RUNS).changes == ()


def test_what_was_lost_is_made_again_and_counts():
    flow = two(blocking("made"))
    lost = Strike(USED, 0.0, frozenset({MADE}))
    replay = Replay(measured(flow, (10, 1), fixed=0.0, strikes=[lost], runs=1))
    assert replay.expected(flow).recovery == pytest.approx(10.0)
    found_before = Strike(None, lost=frozenset({MADE}))
    replay = Replay(measured(flow, (10, 1), fixed=0.0, strikes=[found_before], runs=1))
    assert replay.expected(flow).recovery == pytest.approx(10.0)


@pytest.mark.parametrize(("consumers", "seconds"), [("if_changed", 10.0), ("always", 13.0)])
def test_the_engine_says_what_restarts(consumers, seconds):
    made = source("made", "p.two:made")
    used = Stage("used", "p.two:used", [blocking(made)])
    other = Stage("other", "p.two:other", [blocking(made)])
    flow = Dataflow("two", [made, used, other, sink(used, "out"), sink(other, "others")], consumers=consumers)
    lost = Strike(RegionId("used-out", 0), 0.0, frozenset({RegionId("made", 0)}))
    cost = {"made": 10.0, "used-out": 1.0, "other-others": 3.0}
    replay = Replay(Measured(dataflow=flow, runs=1, seconds=cost, fixed=0.0, bytes={}, rate=0.0, strikes=(lost,)))
    assert replay.expected(flow).recovery == pytest.approx(seconds)


def late(runs, count=LEAST_CLEARS):
    return (LateClear(USED, runs, 24.0 * runs),) * count


def test_a_longer_retention_is_advised_where_deleted_results_were_made_again():
    advice = advise(measured(APART, (10, 1), late_clears=late(1), at_rest=500.0), END)
    [change] = advice.changes
    assert (change.what, change.declared, change.advised) == ("keep", "end_of_run", "2 runs")
    assert change.seconds == pytest.approx(LEAST_CLEARS * 10.0 / 10)
    assert change.bytes == -1000.0


@pytest.mark.parametrize(("count", "advised"), [(LEAST_CLEARS, "1 run"), (LEAST_CLEARS - 1, None), (0, None)])
def test_a_shorter_retention_is_advised_only_if_late_clears_show_how_late_they_come(count, advised):
    asked = measured(APART, (10, 1), late_clears=late(0, count), at_rest=500.0)
    assert of(advise(asked, RetentionPolicy.from_text("7 days"))).get("keep", (None, None))[1] is None
    by_time = replace(asked, hours=24.0)
    assert of(advise(by_time, RetentionPolicy.from_text("7 days"))).get("keep", (None, None))[1] == advised


def random_measured(random):
    flow = (random_scene if random.random() < 0.5 else stateful_scene)(random).flow
    topology = Topology(flow)
    regions = topology.region_ids()

    def lost():
        return frozenset(random.sample(regions, min(len(regions), random.choice((0, 0, 1, 2)))))

    strikes = [
        Strike(random.choice([*regions, None]), random.uniform(0, 40), lost()) for _ in range(random.randint(0, 5))
    ]
    clears = [LateClear(random.choice(regions), random.randint(0, 3), random.uniform(0, 99)) for _ in range(4)]
    return Measured(
        dataflow=flow,
        runs=random.randint(1, 20),
        seconds={each.name: random.uniform(0, 60) for each in topology.regions},
        fixed=random.choice((0.0, random.uniform(0, 5))),
        bytes={each.name: random.uniform(0, 1e6) for each in flow.stages if random.random() < 0.8},
        rate=random.choice((0.0, random.uniform(1, 1e6))),
        strikes=tuple(strikes),
        late_clears=tuple(clears),
        at_rest=random.uniform(0, 1e6),
        hours=random.choice((0.0, 24.0)),
    )


@given(st.integers(0, 2**32))
def test_advice_is_never_worse_in_its_own_replay_and_can_be_declared(seed):
    random = Random(seed)
    found = random_measured(random)
    keep = RetentionPolicy.from_text(random.choice(("on_consumed", "end_of_run", "2 runs", "7 days")))
    advice = advise(found, keep)
    assert advice.before == Replay(found).expected(found.dataflow)
    replay = Replay(found)
    again = replay.expected(advice.advised)  # of which nothing is known yet
    assert (again.work, again.recovery) == pytest.approx((advice.after.work, advice.after.recovery))
    of_stages = [each for each in advice.changes if each.what != "keep"]
    if of_stages:
        assert advice.after.total < advice.before.total
        total = sum(each.seconds for each in of_stages)
        assert total == pytest.approx(advice.before.total - advice.after.total, abs=1e-6)
    else:
        assert advice.advised == found.dataflow
    assert all(each.seconds > 0 or each.bytes > 0 for each in advice.changes)
    record = json.loads(json.dumps(advice.advised.to_json()))
    assert Dataflow.from_json(record).to_json() == record
