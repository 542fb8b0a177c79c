"""What runs again when something is lost, changed, killed or cleared: exactly what must."""

import shutil
from collections import Counter
from dataclasses import replace

import pytest

from weir.ledger.runs import run_by_id
from weir.ledger.snapshot import run_state
from weir.store.catalogue import published
from weir.testing.fakes.airflow import Killed
from weir.topology.regions import RegionId

ALL = {
    "raw-clean[0]", "raw-clean[1]", "weather[0]", "joined[0]", "joined[1]",
    "totals[0]", "totals[1]", "routes[0]", "report-delays[0]", "weir_close[0]",
}  # fmt: skip


def folder_of(world, stage, subtask):
    """The folder of the current result of a partition."""
    from sqlalchemy import select

    from weir.ledger.database.tables import ResultRow

    with world.ledger.transaction() as session:
        rows = session.scalars(
            select(ResultRow).where(ResultRow.stage == stage, ResultRow.subtask == subtask, ResultRow.is_current)
        )
        return [world.store_path(row.folder) for row in rows]


on_both = pytest.mark.parametrize("database", ["sqlite", pytest.param("postgresql", marks=pytest.mark.soak)])


@pytest.fixture
def green(world, tmp_path):
    """A run that has gone through without a fault."""
    world.store_path = lambda folder: tmp_path / "store" / folder
    world.run = world.run_first(1)
    return world


def rerun_of(world, before):
    """Which task instances were executed since `before`, and how often."""
    return dict(Counter(world.airflow.executed(world.run)) - Counter(before))


def digest(world):
    return [
        (part.rows, part.digest) for part in published(world.store, "ladder", "delays", "20130101T000000Z").partitions
    ]


def test_a_run_without_faults_runs_every_task_once(green):
    assert set(green.airflow.states().values()) == {"success"}
    assert green.airflow.executed(green.run) == dict.fromkeys(ALL, 1)


@pytest.mark.parametrize(
    "damage", ["folder", "manifest", "file", "half a file", "one bit of the tail", "one bit of the data"]
)
def test_a_damaged_partition_restarts_its_producer_and_the_cleared_consumer_only(green, damage):
    before, published_before = green.airflow.executed(green.run), digest(green)
    [folder] = folder_of(green, "joined", 1)
    damage_partition(folder, damage)
    green.airflow.clear_by_hand(green.run, "totals", 0)
    green.airflow.run_until_quiet()
    assert rerun_of(green, before) == {"totals[0]": 2, "joined[1]": 1}
    assert set(green.airflow.states().values()) == {"success"}
    assert digest(green) == published_before


