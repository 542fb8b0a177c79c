"""Failover strategies, rules for consumers, incidents and what waits for a person, as a whole run carries them out."""

import multiprocessing
import shutil
import sys
from collections import Counter
from dataclasses import replace

import pytest
from sqlalchemy import select
from tests.messages.kinds import of_kind

from weir.assembly import coordinator_of
from weir.attempts.failure import fail
from weir.coordination.services import Services
from weir.dataflow import Dataflow, Stage, blocking, sink, source
from weir.errors import Conflict, ResultUnavailable
from weir.ledger.database.tables import FailoverRow, PendingClearRow, ResultRow
from weir.ledger.runs import named_run
from weir.recovery.failovers import FailoverKind
from weir.recovery.pending_clears import deliver
from weir.recovery.questions import Question, apply_answer, ask
from weir.recovery.rules.plan import StepKind
from weir.restarts.recovery_settings import RecoverySettings
from weir.restarts.strategy import NoRestart
from weir.testing.fakes.airflow import FakeAirflow, Killed
from weir.testing.fakes.task_ports import failed_try
from weir.views.failovers import failover_views


def fan(parallelism=10, **options):
    """Weather and clean, joined by many, into a report."""
    return Dataflow(
        "ladder",
        [
            source("clean", "m:clean", parallelism=2),
            source("weather", "m:weather", deterministic=options.pop("deterministic", True)),
            Stage(
                "joined",
                "m:joined",
                [blocking("clean", by="k"), blocking("weather", broadcast=True)],
                parallelism=parallelism,
            ),
            Stage("report", "m:report", [blocking("joined")]),
            sink("report", "delays"),
        ],
        **options,
    )


class Scene:
    """A dataflow that has gone through once."""

    def __init__(self, world, flow):
        world.airflow.deploy(flow)
        self.world, self.airflow, self.services = world, world.airflow, world.services
        self.run = world.run_first(1)
        self.before = self.airflow.executed(self.run)

    def lose(self, stage, subtask=0):
        with self.world.ledger.transaction() as session:
            rows = select(ResultRow).where(ResultRow.stage == stage, ResultRow.subtask == subtask, ResultRow.is_current)
            for row in session.scalars(rows):
                shutil.rmtree(self.world.folder / "store" / row.folder)

    def again(self):
        return dict(Counter(self.airflow.executed(self.run)) - Counter(self.before))

    def reports(self):
        with self.world.ledger.transaction() as session:
            return failover_views(session)

    def states(self):
        return set(self.airflow.states().values())


@pytest.fixture
def scene(world):
    return lambda **options: Scene(world, fan(**options))


def fail_once(airflow, task_id, index=-1):
    """Let a task fail in the middle of its next computation."""

    def fail(key):
        if (key.task_id, key.map_index) == (task_id, index):
            airflow.during = lambda _key: None
            raise RuntimeError("boom")

    airflow.during = fail


ALL_OF = {"clean[0]", "clean[1]", "weather[0]", "joined[0]", "joined[1]", "report-delays[0]"}


# the deployment's


def deploy_failover(world, failover):
    """Restart all workers with another `[weir] failover`."""
    settings = RecoverySettings.from_options({"failover": failover})
    world.services = world.airflow.services = replace(world.services, recovery=settings)
    world.airflow.coordinator = coordinator_of(world.services)


def failed_over_by(found, task):
    """Let a task that is cleared fail once; answers the strategies of the plans that follow."""
    known = len(found.reports())
    fail_once(found.airflow, task)
    found.airflow.clear_by_hand(found.run, task)
    found.airflow.run_until_quiet()
    return [report.plan.strategy for report in found.reports()[known:]]


def test_the_deployments_failover_strategy_holds_where_the_dataflow_declares_none(world):
    deploy_failover(world, "full")
    assert failed_over_by(Scene(world, fan(parallelism=2)), "weather") == ["full"]


def test_a_declared_failover_strategy_goes_before_the_deployments(world):
    deploy_failover(world, "full")
    assert failed_over_by(Scene(world, fan(parallelism=2, failover="region")), "weather") == []


def test_a_run_keeps_the_failover_strategy_that_it_began_with(world):
    found = Scene(world, fan(parallelism=2))
    deploy_failover(world, "full")
    assert failed_over_by(found, "weather") == []
    found.run = world.run_days(2)[-1]
    assert failed_over_by(found, "weather") == ["full"]


# full


