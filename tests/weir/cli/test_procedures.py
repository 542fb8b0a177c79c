"""What the pages say about retiring, renaming, splitting and moving is true, with the commands that they show."""

import json
import re
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from tests.builders.ledgers import fast_folder, new_ledger
from tests.messages.kinds import of_kind
from tests.weir.command_line import invoked, use
from tests.weir.restoring import checkpoints, files_of, keep_savepoints, restore, rows_of, run_days, second_airflow
from tests.weir.restoring import states_of as digests
from tests.weir.small_dataflow import Saved, World

from weir.coordination.services import Services
from weir.dataflow import Dataflow, Stage, blocking, keyed_state, list_state, previous, sink, source
from weir.dataflow import files as folder_of_files
from weir.errors import Retryable
from weir.recovery.adopt import adopt
from weir.snapshots.restore import RestoreRequest
from weir.snapshots.restore import restore as restore_snapshot
from weir.testing.fakes.airflow import FakeAirflow
from weir.testing.fakes.engine import FakeEngine
from weir.testing.fakes.stores import store_in_memory
from weir.upkeep import RESULTS, scrub_everywhere, settle_everywhere, sweep_everywhere

DOCS = Path(__file__).parents[3] / "docs"

FLIGHTS = source("flights", "pipelines.ladder:flights")
AIRCRAFT = Stage(
    "aircraft",
    "pipelines.ladder:aircraft",
    [blocking("flights", by="k")],
    state=keyed_state("history", key="k", schema="k BIGINT, n BIGINT"),
)
SEEN = Stage("seen", "pipelines.ladder:seen", [blocking("flights", by="k")], state=list_state("offsets"))
KNOWN = sink("aircraft", "known")
FLOW = Dataflow("ladder", [FLIGHTS, AIRCRAFT, SEEN, KNOWN], retained_checkpoints=5)


def command(page, part):
    """The words of the line in a shell block of a page that has this part; a comment is none."""
    blocks = re.findall(r"(?ms)^ *```sh\n(.*?)```", (DOCS / page).read_text())
    [line] = [each for block in blocks for each in block.splitlines() if part in each]
    return shlex.split(line, comments=True)


@pytest.fixture(scope="module")
def five_days():
    """A world after two days, with a savepoint of the second, and what five days come to."""
    with fast_folder() as folder:
        (folder / "world/store").mkdir(parents=True)
        world = World(folder / "world", FLOW)
        run_days(world.airflow, 1, 2)
        keep_savepoints(world, 2)
        saved = Saved(world, folder / "saved")
        other = saved.go_on(folder / "other")
        run_days(other.airflow, 3, 4, 5)
        yield saved, {day: digests(other, day) for day in range(1, 6)}


@pytest.fixture
def world(five_days, tmp_path):
    return five_days[0].go_on(tmp_path)


@pytest.fixture
def right(five_days):
    return five_days[1]


def upkeep(services, airflow):
    for done in (
        settle_everywhere(services, RESULTS),
        sweep_everywhere(services, airflow),
        scrub_everywhere(services, airflow),
    ):
        done.require_whole()


def files(world):
    store = world.folder / "store"
    return {str(path.relative_to(store)) for path in store.rglob("*") if path.is_file()}


def retire(monkeypatch, world):
    """Type what the page has for that."""
    *settings, _weir, verb, _trips, option = command("changing.md", "weir gc trips")
    use(monkeypatch, world.folder)
    with monkeypatch.context() as only_here:
        for each in settings:
            only_here.setenv(*each.split("=", 1))
        assert invoked(verb, "ladder", option).exit_code == 0


def test_a_retired_dataflow_leaves_a_state_that_may_be_deleted_and_its_fork_goes_on(world, right, monkeypatch):
    restore(world, "day2", fork="rides")
    fork = second_airflow(world, replace(FLOW, name="rides"))
    run_days(fork, 3)
    world.airflow.tasks.clear()
    retire(monkeypatch, world)
    assert {each.split("/")[2] for each in files(world) if re.match("ladder/2.*/part-", each)} == {"history", "offsets"}
    assert {each.split("/")[1] for each in files(world) if each.startswith("_sinks/")} == {"rides"}
    for each in ("ladder", "_sinks/ladder"):
        world.store.delete_folder(each)
    upkeep(world.services, fork)
    run_days(fork, 4)
    assert digests(world, 4, "rides") == right[4]


