"""What is published, when, and what is not published again."""

from contextlib import suppress
from datetime import timedelta
from random import Random

import pytest
from sqlalchemy import select
from tests.weir.recovery.overtaking import HAPPENINGS, TASKS, compute, happen, overtake, result

from weir.attempts.close import close as close_run
from weir.coordination.values import Awaiting, Published
from weir.errors import Conflict, Fault, Fenced, ResultUnavailable
from weir.ledger.database.tables import ConsumptionRow, PublicationRow, ResultRow, RunRow
from weir.restarts.strategy import NoRestart
from weir.sinks.publishing import SinkPublishing
from weir.store.catalogue import published
from weir.testing.fakes.airflow import Killed

EPOCH = "20130101T000000Z"
READS = 9
"""How often a close reads the store before it decides what to publish."""


on_both = pytest.mark.parametrize("database", ["sqlite", pytest.param("postgresql", marks=pytest.mark.soak)])


@pytest.fixture
def green(world, tmp_path):
    world.folder, world.run = tmp_path, world.run_first(1)
    return world


@pytest.fixture
def ready(world, tmp_path):
    """A run in which everything but the closing task has run."""
    world.folder, world.run = tmp_path, world.airflow.dag_run()
    for task in [task for key, task in world.airflow.tasks.items() if key.task_id != "weir_close"]:
        world.airflow.step(task)
    return world


def pointer(world):
    return published(world.store, "ladder", "delays", EPOCH)


def versions(world):
    return [name for name, _ in world.store.list(f"_sinks/ladder/delays/{EPOCH}")]


def close(world, try_number=None):
    task = world.airflow.task(world.run, "weir_close")
    task.try_number = try_number or task.try_number + 1
    task.state = "running"
    return close_run(world.services, SinkPublishing(world.services), world.airflow.request(task), world.airflow)


def close_behind_a_killed_try(world, try_number=None):
    """The restart strategy makes the try wait first."""
    waiting = close(world, try_number)
    assert "ended without a result" in waiting.reason
    world.airflow.time += timedelta(seconds=waiting.seconds)
    return close(world, world.airflow.task(world.run, "weir_close").try_number)


def clear_close(world):
    world.airflow.task(world.run, "weir_close").state = "success"
    world.airflow.clear_by_hand(world.run, "weir_close")


def folder_of(world, stage, subtask=0):
    with world.ledger.transaction() as session:
        query = select(ResultRow.folder).where(
            ResultRow.stage == stage, ResultRow.subtask == subtask, ResultRow.is_current
        )
        return session.scalar(query)


@on_both
def test_a_closed_run_is_published_and_recorded(ready):
    closed = close(ready)
    assert isinstance(closed, Published)
    assert closed.versions == {"delays": 1}
    told = closed.summary["delays"]
    assert len(told.pop("digest")) == 64
    assert told == {"rows": 1, "version": 1, "published": "a new version"}
    assert pointer(ready).partitions[0].folder == folder_of(ready, "delays")
    with ready.ledger.transaction() as session:
        assert session.scalar(select(RunRow.closed_at)) == ready.airflow.time
        assert session.scalar(select(PublicationRow.published_at)) == ready.airflow.time
        assert session.scalar(select(ConsumptionRow.stage).where(ConsumptionRow.stage == "delays")) == "delays"


@pytest.mark.parametrize(
    "harm", [lambda data: data[:9], lambda data: bytes([data[0] ^ 8]) + data[1:]], ids=["cut", "bit"]
)
def test_published_files_that_are_damaged_are_replaced_though_their_content_was_made_again_meanwhile(green, harm):
    """Seed 3 of `weir chaos --postgres`: another had made the result again before the closing task looked."""
    (file,) = (green.folder / "store" / folder_of(green, "delays")).glob("*.bin")
    file.write_bytes(harm(file.read_bytes()))
    green.airflow.clear_by_hand(green.run, "report-delays")
    green.airflow.run_until_quiet()
    clear_close(green)
    green.airflow.run_until_quiet()
    assert pointer(green).partitions[0].folder == folder_of(green, "delays")
    assert versions(green) == ["000001.json", "000002.json"]


def test_published_files_of_an_attempt_that_is_current_no_more_stay_published(green):
    before = pointer(green)
    green.airflow.clear_by_hand(green.run, "report-delays")
    green.airflow.run_until_quiet()
    clear_close(green)
    green.airflow.run_until_quiet()
    assert pointer(green) == before
    assert before.partitions[0].folder != folder_of(green, "delays")