def test_full_runs_all_again_that_has_begun_when_a_task_fails(scene):
    found = scene(parallelism=2, failover="full")
    fail_once(found.airflow, "joined", 1)
    found.airflow.clear_by_hand(found.run, "joined", 1)
    found.airflow.run_until_quiet()
    again = found.again()
    assert set(again) == ALL_OF
    assert again.pop("joined[1]") == 2
    assert set(again.values()) == {1}
    [report] = found.reports()
    assert (report.kind, report.plan.strategy) == (FailoverKind.FAILURE, "full")
    assert report.cause.startswith("application: RuntimeError: boom")
    assert report.labels["type"] == "application"
    assert report.recomputed.regions == len(ALL_OF) - 1
    assert found.states() == {"success"}


def test_full_runs_all_again_when_something_is_lost(scene):
    found = scene(parallelism=2, failover="full")
    found.lose("weather")
    found.airflow.clear_by_hand(found.run, "joined", 0)
    found.airflow.run_until_quiet()
    assert set(found.again()) == ALL_OF
    assert found.reports()[0].kind is FailoverKind.LOSS


def test_full_runs_all_again_when_a_process_was_killed_and_what_has_not_begun_only_once(world):
    airflow = FakeAirflow(world.services, world.airflow.engine, fan(parallelism=2, failover="full"))
    world.airflow = airflow
    run = airflow.dag_run()

    def kill_once(key):
        if key.task_id == "joined":
            airflow.during = lambda _key: None
            raise Killed

    airflow.during = kill_once
    airflow.run_until_quiet()
    executed = airflow.executed(run)
    assert {executed[each] for each in ("clean[0]", "clean[1]", "weather[0]")} == {2}
    assert executed["report-delays[0]"] == 1
    assert set(airflow.states().values()) == {"success"}


def test_a_failure_that_is_not_retried_restarts_nobody(scene):
    found = scene(parallelism=2, failover="full")
    found.airflow.strategy = NoRestart()
    fail_once(found.airflow, "joined", 1)
    found.airflow.clear_by_hand(found.run, "joined", 1)
    found.airflow.run_until_quiet()
    assert found.again() == {"joined[1]": 1}
    assert found.reports() == []


# individual


def test_individual_clears_nothing_and_a_person_carries_the_plan_out(scene):
    found = scene(parallelism=2, failover="individual")
    found.lose("weather")
    found.airflow.clear_by_hand(found.run, "joined", 0)
    found.airflow.run_until_quiet()
    task = found.airflow.task(found.run, "joined", 0)
    assert (task.state, found.again()) == ("failed", {"joined[0]": 1})
    assert "nothing was restarted: failover is individual" in task.notes[-1]
    assert "weather[0]" in task.notes[-1]
    assert "`weir plan ladder@20130101T000000Z --apply`" in task.notes[-1]
    answer = ask(found.services, Question(found.run))
    assert [str(step.region) for step in answer.plan.of(StepKind.RERUN)] == ["weather[0]", "joined[0]"]
    assert apply_answer(found.services, answer) == 2
    found.airflow.run_until_quiet()
    deliver(found.services, found.airflow)
    found.airflow.run_until_quiet()
    assert found.again() == {"weather[0]": 1, "joined[0]": 2}
    assert [each.kind for each in found.reports()] == [FailoverKind.HELD_BACK, FailoverKind.BY_HAND]
    assert found.states() == {"success"}


def test_individual_leaves_consumers_of_changed_content_and_the_closing_task_names_them(scene):
    found = scene(parallelism=2, failover="individual")
    found.world.content["weather"] = "other"
    found.airflow.clear_by_hand(found.run, "weather")
    found.airflow.run_until_quiet()
    assert found.again() == {"weather[0]": 1}
    found.airflow.clear_by_hand(found.run, "weir_close")
    found.airflow.run_until_quiet()
    task = found.airflow.task(found.run, "weir_close")
    assert task.state == "failed"
    assert "joined[0]" in task.notes[-1]
    assert apply_answer(found.services, ask(found.services, Question(found.run))) == 4
    deliver(found.services, found.airflow)
    found.airflow.run_until_quiet()
    assert found.again() == {
        "weather[0]": 1, "joined[0]": 1, "joined[1]": 1, "report-delays[0]": 1, "weir_close[0]": 2,
    }  # fmt: skip
    assert found.states() == {"success"}


def test_what_individual_has_published_and_has_changed_since_is_in_the_plan_until_it_is_published(scene):
    found = scene(parallelism=2, failover="individual")
    found.world.content["weather"] = "other"
    for task in (("weather",), ("joined", 0), ("joined", 1), ("report-delays",)):
        found.airflow.clear_by_hand(found.run, *task)
        found.airflow.run_until_quiet()
    assert not closed(found)
    answer = ask(found.services, Question(found.run))
    (step,) = answer.plan.of(StepKind.RERUN)
    assert (str(step.region), step.reason) == (
        "weir_close[0]",
        "delays[0] (plain) has changed since try 1 of weir_close published it",
    )
    assert apply_answer(found.services, answer) == 1
    deliver(found.services, found.airflow)
    found.airflow.run_until_quiet()
    assert closed(found)
    assert not ask(found.services, Question(found.run)).plan.of(StepKind.RERUN)