def damage_partition(folder, damage):
    file = folder / "part-0.bin"
    data = bytearray(file.read_bytes()) if file.exists() else bytearray()
    if damage == "folder":
        shutil.rmtree(folder)
    elif damage == "manifest":
        (folder / "manifest.json").unlink()
    elif damage == "file":
        file.unlink()
    elif damage == "half a file":
        file.write_bytes(data[: len(data) // 2])
    else:
        data[-1 if "tail" in damage else 70 - 64] ^= 4
        file.write_bytes(bytes(data))


def test_several_losses_are_repaired_by_one_decision(green):
    before = green.airflow.executed(green.run)
    for stage, subtask in (("joined", 0), ("joined", 1)):
        shutil.rmtree(folder_of(green, stage, subtask)[0])
    green.airflow.clear_by_hand(green.run, "routes")
    green.airflow.run_until_quiet()
    assert rerun_of(green, before) == {"routes[0]": 2, "joined[0]": 1, "joined[1]": 1}


def test_losses_behind_losses_are_found_in_the_same_decision(green):
    before = green.airflow.executed(green.run)
    for stage, subtask in (("joined", 0), ("clean", 1), ("weather", 0)):
        shutil.rmtree(folder_of(green, stage, subtask)[0])
    green.airflow.clear_by_hand(green.run, "routes")
    green.airflow.run_until_quiet()
    assert rerun_of(green, before) == {"routes[0]": 2, "joined[0]": 1, "raw-clean[1]": 1, "weather[0]": 1}


@on_both
def test_consumers_that_miss_one_partition_cause_one_restart(green):
    before = green.airflow.executed(green.run)
    shutil.rmtree(folder_of(green, "joined", 0)[0])
    for task, index in (("totals", 0), ("totals", 1), ("routes", -1)):
        green.airflow.clear_by_hand(green.run, task, index)
    green.airflow.run_until_quiet()
    again = rerun_of(green, before)
    assert again["joined[0]"] == 1
    assert set(again) == {"joined[0]", "totals[0]", "totals[1]", "routes[0]"}


def test_a_store_that_is_not_mounted_marks_nothing_lost(green, tmp_path):
    before = green.airflow.executed(green.run)
    (tmp_path / "store").rename(tmp_path / "elsewhere")
    (tmp_path / "store").mkdir()
    green.airflow.clear_by_hand(green.run, "totals", 0)
    green.airflow.step(green.airflow.task(green.run, "totals", 0))
    assert green.airflow.task(green.run, "totals", 0).state == "up_for_retry"
    (tmp_path / "store").rmdir()
    (tmp_path / "elsewhere").rename(tmp_path / "store")
    green.airflow.run_until_quiet()
    assert rerun_of(green, before) == {"totals[0]": 2}


def test_equal_content_after_a_clear_restarts_nobody(green):
    before, version = green.airflow.executed(green.run), published(green.store, "ladder", "delays", "20130101T000000Z")
    green.airflow.clear_by_hand(green.run, "raw-clean", 0)
    green.airflow.run_until_quiet()
    assert rerun_of(green, before) == {"raw-clean[0]": 1}
    assert published(green.store, "ladder", "delays", "20130101T000000Z") == version


@on_both
def test_changed_content_restarts_all_that_is_behind_it_and_is_published_anew(green):
    before, old = green.airflow.executed(green.run), digest(green)
    green.content["weather"] = "other"
    green.airflow.clear_by_hand(green.run, "weather")
    green.airflow.run_until_quiet()
    again = rerun_of(green, before)
    assert set(again) == ALL - {"raw-clean[0]", "raw-clean[1]"}
    assert set(again.values()) == {1}
    assert digest(green) != old
    assert published(green.store, "ladder", "delays", "20130101T000000Z").version == 2


@on_both
def test_an_input_that_changes_while_its_consumer_runs_is_never_committed_over(green):
    """The consumer of old content is refused at its commit and begins again."""
    green.content["weather"] = "other"
    airflow = green.airflow
    before = airflow.executed(green.run)

    def change(key):
        if key.task_id == "joined" and key.map_index == 0 and airflow.task(green.run, "weather").state == "success":
            airflow.during = lambda _key: None
            airflow.clear_by_hand(green.run, "weather")
            airflow.step(airflow.task(green.run, "weather"))

    airflow.during = change
    airflow.clear_by_hand(green.run, "joined", 0)
    airflow.step(airflow.task(green.run, "joined", 0))
    assert airflow.task(green.run, "joined", 0).state == "up_for_retry"
    airflow.run_until_quiet()
    again = rerun_of(green, before)
    assert (again["joined[0]"], again["joined[1]"], again["weather[0]"]) == (2, 1, 1)
    assert set(airflow.states().values()) == {"success"}
    assert published(green.store, "ladder", "delays", "20130101T000000Z").version == 2


@on_both
def test_a_process_killed_behind_its_commit_costs_no_recomputation(world):
    run = world.airflow.dag_run()
    commits = []

    def kill_once(key):
        commits.append(key)
        if key.task_id == "weather" and commits.count(key) == 1:
            raise Killed

    world.airflow.after_commit = kill_once
    world.airflow.run_until_quiet()
    assert world.airflow.task(run, "weather").runs == [1, 2]
    assert [key.task_id for key in commits].count("weather") == 1
    assert set(world.airflow.states().values()) == {"success"}


def test_a_process_killed_between_commit_and_clear_leaves_clears_that_the_next_one_settles(green):
    airflow = green.airflow
    green.content["weather"] = "other"
    airflow.clear_by_hand(green.run, "weather")
    airflow.after_commit = lambda key: (_ for _ in ()).throw(Killed) if key.task_id == "weather" else None
    airflow.step(airflow.task(green.run, "weather"))
    assert airflow.task(green.run, "joined", 0).state == "success"  # not cleared yet
    airflow.after_commit = lambda _key: None
    airflow.run_until_quiet()
    assert airflow.task(green.run, "joined", 0).runs == [1, 2]
    assert published(green.store, "ladder", "delays", "20130101T000000Z").version == 2


@on_both
def test_a_killed_process_counts_against_the_restart_strategy(world):
    run = world.airflow.dag_run()
    world.airflow.during = lambda key: (_ for _ in ()).throw(Killed) if key.task_id == "weather" else None
    world.airflow.run_until_quiet()
    weather = world.airflow.task(run, "weather")
    assert weather.state == "failed"
    assert len(weather.runs) >= 4
    assert "ended without a result" in weather.notes[0]


def test_a_clear_by_a_person_gives_a_fresh_budget(world):
    run = world.airflow.dag_run()
    world.airflow.during = lambda key: (
        (_ for _ in ()).throw(ValueError("bad row")) if key.task_id == "weather" else None
    )
    world.airflow.run_until_quiet()
    weather = world.airflow.task(run, "weather")
    assert (weather.state, weather.runs) == ("failed", [1, 2, 3, 4])
    world.airflow.during = lambda _key: None
    world.airflow.clear_by_hand(run, "weather")
    world.airflow.run_until_quiet()
    assert set(world.airflow.states().values()) == {"success"}


@on_both
def test_a_producer_marked_success_by_hand_is_cleared(world):
    run = world.airflow.dag_run()
    weather = world.airflow.task(run, "weather")
    weather.state, weather.try_number = "success", 0
    world.airflow.run_until_quiet()
    assert set(world.airflow.states().values()) == {"success"}
    assert len(weather.runs) == 1
    assert any("committed nothing" in note for note in weather.notes)


def test_a_skipped_producer_fails_its_consumer_by_name(world):
    run = world.airflow.dag_run()
    world.airflow.task(run, "weather").state = "skipped"
    # Trigger rules may let a consumer of a skipped task run.
    for key in ("joined",):
        for index in (0, 1):
            world.airflow.task(run, key, index).upstream = frozenset({"raw-clean"})
    world.airflow.run_until_quiet()
    joined = world.airflow.task(run, "joined", 0)
    assert joined.state == "failed"
    assert "weather" in joined.notes[-1]
    assert "skipped" in joined.notes[-1]


def test_a_dag_run_of_another_dag_for_one_epoch_is_refused_and_names_the_first(green):
    airflow = green.airflow
    second = airflow.request(airflow.task(green.run, "weather"))
    from weir.errors import Misconfigured

    other = replace(second, key=replace(second.key, dag_id="other", run_id="manual__2013-01-01"))
    with pytest.raises(Misconfigured, match="belongs to run scheduled__2013-01-01"):
        airflow.coordinator.begin(other, airflow)


@on_both
def test_a_late_zombie_is_fenced_and_changes_nothing(green):
    from weir.errors import Fenced

    airflow = green.airflow
    airflow.clear_by_hand(green.run, "weather")
    task = airflow.task(green.run, "weather")
    task.try_number, task.state = 3, "running"
    begun = airflow.coordinator.begin(airflow.request(task), airflow)
    zombie = replace(airflow.request(task), try_number=2, ti_id="ti of try 2")
    with pytest.raises(Fenced):
        airflow.coordinator.begin(zombie, airflow)
    task.try_number = 4
    airflow.coordinator.begin(airflow.request(task), airflow)
    with pytest.raises(Fenced):
        airflow.coordinator.commit(begun, airflow.engine.run(begun.job), airflow)


def test_a_clear_of_a_running_task_is_no_kill(world):
    """Airflow raises no `max_tries` then: four such clears must not use up the restart strategy."""
    run, airflow = world.airflow.dag_run(), world.airflow

    def clear_thrice(key):
        if key.task_id == "weather" and len(airflow.task(run, "weather").runs) <= 4:
            airflow.clear_by_hand(run, "weather")
            raise Killed

    airflow.during = clear_thrice
    airflow.run_until_quiet()
    assert set(airflow.states().values()) == {"success"}
    assert len(airflow.task(run, "weather").runs) == 5


@pytest.mark.parametrize("database", ["sqlite", pytest.param("postgresql", marks=pytest.mark.soak)])
def test_a_repair_that_a_person_marks_success_before_it_began_is_made_all_the_same(green):
    shutil.rmtree(folder_of(green, "joined", 0)[0])
    green.airflow.clear_by_hand(green.run, "routes")
    green.airflow.step(green.airflow.task(green.run, "routes"))
    joined = green.airflow.task(green.run, "joined", 0)
    assert joined.state is None  # cleared by Weir
    joined.state = "success"
    green.airflow.run_until_quiet()
    assert set(green.airflow.states().values()) == {"success"}
    assert joined.runs == [1, 2]


@on_both
def test_an_awaited_try_that_airflow_has_lost_is_made_again(green):
    """Airflow's database has gone back to before the clear, and the process of the try is gone."""
    airflow = green.airflow
    shutil.rmtree(folder_of(green, "joined", 0)[0])
    airflow.clear_by_hand(green.run, "routes")
    airflow.step(airflow.task(green.run, "routes"))
    joined = airflow.task(green.run, "joined", 0)
    joined.try_number, joined.state = 2, "running"
    airflow.coordinator.begin(airflow.request(joined), airflow)
    joined.try_number, joined.state = 1, "success"
    airflow.run_until_quiet()
    assert set(airflow.states().values()) == {"success"}
    assert joined.runs == [1, 2]


def test_a_repair_whose_tries_airflow_has_lost_is_over_when_the_task_has_run_again(green):
    airflow, joined = green.airflow, green.airflow.task(green.run, "joined", 0)
    shutil.rmtree(folder_of(green, "joined", 0)[0])
    airflow.clear_by_hand(green.run, "routes")
    airflow.run_until_quiet()
    joined.state, joined.try_number = None, 0  # Airflow's database is what it was before the first of both tries
    id_of = airflow.ti_id
    airflow.ti_id = lambda each: f"another {id_of(each)}" if each is joined else id_of(each)
    airflow.step(joined)
    assert (joined.state, joined.runs) == ("success", [1, 2, 1])
    with green.ledger.transaction() as session:
        state = run_state(session, run_by_id(session, "ladder@20130101T000000Z"))
    assert not state.region(RegionId("joined", 0)).is_running


def test_a_stale_task_that_was_marked_success_while_it_ran_is_cleared_by_the_next_change(green):
    airflow = green.airflow
    airflow.clear_by_hand(green.run, "report-delays")
    report = airflow.task(green.run, "report-delays")
    report.try_number, report.state = 2, "running"
    airflow.coordinator.begin(airflow.request(report), airflow)
    report.state = "success"  # manually, and the process is gone
    old = digest(green)
    green.content["weather"] = "other"
    airflow.clear_by_hand(green.run, "weather")
    airflow.run_until_quiet()
    assert set(airflow.states().values()) == {"success"}
    assert digest(green) != old


def test_an_awaited_region_that_failed_for_good_is_named(green):
    shutil.rmtree(folder_of(green, "joined", 0)[0])
    green.airflow.clear_by_hand(green.run, "routes")
    green.airflow.step(green.airflow.task(green.run, "routes"))
    green.airflow.task(green.run, "joined", 0).state = "failed"  # manually
    green.airflow.task(green.run, "routes").upstream = frozenset()
    green.airflow.run_until_quiet()
    assert "joined[0] is awaited, but Airflow calls joined" in green.airflow.task(green.run, "routes").notes[-1]


def test_a_flipped_bit_in_a_sinks_rows_is_not_published(world, tmp_path):
    world.store_path = lambda folder: tmp_path / "store" / folder
    airflow = world.airflow
    run = world.run = airflow.dag_run()
    while airflow.task(run, "report-delays").state != "success":
        airflow.step(airflow._ready())
    file = folder_of(world, "delays", 0)[0] / "part-0.bin"
    data = bytearray(file.read_bytes())
    data[3] ^= 1
    file.write_bytes(bytes(data))
    airflow.run_until_quiet()
    assert airflow.task(run, "report-delays").runs == [1, 2]
    assert set(airflow.states().values()) == {"success"}
