"""What the commands say of a run that is open: why it is not published, whom it waits for, and what goes on.

Each cause is found by all three commands, and the command that they name ends it.
"""

import json
import re

import pytest
from tests.messages.kinds import of_kind
from tests.weir.command_line import reach, typed, use
from tests.weir.keeping import aircraft, epoch
from tests.weir.small_dataflow import World

from weir.errors import Misconfigured
from weir.recovery.rules.plan import Plan, StepKind
from weir.testing.fakes.airflow import Killed

FIRST, SECOND = (f"ladder@{epoch(day)}" for day in (1, 2))
KNOWN = "aircraft-known"


@pytest.fixture
def world(tmp_path, monkeypatch):
    """A dataflow whose days go on from each other, in the environment's ledger and store; Airflow can be reached."""
    world = World(tmp_path, aircraft())
    use(monkeypatch, tmp_path)
    reach(monkeypatch, world.airflow)
    clear = world.airflow.clear

    def clear_and_look(wanted):
        answers = clear(wanted)
        scheduler_looks(world.airflow)
        return answers

    world.airflow.clear = clear_and_look
    return world


def scheduler_looks(airflow):
    """Give up what stands behind a failed task, as Airflow's scheduler does between any two requests."""
    failed = {
        key.run_id: list(airflow.tasks).index(key) for key, task in airflow.tasks.items() if task.state == "failed"
    }
    for at, (key, task) in enumerate(airflow.tasks.items()):
        if task.state is None and not task.is_compaction and at > failed.get(key.run_id, at):
            task.state = "upstream_failed"


def standing(run, task=KNOWN):
    """How the run stands: all commands say the same."""
    told = json.loads(typed("plan", run, "--json"))["standing"]
    said = typed("plan", run)
    assert "Nothing is missing" not in said
    if told["command"]:
        assert f"Next: {told['command']}" in said
        assert f"Next: {told['command']}" in typed("runs")
        assert f"Next: {told['command']}" in why(task, run)
    return told


def why(task, run):
    try:
        return typed("why", task, "--run", run)
    except Misconfigured as error:
        return str(error)


def follow(told):
    """Type the one command."""
    [words] = re.findall(r"`weir (.+?)`", told["command"])
    return typed(*words.split())


def rest(world, most=60):
    """Run what runs, until all that is left only waits."""
    waits = 0
    for _ in range(most):
        ready = world.airflow._ready()
        if ready is None or waits > 5:
            return
        world.airflow.time = max(world.airflow.time, ready.not_before or world.airflow.time)
        world.airflow.step(ready)
        waits = waits + 1 if ready.state == "up_for_reschedule" else 0


def is_well(world):
    """Whether all tasks have succeeded; a compaction may be left out."""
    world.airflow.run_until_quiet()
    return {task.state for task in world.airflow.tasks.values() if not task.is_compaction} == {"success"}


def marked(world, run, task, state):
    world.airflow.task(run, task).state = state


def cut_off(world, run):
    """What Airflow calls upstream_failed."""
    for key, task in world.airflow.tasks.items():
        if key.run_id == run and task.state is None and not task.is_compaction:
            task.state = "upstream_failed"


def failed_before_it_began(world, run):
    world.airflow.step(world.airflow.task(run, "flights"))
    marked(world, run, KNOWN, "failed")
    cut_off(world, run)


def skipped_before_it_began(world, run):
    world.airflow.step(world.airflow.task(run, "flights"))
    marked(world, run, KNOWN, "skipped")
    marked(world, run, "weir_close", "skipped")


def source_failed_before_it_began(world, run):
    marked(world, run, "flights", "failed")
    cut_off(world, run)


def succeeded_by_hand(world, run):
    world.airflow.step(world.airflow.task(run, "flights"))
    marked(world, run, KNOWN, "success")
    marked(world, run, "weir_close", "success")


def failed_while_it_ran(world, run):
    def dies(_key):
        raise Killed

    world.airflow.during = dies
    world.airflow.step(world.airflow.task(run, "flights"))
    world.airflow.during = lambda _key: None
    marked(world, run, "flights", "failed")
    cut_off(world, run)


def closing_task_failed(world, run):
    while world.airflow._ready().key.task_id != "weir_close":
        world.airflow.step(world.airflow._ready())
    marked(world, run, "weir_close", "failed")


def finished_and_marked_failed(world, run):
    world.airflow.step(world.airflow.task(run, "flights"))
    marked(world, run, "flights", "failed")
    cut_off(world, run)


def run_marked_failed(world, run):
    world.airflow.step(world.airflow.task(run, "flights"))
    world.airflow.mark_run_by_hand(run, "failed")


