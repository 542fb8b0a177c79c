"""A heartbeat asks whether the commit would be refused, and then stops the work; it never stops any other."""

from dataclasses import dataclass
from random import Random

import pytest
from sqlalchemy import select
from tests.messages.kinds import of_kind
from tests.weir.small_dataflow import ladder

from weir.attempts.commit_check import require_committable
from weir.coordination.values import Begun
from weir.dataflow import Dataflow
from weir.errors import Conflict, Fault, Fenced, Loss
from weir.execution.partition_state import PartitionState
from weir.execution.run_state import AttemptState
from weir.ledger.attempts import attempts_of
from weir.ledger.database.tables import AttemptRow, DataflowRow, LeaseRow, ResultRow
from weir.ledger.results import record_losses, transition
from weir.restarts.strategy import NoRestart

TASK = ("joined", 0)


@pytest.fixture
def during(world):
    """Let something happen in the middle of the first try of a task, with a heartbeat after it; one try a failure."""
    world.run = world.airflow.dag_run()
    world.airflow.strategy = NoRestart()

    def let(happen, task=TASK):
        struck = []

        def strike(key):
            if (key.task_id, max(key.map_index, 0)) == task and not struck:
                struck.append(key)
                happen(world)
                world.airflow.heartbeat(key)
                struck.append("went on")

        world.airflow.during = strike
        world.airflow.run_until_quiet()
        assert struck
        return struck

    return let


def current(session, stage, subtask=0):
    query = select(ResultRow).where(ResultRow.stage == stage, ResultRow.subtask == subtask, ResultRow.is_current)
    return session.scalars(query).one()


def loss_of(row, fault):
    return Loss(row.run, row.stage, row.subtask, row.layout, row.attempt, fault, "found by another")


def other_content(world):
    """A person clears a producer, which computes something else."""
    world.content["weather"] = "storm"
    equal_content(world)


def equal_content(world):
    world.airflow.clear_by_hand(world.run, "weather")
    world.airflow.step(world.airflow.task(world.run, "weather"))


def damaged(world):
    with world.ledger.transaction("ladder") as session:
        record_losses(session, [loss_of(current(session, "weather"), Fault.DAMAGED)], world.airflow.time)


def lost(world):
    with world.ledger.transaction("ladder") as session:
        record_losses(session, [loss_of(current(session, "weather"), Fault.MISSING)], world.airflow.time)


def released(world):
    with world.ledger.transaction("ladder") as session:
        transition(session, current(session, "weather"), PartitionState.RELEASED, "a test", world.airflow.time)


def released_after_its_lease(world):
    with world.ledger.transaction("ladder") as session:
        for lease in session.scalars(select(LeaseRow)):
            lease.expires_at = world.airflow.time
    released(world)


def quarantined(world):
    with world.ledger.transaction("ladder") as session:
        record_losses(session, [loss_of(current(session, "weather"), Fault.SUSPECTED)], world.airflow.time)


def another_lineage(world):
    with world.ledger.transaction("ladder") as session:
        session.get_one(DataflowRow, "ladder").lineage += 1


def tries(world, region="joined", subtask=0):
    with world.ledger.transaction() as session:
        query = select(AttemptRow).where(AttemptRow.region == region, AttemptRow.subtask == subtask)
        return [(row.state, row.failure) for row in session.scalars(query.order_by(AttemptRow.try_number))]


REFUSED = {
    "other content": other_content,
    "damaged": damaged,
    "quarantined": quarantined,
    "another lineage": another_lineage,
}
HARMLESS = {
    "equal content": equal_content,
    "lost": lost,
    "released": released,
    "released after its lease": released_after_its_lease,
    "nothing": lambda _world: None,
}


@pytest.mark.parametrize("change", REFUSED.values(), ids=REFUSED)
def test_an_attempt_whose_commit_would_be_refused_is_stopped_and_begins_again_at_no_cost(during, world, change):
    written = []
    world.airflow.after_commit = lambda key: written.append((key.task_id, max(key.map_index, 0)))
    during(change)
    assert tries(world)[0] == ("retrying", "conflict")
    assert tries(world)[-1] == ("committed", None)
    assert {failure for _, failure in tries(world)} <= {"conflict", "backtrack", None}
    assert written.count(TASK) == 1
    assert set(world.airflow.states().values()) == {"success"}


@pytest.mark.parametrize("change", REFUSED.values(), ids=REFUSED)
def test_what_is_stopped_writes_no_result(during, world, change):
    folders = []

    def watch(_world):
        with world.ledger.transaction() as session:
            row = session.scalars(
                select(AttemptRow).where(AttemptRow.region == "joined", AttemptRow.subtask == 0)
            ).one()
            folders.append(row.id)
        change(world)

    during(watch)
    store = world.folder / "store"
    assert [str(path) for path in store.rglob(f"*{folders[0]}/part-*")] == []
    assert list(store.rglob("part-*"))


@pytest.mark.parametrize("change", HARMLESS.values(), ids=HARMLESS)
def test_an_input_that_only_went_away_or_came_out_equal_stops_nothing(during, world, change):
    during(change)
    assert tries(world)[0] == ("committed", None)
    assert set(world.airflow.states().values()) == {"success"}


def test_where_consumers_always_restart_an_input_that_came_out_equal_stops_its_reader(during, world):
    world.airflow.deploy(Dataflow("ladder", ladder().stages, consumers="always"))
    during(equal_content)
    assert tries(world)[0] == ("retrying", "conflict")


@pytest.fixture
def begun(world):
    """An attempt that computes, whose inputs may change."""
    world.run = world.airflow.dag_run()
    for task_id, index in (("raw-clean", 0), ("raw-clean", 1), ("weather", -1)):
        world.airflow.step(world.airflow.task(world.run, task_id, index))
    task = world.airflow.task(world.run, *TASK)
    task.try_number, task.state = 1, "running"
    found = world.airflow.coordinator.begin(world.airflow.request(task), world.airflow)
    assert isinstance(found, Begun)
    return found