def test_of_a_retired_dataflow_without_state_no_file_is_left(tmp_path, monkeypatch):
    known = Stage("known", "pipelines.ladder:known", [blocking("flights", by="k")])
    world = World(tmp_path, Dataflow("ladder", [FLIGHTS, known, sink("known", "published")]))
    run_days(world.airflow, 1)
    retire(monkeypatch, world)
    assert files(world) == {"weir-store.json"}


def test_a_dag_of_another_name_goes_on_with_the_state_of_its_dataflow(world, right):
    renamed = second_airflow(world, FLOW)
    renamed.dag_id = "rides"
    run_days(renamed, 3)
    world.store.delete_folder(rows_of(world, 2)[0].folder)
    world.airflow.clear_run_by_hand("scheduled__2013-01-02")  # the old DAG computes its epochs
    world.airflow.run_until_quiet()
    run_days(renamed, 4)
    assert {*world.airflow.states().values(), *renamed.states().values()} == {"success"}
    assert {day: digests(world, day) for day in (2, 3, 4)} == {day: right[day] for day in (2, 3, 4)}


def test_a_dataflow_of_another_name_begins_with_nothing_unless_it_is_restored(world, right):
    restore(world, max(checkpoints(world)), fork="rides")
    for name, has_state in (("rides", True), ("empty", False)):
        renamed = second_airflow(world, replace(FLOW, name=name))
        run_days(renamed, 3)
        assert set(renamed.states().values()) == {"success"}
        assert (digests(world, 3, name) == right[3]) is has_state


def test_a_dataflow_that_is_split_goes_on_with_a_part_of_its_states_on_each_side(world, right):
    restore(world, "day2", fork="rides", allows_non_restored=True)
    restore(world, "day2", allows_non_restored=True)
    rides = second_airflow(world, Dataflow("rides", [FLIGHTS, AIRCRAFT, KNOWN]))
    world.airflow.deploy(Dataflow("ladder", [FLIGHTS, SEEN, sink("seen", "known")]))
    for airflow in (rides, world.airflow):
        run_days(airflow, 3, 4)
    assert {*rides.states().values(), *world.airflow.states().values()} == {"success"}
    assert digests(world, 4, "rides") | digests(world, 4) == right[4]


def test_a_store_that_is_moved_is_gone_on_with_as_if_it_had_not_been(world, right, monkeypatch):
    old, new = world.folder / "store", world.folder / "new"
    new.mkdir()
    use(monkeypatch, world.folder)
    for part in ("cp ", "rm "):
        words = [re.sub("^/data/weir", str(old), each) for each in command("storage.md", part)]
        subprocess.run([re.sub("^/mnt/weir", str(new), each) for each in words], check=True)
    with pytest.raises(Retryable, check=of_kind("store.marker_missing")):
        invoked("verify")
    monkeypatch.setenv("WEIR_STORE", str(new))
    assert invoked("verify").exit_code == 0
    world.store.files = store_in_memory(new).files
    run_days(world.airflow, 3)
    assert (digests(world, 3), list(old.glob("ladder/20130103*"))) == (right[3], [])


def deployment(world, name, store):
    """Another Airflow, with a ledger of its own."""
    services = Services(ledger=new_ledger(world.folder / f"{name}.db"), store=store, now=world.airflow.now)
    return FakeAirflow(services, FakeEngine(store, world.content), replace(FLOW, name=name))


def test_dataflows_of_two_ledgers_go_on_in_one_store(world, right):
    tried = deployment(world, "tried", world.store)
    run_days(tried, 1)
    before = files(world)
    for airflow, other in ((world.airflow, "tried"), (tried, "ladder")):
        done = sweep_everywhere(airflow.services, airflow)
        done.require_whole()
        assert f"the ledger knows no dataflow {other}" in done.done["the store"]
    assert files(world) == before
    run_days(world.airflow, 3)
    assert digests(world, 3) == right[3]


def test_a_savepoint_takes_a_state_into_another_deployment_which_refuses_the_store_of_the_first(world, right):
    folder = world.folder / "test"
    folder.mkdir()
    test = deployment(world, "ladder", store_in_memory(folder))
    savepoint = f"{world.folder}/store/ladder/_savepoints/day2"
    restore_snapshot(test.services, RestoreRequest("ladder", savepoint))
    run_days(test, 3)
    with pytest.raises(Retryable, check=of_kind("store.marker_of_another")):
        replace(test.services, store=world.store).store_id()
    world.ledger = test.services.ledger
    assert digests(world, 3) == right[3]


# Names, numbers of subtasks and keys that change


def renamed(old, new, flow=FLOW):
    """The dataflow with another name for one of its stages, as it is written in all places."""
    text = json.dumps(flow.to_json()).replace(f'"{old}"', f'"{new}"')
    return Dataflow.from_json(json.loads(text))


