"""When the inputs were ready of the tasks whose state a checkpoint names, and which of them came last."""

from dataclasses import replace
from datetime import timedelta

import pytest
from tests.messages.kinds import of_kind
from tests.weir.cli.test_guides import shown
from tests.weir.command_line import typed, use
from tests.weir.scenarios.incremental import FLOW, Figure
from tests.weir.small_dataflow import World

from weir.dataflow import Dataflow, Stage, keyed_state, pipelined, sink, source
from weir.errors import Misconfigured
from weir.views.checkpoints import checkpoint_details

OWN = keyed_state("history", key="k", schema="k BIGINT, n BIGINT")


@pytest.fixture
def world(tmp_path):
    return World(tmp_path, FLOW)


def slow(airflow, task, subtask, seconds):
    """Let a task take so long in its next try, or the clock of its machine be so far behind."""

    def work(key):
        if (key.task_id, key.map_index) == (task, subtask):
            airflow.during = lambda _key: None
            airflow.time += timedelta(seconds=seconds)

    airflow.during = work


def aligned(world, number, dataflow="flights"):
    return checkpoint_details(world.services, dataflow, number).alignment


def test_the_last_input_is_the_straggler_and_the_others_wait_for_it(world):
    slow(world.airflow, "arrivals", 1, 60)
    world.run_days(1)
    found = aligned(world, 1)
    assert [each.region for each in found] == ["aircraft-fleet[0]", "aircraft-fleet[1]"]
    assert {(each.inputs, each.straggler, each.seconds) for each in found} == {(2, "arrivals[1]", 61.0)}
    assert {(each.last_ready_at - each.first_ready_at).total_seconds() for each in found} == {61.0}
    assert [each.computed for each in found] == [1.0, 2.0]


def test_inputs_of_earlier_epochs_are_not_waited_for(world):
    world.run_days(1, 2)
    assert {(each.inputs, each.seconds) for each in aligned(world, 2)} == {(2, 1.0)}


def test_an_input_that_was_lost_and_made_again_is_the_last_one(world):
    """The attempt that has made the state read the new result, and waited for it."""
    world.airflow.deploy(replace(FLOW, keep="60 days"))
    (run,) = world.run_days(1)
    (before, _) = aligned(world, 1)
    world.lose("arrivals", 0)
    world.airflow.clear_by_hand(run, "aircraft-fleet", 0)
    world.airflow.run_until_quiet()
    (again, other) = aligned(world, 2)
    assert (before.straggler, again.straggler, other.straggler) == ("arrivals[1]", "arrivals[0]", "arrivals[1]")
    assert again.attempt != before.attempt
    assert again.seconds > other.seconds


def test_which_input_is_the_last_is_told_by_the_ledger_where_clocks_differ(world):
    slow(world.airflow, "arrivals", 1, -60)
    world.run_days(1)
    assert {(each.straggler, each.seconds) for each in aligned(world, 1)} == {("arrivals[1]", 0.0)}


def test_a_task_without_inputs_in_the_store_waits_for_none(tmp_path):
    world = World(
        tmp_path,
        Dataflow(
            "alone",
            [
                source("arrivals", "pipelines.flights:arrivals"),
                Stage("aircraft", "pipelines.flights:aircraft", [pipelined("arrivals")], state=OWN),
                sink("aircraft", "fleet"),
            ],
        ),
    )
    world.run_days(1)
    (found,) = aligned(world, 1, "alone")
    assert (found.inputs, found.first_ready_at, found.seconds, found.straggler) == (0, None, None, None)
    assert found.computed is not None


def test_of_a_deleted_checkpoint_no_alignment_is_known(tmp_path):
    figure = Figure(tmp_path)
    for number in (1, 2, 3):
        figure.checkpoint(number)
    assert aligned(figure.world, 1) == ()
    assert aligned(figure.world, 2) != ()


def test_the_command_shows_it_of_one_checkpoint(world, tmp_path, monkeypatch):
    slow(world.airflow, "arrivals", 0, 7200)
    world.run_days(1)
    use(monkeypatch, tmp_path)
    (line, _) = [line for line in typed("checkpoints", "flights", "--id", "1").splitlines() if "aircraft-fleet" in line]
    assert [cell.strip() for cell in line.strip("│").split("│")] == [
        *("aircraft-fleet[0]", "2", "2026-01-01 02:00:02Z", "arrivals[1]", "1.0", "1.0")
    ]


def test_the_page_about_checkpoints_shows_what_the_command_prints(world, tmp_path, monkeypatch):
    slow(world.airflow, "arrivals", 1, 60)
    world.run_days(1)
    use(monkeypatch, tmp_path, 118)
    ((words, lines),) = shown("checkpoints.md")
    told = typed(*words).splitlines()
    assert [line for line in lines if line not in told] == []


def test_a_checkpoint_that_is_not_known_and_one_of_no_dataflow_are_refused(world, tmp_path, monkeypatch):
    world.run_days(1)
    use(monkeypatch, tmp_path)
    with pytest.raises(Misconfigured, check=of_kind("views.checkpoint_unknown", dataflow="flights", number=7)):
        typed("checkpoints", "flights", "--id", "7")
    with pytest.raises(Misconfigured, check=of_kind("cli.checkpoint_without_dataflow")):
        typed("checkpoints", "--id", "1")