def refusal(ask):
    try:
        ask()
    except (Conflict, Fenced) as error:
        return type(error), str(error)
    return None


@pytest.mark.parametrize("change", [*REFUSED.values(), *HARMLESS.values()], ids=[*REFUSED, *HARMLESS])
def test_a_heartbeat_and_the_commit_give_the_same_answer(world, begun, change):
    report = world.airflow.engine.run(begun.job)
    change(world)
    coordinator = world.airflow.coordinator
    at_heartbeat = refusal(lambda: coordinator.heartbeat(begun))
    assert at_heartbeat == refusal(lambda: coordinator.commit(begun, report, world.airflow))
    assert (at_heartbeat is not None) is (change in REFUSED.values())


def test_an_attempt_that_a_newer_one_has_fenced_is_stopped(world, begun):
    task = world.airflow.task(world.run, *TASK)
    task.try_number += 1
    world.airflow.coordinator.begin(world.airflow.request(task), world.airflow)
    with pytest.raises(Fenced, check=of_kind("coordination.attempt_not_newest")):
        world.airflow.coordinator.heartbeat(begun)


def test_an_attempt_that_has_committed_takes_no_lease_again(world, begun):
    report = world.airflow.engine.run(begun.job)
    world.airflow.coordinator.commit(begun, report, world.airflow)
    with pytest.raises(Fenced, check=of_kind("coordination.attempt_not_newest", state="committed")):
        world.airflow.coordinator.heartbeat(begun)
    with world.ledger.transaction() as session:
        assert list(session.scalars(select(LeaseRow))) == []


def test_a_heartbeat_records_its_time(during, world):
    during(lambda _world: None)
    with world.ledger.transaction() as session:
        rows = session.scalars(select(AttemptRow).where(AttemptRow.heard_at.is_not(None)))
        assert [(row.region, row.subtask) for row in rows] == [TASK]


# Against the definition, whatever happens to the region and to its inputs


CASES = 150
OF_INPUTS = (None, None, None, "other rows", "equal rows", "lost", "damaged", "beside a damaged one", "quarantined")
OF_REGIONS = (*[None] * 8, "newer try", "ended", "lineage")


@dataclass(frozen=True, slots=True)
class Case:
    """What happens to each input, and to the region, while it computes."""

    inputs: tuple[str | None, ...]
    region: str | None

    def may_commit(self, consumers):
        refused = {"other rows", "damaged", "quarantined"} | ({"equal rows"} if consumers == "always" else set())
        return self.region is None and refused.isdisjoint(self.inputs)


@pytest.fixture(params=["if_changed", "always"])
def consumers(request):
    return request.param


@pytest.fixture
def reading(world, consumers):
    """The attempt of a region with three inputs, two of them of one stage."""
    flow = world.airflow.flow
    world.airflow.flow = Dataflow(flow.name, flow.stages, consumers=consumers)
    run = world.airflow.dag_run()
    for task_id, index in (("raw-clean", 0), ("raw-clean", 1), ("weather", -1)):
        world.airflow.step(world.airflow.task(run, task_id, index))
    task = world.airflow.task(run, "joined", 0)
    task.try_number, task.state = 1, "running"
    found = world.airflow.coordinator.begin(world.airflow.request(task), world.airflow)
    assert isinstance(found, Begun)
    assert len(found.reads) == 3
    return found


def happen(session, begun, case):
    rows = {row.id: row for row in session.scalars(select(ResultRow))}
    read = [rows[each.result] for each in begun.inputs]
    for row, what in zip(read, case.inputs, strict=True):
        if what == "other rows":
            row.digest += "0"
        elif what == "equal rows":
            row.attempt = next(each.attempt for each in read if each.attempt != row.attempt)
        elif what in ("lost", "damaged"):
            row.state = PartitionState.LOST.value
            row.fault = (Fault.DAMAGED if what == "damaged" else Fault.MISSING).value
        elif what == "quarantined":
            row.state = PartitionState.QUARANTINED.value
        elif what == "beside a damaged one":
            columns = {each.name: getattr(row, each.name) for each in ResultRow.__table__.columns if each.name != "id"}
            other = {"layout": "other", "is_current": False, "state": PartitionState.LOST.value}
            session.add(ResultRow(**{**columns, **other, "fault": Fault.DAMAGED.value}))
    own = session.get_one(AttemptRow, begun.attempt.id)
    if case.region == "newer try":
        columns = {each.name: getattr(own, each.name) for each in AttemptRow.__table__.columns}
        session.add(AttemptRow(**{**columns, "id": "newer", "try_number": 2, "ti_id": "newer"}))
    elif case.region == "ended":
        own.state = AttemptState.FENCED.value
    elif case.region == "lineage":
        session.get_one(DataflowRow, begun.run.dataflow.name).lineage += 1
    session.flush()


@pytest.mark.parametrize("seed", range(2))
def test_an_attempt_may_commit_if_and_only_if_it_and_its_inputs_are_as_they_were(world, reading, consumers, seed):
    random = Random(seed)
    for _ in range(CASES):
        case = Case(tuple(random.choices(OF_INPUTS, k=3)), random.choice(OF_REGIONS))
        with world.ledger.transaction(reading.run.dataflow.name) as session:
            happen(session, reading, case)
            tries = attempts_of(session, reading.run.id, reading.attempt.region)
            try:
                require_committable(session, world.services, reading, tries)
                found = True
            except (Conflict, Fenced):
                found = False
            session.rollback()
        assert found is case.may_commit(consumers), case