def problem(world, day, task):
    found = world.airflow.task(f"scheduled__2013-01-{day:02}", *task)
    assert found.state == "failed"
    return found.failed_because


def test_a_stage_of_another_name_goes_on_with_its_state(world):
    world.airflow.deploy(renamed("aircraft", "planes"))
    run_days(world.airflow, 3)
    assert set(world.airflow.states().values()) == {"success"}
    assert [file.epoch for file in files_of(world, 3)] == [f"2013010{day}T000000Z" for day in (1, 2, 3)]


def test_a_stage_of_another_name_that_reads_itself_is_refused_until_all_runs_are_adopted(tmp_path):
    def flow(name):
        inputs = {"flights": blocking(FLIGHTS), "before": previous(name, schema="k bigint")}
        return Dataflow("ladder", [FLIGHTS, Stage(name, "pipelines.ladder:known", inputs), sink(name, "published")])

    world = World(tmp_path, flow("known"))
    run_days(world.airflow, 1, 2)
    world.airflow.deploy(flow("seen"))
    run_days(world.airflow, 3)
    assert "a dataflow that does not write it" in problem(world, 3, ("seen-published", -1))
    for day in (1, 2):
        adopt(world.services, f"ladder@201301{day:02}T000000Z")
        world.airflow.clear_run_by_hand(f"scheduled__2013-01-{day:02}")
        world.airflow.run_until_quiet()
    world.airflow.clear_run_by_hand("scheduled__2013-01-03")
    world.airflow.run_until_quiet()
    assert set(world.airflow.states().values()) == {"success", "removed"}


def test_a_sink_of_another_name_has_a_data_set_of_its_own_and_no_epoch_of_the_old_one(tmp_path):
    def flow(name):
        return Dataflow("ladder", [FLIGHTS, sink("flights", name, to=folder_of_files(f"{tmp_path}/lake"))])

    world = World(tmp_path / "world", flow("known"))
    run_days(world.airflow, 1)
    world.airflow.deploy(flow("seen"))
    run_days(world.airflow, 2)
    assert set(world.airflow.states().values()) == {"success"}
    published = sorted(each.split("/")[2:4] for each in files(world) if each.startswith("_sinks/"))
    assert published == [["known", "20130101T000000Z"], ["seen", "20130102T000000Z"]]
    adopt(world.services, "ladder@20130101T000000Z")
    world.airflow.clear_run_by_hand("scheduled__2013-01-01")
    world.airflow.run_until_quiet()
    assert "give each sink a path of its own" in problem(world, 1, ("weir_close", -1))


def test_what_an_earlier_run_has_lost_needs_a_task_that_the_dag_has(tmp_path):
    def flow(parallelism):
        known = Stage("known", "pipelines.ladder:known", [blocking("flights", by="k")], parallelism=parallelism)
        return Dataflow("ladder", [FLIGHTS, known, sink("known", "published")])

    world = World(tmp_path, flow(3))
    run_days(world.airflow, 1)
    world.airflow.deploy(flow(2))
    run_days(world.airflow, 2)
    world.lose("published", 2)
    world.airflow.clear_by_hand("scheduled__2013-01-01", "weir_close")
    world.airflow.run_until_quiet()
    assert "Airflow has no task instance of " in problem(world, 1, ("weir_close", -1))
    adopt(world.services, "ladder@20130101T000000Z")
    world.airflow.clear_run_by_hand("scheduled__2013-01-01")
    world.airflow.run_until_quiet()
    assert set(world.airflow.states().values()) == {"success", "removed"}


def test_a_state_with_another_key_is_copied_and_the_old_one_let_go(world):
    other = keyed_state("by_n", key="n", schema="n BIGINT, k BIGINT")
    both = replace(AIRCRAFT, state=(*AIRCRAFT.states, other))
    alone = replace(AIRCRAFT, state=other)
    world.airflow.deploy(replace(FLOW, stages=[FLIGHTS, both, SEEN, KNOWN]))
    run_days(world.airflow, 3)
    assert set(world.airflow.states().values()) == {"success"}
    world.airflow.deploy(replace(FLOW, stages=[FLIGHTS, alone, SEEN, KNOWN]))
    run_days(world.airflow, 4)
    assert "state 'history' is not declared any more" in problem(world, 4, ("flights", -1))
    restore(world, max(checkpoints(world)), allows_non_restored=True)
    world.airflow.clear_run_by_hand("scheduled__2013-01-04")
    world.airflow.run_until_quiet()
    assert set(world.airflow.states().values()) == {"success"}
