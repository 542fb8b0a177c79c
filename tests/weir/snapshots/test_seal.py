"""A day that fails for good is sealed: later days go on from the day before it, until a person has it computed."""

import json
from dataclasses import replace
from itertools import pairwise

import pytest
from sqlalchemy import select
from tests.messages.kinds import of_kind
from tests.weir.command_line import reach, typed, use
from tests.weir.restoring import EPOCHS, aircraft, run_days, states_of, two_saved_days
from tests.weir.small_dataflow import World, ladder

from weir.dataflow import Dataflow, Stage, blocking, previous, sink, source
from weir.errors import Misconfigured, SuppressRestarts
from weir.ledger.clears import add_pending_clear
from weir.ledger.database.tables import AttemptRow, FailoverRow, PendingClearRow, PublicationRow, ResultRow, RunRow
from weir.ledger.runs import run_by_id
from weir.reading.choosing import choose
from weir.rebuild.rebuild import rebuild
from weir.recovery.run_plans import reaching
from weir.requests.request import Request
from weir.requests.verbs import plan_request
from weir.snapshots.seal import seal_plan, seal_run, seal_tolerated
from weir.topology.regions import RegionId

MOST = 60
"""The tries in which all comes to rest, and tasks that wait have looked several times."""

RUNS = [f"ladder@{epoch}" for epoch in EPOCHS]


class FailsOn:
    """Raised in the middle of a task of a day, as long as that is `broken`."""

    def __init__(self, world, day, task_id="aircraft-known"):
        self.broken, self.day, self.task_id = True, f"2013-01-{day:02d}", task_id
        world.airflow.during = self

    def __call__(self, key):
        if self.broken and key.run_id.endswith(self.day) and key.task_id == self.task_id:
            raise ValueError("bad rows")


@pytest.fixture(scope="module")
def two_days():
    with two_saved_days() as saved:
        yield saved


@pytest.fixture
def world(two_days, tmp_path):
    """Two days of state, and a third one whose task fails for good while two more wait for it."""
    world = two_days.go_on(tmp_path)
    world.fault = FailsOn(world, 3)
    for day in (3, 4, 5):
        world.airflow.dag_run(day)
    settle(world)
    assert world.airflow.state_of("scheduled__2013-01-03") == "failed"
    return world


def settle(world):
    """Let Airflow run what it may; those that wait for another day look for it a few times."""
    airflow = world.airflow
    for _ in range(MOST):
        if (ready := airflow._ready()) is None:
            return
        airflow.time = max(airflow.time, ready.not_before or airflow.time)
        airflow.step(ready)


def sealed(world, day=3):
    said = seal_run(world.services, seal_plan(world.services, RUNS[day - 1]), world.airflow, "ada")
    settle(world)
    return said


def published(world):
    with world.ledger.transaction() as session:
        return {row.run for row in session.scalars(select(PublicationRow)) if row.published_at is not None}


def predecessors(world):
    with world.ledger.transaction() as session:
        return {row.epoch: row.predecessor for row in session.scalars(select(RunRow))}


def plain(tmp_path, *days, flow=None, content=()):
    """The world of the same days, of which none has failed."""
    world = World(tmp_path / "plain", flow or aircraft())
    world.content.update(content)
    run_days(world.airflow, *days)
    return world


def test_later_days_go_on_from_the_day_before_and_publish(world, tmp_path):
    assert published(world) == set(RUNS[:2])
    sealed(world)
    assert published(world) == {*RUNS[:2], *RUNS[3:]}
    assert predecessors(world)[EPOCHS[3]] == EPOCHS[1]
    without = plain(tmp_path, 1, 2, 4, 5)
    assert [states_of(world, day) for day in (4, 5)] == [states_of(without, day) for day in (4, 5)]
    states = world.airflow.states()
    assert {states[each] for each in states if "2013-01-04" in each or "2013-01-05" in each} == {"success"}


def test_the_newest_state_is_never_that_of_a_sealed_day(tmp_path):
    flow = aircraft()
    report = Stage("report", "pipelines.ladder:report", [blocking("aircraft")])
    world = World(tmp_path, replace(flow, stages=(*flow.stages, report, sink("report", "told"))))
    run_days(world.airflow, 1, 2)
    world.fault = FailsOn(world, 3, "report-told")
    world.airflow.dag_run(3)
    settle(world)
    assert newest_state(world) == RUNS[2]
    sealed(world)
    assert newest_state(world) == RUNS[1]


def newest_state(world):
    with world.ledger.transaction() as session:
        return choose(session, "ladder", None, "history").run


