"""Random dataflows under random faults: the invariants of `docs/guarantees.md` hold after every step, and all heals.

A failure prints a seed and the shortest schedule that was found: `python -m tests.simulator --seed SEED`.
"""

import time
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import delete, insert, select
from tests.simulator.actions import apply
from tests.simulator.dataflows import scene_from_text
from tests.simulator.derived import undecided
from tests.simulator.events import Event, events_from_text, events_to_text
from tests.simulator.healing import heal
from tests.simulator.ledger import SimulatedLedger
from tests.simulator.process import NO_FAULT, FaultKind, Process, ProcessFault
from tests.simulator.schedules import Drawing, random_events
from tests.simulator.simulate import (
    CRASHED,
    DRAWN,
    USUAL,
    WINDOWED,
    Shares,
    report_of,
    scene_and_events,
    shrunk,
    simulate,
    sweep,
)
from tests.simulator.world import World

from weir.errors import LedgerBehind, Retryable
from weir.ledger.database.tables import DataflowRow, PendingClearRow
from weir.ledger.leases import clock

SEEDS, DRAWN_SEEDS, WINDOWED_SEEDS = 20, 4, 4
"""As many as one core does in half a minute. They are the same each time; thousands of others are a soak."""

DERIVED_SEEDS = 5

SEEDS_AT_ONCE = 30

SEEDS_OF_A_SOAK = 5000


@pytest.mark.parametrize(
    ("shares", "seeds"),
    [(USUAL, SEEDS), (DRAWN, DRAWN_SEEDS), (WINDOWED, WINDOWED_SEEDS)],
    ids=["usual", "drawn", "windowed"],
)
def test_the_invariants_hold_under_random_faults(shares, seeds):
    swept = sweep(range(seeds), most=1, shares=shares)
    reports = [report_of(found.seed, found.finding, shares=shares) for found in swept.findings]
    assert swept.findings == (), "\n".join(reports)
    assert swept.seeds == seeds


@pytest.mark.parametrize(("shares", "seeds"), [(USUAL, DERIVED_SEEDS), (DRAWN, 2)], ids=["usual", "drawn"])
def test_no_transaction_of_any_kind_leaves_something_due_that_is_not_decided(shares, seeds):
    swept = sweep(range(100, 100 + seeds), most=1, shares=shares, derives=True)
    assert swept.findings == ()
    assert swept.seeds == seeds


