"""Losses, damage, kills and changes on a running stack: exactly the right task instances run again.

One DagRun for all: each test leaves it green.
"""

import json
import os
import shutil
import signal

import pytest
from ladder_stack import LadderStack, declare

pytestmark = [pytest.mark.e2e, pytest.mark.soak]


@pytest.fixture(scope="module")
def ladder(stack, control):
    """The shared stack, with the small dataflow beside the project's own DAGs."""
    declare(control, {"dags": {"ladder": {}}})
    ladder = LadderStack(stack, control)
    ladder.wait(lambda: ladder.api.has_dag("ladder"), "the DAG ladder")
    ladder.api.unpause("ladder")
    yield ladder
    ladder.close()


@pytest.fixture
def green(ladder):
    """The first day's run, green, and its tries."""
    run_id = ladder.run()
    ladder.await_green(run_id)
    yield ladder, run_id, ladder.tries(run_id)
    for stage in ("numbers", "doubled", "totals"):
        ladder.let_go(stage)


def expected(ladder):
    from ladder import expected_totals

    return expected_totals(ladder.settings())


@pytest.mark.parametrize("damage", ["folder", "manifest", "half a file"])
def test_a_lost_partition_is_made_again_by_its_producer_alone(green, damage):
    ladder, run_id, before = green
    folder = ladder.folder("doubled", 1)
    file = next(folder.glob("*.parquet"))
    if damage == "folder":
        shutil.rmtree(folder)
    elif damage == "manifest":
        (folder / "manifest.json").unlink()
    else:
        data = file.read_bytes()
        file.write_bytes(data[: len(data) // 2])
    ladder.clear(run_id, totals_task(before), 0)
    ladder.await_green(run_id)
    assert ladder.again(run_id, before) == {f"{totals_task(before)}[0]": 2, "doubled[1]": 1}
    assert ladder.totals() == expected(ladder)


def totals_task(tries):
    return next(task for task in tries if task.startswith("totals")).partition("[")[0]


def test_changed_input_restarts_all_behind_it_and_is_published_anew(green):
    ladder, run_id, before = green
    ladder.change(add=int(ladder.settings().get("add", 0)) + 7)
    for subtask in (0, 1):
        ladder.clear(run_id, "numbers", subtask)
    ladder.await_green(run_id)
    assert ladder.totals() == expected(ladder)
    again = ladder.again(run_id, before)
    assert again["numbers[0]"] == again["numbers[1]"] == again["weir_close"] == 1


def test_an_input_that_changes_while_its_consumer_runs_is_never_published_stale(green):
    ladder, run_id, before = green
    ladder.hold("totals")
    ladder.clear(run_id, totals_task(before), 0)
    ladder.await_reached("totals", 0)
    ladder.change(add=int(ladder.settings().get("add", 0)) + 11)
    for subtask in (0, 1):
        ladder.clear(run_id, "numbers", subtask)
    ladder.wait(
        lambda: (
            ladder.tries(run_id)["doubled[0]"] > before["doubled[0]"]
            and ladder.states(run_id)["doubled[0]"] == ladder.states(run_id)["doubled[1]"] == "success"
        ),
        "the new content of doubled",
    )
    ladder.let_go("totals")
    ladder.await_green(run_id)
    assert ladder.totals() == expected(ladder)
    assert "conflict" in [failure for _, _, failure in ladder.attempts(totals_task(before), 0)]


def test_the_loss_of_the_spark_server_in_the_middle_costs_no_restart_of_the_strategy(green):
    ladder, run_id, before = green
    ladder.start_slow(run_id, 0)
    ladder.await_spark()
    os.kill(ladder.stack.state.process("spark").pid, signal.SIGKILL)
    ladder.await_green(run_id)
    assert ladder.totals() == expected(ladder)
    since = [failure for try_number, _, failure in ladder.attempts("doubled", 0) if try_number > before["doubled[0]"]]
    assert set(since) == {"engine", None}


def test_a_run_keeps_its_parallelism_when_the_dag_file_changes(green):
    """Pinned at 2; the DAG file says 3, then 1: the third subtask has nothing to do, the missing one is an error."""
    ladder, run_id, before = green
    ladder.change(parallelism={"doubled": 3}, last_day="2024-01-02")
    second = ladder.run("2024-01-02")
    ladder.await_green(second)
    assert "doubled[2]" in ladder.tries(second)
    assert ladder.totals("20240102T000000Z") == expected(ladder)
    ladder.clear(run_id, "doubled", 0)
    ladder.await_green(run_id)
    assert ladder.totals() == expected(ladder)
    ladder.change(parallelism={"doubled": 2})
    third_gone = ladder.run("2024-01-02")
    ladder.clear(third_gone, "doubled", 0)
    ladder.await_green(third_gone)
    assert ladder.totals("20240102T000000Z") == expected(ladder)


def test_several_losses_of_several_stages_are_repaired_together(green):
    ladder, run_id, before = green
    for stage, subtask in (("doubled", 0), ("doubled", 1), ("numbers", 1)):
        shutil.rmtree(ladder.folder(stage, subtask))
    ladder.clear(run_id, totals_task(before), 1)
    ladder.await_green(run_id)
    again = {"doubled[0]": 1, "doubled[1]": 1, "numbers[1]": 1, f"{totals_task(before)}[1]": 2}
    assert ladder.again(run_id, before) == again
    assert ladder.totals() == expected(ladder)


def test_clearing_a_running_task_stops_its_spark_work(green):
    ladder, run_id, before = green
    ladder.start_slow(run_id, 1)
    ladder.await_spark()
    assert ladder.api.clear("ladder", run_id, "doubled", 1, "cleared while it runs", even_if_running=True)
    ladder.await_green(run_id)
    assert [state for _, state, _ in ladder.attempts("doubled", 1)][-2:] == ["fenced", "committed"]
    ladder.wait(lambda: ladder.running_spark_jobs() == 0, "the end of the slow job", 60)
    assert ladder.totals() == expected(ladder)


def test_bad_functions_fail_at_once_with_advice(green):
    ladder, run_id, before = green
    ladder.change(functions={"doubled": "ladder:nothing"}, last_day="2024-01-03")
    day = ladder.run("2024-01-03")
    ladder.await_state(day, "doubled[0]", "failed")
    assert ladder.tries(day)["doubled[0]"] == 1
    ladder.change(functions={})
    assert json.loads(ladder.control.read_text())["functions"] == {}
