"""`weir plan RUN`, `weir failovers` and `weir why`, as a person types them."""

import json
import shutil
from dataclasses import replace

import pytest
from sqlalchemy import select, update
from tests.messages.kinds import of_kind
from tests.weir.command_line import reach, typed, use
from tests.weir.restoring import aircraft, run_days
from tests.weir.small_dataflow import World, ladder

from weir.cli import airflow_api
from weir.dataflow.dataflow import FailoverStrategy
from weir.errors import Misconfigured
from weir.ledger.database.tables import AttemptRow, PendingClearRow, ResultRow, RunRow
from weir.recovery.rules.plan import Cost, Plan, StepKind
from weir.testing.fakes.code import archive_of_edits

RUN = "ladder@20130101T000000Z"


@pytest.fixture
def world(tmp_path, monkeypatch):
    """A run that has gone through, in the environment's ledger and store."""
    world = World(tmp_path, ladder())
    world.run = world.run_first(1)
    use(monkeypatch, tmp_path)
    return world


def lose(world, stage, subtask):
    with world.ledger.transaction() as session:
        rows = select(ResultRow.folder).where(ResultRow.stage == stage, ResultRow.subtask == subtask)
        for folder in session.scalars(rows):
            shutil.rmtree(world.folder / "store" / folder)


def planned(*words):
    return Plan.from_json(json.loads(typed("plan", *words, "--json")))


def names(plan, kind):
    return [str(step.region) for step in plan.of(kind)]


def owed(world):
    with world.ledger.transaction() as session:
        return [
            row.region for row in session.scalars(select(PendingClearRow).where(PendingClearRow.settled_at.is_(None)))
        ]


def test_a_whole_run_misses_nothing(world):
    assert typed("plan", "ladder@2013-01-01") == typed("plan", RUN)
    told = typed("plan", RUN)
    assert "Nothing is missing: nothing would run again." in told
    assert "Spared: 10 region(s), 9 rows, 720 bytes" in told


def test_what_is_missing_now_is_found_in_the_store_and_nothing_is_changed(world):
    lose(world, "joined", 1)
    assert names(planned("scheduled__2013-01-01"), StepKind.RERUN) == ["joined[1]"]
    told = typed("plan", RUN)
    assert "found no such file" in told
    assert "Re-run: 1 region(s), 1 rows, 80 bytes" in told
    assert "A full restart: 10 region(s), 9 rows, 720 bytes" in told
    assert owed(world) == []
    with world.ledger.transaction() as session:
        assert set(session.scalars(select(ResultRow.state))) == {"finished"}


def test_what_a_failure_would_do_is_told_before_the_fact(world):
    plan = planned(RUN, "--fail", "totals[0]", "--lost", "joined[1]")
    assert names(plan, StepKind.RERUN) == ["joined[1]"]
    plan = planned(RUN, "--fail", "totals[0]", "--lost", "joined[1]", "--lost", "weather")
    assert names(plan, StepKind.RERUN) == ["weather[0]", "joined[1]"]
    plan = planned(RUN, "--fail", "totals[0]", "--lost", "weather")
    assert names(plan, StepKind.RERUN) == []
    assert "joined[1] is retried by Airflow." in typed("plan", RUN, "--fail", "joined[1]")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((RUN, "--fail", "nothing"), of_kind("ledger.task_unknown")),
        ((RUN, "--fail", "joined"), of_kind("recovery.subtask_not_named")),
        ((RUN, "--fail", "joined[7]"), of_kind("recovery.subtask_unknown")),
        ((RUN, "--lost", "nothing[0]"), of_kind("recovery.result_unknown")),
        ((RUN, "--lost", "joind[0]"), of_kind("recovery.result_unknown")),
        ((RUN, "--fail", "routes", "--apply"), of_kind("cli.task_has_not_failed")),
        (("no_such_run",), of_kind("ledger.run_unknown", name="no_such_run", where="the ledger knows no run")),
    ],
)
def test_what_cannot_be_planned_is_refused_with_advice(world, words, said):
    with pytest.raises(Misconfigured, check=said):
        typed("plan", *words)


