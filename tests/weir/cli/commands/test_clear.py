"""`weir clear`: what a clear of tasks restarts, is planned before, and comes to; and as a person types it."""

import json
from collections import Counter

import pytest
from sqlalchemy import select
from tests.messages.kinds import of_kind
from tests.weir.command_line import invoked, reach, typed, use
from tests.weir.restoring import aircraft, run_days
from tests.weir.small_dataflow import World

from weir.code.generation_rules import RepairCode
from weir.errors import Misconfigured
from weir.ledger.database.tables import AttemptRow, PendingClearRow
from weir.recovery.adopt import adopt
from weir.recovery.rules.plan import Plan, StepKind
from weir.recovery.run_plans import clear_by_hand, plans_of_clear, record_clears
from weir.upkeep import RESULTS, settle_everywhere

RUN = "ladder@20130101T000000Z"
ALL = {"raw-clean[0]", "raw-clean[1]", "weather[0]", "joined[0]", "joined[1]", "totals[0]", "totals[1]"} | {
    "routes[0]",
    "report-delays[0]",
    "weir_close[0]",
}


@pytest.fixture
def green(world):
    world.run = world.run_first(1)
    return world


@pytest.fixture
def days(tmp_path, monkeypatch):
    world = World(tmp_path, aircraft(parallelism=1))
    run_days(world.airflow, 1, 2, 3)
    use(monkeypatch, tmp_path)
    return world


def reruns(plans):
    return {(each.answer.run.id, str(step.region)) for each in plans for step in each.plan.of(StepKind.RERUN)}


def ran(world, before, run):
    return set(Counter(world.airflow.executed(run)) - Counter(before))


def cleared(world, *words, **how):
    """Clear as it was planned, and let all run; the tasks that have run."""
    plans = plans_of_clear(world.services, *words, **how)
    before = {run: world.airflow.executed(run) for run in {each.answer.run.run_id for each in plans}}
    answers = clear_by_hand(world.services, plans, world.airflow, "weir: by a test")
    assert all(answer.cleared for _, _, answer in answers)
    world.airflow.run_until_quiet()
    assert set(world.airflow.states().values()) == {"success"}
    return plans, {run: ran(world, known, run) for run, known in before.items()}


@pytest.mark.parametrize(
    ("tasks", "expected"),
    [
        ((), ALL),
        (("joined",), {"joined[0]", "joined[1]"}),
        (("joined[1]", "clean[0]", "joined[1]"), {"joined[1]", "raw-clean[0]"}),
        (("weir_close",), {"weir_close[0]"}),
    ],
)
def test_exactly_what_is_named_runs_again_where_it_gives_the_same(green, tasks, expected):
    plans, again = cleared(green, RUN, tasks)
    assert again == {green.run: expected}
    assert {region for _, region in reruns(plans)} == expected
    with green.ledger.transaction() as session:
        rows = session.scalars(select(AttemptRow).where(AttemptRow.try_number == 2))
        assert {row.origin for row in rows} == {"cleared by a person"}
        assert list(session.scalars(select(PendingClearRow))) == []


def test_what_is_planned_if_it_changes_runs_again_if_it_does(green):
    (planned,) = plans_of_clear(green.services, RUN, ["weather"])
    perhaps = {str(step.region) for step in planned.plan.of(StepKind.IF_CHANGED)}
    green.content["weather"] = "other"
    _, again = cleared(green, RUN, ["weather"])
    assert again == {green.run: perhaps | {"weather[0]"}}


def test_runs_of_a_span_of_epochs_are_cleared_oldest_first(days):
    plans, again = cleared(days, "ladder", ["flights"], first="2013-01-02", last="2013-01-03")
    assert [each.answer.run.id for each in plans] == ["ladder@20130102T000000Z", "ladder@20130103T000000Z"]
    assert again == {f"scheduled__2013-01-0{day}": {"flights[0]"} for day in (2, 3)}
    assert len(plans_of_clear(days.services, "ladder", last="2013-01-02")) == 2
    assert len(plans_of_clear(days.services, "ladder", first="20130103T000000Z")) == 1


def test_names_that_there_are_not_are_answered_with_what_there_is(days):
    for words, kind in (
        (("ladder",), "recovery.clear_of_which_epochs"),
        (("ladder", (), "2014-01-01"), "recovery.no_run_between"),
        (("ladder", (), "yesterday"), "recovery.no_epoch_or_day"),
        (("ladder", (), "2013-01"), "recovery.no_epoch_or_day"),
        (("ladder", (), "2013-01-03", "2013-01-02"), "recovery.span_backwards"),
        (("ladder@2013-01-02", (), "2013-01-01"), "recovery.clear_of_run_and_epochs"),
        (("lader", (), "2013-01-01"), "ledger.dataflow_unknown"),
        (("ladder@2013-01-07",), "ledger.run_unknown"),
        (("ladder@2013-01-02", ("flighs",)), "ledger.task_unknown"),
        (("ladder@2013-01-02", ("flights[3]",)), "recovery.subtask_unknown"),
    ):
        with pytest.raises(Misconfigured, check=of_kind(kind)):
            plans_of_clear(days.services, *words)