def test_equal_content_is_published_once(green):
    clear_close(green)
    closed = close(green)
    assert closed.versions == {"delays": None}
    assert "equal content is published already" in closed.summary["delays"]["published"]
    assert versions(green) == ["000001.json"]


def test_equal_content_of_another_attempt_is_not_published_either(green):
    green.airflow.clear_by_hand(green.run, "report-delays")
    green.airflow.run_until_quiet()
    clear_close(green)
    assert close(green).versions == {"delays": None}
    assert pointer(green).version == 1


@pytest.mark.parametrize("what", ["pointer", "files"])
def test_what_is_gone_is_published_anew(green, what):
    if what == "pointer":
        green.store.delete(f"_sinks/ladder/delays/{EPOCH}/000001.json")
    else:
        green.store.delete_folder(folder_of(green, "delays"))
    clear_close(green)
    green.airflow.run_until_quiet()
    assert green.airflow.task(green.run, "weir_close").state == "success"
    assert pointer(green).version == 2
    for part in pointer(green).partitions:
        for file in part.files:
            assert green.store.size(f"{part.folder}/{file}") > 0


def test_deleted_published_files_are_published_anew_when_their_producer_is_cleared(green):
    """The content is equal, so that no digest says that the pointer leads nowhere."""
    green.store.delete_folder(folder_of(green, "delays"))
    green.airflow.clear_by_hand(green.run, "report-delays")
    green.airflow.run_until_quiet()
    assert green.airflow.task(green.run, "weir_close").runs == [1, 2]
    assert pointer(green).version == 2
    assert pointer(green).partitions[0].folder == folder_of(green, "delays")


def test_all_that_is_missing_is_told_at_once(ready):
    """Of what is no sink's the ledger is asked, and the store only where a loss is recorded."""
    lost = []
    with ready.ledger.transaction("ladder") as session:
        for row in session.scalars(select(ResultRow).where(ResultRow.stage.in_(["totals", "weather"]))):
            row.state = "lost"
            lost.append(row.folder)
    for folder in (*lost, folder_of(ready, "delays")):
        ready.store.delete_folder(folder)
    with pytest.raises(ResultUnavailable) as raised:
        close(ready)
    found = {(loss.stage, loss.subtask, loss.fault) for loss in raised.value.losses}
    assert found == {
        ("totals", 0, Fault.MISSING),
        ("totals", 1, Fault.MISSING),
        ("weather", 0, Fault.MISSING),
        ("delays", 0, Fault.MISSING),
    }
    assert pointer(ready) is None


def test_a_run_is_not_closed_while_a_repair_is_under_way(ready):
    ready.airflow.clear_by_hand(ready.run, "weather")
    weather = ready.airflow.task(ready.run, "weather")
    weather.try_number, weather.state = 2, "running"
    ready.content["weather"] = "other"
    begun = ready.airflow.coordinator.begin(ready.airflow.request(weather), ready.airflow)
    ready.airflow.coordinator.commit(begun, ready.airflow.engine.run(begun.job), ready.airflow)
    waiting = close(ready)
    assert isinstance(waiting, Awaiting)
    assert "joined[0], joined[1]" in waiting.reason
    assert pointer(ready) is None


@on_both
def test_a_result_that_changes_between_look_and_publication_is_not_published(ready):
    """The closing task begins again, and publishes the results that are valid then."""

    def change():
        ready.content["report"] = "other"
        ready.airflow.clear_by_hand(ready.run, "report-delays")
        ready.airflow.step(ready.airflow.task(ready.run, "report-delays"))

    interrupt_once(ready, f"_sinks/ladder/delays/{EPOCH}/000001.json", change)
    with pytest.raises(Conflict):
        close(ready)
    clear_close(ready)
    ready.airflow.run_until_quiet()
    assert pointer(ready).partitions[0].folder == folder_of(ready, "delays")
    assert ready.airflow.task(ready.run, "weir_close").state == "success"


@pytest.mark.parametrize("reads", range(1, READS + 1))
@pytest.mark.parametrize("seed", range(2))
def test_a_pointer_names_files_that_are_there_of_what_is_current_and_finished_whatever_happens(world, seed, reads):
    random, world.run = Random(100 * seed + reads), world.airflow.dag_run()
    compute(world, *TASKS)
    overtake(world, reads, lambda: happen(world, random.choice(HAPPENINGS), ("delays", 0)))
    with suppress(Conflict, ResultUnavailable):
        close(world)
    with world.ledger.transaction() as session:
        current = result(session, "delays")
    for each in pointer(world).partitions if pointer(world) is not None else ():
        assert (each.folder, current.state) == (current.folder, "finished")
        assert all(world.store.size(f"{each.folder}/{name}") for name in each.files)