def test_an_applied_plan_is_delivered_by_any_later_process(world):
    lose(world, "joined", 1)
    told = typed("plan", RUN, "--apply")
    assert "1 clear(s) are pending; delivered by the DAG weir_upkeep" in told
    assert "WEIR_API=http://LOGIN:PASSWORD@HOST:PORT" in told
    assert owed(world) == ["joined"]
    assert "recomputed so far: " in typed("failovers")
    world.airflow.deliver_clears("ladder")
    world.airflow.run_until_quiet()
    assert "recomputed: " in typed("failovers")
    assert world.airflow.executed(world.run)["joined[1]"] == 2
    assert "Nothing to do." in typed("plan", RUN, "--apply")


def test_an_applied_plan_is_delivered_at_once_where_airflow_can_be_reached(world, monkeypatch):
    lose(world, "joined", 1)
    api = reach(monkeypatch, world.airflow)
    assert "1 of 1 task instance(s) are cleared" in typed("plan", RUN, "--apply")
    assert api.is_closed
    assert world.airflow.task(world.run, "joined", 1).state is None
    world.airflow.run_until_quiet()
    assert typed("plan", RUN).count("Nothing is missing") == 1


def test_a_plan_of_a_deleted_dag_run_says_how_its_interval_runs_again(world, monkeypatch):
    lose(world, "totals", 0)
    reach(monkeypatch, world.airflow)
    world.airflow.delete(world.run)
    told = typed("plan", RUN, "--apply")
    assert (
        f"{world.run} was deleted in Airflow: `weir airflow backfill create --dag-id dag --from-date 2013-01-01" in told
    )
    assert "adopt" not in told


@pytest.mark.parametrize("address", ["localhost:8080", "http://host:8080", "ftp://a:b@host"])
def test_an_address_of_airflow_that_is_none_is_refused(address):
    with pytest.raises(Misconfigured, check=of_kind("cli.api_variable_malformed")):
        airflow_api.airflow_api({"WEIR_API": address})


def test_another_ledger_has_another_airflow():
    assert airflow_api.airflow_api({"WEIR_LEDGER": "sqlite:///x"}) is None


def heal(world):
    lose(world, "joined", 1)
    world.airflow.clear_by_hand(world.run, "totals", 0)
    world.airflow.run_until_quiet()


def test_failovers_say_what_they_cost_and_what_a_full_restart_would_have(world):
    heal(world)
    told = typed("failovers")
    assert "failover 1 (loss): ladder@20130101T000000Z, totals[0], attempt t0002-" in told
    assert "labels: " in told
    assert "recomputed: 1 region(s), 1 rows, 80 bytes" in told
    assert "a full restart: 10 region(s), 9 rows, 720 bytes" in told
    [found] = json.loads(typed("failovers", "ladder", "20130101T000000Z", "--json"))["failovers"]
    assert (found["id"], found["incident"], found["kind"], found["failed"]) == (1, 1, "loss", "totals[0]")
    assert (found["recomputed"]["regions"], found["recomputed"]["bytes"]) == (1, 80)
    assert names(Plan.from_json(found["plan"]), StepKind.RERUN) == ["joined[1]"]
    assert found["labels"]["type"] == "backtrack"


def test_a_failover_that_is_held_back_says_what_would_re_run_and_the_one_by_hand_what_does(tmp_path, monkeypatch):
    use(monkeypatch, tmp_path)
    world = World(tmp_path, replace(ladder(), failover=FailoverStrategy.INDIVIDUAL))
    world.run = world.run_first(1)
    heal(world)
    told = typed("failovers")
    assert "held back: failover is individual" in told
    assert "would re-run: joined[1]" in told
    assert "will re-run" not in told
    typed("plan", RUN, "--apply")
    by_hand = typed("failovers").partition("(by hand)")[2].partition("\nWeek ")[0]
    assert "will re-run: joined[1]" in by_hand
    assert "held back" not in by_hand


def test_what_is_not_deterministic_is_told_with_the_usual_causes(world):
    heal(world)
    with world.ledger.transaction("ladder") as session:
        row = session.scalar(select(ResultRow).where(ResultRow.stage == "joined", ResultRow.attempt.like("t0002%")))
        row.differs_from = "t0001-aaaaaaaaaaaa"
    told = typed("failovers")
    assert "not deterministic: joined[1] of t0002-" in told
    assert "current_timestamp, rand, uuid" in told
    [found] = json.loads(typed("failovers", "--json"))["failovers"]
    assert found["not_deterministic"][0]["differs_from"] == "t0001-aaaaaaaaaaaa"
    assert "Not deterministic before, from equal inputs: joined[1]" in typed("plan", RUN, "--lost", "joined[1]")
    assert "not deterministic: joined[1]" in typed("why", "joined[1]", "--run", RUN)