def run_marked_success(world, run):
    world.airflow.step(world.airflow.task(run, "flights"))
    world.airflow.mark_run_by_hand(run, "success")


def failed_for_good(world, run):
    def breaks(_key):
        raise Misconfigured("a bug")

    world.airflow.during = breaks
    world.airflow.step(world.airflow.task(run, "flights"))
    world.airflow.during = lambda _key: None
    cut_off(world, run)


STOPS = [
    failed_before_it_began,
    skipped_before_it_began,
    succeeded_by_hand,
    failed_while_it_ran,
    closing_task_failed,
    finished_and_marked_failed,
    run_marked_failed,
    run_marked_success,
    failed_for_good,
]


@pytest.mark.parametrize("stop", STOPS, ids=lambda stop: stop.__name__)
def test_a_run_that_has_stopped_is_named_with_the_command_that_has_it_go_on(world, stop):
    run = world.airflow.dag_run(1)
    stop(world, run)
    told = standing(FIRST)
    assert told["standing"] == "stopped"
    assert told["stopped"]
    follow(told)
    assert is_well(world)
    assert "Nothing is missing" in typed("plan", FIRST)


@pytest.mark.parametrize("stop", [failed_before_it_began, source_failed_before_it_began, failed_for_good])
def test_a_run_that_waits_for_one_that_has_stopped_names_it_and_its_command(world, stop):
    stop(world, world.airflow.dag_run(1))
    second = world.airflow.dag_run(2)
    rest(world)
    waiting = world.airflow.task(second, KNOWN)
    assert waiting.state == "up_for_reschedule"
    told = standing(SECOND)
    assert (told["standing"], told["waits_for"]["run"], told["waits_for"]["standing"]) == ("waiting", FIRST, "stopped")
    assert told["since"] is not None
    assert f"`weir plan {FIRST} --apply`" in told["command"]
    [note] = [each for each in waiting.notes if FIRST in each][-1:]
    assert note.startswith("Weir: ")
    assert "does not go on by itself" in note
    assert note.endswith(f"Next: {told['command']}")
    assert f"Nothing of {SECOND} has stopped" in typed("plan", SECOND, "--apply")
    follow(told)
    assert is_well(world)
    assert not waiting.notes[-1].startswith("Weir: aircraft-known[0] waits")


def waits_for(world, *days):
    """Have the tasks of days run until all only wait; answers how the last one stands."""
    rest(world)
    told = standing(f"ladder@{epoch(days[-1])}")
    while told["waits_for"] is not None:
        told = told["waits_for"]
    return told


def test_a_chain_of_waits_leads_to_the_run_that_has_stopped(world):
    failed_before_it_began(world, world.airflow.dag_run(1))
    for day in (2, 3, 4):
        world.airflow.dag_run(day)
    told = waits_for(world, 2, 3, 4)
    assert (told["run"], told["standing"]) == (FIRST, "stopped")
    assert "waits, too, in the end" in typed("plan", f"ladder@{epoch(4)}")
    follow(told)
    assert is_well(world)


def test_a_paused_dag_is_named_with_the_command_that_has_it_go_on(world):
    run = world.airflow.dag_run(1)
    world.airflow.step(world.airflow.task(run, "flights"))
    world.airflow.is_paused = True
    told = standing(FIRST)
    assert told["standing"] == "stopped"
    assert "`weir airflow dags unpause dag`" in told["command"]
    world.airflow.is_paused = False
    assert standing(FIRST)["standing"] == "running"


def test_a_dag_file_that_does_not_import_any_more_is_named(world):
    run = world.airflow.dag_run(1)
    world.airflow.step(world.airflow.task(run, "flights"))
    world.airflow.has_import_errors = True
    told = standing(FIRST)
    assert told["standing"] == "stopped"
    assert "`weir check`" in told["command"]
    world.airflow.has_import_errors = False
    assert standing(FIRST)["standing"] == "running"


def test_a_queued_run_goes_on_by_itself_while_a_scheduler_runs(world):
    world.airflow.dag_run(1, is_queued=True)
    world.airflow.start = lambda *_: "queued"
    world.airflow.dag_run(2)
    told = waits_for(world, 1, 2)
    assert (told["run"], told["standing"], told["command"]) == (FIRST, "waiting", "")
    world.airflow.has_scheduler = False
    told = waits_for(world, 1, 2)
    assert (told["run"], told["standing"]) == (FIRST, "stopped")
    assert "./weir up" in told["command"]