def test_a_persons_clear_lifts_the_seal_and_later_days_are_corrected(world, tmp_path):
    sealed(world)
    world.fault.broken = False
    world.airflow.clear_run_by_hand("scheduled__2013-01-03")
    settle(world)
    assert published(world) == set(RUNS)
    whole = plain(tmp_path, 1, 2, 3, 4, 5)
    assert [states_of(world, day) for day in (3, 4, 5)] == [states_of(whole, day) for day in (3, 4, 5)]
    assert predecessors(world) == dict(zip(EPOCHS, (None, *EPOCHS), strict=False))
    with world.ledger.transaction() as session:
        assert session.get_one(RunRow, RUNS[2]).sealed_at is None
        assert all(session.scalars(select(RunRow.closed_at)))


def test_a_day_that_fails_again_can_be_sealed_again(world, tmp_path):
    sealed(world)
    world.airflow.clear_run_by_hand("scheduled__2013-01-03")
    settle(world)
    assert predecessors(world)[EPOCHS[3]] == EPOCHS[2]
    sealed(world)
    without = plain(tmp_path, 1, 2, 4, 5)
    assert [states_of(world, day) for day in (4, 5)] == [states_of(without, day) for day in (4, 5)]
    assert published(world) == {*RUNS[:2], *RUNS[3:]}


@pytest.mark.parametrize(("order", "first_mended"), [((3, 4), 3), ((4, 3), 4)])
def test_two_days_in_a_row(two_days, tmp_path, order, first_mended):
    world = two_days.go_on(tmp_path)
    broken = {3, 4}

    def during(key):
        if int(key.run_id[-2:]) in broken and key.task_id == "aircraft-known":
            raise ValueError("bad rows")

    world.airflow.during = during
    for day in (3, 4, 5):
        world.airflow.dag_run(day)
    settle(world)
    for day in order:
        sealed(world, day)
    assert predecessors(world)[EPOCHS[4]] == EPOCHS[1]
    assert states_of(world, 5) == states_of(plain(tmp_path / "a", 1, 2, 5), 5)
    broken.discard(first_mended)
    world.airflow.clear_run_by_hand(f"scheduled__2013-01-{first_mended:02d}")
    settle(world)
    assert states_of(world, 5) == states_of(plain(tmp_path / "b", 1, 2, first_mended, 5), 5)
    broken.clear()
    world.airflow.clear_run_by_hand(f"scheduled__2013-01-{7 - first_mended:02d}")
    settle(world)
    assert states_of(world, 5) == states_of(plain(tmp_path / "c", 1, 2, 3, 4, 5), 5)
    chain = predecessors(world)
    assert all(chain[later] == earlier for earlier, later in pairwise(EPOCHS))


TWO = Dataflow(
    "ladder",
    [
        source("flights", "pipelines.ladder:flights"),
        Stage("good", "pipelines.ladder:good", [blocking("flights"), previous("good", schema="k BIGINT")]),
        Stage("bad", "pipelines.ladder:bad", [blocking("flights"), previous("bad", schema="k BIGINT")]),
        sink("good", "goods"),
        sink("bad", "bads"),
    ],
    keep="60 days",
)
"""Two results of which each reads its own of the day before."""


def test_what_a_later_day_has_read_of_the_sealed_one_is_computed_again(tmp_path):
    """One of two states has committed, and the next day has gone on from it, before the other one fails."""
    world = World(tmp_path / "own", TWO)
    run_days(world.airflow, 1, 2)
    FailsOn(world, 3, "bad-bads")
    for day in (3, 4):
        world.airflow.dag_run(day)
    settle(world)
    plan = seal_plan(world.services, RUNS[2])
    assert f"good-goods[0] of {RUNS[3]}" in plan.reruns
    assert not [each for each in plan.reruns if RUNS[2] in each]
    sealed(world)
    without = plain(tmp_path, 1, 2, 4, flow=TWO)
    found = [digests_of(each, 4) for each in (world, without)]
    assert found[0] == found[1]