def closed(found):
    with found.world.ledger.transaction() as session:
        return named_run(session, found.run).closed_at is not None


def test_a_person_carries_out_what_began_never_because_it_was_marked_success(world):
    airflow = world.airflow = FakeAirflow(world.services, world.airflow.engine, fan(2, failover="individual"))
    services = world.services = airflow.services = Services(ledger=world.ledger, store=world.store, now=airflow.now)
    airflow.coordinator = coordinator_of(services)
    run = airflow.dag_run()
    airflow.task(run, "weather").state = "success"
    airflow.run_until_quiet()
    assert {airflow.task(run, "joined", index).state for index in (0, 1)} == {"failed"}
    answer = ask(services, Question("ladder@20130101T000000Z"))
    assert [str(step.region) for step in answer.plan.of(StepKind.RERUN)] == ["weather[0]", "joined[0]", "joined[1]"]
    assert apply_answer(services, answer) == 3
    deliver(services, airflow)
    airflow.run_until_quiet()
    assert set(airflow.states().values()) == {"success"}


# consumers


def test_with_always_a_loss_restarts_the_producer_and_all_its_consumers_once(scene):
    found = scene(parallelism=3, consumers="always")
    found.lose("clean", 0)
    found.airflow.clear_by_hand(found.run, "joined", 0)
    found.airflow.run_until_quiet()
    assert found.again() == {
        "clean[0]": 1, "joined[0]": 2, "joined[1]": 1, "joined[2]": 1, "report-delays[0]": 1, "weir_close[0]": 1,
    }  # fmt: skip
    assert found.states() == {"success"}


def test_with_always_a_person_who_clears_a_producer_restarts_its_consumers(scene):
    found = scene(parallelism=2, consumers="always")
    found.airflow.clear_by_hand(found.run, "weather")
    found.airflow.run_until_quiet()
    assert set(found.again()) == {"weather[0]", "joined[0]", "joined[1]", "report-delays[0]", "weir_close[0]"}
    assert found.states() == {"success"}


def test_over_three_repairs_always_restarts_consumers_each_time(scene):
    found = scene(parallelism=2, consumers="always")
    for count in (1, 2, 3):
        found.airflow.clear_by_hand(found.run, "weather")
        found.airflow.run_until_quiet()
        assert found.again()["report-delays[0]"] == count


def test_a_stage_that_is_not_deterministic_restarts_its_direct_consumers_only(scene):
    found = scene(parallelism=2, deterministic=False)
    found.airflow.clear_by_hand(found.run, "weather")
    found.airflow.run_until_quiet()
    assert found.again() == {"weather[0]": 1, "joined[0]": 1, "joined[1]": 1}


# Concurrent failures


def begin_without(found, count=10):
    """Let tasks begin together that all miss one input; what each has found, before any has said so."""
    found.lose("weather")
    errors = []
    for index in range(count):
        task = found.airflow.task(found.run, "joined", index)
        found.airflow.clear_by_hand(found.run, "joined", index)
        task.try_number += 1
        task.state = "running"
        with pytest.raises(ResultUnavailable) as missed:
            found.airflow.coordinator.begin(found.airflow.request(task), found.airflow)
        errors.append((task, missed.value))
    return errors


def test_ten_consumers_that_fail_together_cause_one_restart_and_one_incident(scene):
    found = scene()
    airflow = found.airflow
    for task, error in begin_without(found):
        fail(airflow.services, failed_try("ladder", airflow.request(task), error, airflow.strategy), lambda: airflow)
        task.state = "up_for_retry"
    airflow.run_until_quiet()
    assert found.again()["weather[0]"] == 1
    first, *others = found.reports()
    assert (first.incident, {each.incident for each in others}) == (first.id, {first.id})
    assert len(others) == 9
    assert {tuple(map(str, [step.region for step in each.plan.of(StepKind.RERUN)])) for each in others} == {()}
    assert found.states() == {"success"}


HAS_FAILED, WAITS = 0, 3