def test_a_deleted_run_is_named_with_what_has_its_interval_run_again(world):
    run = world.airflow.dag_run(1)
    world.airflow.step(world.airflow.task(run, "flights"))
    world.airflow.delete(run)
    told = standing(FIRST)
    assert told["standing"] == "stopped"
    assert "airflow backfill create --dag-id dag --from-date 2013-01-01" in told["command"]


def test_a_dag_run_that_airflow_has_finished_before_its_tasks_is_started_again(world):
    run = world.airflow.dag_run(1)
    world.airflow.step(world.airflow.task(run, "flights"))
    world.airflow.marks[run] = "failed"
    started = []
    world.airflow.start = lambda *of: started.append(of) or "failed"
    follow(standing(FIRST))
    assert started == [("dag", run)]


def test_a_run_that_goes_on_says_what_of_it_runs_or_is_to_come(world):
    run = world.airflow.dag_run(1)
    said = []
    world.airflow.during = lambda _key: said.append(standing(FIRST, "flights"))
    world.airflow.step(world.airflow.task(run, "flights"))
    assert (said[0]["standing"], said[0]["command"]) == ("running", "")
    assert "flights[0] runs" in said[0]["reason"]
    assert f"{KNOWN}[0]" in standing(FIRST)["reason"]


def test_a_run_of_which_no_task_has_begun_is_known_from_airflow(world):
    world.run_first(1)
    run = world.airflow.dag_run(2)
    assert standing(SECOND, "flights")["standing"] == "running"
    source_failed_before_it_began(world, run)
    for name in (SECOND, run, "ladder@2013-01-02"):
        assert standing(name, "flights")["standing"] == "stopped"
    follow(standing(SECOND, "flights"))
    assert is_well(world)
    with pytest.raises(Misconfigured, check=of_kind("ledger.run_unknown")):
        typed("plan", "ladder@20130103T000000Z")


def test_what_airflow_was_not_asked_is_not_said_to_be_whole_or_stopped(tmp_path, monkeypatch):
    world = World(tmp_path, aircraft())
    use(monkeypatch, tmp_path)
    failed_before_it_began(world, world.airflow.dag_run(1))
    told = standing(FIRST)
    assert told["standing"] == "unknown"
    assert "WEIR_API" in told["reason"]
    world.airflow.task("scheduled__2013-01-01", KNOWN).state = None
    failed_for_good(world, world.airflow.dag_run(2))
    assert standing(SECOND, "flights")["standing"] == "stopped"


def test_a_task_of_another_kind_that_has_failed_before_is_to_be_cleared_first(world):
    run = world.airflow.dag_run(1)
    failed_before_it_began(world, run)
    marked(world, run, KNOWN, "upstream_failed")
    told = standing(FIRST)
    assert told["standing"] == "stopped"
    assert "not Weir's" in told["command"]


def test_a_run_whose_results_are_lost_after_it_was_closed_is_planned_as_before(world):
    world.run_first(1)
    world.lose("known", 0)
    assert json.loads(typed("plan", FIRST, "--json"))["standing"] is None
    assert "2 of 2" in typed("plan", FIRST, "--apply")


def steps(run, kind):
    plan = Plan.from_json(json.loads(typed("plan", run, "--json")))
    return [str(each.region) for each in plan.of(kind)]


def test_a_published_run_whose_task_was_cleared_is_run_again_by_airflow_and_nothing_is_to_do(world):
    run = world.run_first(1)
    world.airflow.clear_by_hand(run, "flights")
    told = standing(FIRST, "flights")
    assert (told["standing"], told["cleared"], told["command"]) == ("runs_again", ["flights[0]"], "")
    assert steps(FIRST, StepKind.RERUN) == ["flights[0]"]
    assert f"{KNOWN}[0]" in steps(FIRST, StepKind.IF_CHANGED)
    assert "flights[0] again" in typed("runs")
    assert "has stopped" in typed("plan", FIRST, "--apply")
    assert is_well(world)
    assert world.airflow.executed(run)[f"{KNOWN}[0]"] == 1
    assert "Nothing is missing" in typed("plan", FIRST)


def test_a_published_run_whose_closing_task_was_cleared_restarts_nothing_else(world):
    run = world.run_first(1)
    world.airflow.clear_by_hand(run, "weir_close")
    told = standing(FIRST, "flights")
    assert (told["standing"], told["cleared"]) == ("runs_again", ["weir_close[0]"])
    assert steps(FIRST, StepKind.RERUN) == ["weir_close[0]"]
    assert is_well(world)


def test_a_published_run_that_was_cleared_as_a_whole_restarts_all_of_it(world):
    run = world.run_first(1)
    world.airflow.clear_run_by_hand(run)
    assert standing(FIRST, "flights")["standing"] == "runs_again"
    assert steps(FIRST, StepKind.RERUN) == ["flights[0]", f"{KNOWN}[0]", "weir_close[0]"]
    assert is_well(world)