def test_the_story_of_a_task_is_in_order_and_says_what_it_read_and_joined(world):
    heal(world)
    told = typed("why", "totals[0]", "--run", RUN)
    parts = [
        "try 1 (first): committed",
        "read joined[0] of t0001-",
        "try 2 (cleared by a person): retrying",
        "backtrack: ",
        "failover 1: re-running joined[1]",
        "try 3 (retry): committed",
        "[1] of t0002-",
    ]
    places = [told.index(part) for part in parts]
    assert places == sorted(places)
    assert "clear of try 1, by failover 1: cleared" in typed("why", "joined[1]", "--run", RUN)


def test_tries_of_a_deleted_dag_run_are_told_as_such_and_without_a_number(world):
    world.airflow.delete(world.run)
    world.airflow.dag_run(kind="manual")
    world.airflow.run_until_quiet()
    told = typed("why", "totals[0]", "--run", RUN)
    assert told.index("a deleted DagRun's try (first): committed") < told.index("try 1 (first): committed")
    assert "try 0" not in told
    story = typed("results", RUN, "--stage", "totals", "--story")
    assert "by a deleted DagRun's try of totals" in story
    assert "try 0" not in story


def test_what_has_not_begun_in_its_run_costs_what_it_did_in_the_newest_epoch_in_which_it_has(world):
    with world.ledger.transaction("ladder") as session:
        session.execute(
            update(AttemptRow).where(AttemptRow.region == "totals").values(waits=1, metrics={"compute": 7.5})
        )
    run = world.airflow.dag_run(2)
    world.airflow.step(world.airflow.task(run, "raw-clean", 0))
    plan = planned(run)
    costs = {str(step.region): step.cost for step in plan.steps}
    assert None not in costs.values()
    assert costs["totals[1]"] == Cost(1, 80, 7.5)
    assert "?" not in typed("plan", run, "--fail", "raw-clean[0]")


def test_what_was_never_computed_in_any_epoch_has_no_cost(tmp_path, monkeypatch):
    use(monkeypatch, tmp_path)
    world = World(tmp_path, ladder())
    run = world.airflow.dag_run()
    world.airflow.step(world.airflow.task(run, "raw-clean", 0))
    costs = {str(step.region): step.cost for step in planned(run).steps}
    assert {region for region, cost in costs.items() if cost is not None} == {"raw-clean[0]"}


def test_regions_of_later_runs_cost_what_they_did_there(tmp_path, monkeypatch):
    use(monkeypatch, tmp_path)
    world = World(tmp_path, aircraft())
    run_days(world.airflow, 1, 2)
    lose(world, "flights", 0)
    steps = planned("scheduled__2013-01-01", "--lost", "flights[0]", "--fail", "aircraft[0]").steps
    assert [step.region.run for step in steps if not step.region.is_of_own_run]
    assert [step for step in steps if step.cost is None] == []


def test_all_that_does_not_run_again_is_spared_before_and_after_the_fact(world):
    lose(world, "weather", 0)
    told = typed("plan", RUN)
    assert "Re-run: 1 region(s)" in told
    assert "Spared: 9 region(s), 8 rows, 640 bytes" in told
    assert ", unless an input changes." in told
    world.airflow.clear_by_hand(world.run, "joined", 0)
    world.airflow.run_until_quiet()
    assert world.airflow.executed(world.run)["joined[1]"] == 1
    assert "  spared: 8 region(s)" in typed("failovers")
    [found] = json.loads(typed("failovers", "--json"))["failovers"]
    assert found["spared"] == 8


def test_what_ran_again_since_its_input_had_changed_was_not_spared(world):
    lose(world, "weather", 0)
    world.content["weather"] = "other weather"
    world.airflow.clear_by_hand(world.run, "joined", 0)
    world.airflow.run_until_quiet()
    again = {name for name, tries in world.airflow.executed(world.run).items() if tries > 1}
    assert "joined[1]" in again
    told = json.loads(typed("failovers", "--json"))["failovers"][0]
    assert told["spared"] == 10 - len(again)


def test_seconds_that_were_waited_are_no_cost(world):
    with world.ledger.transaction("ladder") as session:
        for row in session.scalars(select(AttemptRow).where(AttemptRow.region == "joined")):
            row.waits, row.metrics = 3, {"read": 1.0, "compute": 2.5}
    assert {step.cost.seconds for step in planned(RUN).steps if step.region.name == "joined"} == {3.5}


