"""What would run again in other dataflows if an epoch of a data set changed, and whether that is what happens then."""

import json

import pytest
from tests.messages.kinds import of_kind
from tests.weir.command_line import invoked, typed, use
from tests.weir.datasets.neighbours import Neighbours, reader, trips

from weir.dataflow import Dataflow, dataset, last
from weir.errors import Misconfigured
from weir.recovery.dataset_plans import plans_if_changed
from weir.recovery.rules.plan import StepKind

RERUN, IF_CHANGED = StepKind.RERUN, StepKind.IF_CHANGED
READER = {"read[0]": RERUN, "made-out[0]": IF_CHANGED, "weir_close[0]": IF_CHANGED}


@pytest.fixture
def town(tmp_path):
    """Trips into a report of two days each, and that into a summary; three days."""
    town = Neighbours(tmp_path)
    town.add(trips())
    town.add(reader(zones=dataset("trips.zones", epoch=last(2))))
    town.add(reader("summary", report=dataset("report.out")))
    for name in town.airflows:
        town.run(name, 1, 2, 3)
    return town


def day(dataflow, number):
    return f"{dataflow}@201301{number:02d}T000000Z"


def planned(town, number, name="trips.zones"):
    """By run, what happens to each of its tasks that has begun."""
    found = plans_if_changed(town.services, name, f"2013-01-{number:02d}")
    return {each.run: {str(step.region): step.kind for step in each.steps} for each in found.plans}


def executed(town):
    """By run of a day, how often each task of it has begun."""
    return {
        (name, int(run[-2:])): airflow.executed(run)
        for name, airflow in town.airflows.items()
        for run in {key.run_id for key in airflow.tasks}
    }


def test_what_has_read_an_epoch_runs_again_and_what_was_made_of_that_does_if_it_changes(town):
    found = planned(town, 2)
    assert {run: steps for run, steps in found.items() if run.startswith("report")} == {
        day("report", 2): READER,
        day("report", 3): READER,
    }
    assert {run: steps for run, steps in found.items() if run.startswith("summary")} == dict.fromkeys(
        [day("summary", 2), day("summary", 3)], dict.fromkeys(READER, IF_CHANGED)
    )
    assert list(found) == [day("report", 2), day("report", 3), day("summary", 2), day("summary", 3)]


def test_a_step_depends_on_what_publishes_the_data_set(town):
    plans = {each.run: each for each in plans_if_changed(town.services, "trips.zones", "2013-01-03").plans}
    (step, *_) = plans[day("summary", 3)].steps
    assert [str(each) for each in step.depends_on] == [f"made-out[0] of {day('report', 3)}"]


@pytest.mark.parametrize("number", [1, 2, 3])
def test_the_plan_is_what_happens(town, number):
    found, before = planned(town, number), executed(town)
    town.content["trips"]["raw"] = "other"
    town.airflows["trips"].clear_run_by_hand(f"scheduled__2013-01-{number:02d}")
    town.go_on()
    again = {run for run, tasks in executed(town).items() if tasks != before[run] and run[0] != "trips"}
    assert {day(*run) for run in again} == set(found)


def test_a_run_that_reads_a_data_set_directly_and_over_another_one_has_one_plan(town):
    town.add(reader("both", report=dataset("report.out"), zones=dataset("trips.zones")))
    town.run("both", 3)
    assert planned(town, 3)[day("both", 3)] == READER
    assert planned(town, 3, "report.out")[day("both", 3)] == READER


def test_what_nothing_was_made_of_reruns_nothing(town):
    town.run("trips", 4)
    assert planned(town, 4) == {}


def test_what_is_only_to_be_marked_is_held_back(town):
    flow = reader("marked", zones=dataset("trips.zones"))
    town.add(Dataflow("marked", [*flow.stages], on_reprocess="mark"))
    town.run("marked", 3)
    plans = {each.run: each for each in plans_if_changed(town.services, "trips.zones", "2013-01-03").plans}
    assert plans[day("marked", 3)].held_back
    assert not plans[day("report", 3)].held_back


def test_what_was_not_published_is_refused(town):
    with pytest.raises(Misconfigured, check=of_kind("recovery.dataset_not_published", name="trips.zone")):
        planned(town, 1, "trips.zone")
    with pytest.raises(Misconfigured, check=of_kind("ledger.run_unknown")):
        planned(town, 9)


def test_the_command_plans_all_of_them(town, tmp_path, monkeypatch):
    use(monkeypatch, tmp_path)
    words = ("plan", "--dataset", "trips.zones", "--epoch", "20130103T000000Z", "--changed")
    said = typed(*words)
    assert said.index(day("report", 3)) < said.index(day("summary", 3))
    document = json.loads(typed(*words, "--json"))
    assert (document["dataset"], document["run"]) == ("trips.zones", day("trips", 3))
    assert [each["run"] for each in document["plans"]] == [day("report", 3), day("summary", 3)]


@pytest.mark.parametrize(
    "words",
    [
        "plan",
        "plan --dataset trips.zones",
        "plan --dataset trips.zones --epoch 2013-01-03",
        "plan --dataset trips.zones --epoch 2013-01-03 --changed --apply",
        "plan report@2013-01-03 --dataset trips.zones --epoch 2013-01-03 --changed",
        "plan report@2013-01-03 --changed",
    ],
)
def test_other_questions_are_refused(words):
    with pytest.raises(Misconfigured, check=of_kind("cli.plan_of_what")):
        invoked(*words.split())