def test_a_clear_that_is_due_and_not_decided_is_seen():
    world = World(scene_from_text(TWO_STAGES.splitlines()))
    try:
        for event in events_from_text("step 0\nstep 0\nchange 0\nclear 0\nstep 0 kill@40"):
            apply(world, event)
        with world.ledger.look() as session:
            assert list(undecided(session, world.services)) == []
            assert session.execute(delete(PendingClearRow)).rowcount == 1
            (found,) = undecided(session, world.services)
            assert found.startswith("s1-set_s1[0] of ")
    finally:
        world.close()


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    ("shares", "count"), [(DRAWN, SEEDS_OF_A_SOAK), (WINDOWED, SEEDS_OF_A_SOAK // 5)], ids=["drawn", "windowed"]
)
def test_the_invariants_hold_under_seeds_that_no_run_had_before(shares, count, capsys):
    first = int(time.time()) * SEEDS_OF_A_SOAK
    for seed in range(first, first + count, SEEDS_AT_ONCE):
        seeds = range(seed, min(seed + SEEDS_AT_ONCE, first + count))
        with capsys.disabled():
            print(f"seeds {seeds.start} to {seeds.stop - 1}", flush=True)
        swept = sweep(seeds, most=1, shares=shares)
        reports = [report_of(found.seed, found.finding, shares=shares) for found in swept.findings]
        assert swept.findings == (), "\n".join(reports)


FOUND = sorted(Path(__file__).with_name("seeds").glob("*.txt"))
LONG = sorted(Path(__file__).with_name("seeds").glob("long/*.txt"))
"""Schedules that take seconds each, and were wrong by a fault of the simulator."""


@pytest.mark.parametrize(
    "file",
    [*FOUND, *(pytest.param(each, marks=pytest.mark.soak) for each in LONG)],
    ids=lambda file: file.stem,
)
def test_what_was_once_wrong_is_right(file):
    """Each file is what the simulator printed when it was wrong."""
    text = file.read_text()
    assert simulate(scene_from_text(text.splitlines()), events_from_text(text)) is None


EDITED = """\
dataflow failover=region consumers=if_changed tries=any largest_plan=1 modules=apart
stage s0 x1 fine: source
stage s1 x3 fine: blocking s0 by k
stage s2 x1 fine: blocking s1
"""

COLLECTING = """\
dataflow failover=region consumers=if_changed tries=any largest_plan=1 keep=on_consumed
stage s0 x1 fine: source
stage s1 x1 fine: blocking s0
"""

TWO_STAGES = """\
dataflow failover=region consumers=if_changed tries=any largest_plan=1
stage s0 x1 fine: source
stage s1 x1 fine: blocking s0
"""


@pytest.mark.parametrize("has_changed", [True, False])
def test_the_heartbeat_of_a_suspended_process_stops_work_whose_input_has_changed_and_no_other(has_changed):
    stopped = []
    for at in range(3, 32, 2):
        world = World(scene_from_text(TWO_STAGES.splitlines()))
        world.airflow.on_stop = lambda begun: stopped.append(begun.attempt.region.name)
        change = "change 0\n" if has_changed else ""
        for event in events_from_text(f"step 0\nstep 0 suspend@{at}\n{change}clear 0\nstep 0\nbeat 0\nresume 0"):
            apply(world, event)
        heal(world)
        world.close()
    assert (len(stopped) >= 3) is has_changed
    assert set(stopped) <= {"s1-set_s1", "s1"}


@pytest.mark.parametrize(
    ("then", "edits"), [("damage 2 folder\nclear 4", {0}), ("clear 2", {2}), ("break 1\nclear 2", {4})]
)
def test_a_stage_is_of_its_first_code_until_a_person_clears_a_subtask(then, edits):
    """What is lost is made again as it was; a function that raises is mended, and cleared once."""
    scene = scene_from_text(EDITED.splitlines())
    world = World(scene)
    for event in events_from_text("step 0\n" * 6 + "edit 1\nedit 1\n" + then):
        apply(world, event)
    heal(world)
    world.close()
    current = world.history.ledger.current.values()
    assert {world.engine.made[each.attempt].edits["s1"] for each in current if each.stage == "s1"} == edits


def test_several_processes_are_suspended_at_once_and_resumed_in_any_order():
    """Two housekeepers and a closing task, between steps and between reads of the store."""
    world = World(scene_from_text(COLLECTING.splitlines()))
    for event in events_from_text(
        "step 0\nstep 0\nstep 0 close suspend@9\nupkeep 0 hourly pause@2\nupkeep 0 minutes suspend@2"
    ):
        apply(world, event)
    assert [process.number for process in world.suspended] == [3, 4, 5]
    for event in events_from_text("resume 1\nresume 1 suspend@1\nresume 0"):
        apply(world, event)
    assert [process.number for process in world.suspended] == [5]
    heal(world)
    world.close()


def test_each_machine_has_a_clock_of_its_own_and_the_ledger_has_another():
    seen = []
    world = World(scene_from_text(TWO_STAGES.splitlines()))

    def look(process):
        process.step()
        process.step()
        with world.ledger.transaction() as session:
            seen.append(
                (world.services.now() - world.airflow.time, clock(session, world.services.now()) - world.airflow.time)
            )

    for number, fault in [(1, NO_FAULT), (2, NO_FAULT), (4, ProcessFault(FaultKind.BACK, 2))]:
        apply(world, Event.from_text("clock 1 hours-fast"))
        world.run(Process(number, look), fault)
    world.close()
    none = timedelta()
    assert seen == [(timedelta(hours=3), none), (none, none), (timedelta(hours=1), none)]
    assert world.history.slack == timedelta(hours=3)


def test_a_commit_whose_answer_is_lost_comes_true_before_the_next_writing_transaction():
    world = World(scene_from_text(TWO_STAGES.splitlines()))

    def write(name):
        with world.ledger.transaction(name) as session:
            session.execute(insert(DataflowRow).values(name=name, lineage=1, store_id="here"))
            return names_of(session)

    def names_of(session):
        return list(session.scalars(select(DataflowRow.name).order_by(DataflowRow.name)))

    def names():
        with world.ledger.transaction() as session:
            return names_of(session)

    def write_in_doubt(_process):
        with pytest.raises(Retryable):
            write("d" if names()[1:] else "b")

    assert write("a") == ["a"]
    world.run(Process(7, write_in_doubt), ProcessFault(FaultKind.LATE, 1))
    assert names() == ["a"]
    assert write("c") == ["a", "b", "c"]
    world.run(Process(8, write_in_doubt), ProcessFault(FaultKind.LATE, 1))
    apply(world, Event.from_text("decide"))
    assert names() == ["a", "b", "c", "d"]
    world.close()


def test_a_ledger_may_lose_its_last_commits():
    ledger = SimulatedLedger(lambda: Process(0, lambda _: None), lambda *_: None, lambda: None, copies=2)
    for name in ("a", "b", "c"):
        with ledger.transaction(name) as session:
            session.execute(insert(DataflowRow).values(name=name, lineage=1, store_id="here"))
    with ledger.transaction() as session:
        assert list(session.scalars(select(DataflowRow.name).order_by(DataflowRow.name))) == ["a", "b", "c"]
    assert ledger.go_back(5) == 2
    with ledger.transaction() as session:
        assert list(session.scalars(select(DataflowRow.name))) == ["a"]


def test_airflow_may_lose_its_last_tries_whose_processes_run_on():
    world = World(scene_from_text(COLLECTING.splitlines()))
    world.airflow.forgets = True
    for event in events_from_text("step 0\nstep 0 suspend@9"):
        apply(world, event)
    (lost,) = world.suspended
    (task,) = [task for task in world.airflow.tasks.values() if task.state == "running"]
    was = world.airflow.ti_id(task)
    apply(world, Event.from_text("airflow-forgets 1"))
    assert (task.state, task.try_number) == (None, 0)
    apply(world, Event.from_text("step 0"))
    assert (task.state, task.try_number) == ("success", 1)
    assert world.airflow.ti_id(task) != was
    world.run(lost, NO_FAULT)  # fenced
    assert (task.state, task.runs) == ("success", [1])
    heal(world)
    world.close()


def test_airflow_loses_nothing_that_a_person_did():
    world = World(scene_from_text(COLLECTING.splitlines()))
    world.airflow.forgets = True
    for event in events_from_text("step 0\nclear 0\nairflow-forgets 5"):
        apply(world, event)
    assert {task.max_tries for task in world.airflow.tasks.values()} == {999, 1000}
    world.close()


@pytest.mark.parametrize(
    ("is_promoted", "tells"), [(False, {1: "it is at"}), (True, {1: "has found out", 2: "its timeline"})]
)
def test_a_process_knows_only_what_it_has_seen_and_a_timeline_tells_all(is_promoted, tells):
    """One has seen the lost commit, one has begun since, and one had its commit in doubt, so that it saw nothing."""
    running, refused = [Process(1, lambda _: None)], {}
    ledger = SimulatedLedger(lambda: running[0], lambda *_: None, lambda: None, copies=3)

    def write(process, fault=NO_FAULT):
        def work(_process):
            try:
                with ledger.transaction("a") as session:
                    if session.get(DataflowRow, "a") is None:
                        session.add(DataflowRow(name="a", lineage=1, store_id="here"))
            except LedgerBehind as behind:
                reasons = ("it is at", "has found out", "its timeline")
                refused[process.number] = next(each for each in reasons if each in str(behind))
            except Retryable:
                refused[process.number] = "in doubt"

        running[0] = process
        process._work = work
        process.run(fault)

    first, second, third = (Process(number, lambda _: None) for number in (1, 2, 3))
    write(first)
    write(third, ProcessFault(FaultKind.LATE, 1))
    write(first)
    assert refused == {3: "in doubt"}
    assert (first.seen, second.seen, third.seen) == ({"a": 3}, {}, {})
    refused.clear()
    assert ledger.go_back(1, is_promoted=is_promoted) == 1
    write(second)
    if not is_promoted:
        assert ledger.go_back(1) == 1
    write(first)
    assert refused == tells


def test_a_scene_that_crashes_is_a_finding_of_its_seed():
    """Here by an event that nothing applies; so a sweep goes on where the simulator itself is wrong."""
    finding = simulate(scene_from_text(TWO_STAGES.splitlines()), [Event.from_text("step 0"), Event("nothing")])
    assert (finding.invariant, finding.event) == (CRASHED, 1)
    assert "KeyError" in finding.found


def test_a_seed_is_the_same_each_time():
    first, second = (scene_and_events(11) for _ in range(2))
    assert first == second
    assert str(first[0]) == str(second[0])


def test_a_seed_that_draws_its_shares_is_the_same_each_time_and_read_as_it_is_printed():
    for seed in range(40):
        scene, events = scene_and_events(seed, DRAWN)
        assert (scene, events) == scene_and_events(seed, DRAWN)
        assert (scene_from_text(str(scene).splitlines()), events_from_text(events_to_text(events))) == (scene, events)


@pytest.mark.parametrize("stateful", [0, 1])
@pytest.mark.parametrize("gated", [0, 1])
@pytest.mark.parametrize("collecting", [0, 1])
@pytest.mark.parametrize("seed", range(20))
def test_a_scene_is_read_as_it_is_printed(seed, stateful, gated, collecting):
    """State, gates and collection mix."""
    scene, events = scene_and_events(seed, Shares(stateful=stateful, gated=gated, collecting=collecting, lossy=0))
    assert scene_from_text(str(scene).splitlines()) == scene
    assert (scene.keeps_state, scene.is_gated, scene.collects) == (stateful, gated, collecting)
    assert events_from_text(events_to_text(events)) == events


def test_events_are_read_as_they_are_printed():
    events = random_events(Drawing(5))
    assert events_from_text(events_to_text(events)) == events


def test_a_schedule_is_shrunk_to_what_matters():
    """Say that what breaks it is a damage behind a step that is struck."""

    def breaks(events):
        steps = [at for at, event in enumerate(events) if event.fault.at]
        return bool(steps) and any(event.verb.value == "damage" for event in events[steps[0] :])

    events = random_events(Drawing(3))
    assert breaks(events)
    found = shrunk(events, breaks)
    assert len(found) == 2
    assert found[1] == Event.from_text(f"damage 0 {found[1].how}")