@pytest.fixture
def deployed(tmp_path, monkeypatch):
    """A run that has gone through with the first code; the second one is deployed since."""
    world = World(tmp_path, ladder())
    world.airflow.deployed = archive_of_edits(world.airflow.flow, {})
    world.run = world.run_first(1)
    world.airflow.deployed = archive_of_edits(world.airflow.flow, {"joined": 1})
    use(monkeypatch, tmp_path)
    return world


def versions(world, stage):
    with world.ledger.transaction() as session:
        query = select(ResultRow.versions).where(ResultRow.stage == stage, ResultRow.is_current)
        return {tuple(each) for each in session.scalars(query)}


def applied(world, *words, run=RUN):
    before = world.airflow.executed(world.run)
    typed("plan", run, *words, "--apply")
    world.airflow.deliver_clears("ladder")
    world.airflow.run_until_quiet()
    after = world.airflow.executed(world.run)
    assert set(world.airflow.states().values()) == {"success"}
    return {each for each in after if after[each] > before[each]}


def test_an_applied_plan_runs_the_code_of_the_results_and_says_so(deployed):
    lose(deployed, "joined", 1)
    [(version,)] = versions(deployed, "joined")
    told = typed("plan", RUN)
    assert f"Code: joined {version[:20]} (generation 1)." in told
    [step] = planned(RUN).of(StepKind.RERUN)
    assert (step.code.code.version, step.code.number) == (version, 1)
    assert applied(deployed) == {"joined[1]"}
    assert versions(deployed, "joined") == {(version,)}


def test_an_applied_plan_for_the_newest_code_runs_what_is_deployed_and_then_the_whole_stage(deployed):
    lose(deployed, "joined", 1)
    [(old,)] = versions(deployed, "joined")
    assert "Code: what is deployed when they run." in typed("plan", RUN, "--code", "newest")
    plan = planned(RUN, "--code", "newest")
    assert names(plan, StepKind.RERUN) == ["joined[1]"]
    assert "joined[0]" in names(plan, StepKind.IF_CHANGED)
    assert applied(deployed, "--code", "newest") >= {"joined[0]", "joined[1]"}
    [(new,)] = versions(deployed, "joined")
    assert new != old


def test_an_applied_plan_runs_the_fix_of_a_stage_of_which_nothing_was_computed(deployed):
    deployed.run = deployed.airflow.dag_run(2)

    def broken(key):
        if key.task_id == "routes":
            raise Misconfigured("a bug")

    deployed.airflow.during = broken
    deployed.airflow.run_until_quiet()
    assert deployed.airflow.task(deployed.run, "routes").state == "failed"
    deployed.airflow.during = lambda _key: None
    deployed.airflow.deployed = archive_of_edits(deployed.airflow.flow, {"joined": 1, "routes": 1})
    assert "routes" in {each.partition("[")[0] for each in applied(deployed, run="ladder@20130102T000000Z")}
    with deployed.ledger.transaction() as session:
        rows = select(AttemptRow).where(AttemptRow.region == "routes", AttemptRow.run.endswith("0102T000000Z"))
        first, last = session.scalars(rows.order_by(AttemptRow.try_number)).all()
    assert (first.generation, last.generation) == (1, 2)
    assert last.archive == deployed.airflow.deployed.fingerprint


def test_the_newest_code_is_chosen_also_where_clears_by_a_person_run_the_code_of_the_results(deployed):
    with deployed.ledger.transaction("ladder") as session:
        run = session.scalars(select(RunRow)).one()
        run.pinned = {**run.pinned, "repair_code": "as_it_was"}
    [(old,)] = versions(deployed, "joined")
    deployed.airflow.clear_by_hand(deployed.run, "joined", 1)
    deployed.airflow.run_until_quiet()
    assert versions(deployed, "joined") == {(old,)}
    applied(deployed, "--lost", "joined[1]", "--code", "newest")
    [(new,)] = versions(deployed, "joined")
    assert new != old


def test_a_dag_file_is_answered_with_the_command_that_plans_it():
    with pytest.raises(Misconfigured, check=of_kind("cli.plan_of_a_file", file="dags/ladder.py")):
        typed("plan", "dags/ladder.py")