def test_a_running_attempt_that_has_read_the_sealed_day_runs_again_at_once(tmp_path):
    world = World(tmp_path / "own", TWO)
    run_days(world.airflow, 1, 2)
    done = []

    def during(key):
        if key.run_id.endswith("03") and key.task_id == "bad-bads":
            raise ValueError("bad rows")
        if key.run_id.endswith("04") and key.task_id == "good-goods" and not done:
            with world.ledger.transaction() as session:
                found = session.scalars(select(AttemptRow.state).where(AttemptRow.run == RUNS[2]))
                if "failed" not in found.all():
                    raise ValueError("the day before has yet to fail")
            done.append(seal_run(world.services, seal_plan(world.services, RUNS[2]), world.airflow, "ada"))

    world.airflow.during = during
    for day in (3, 4):
        world.airflow.dag_run(day)
    settle(world)
    assert done
    assert digests_of(world, 4) == digests_of(plain(tmp_path, 1, 2, 4, flow=TWO), 4)
    with world.ledger.transaction() as session:
        assert not session.scalars(select(FailoverRow.id)).all()  # nobody had to find out


def digests_of(world, day):
    with world.ledger.transaction() as session:
        rows = session.scalars(select(ResultRow).where(ResultRow.run == RUNS[day - 1], ResultRow.is_current))
        return {(row.stage, row.subtask): row.digest for row in rows}


def test_a_running_attempt_is_fenced_and_pending_clears_are_dropped(world):
    world.fault.broken = False
    world.airflow.clear_by_hand("scheduled__2013-01-03", "aircraft-known", 0)
    done = []

    def seal_meanwhile(key):
        if key.run_id.endswith("03") and key.task_id == "aircraft-known" and not done:
            done.append(key)
            with world.ledger.transaction("ladder") as session:
                run = run_by_id(session, RUNS[2])
                add_pending_clear(session, run, RegionId("flights", 0), 1, "weir: a test", world.airflow.time)
            plan = seal_plan(world.services, RUNS[2])
            assert plan.running == ("aircraft-known[0]",)
            seal_run(world.services, plan, world.airflow, "ada")

    world.airflow.during = seal_meanwhile
    settle(world)
    assert done
    with world.ledger.transaction() as session:
        newest = session.scalars(
            select(AttemptRow).where(
                AttemptRow.run == RUNS[2], AttemptRow.region == "aircraft-known", AttemptRow.subtask == 0
            )
        ).all()
        assert [each.state for each in newest][-1] == "fenced"
        assert session.get_one(RunRow, RUNS[2]).sealed_at is not None
        assert not session.scalars(select(PendingClearRow.id).where(PendingClearRow.settled_at.is_(None))).all()
    assert published(world) == {*RUNS[:2], *RUNS[3:]}


def test_no_try_of_a_sealed_day_begins_that_nobody_has_cleared(world):
    sealed(world)
    task = world.airflow.task("scheduled__2013-01-03", "aircraft-known", 0)
    world.airflow._retry(task, 0)
    task.state = None
    before = states_of(world, 3)
    settle(world)
    assert task.state == "skipped"
    assert any("was sealed" in each for each in task.notes)
    assert states_of(world, 3) == before
    assert published(world) == {*RUNS[:2], *RUNS[3:]}


def test_the_first_day_is_not_sealed(tmp_path):
    world = World(tmp_path / "own", aircraft())
    FailsOn(world, 1)
    run_days(world.airflow, 1)
    assert "Delete its DagRun" in seal_plan(world.services, RUNS[0]).impossible


def test_a_day_that_begins_after_the_seal_goes_on_from_the_day_before(world, tmp_path):
    sealed(world)
    run_days(world.airflow, 6)
    assert predecessors(world)["20130106T000000Z"] == EPOCHS[4]
    sealed_last = World(tmp_path / "last", aircraft())
    run_days(sealed_last.airflow, 1, 2)
    FailsOn(sealed_last, 3)
    run_days(sealed_last.airflow, 3)
    sealed(sealed_last)
    run_days(sealed_last.airflow, 4)
    assert predecessors(sealed_last)[EPOCHS[3]] == EPOCHS[1]
    assert states_of(sealed_last, 4) == states_of(plain(tmp_path, 1, 2, 4), 4)


def test_a_rebuilt_ledger_knows_it(world):
    sealed(world)
    states = {day: states_of(world, day) for day in (1, 2, 4, 5)}
    world.lose_ledger()
    rebuild(world.services, "ladder")
    with world.ledger.transaction() as session:
        row = session.get_one(RunRow, RUNS[2])
        assert (row.sealed_why, row.sealed_clears) == ("sealed by ada", 0)
    assert predecessors(world)[EPOCHS[3]] == EPOCHS[1]
    assert {day: states_of(world, day) for day in (1, 2, 4, 5)} == states