@pytest.mark.parametrize(
    ("database", "together"), [("sqlite", "fail"), ("postgresql", "fail"), ("postgresql", "begin")]
)
def test_ten_processes_that_fail_at_once_cause_one_restart_and_one_incident(scene, database, together):
    found = scene()
    found.lose("weather")
    airflow, processes = found.airflow, multiprocessing.get_context("fork")
    barrier = processes.Barrier(10, timeout=60)
    tasks = [airflow.task(found.run, "joined", index) for index in range(10)]
    for index, task in enumerate(tasks):
        airflow.clear_by_hand(found.run, "joined", index)
        task.try_number += 1
        task.state = "running"

    def attempt(task):
        if together == "begin":
            barrier.wait()
        try:
            airflow.coordinator.begin(airflow.request(task), airflow)
        except ResultUnavailable as error:
            if together == "fail":
                barrier.wait()
            fail(
                airflow.services, failed_try("ladder", airflow.request(task), error, airflow.strategy), lambda: airflow
            )
            sys.exit(HAS_FAILED)
        sys.exit(WAITS)

    found.world.ledger._engine.dispose()  # no two processes share a connection
    started = [processes.Process(target=attempt, args=(task,)) for task in tasks]
    for process in started:
        process.start()
    for process in started:
        process.join()
    ended = {process.exitcode for process in started}
    with found.world.ledger.transaction() as session:
        owed = list(session.scalars(select(PendingClearRow).where(PendingClearRow.region == "weather")))
        incidents = {row.incident or row.id for row in session.scalars(select(FailoverRow))}
    # One that began when the repair was decided already waits for it, and has not failed.
    assert ended == {HAS_FAILED} if together == "fail" else HAS_FAILED in ended <= {HAS_FAILED, WAITS}
    assert (len(owed), len(incidents)) == (1, 1)


def test_a_failure_after_the_repair_has_committed_is_another_incident(scene):
    found = scene(parallelism=2)
    for _ in range(2):
        found.lose("weather")
        found.airflow.clear_by_hand(found.run, "joined", 0)
        found.airflow.run_until_quiet()
    assert [report.incident == report.id for report in found.reports()] == [True, True]


def test_a_commit_that_read_what_was_found_damaged_meanwhile_is_refused(scene):
    """Even if it is recomputed with equal content before the commit."""
    found = scene(parallelism=2)
    airflow = found.airflow

    def damage(key):
        if (key.task_id, key.map_index) == ("joined", 0):
            airflow.during = lambda _key: None
            with found.world.ledger.transaction("ladder") as session:
                row = session.scalar(select(ResultRow).where(ResultRow.stage == "weather", ResultRow.is_current))
                row.fault, row.state = "damaged", "lost"
            airflow.clear_by_hand(found.run, "weather")
            airflow.step(airflow.task(found.run, "weather"))

    airflow.during = damage
    airflow.clear_by_hand(found.run, "joined", 0)
    airflow.run_until_quiet()
    assert found.again() == {"joined[0]": 2, "weather[0]": 1}
    assert found.states() == {"success"}


# What waits for a person


def test_losses_of_most_of_a_run_wait_for_a_person_who_has_them_made_again(scene):
    found = scene()
    for index in range(10):
        found.lose("joined", index)
    found.airflow.clear_by_hand(found.run, "report-delays")
    found.airflow.run_until_quiet()
    task = found.airflow.task(found.run, "report-delays")
    assert (task.state, found.again()) == ("failed", {"report-delays[0]": 1})
    assert "the results of 10 of 14 regions are lost at once" in task.notes[-1]
    answer = ask(found.services, Question(found.run))
    assert answer.plan.held_back
    assert apply_answer(found.services, answer) == 11
    deliver(found.services, found.airflow)
    found.airflow.run_until_quiet()
    assert found.states() == {"success"}
    assert {found.again()[f"joined[{index}]"] for index in range(10)} == {1}
    assert apply_answer(found.services, ask(found.services, Question(found.run))) == 0


def test_a_deployment_says_how_much_may_restart_without_a_word(scene):
    found = scene()
    found.airflow.coordinator = coordinator_of(
        Services(
            ledger=found.world.ledger,
            store=found.world.store,
            now=lambda: found.airflow.time,
            recovery=RecoverySettings.from_options({"largest_plan": "1"}),
        )
    )
    for index in range(10):
        found.lose("joined", index)
    found.airflow.clear_by_hand(found.run, "report-delays")
    found.airflow.run_until_quiet()
    assert found.states() == {"success"}


def test_a_plan_is_not_carried_out_on_a_run_that_has_changed(scene):
    found = scene(parallelism=2)
    found.lose("weather")
    answer = ask(found.services, Question(found.run))
    found.airflow.clear_by_hand(found.run, "weather")
    found.airflow.run_until_quiet()
    with pytest.raises(Conflict, check=of_kind("recovery.run_changed")):
        apply_answer(found.services, answer)