def interrupt_once(world, path, action):
    """Run a step after the decision to publish, before its pointer exists."""
    create = world.store.files.create

    class Files(type(world.store.files)):
        __slots__ = ()

        def create(self, name, data):
            if name == path:
                world.store.files = before
                action()
            create(name, data)

    before = world.store.files
    world.store.files = Files(before.root)


def test_a_kill_between_decision_and_pointer_leaves_a_number_unused(ready):
    def killed():
        raise Killed

    interrupt_once(ready, f"_sinks/ladder/delays/{EPOCH}/000001.json", killed)
    with pytest.raises(Killed):
        close(ready)
    assert pointer(ready) is None
    assert close_behind_a_killed_try(ready).versions == {"delays": 2}
    assert versions(ready) == ["000002.json"]


@on_both
def test_a_version_of_a_zombie_never_wins(ready):
    """A closing process stops before it creates its pointer; its successor publishes; then it wakes up."""
    results = {}

    def successor():
        results["successor"] = close_behind_a_killed_try(ready, try_number=2)

    interrupt_once(ready, f"_sinks/ladder/delays/{EPOCH}/000001.json", successor)
    with pytest.raises(Fenced):
        close(ready, try_number=1)
    assert results["successor"].versions == {"delays": 2}
    assert versions(ready) == ["000001.json", "000002.json"]
    assert pointer(ready).version == 2
    with ready.ledger.transaction() as session:
        rows = session.scalars(select(PublicationRow).order_by(PublicationRow.version))
        assert [row.published_at is not None for row in rows] == [False, True]
    # Equal content: the visible version is the successor's, and stays.
    clear_close(ready)
    ready.airflow.task(ready.run, "weir_close").try_number = 2
    assert close(ready).versions == {"delays": None}


def test_a_zombie_that_wakes_up_with_old_content_never_wins(ready):
    def successor():
        ready.content["report"] = "other"
        ready.airflow.clear_by_hand(ready.run, "report-delays")
        ready.airflow.step(ready.airflow.task(ready.run, "report-delays"))
        # The clear may have been of this very task: no kill is counted, and there is no delay.
        assert close(ready, try_number=2).versions == {"delays": 2}

    interrupt_once(ready, f"_sinks/ladder/delays/{EPOCH}/000001.json", successor)
    with pytest.raises(Fenced):
        close(ready, try_number=1)
    assert pointer(ready).version == 2
    assert pointer(ready).partitions[0].folder == folder_of(ready, "delays")


@on_both
def test_a_pointer_that_was_never_recorded_gets_an_equal_successor(ready):
    """The process was killed after its create: a higher version is safe, whether or not the pointer is its own."""
    close(ready)
    with ready.ledger.transaction("ladder") as session:
        session.scalar(select(PublicationRow)).published_at = None
    again = close(ready)
    assert again.versions == {"delays": 2}
    assert pointer(ready).version == 2


@pytest.mark.parametrize("cleared", ["one that reads nothing that has changed", "what it reads, which has changed"])
def test_a_green_dag_run_is_closed_also_where_what_weir_has_cleared_fails(green, cleared):
    airflow, changes = green.airflow, cleared.startswith("what it reads")
    airflow.strategy = NoRestart()
    airflow.during = lambda key: fail_in("joined", key)
    if changes:
        green.content["weather"] = "other"
    airflow.clear_by_hand(green.run, *(("weather",) if changes else ("joined", 0)))
    airflow.run_until_quiet()
    assert "failed" in {task.state for key, task in airflow.tasks.items() if key.task_id == "joined"}
    assert airflow.state_of(green.run) == ("failed" if changes else "success")
    with green.ledger.transaction() as session:
        assert (session.scalar(select(RunRow.closed_at)) is None) is changes
    if changes:
        closing = airflow.task(green.run, "weir_close")
        assert len(closing.runs) == 2
        assert "Airflow calls joined of run scheduled__2013-01-01 failed" in closing.notes[-1]
        airflow.during = lambda _key: None
        for each in (airflow.task(green.run, "joined", 0), airflow.task(green.run, "joined", 1), closing):
            airflow.clear_by_hand(green.run, each.key.task_id, each.key.map_index)
        airflow.run_until_quiet()
        assert airflow.state_of(green.run) == "success"
        assert pointer(green).version == 2


def fail_in(task, key):
    if key.task_id == task:
        raise ValueError("the function raises")