def test_what_has_published_or_waits_for_nothing_is_not_sealed(world, tmp_path):
    before = predecessors(world)
    plan = seal_plan(world.services, RUNS[1])
    assert "it has published known v1" in plan.impossible
    with pytest.raises(Misconfigured, check=of_kind("snapshots.seal_impossible", run=RUNS[1])):
        seal_run(world.services, plan, world.airflow, "ada")
    assert predecessors(world) == before
    other = World(tmp_path / "other", ladder())
    FailsOn(other, 1, "report")
    run_days(other.airflow, 1)
    assert "no later epoch goes on from it" in seal_plan(other.services, RUNS[0]).impossible


def failing(two_days, tmp_path, allowed, *days, error=ValueError):
    """A world whose days fail for good, of which its dataflow tolerates some."""
    world = two_days.go_on(tmp_path)
    world.airflow.deploy(aircraft(tolerable_failed_epochs=allowed))

    def during(key):
        if int(key.run_id[-2:]) in days and key.task_id == "aircraft-known":
            raise error("bad rows")

    world.airflow.during = during
    for day in range(3, max(days) + 2):
        world.airflow.dag_run(day)
    settle(world)
    return world


def upkeep(world):
    said = seal_tolerated(world.services, world.airflow, "ladder")
    settle(world)
    return said


def test_upkeep_seals_as_many_days_in_a_row_as_are_tolerated(two_days, tmp_path):
    world = failing(two_days, tmp_path, 1, 3, 4)
    assert f"{RUNS[2]} is sealed" in upkeep(world)
    assert upkeep(world) == ""  # the second day in a row
    assert published(world) == set(RUNS[:2])
    with world.ledger.transaction() as session:
        assert "tolerable_failed_epochs=1" in session.get_one(RunRow, RUNS[2]).sealed_why


def test_upkeep_seals_a_day_again_once_another_one_was_whole_in_between(two_days, tmp_path):
    world = failing(two_days, tmp_path, 1, 3, 5)
    assert f"{RUNS[2]} is sealed" in upkeep(world)
    assert RUNS[3] in published(world)
    assert f"{RUNS[4]} is sealed" in upkeep(world)
    assert published(world) >= {*RUNS[:2], RUNS[3], "ladder@20130106T000000Z"}


@pytest.mark.parametrize(("allowed", "error"), [(0, ValueError), (1, SuppressRestarts), (1, Misconfigured)])
def test_upkeep_seals_nothing_that_is_not_tolerated(two_days, tmp_path, allowed, error):
    world = failing(two_days, tmp_path, allowed, 3, error=error)
    assert world.airflow.state_of("scheduled__2013-01-03") == "failed"
    assert upkeep(world) == ""
    assert published(world) == set(RUNS[:2])


def test_as_a_person_types_it(world, tmp_path, monkeypatch):
    use(monkeypatch, tmp_path)
    before = predecessors(world)
    shown = typed("seal", RUNS[2])
    assert f"Later epochs go on from {RUNS[1]}, as if {RUNS[2]} had changed nothing." in shown
    assert "has failed: aircraft-known[0], aircraft-known[1]" in shown
    assert f"goes on: {RUNS[3]}, {RUNS[4]}" in shown
    assert "publishes nothing of the epoch: known" in shown
    assert predecessors(world) == before
    told = json.loads(typed("seal", RUNS[2], "--json"))
    assert (told["before"], told["followers"], told["impossible"]) == (RUNS[1], RUNS[3:], "")
    reach(monkeypatch, world.airflow)
    assert f"{RUNS[2]} is sealed" in typed("seal", RUNS[2], "--apply")
    settle(world)
    assert published(world) == {*RUNS[:2], *RUNS[3:]}
    assert "is sealed already" in typed("seal", RUNS[2])


def test_the_page_of_a_day_that_has_failed_offers_to_seal_it(world):
    asked = Request(verb="seal", dag_id="dag", name=RUNS[2], hash="unseen")
    plan = plan_request(world.services, asked, reaching(world.airflow))
    assert plan.says == f"it publishes nothing, and 2 later run(s) go on from {RUNS[1]}"
    assert plan.carry_out(world.airflow, "anna").startswith(f"{RUNS[2]} is sealed")
    settle(world)
    assert {world.airflow.state_of(f"scheduled__2013-01-{day:02d}") for day in (4, 5)} == {"success"}
    done = plan_request(world.services, asked, reaching(world.airflow))
    assert (done.says, done.nothing) == ("", f"{RUNS[2]} is sealed by anna")
    other = plan_request(world.services, replace(asked, name=RUNS[0]), reaching(world.airflow))
    assert (other.says, "it is closed" in other.nothing) == ("", True)