def test_nothing_is_cleared_where_one_of_the_runs_cannot_be_computed(tmp_path):
    world = World(tmp_path, aircraft(parallelism=1, retained_checkpoints=1, keep="on_consumed"))
    run_days(world.airflow, 1, 2, 3)
    settle_everywhere(world.services, RESULTS)
    before = world.airflow.states()
    plans = plans_of_clear(world.services, "ladder", ["aircraft"], first="2013-01-01")
    assert [bool(each.plan.impossible) for each in plans] == [False, True, True]
    with pytest.raises(Misconfigured, check=of_kind("recovery.input_is_lost_for_good")):
        clear_by_hand(world.services, plans, world.airflow, "")
    with pytest.raises(Misconfigured, check=of_kind("recovery.input_is_lost_for_good")):
        record_clears(world.services, plans)
    assert world.airflow.states() == before


@pytest.mark.parametrize("code", list(RepairCode))
def test_other_code_is_run_where_it_is_asked_for(green, code):
    old = green.deploy()
    green.airflow.clear_run_by_hand(green.run)
    green.airflow.run_until_quiet()
    green.deploy(totals=1)
    plans = plans_of_clear(green.services, RUN, ["totals"], code=code)
    assert record_clears(green.services, plans) == 2
    green.airflow.deliver_clears()
    green.airflow.run_until_quiet()
    with green.ledger.transaction() as session:
        query = select(AttemptRow).where(AttemptRow.region == "totals").order_by(AttemptRow.try_number.desc())
        newest = session.scalars(query).first()
    assert (newest.archive == old.fingerprint) == (code is RepairCode.AS_IT_WAS)


# As a person types it

SPAN = ("ladder", "flights", "--from", "2013-01-02")


def tries(days):
    return {
        (key.run_id, key.task_id): task.try_number for key, task in days.airflow.tasks.items() if task.try_number > 1
    }


def test_without_apply_nothing_is_cleared_and_the_plan_is_that_of_the_run(days, monkeypatch):
    reach(monkeypatch, days.airflow)
    before = days.airflow.states()
    told = invoked("clear", "ladder@2013-01-02", "flights")
    assert "flights[0] " in told.stdout
    assert "With --apply, 1 task instance(s) of 1 run(s) are." in told.stdout
    assert days.airflow.states() == before


def test_a_span_of_epochs_is_a_line_for_each_run_and_a_plan_for_each_in_json(days):
    told = typed("clear", *SPAN)
    assert [line.split()[1] for line in told.splitlines() if "ladder@" in line] == [
        "ladder@20130102T000000Z",
        "ladder@20130103T000000Z",
    ]
    document = json.loads(typed("clear", *SPAN, "--json"))
    assert document["version"] == 1
    assert [each["acts"]["clears"] for each in document["plans"]] == [1, 1]
    plans = [Plan.from_json({name: each[name] for name in each if name != "acts"}) for each in document["plans"]]
    assert [[str(step.region) for step in plan.of(StepKind.RERUN)] for plan in plans] == [["flights[0]"]] * 2


def test_with_apply_it_is_as_if_a_person_had_cleared_them_in_airflow(days, monkeypatch):
    reach(monkeypatch, days.airflow)
    assert "2 task instance(s) of 2 run(s) are cleared." in typed("clear", *SPAN, "--apply")
    assert "Not cleared: flights[0] of ladder@20130102T000000Z (waits to run)" in typed("clear", *SPAN, "--apply")
    days.airflow.run_until_quiet()
    assert tries(days) == {(f"scheduled__2013-01-0{day}", "flights"): 2 for day in (2, 3)}


def test_what_airflow_cannot_be_asked_to_clear_is_an_error_unless_weir_is_to_clear_it(days):
    with pytest.raises(Misconfigured, check=of_kind("cli.airflow_not_reached")):
        invoked("clear", *SPAN, "--apply")
    assert "2 clear(s) are pending" in typed("clear", *SPAN, "--apply", "--code", "as_it_was")
    days.airflow.deliver_clears()
    days.airflow.run_until_quiet()
    assert tries(days) == {(f"scheduled__2013-01-0{day}", "flights"): 2 for day in (2, 3)}


# Runs without a declaration


def test_a_run_that_was_adopted_is_cleared_whole_and_follows_the_dag_file(green, tmp_path, monkeypatch):
    adopt(green.services, RUN)
    reach(monkeypatch, green.airflow)
    use(monkeypatch, tmp_path)
    told = typed("clear", RUN)
    assert f"{RUN} has no declaration" in told
    assert "With --apply, 1 whole run(s) are." in told
    assert json.loads(typed("clear", RUN, "--json")) == {"version": 1, "plans": [], "freed": [RUN]}
    assert f"{len(ALL)} task instance(s) of 1 run(s) are cleared." in typed("clear", RUN, "--apply")
    before = green.airflow.executed(green.run)
    green.airflow.run_until_quiet()
    assert ran(green, before, green.run) == ALL
    assert plans_of_clear(green.services, RUN)


def test_runs_of_a_span_that_were_adopted_are_cleared_with_the_others(days, monkeypatch):
    adopt(days.services, "ladder@20130103T000000Z")
    reach(monkeypatch, days.airflow)
    assert "With --apply, 3 task instance(s) of 1 run(s) and 1 whole run(s) are." in typed(
        "clear", "ladder", "--from", "2013-01-02"
    )
    assert "of 2 run(s) are cleared." in typed("clear", "ladder", "--from", "2013-01-02", "--apply")
    days.airflow.run_until_quiet()
    assert set(days.airflow.states().values()) == {"success"}
    adopt(days.services, "ladder@20130103T000000Z")
    with pytest.raises(Misconfigured, check=of_kind("cli.clear_of_freed_run")):
        invoked("clear", "ladder@2013-01-03", "flights")