def test_a_cleared_task_does_not_hide_that_another_result_of_the_run_is_lost(world):
    run = world.run_first(1)
    world.airflow.clear_by_hand(run, "flights")
    world.lose("known", 0)
    told = json.loads(typed("plan", FIRST, "--json"))["standing"]
    assert (told["standing"], told["command"]) == ("stopped", f"`weir plan {FIRST} --apply`")
    assert steps(FIRST, StepKind.RERUN) == [f"{KNOWN}[0]", "weir_close[0]"]
    follow(told)
    assert is_well(world)
    assert "Nothing is missing" in typed("plan", FIRST)


def cleared_day(world, day):
    """Five days have run, what no later day needs is released, and a task of a day is cleared; answers its plan."""
    for each in range(1, 6):
        world.airflow.dag_run(each)
        world.airflow.run_until_quiet()
    world.airflow.release("ladder")
    run = f"scheduled__2013-01-{day:02d}"
    world.airflow.clear_by_hand(run, KNOWN)
    return json.loads(typed("plan", f"ladder@{epoch(day)}", "--json"))


def test_a_cleared_task_whose_state_of_the_day_before_was_released_is_told_to_fail_and_to_keep_what_it_had(world):
    told = cleared_day(world, 2)
    assert (told["standing"]["standing"], told["standing"]["command"]) == ("stopped", "")
    assert "mark this task a success in Airflow, and clear weir_close" in told["impossible"]
    rest(world)
    marked(world, "scheduled__2013-01-02", KNOWN, "success")
    world.airflow.clear_by_hand("scheduled__2013-01-02", "weir_close")
    assert is_well(world)


def test_a_cleared_task_whose_own_state_was_released_is_computed_again_where_it_goes_on_from_one_that_is_there(world):
    told = cleared_day(world, 1)
    assert (told["standing"]["standing"], told["impossible"]) == ("runs_again", "")


def test_a_cleared_task_of_a_published_run_that_airflow_keeps_names_what_has_it_go_on(world):
    run = world.run_first(1)
    world.airflow.clear_by_hand(run, "flights")
    world.airflow.is_paused = True
    told = standing(FIRST, "flights")
    assert (told["standing"], told["cleared"]) == ("stopped", ["flights[0]"])
    assert "unpause" in told["command"]
    world.airflow.is_paused = False
    world.airflow.marks[run] = "success"
    assert json.loads(typed("plan", FIRST, "--json"))["standing"] is None


def run_marked_failed_after_its_close(world, run):
    world.airflow.mark_run_by_hand(run, "failed")


def cleared_task_failed(world, run):
    world.airflow.clear_by_hand(run, "flights")
    failed_for_good(world, run)


def cleared_task_marked_failed(world, run):
    world.airflow.clear_by_hand(run, KNOWN)
    marked(world, run, KNOWN, "failed")


def cleared_run_marked_failed(world, run):
    world.airflow.clear_run_by_hand(run)
    world.airflow.mark_run_by_hand(run, "failed")


def closing_task_marked_failed(world, run):
    marked(world, run, "weir_close", "failed")


REDS = [
    (run_marked_failed_after_its_close, ["weir_close[0]"]),
    (cleared_run_marked_failed, ["flights[0]", f"{KNOWN}[0]", "weir_close[0]"]),
    (closing_task_marked_failed, ["weir_close[0]"]),
    (cleared_task_failed, ["flights[0]"]),
    (cleared_task_marked_failed, [f"{KNOWN}[0]"]),
]


@pytest.mark.parametrize(("turn", "stopped"), REDS, ids=[turn.__name__ for turn, _ in REDS])
def test_a_published_run_that_is_red_says_why_and_is_a_success_by_the_one_command(world, turn, stopped):
    run = world.run_first(1)
    turn(world, run)
    told = json.loads(typed("plan", FIRST, "--json"))["standing"]
    assert (told["standing"], told["stopped"]) == ("red", stopped)
    for said in (typed("plan", FIRST), why("flights", FIRST)):
        assert f"Next: {told['command']}" in said
    # The leaves of a DAG decide its DagRuns: one of which another task has failed is a success.
    assert (f"Next: {told['command']}" in typed("runs")) is (world.airflow.state_of(run) == "failed")
    assert steps(FIRST, StepKind.RERUN) == stopped
    follow(told)
    assert is_well(world)
    assert world.airflow.state_of(run) == "success"
    assert "Nothing is missing" in typed("plan", FIRST)
