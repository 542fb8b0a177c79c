"""Whether and when tasks restart, over a real ledger: limits, budgets, labels, and user policies."""

import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.assembly import coordinator_of
from weir.attempts.failure import PolicyAnswer, fail, label, override
from weir.errors import Conflict, EngineLost, Misconfigured, QualityFailed, StoreFull, SuppressRestarts
from weir.execution.failure_class import FailureCause, FailureClass
from weir.execution.run_state import AttemptState
from weir.ledger.attempts import Origin, attempts_of, failures_since_clear
from weir.ledger.database.tables import AttemptRow, PendingClearRow, ResultRow
from weir.restarts.answer import Action, Budgets, FailureDecision, Refusal, patience
from weir.restarts.recovery_settings import RecoverySettings
from weir.restarts.strategy import ExponentialDelay, FailureLimits, FixedDelay, NoRestart
from weir.testing.fakes.airflow import Killed
from weir.testing.fakes.task_ports import failed_try
from weir.topology.regions import RegionId


def raising(errors):
    """Fail the tasks that `errors` names, with the error that is made each time, if any."""

    def during(key):
        error = errors[key.task_id]() if key.task_id in errors else None
        if error is not None:
            raise error

    return during


def in_turn(*kinds):
    """Make an error of each kind, then no more."""
    left = iter(kinds)

    def make():
        kind = next(left, None)
        return kind and kind()

    return make


def deployed(world, **options):
    """Make the deployment say something about recovery."""
    services = replace(world.services, recovery=RecoverySettings.from_options(options))
    world.services = services
    world.airflow.services, world.airflow.coordinator = services, coordinator_of(services)


def rows_of(world, region, subtask=0):
    with world.ledger.transaction() as session:
        run = session.query(AttemptRow.run).limit(1).scalar()
        return attempts_of(session, run, RegionId(region, subtask))


def test_a_failure_is_recorded_and_told_without_the_secrets_of_its_message(world):
    world.airflow.strategy = NoRestart()
    world.airflow.during = raising({"weather": lambda: ValueError("cannot reach mysql://me:hush@db")})
    run = world.airflow.dag_run()
    world.airflow.run_until_quiet()
    (row,) = rows_of(world, "weather")
    assert row.error == "ValueError: cannot reach mysql://me:***@db"
    told = world.airflow.note(world.airflow.task(run, "weather").key)
    assert "mysql://me:***@db" in told
    assert "hush" not in told


def test_parameters_of_a_run_that_look_like_secrets_are_refused_when_it_is_recorded(world):
    world.airflow.flow = replace(world.airflow.flow, parameters={"day": "today"})
    run = world.airflow.dag_run()
    task = world.airflow.task(run, "weather")
    task.try_number, task.state = task.try_number + 1, "running"
    plain = world.airflow.request(task)
    with pytest.raises(Misconfigured, match=r'parameters\["day"\] is a URL with a password') as refused:
        world.airflow.coordinator.begin(replace(plain, parameters={"day": "mysql://me:hush@db"}), world.airflow)
    assert "hush" not in str(refused.value)
    with world.ledger.transaction() as session:
        assert session.query(AttemptRow).all() == []
    world.airflow.coordinator.begin(plain, world.airflow)


def test_a_run_s_limit_stops_whichever_task_fails_next(world):
    world.airflow.strategy = FixedDelay(100, 0, limits=FailureLimits(per_run=3))
    run = world.airflow.dag_run()
    world.airflow.during = raising({"weather": ValueError, "raw-clean": KeyError})
    world.airflow.run_until_quiet()
    tasks = [world.airflow.task(run, "weather"), *(world.airflow.task(run, "raw-clean", index) for index in (0, 1))]
    assert [task.state for task in tasks] == ["failed"] * 3
    assert sum(len(task.runs) for task in tasks) == 3 + 3  # three that were recovered from, and each one's last
    assert all("maximum-total-task-failures is 3" in task.notes[-1] for task in tasks)


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_a_person_s_clear_of_any_task_gives_the_run_a_fresh_count(world):
    world.airflow.strategy = FixedDelay(100, 0, limits=FailureLimits(per_run=2))
    run = world.airflow.dag_run()
    world.airflow.during = raising({"weather": ValueError})
    world.airflow.run_until_quiet()
    assert world.airflow.task(run, "weather").runs == [1, 2, 3]
    world.airflow.during = raising({"joined": in_turn(ValueError, ValueError)})
    world.airflow.clear_by_hand(run, "weather")
    world.airflow.run_until_quiet()
    assert set(world.airflow.states().values()) == {"success"}


def test_a_limit_of_a_task_counts_kills_and_failures_alike(world):
    world.airflow.strategy = FixedDelay(100, 0, limits=FailureLimits(per_task=3))
    run = world.airflow.dag_run()
    world.airflow.during = raising({"weather": in_turn(ValueError, Killed, ValueError, Killed, ValueError)})
    world.airflow.run_until_quiet()
    weather = world.airflow.task(run, "weather")
    assert weather.state == "failed"
    assert [row.failure for row in rows_of(world, "weather")] == ["application", "killed"] * 2 + ["fatal"]
    assert "maximum-per-task-failures is 3, and the task has failed 4 times" in weather.notes[-1]


def test_a_killed_task_waits_once_whatever_the_clock_says_where_it_goes_on(world):
    world.airflow.strategy = FixedDelay(100, 60_000)
    weather = world.airflow.task(world.airflow.dag_run(), "weather")
    world.airflow.during = raising({"weather": in_turn(Killed)})
    world.airflow.step(weather)
    world.airflow.step(weather)
    assert weather.state == "up_for_reschedule"
    assert weather.not_before - world.airflow.time == timedelta(seconds=60)
    world.airflow.time -= timedelta(hours=3)
    world.airflow.step(weather)
    assert weather.state == "success"


@pytest.mark.parametrize(
    ("strategy", "recovers"),
    [
        (ExponentialDelay(10_000, limits=FailureLimits(per_run=1)), True),
        (FixedDelay(100, 10_000, limits=FailureLimits(per_run=1)), False),
    ],
)
def test_tasks_that_fail_during_one_back_off_are_one_failure_of_the_run(world, strategy, recovers):
    world.airflow.strategy = strategy
    run = world.airflow.dag_run()
    failed = set()

    def once_each(key):
        if key.task_id == "raw-clean" and key not in failed:
            failed.add(key)
            raise ValueError("the same executor")

    world.airflow.during = once_each
    world.airflow.run_until_quiet()
    assert (world.airflow.task(run, "raw-clean", 1).state == "success") is recovers


def test_a_lost_engine_has_a_budget_of_its_own(world):
    deployed(world, maximum_engine_losses="2")
    world.airflow.strategy = NoRestart()
    run = world.airflow.dag_run()
    world.airflow.during = raising({"weather": lambda: EngineLost("the server went away")})
    world.airflow.run_until_quiet()
    weather = world.airflow.task(run, "weather")
    assert (weather.state, weather.runs) == ("failed", [1, 2, 3])
    assert "more than 2 times engine since the last commit or clear: EngineLost" in weather.notes[-1]


def lose(world, folder, stage):
    """Remove the current results of a stage from the store."""
    with world.ledger.transaction() as session:
        for row in session.query(ResultRow).filter_by(stage=stage, is_current=True):
            shutil.rmtree(folder / "store" / row.folder)


def test_what_is_recovered_from_counts_anew_after_each_commit(world, tmp_path):
    deployed(world, maximum_backtracks="1")
    run = world.airflow.dag_run()
    world.airflow.run_until_quiet()
    for content in ("other", "yet another"):
        lose(world, tmp_path, "clean")
        world.content["weather"] = content  # so that Weir clears what is made from it
        world.airflow.clear_by_hand(run, "weather")
        world.airflow.run_until_quiet()
        assert set(world.airflow.states().values()) == {"success"}
    assert [row.failure for row in rows_of(world, "joined")].count("backtrack") == 2
    assert Origin.CLEARED_BY_PERSON.value not in [row.origin for row in rows_of(world, "joined")]


AT = datetime(2026, 1, 1, tzinfo=UTC)


def row(state, failure=None, origin=Origin.RETRY):
    return AttemptRow(state=state.value, failure=failure and failure.value, origin=origin.value, ended_at=AT)


def spent(rows, failure):
    return len(failures_since_clear(rows, [failure], or_commit=True))


def test_a_budget_is_spent_since_the_last_commit_or_a_persons_clear():
    lost = row(AttemptState.RETRYING, FailureClass.ENGINE)
    other = row(AttemptState.RETRYING, FailureClass.CONFLICT)
    committed, adopted = row(AttemptState.COMMITTED), row(AttemptState.ADOPTED)
    cleared = row(AttemptState.RETRYING, FailureClass.ENGINE, Origin.CLEARED_BY_PERSON)
    by_weir = row(AttemptState.RETRYING, FailureClass.ENGINE, Origin.CLEARED_BY_WEIR)
    assert spent([lost, other, lost], FailureClass.ENGINE) == 2
    assert spent([lost, committed, lost], FailureClass.ENGINE) == 1
    assert spent([lost, committed, adopted], FailureClass.ENGINE) == 0
    assert spent([lost, lost, cleared], FailureClass.ENGINE) == 1
    assert spent([lost, by_weir], FailureClass.ENGINE) == 2


def test_tasks_that_lost_one_server_come_back_apart():
    seconds = {patience(f"run joined[{index}]", FailureClass.ENGINE, 3) for index in range(50)}
    assert len(seconds) > 25
    assert min(seconds) >= 4.5
    assert max(seconds) <= 5.5
    assert patience("run joined[0]", FailureClass.BACKTRACK, 3) == 0


@pytest.mark.parametrize("text", ["SuppressRestarts", "ModuleNotFoundError"])
def test_what_no_retry_can_help_fails_at_once_and_says_why(world, text):
    error = {"SuppressRestarts": SuppressRestarts, "ModuleNotFoundError": ModuleNotFoundError}[text]
    run = world.airflow.dag_run()
    world.airflow.during = raising({"weather": lambda: error("no scipy")})
    world.airflow.run_until_quiet()
    weather = world.airflow.task(run, "weather")
    assert (weather.state, weather.runs) == ("failed", [1])
    labels = f"labels: type=fatal, exception={text}"
    assert weather.notes[-1] == f"not recoverable by another try: {text}: no scipy; {labels}"


def test_a_hopeless_cause_is_named(world):
    run = world.airflow.dag_run()

    def fails():
        error = RuntimeError("cannot load")
        error.__cause__ = ImportError("no scipy")
        return error

    world.airflow.during = raising({"weather": fails})
    world.airflow.run_until_quiet()
    said = world.airflow.task(run, "weather").notes[-1]
    labels = "labels: type=fatal, exception=RuntimeError"
    assert said == f"not recoverable by another try (ImportError): RuntimeError: cannot load; {labels}"


def test_each_failure_is_labelled_in_the_ledger(world):
    world.airflow.dag_run()
    world.airflow.during = raising({"weather": in_turn(ValueError, Killed)})
    world.airflow.run_until_quiet()
    labels = [row.labels for row in rows_of(world, "weather")]
    assert labels == [{"type": "application", "exception": "ValueError"}, {"type": "killed"}, None]


@pytest.fixture
def failed_by(world):
    """A try of `weather` that is booked as failed, by a strategy; answers the decision."""

    def make(strategy, error=None):
        run = world.airflow.dag_run()
        task = world.airflow.task(run, "weather")
        task.try_number, task.state = task.try_number + 1, "running"
        world.airflow.coordinator.begin(world.airflow.request(task), world.airflow)
        failed = failed_try("ladder", world.airflow.request(task), error or ValueError(), strategy)
        return fail(world.airflow.services, failed, lambda: world.airflow)

    return make


def named_as(kind):
    """An application's own error whose class has the name of one of Weir's."""
    return type(kind.__name__, (Exception,), {})("of the application")


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (QualityFailed("2 rows violate it", is_final=True), FailureCause.REFUSED),
        (named_as(QualityFailed), None),
        (StoreFull("no room"), FailureCause.STORE_FULL),
        (named_as(StoreFull), None),
    ],
)
def test_the_cause_of_a_failure_is_told_by_the_errors_class_and_not_by_its_name(world, failed_by, error, cause):
    failed_by(NoRestart(), error)
    with world.ledger.transaction() as session:
        row = session.query(AttemptRow).filter_by(region="weather").one()
        assert row.failure_cause == (None if cause is None else cause.value)


def test_labels_are_added_to_a_failure_and_never_replace_what_it_has(world, failed_by):
    decision = failed_by(FixedDelay(1, 0))
    labels = label(world.airflow.services, "ladder", decision.attempt, {"owner": "routes", "type": "other"})
    assert labels == {"type": "application", "exception": "ValueError", "owner": "routes"}
    assert rows_of(world, "weather")[-1].labels == labels


@pytest.mark.parametrize("strategy", [FixedDelay(1, 7_000), NoRestart()])
@pytest.mark.parametrize(
    ("action", "state"), [(Action.RETRY, AttemptState.RETRYING), (Action.FAIL, AttemptState.FAILED)]
)
def test_a_user_policy_overrides_the_decision_about_an_applications_failure(world, failed_by, strategy, action, state):
    decision = failed_by(strategy)
    after = override(world.airflow.services, "ladder", decision, PolicyAnswer(action, "mine", 3))
    assert (after.action, after.delay_seconds, after.reason) == (action, 3, f"mine; {decision.reason}")
    assert rows_of(world, "weather")[-1].state == state.value


@pytest.mark.parametrize(
    ("strategy", "error", "refusal"),
    [
        (FixedDelay(9, limits=FailureLimits(per_task=0)), ValueError(), Refusal.LIMIT),
        (FixedDelay(9, limits=FailureLimits(per_run=0)), ValueError(), Refusal.LIMIT),
        (FixedDelay(9), Conflict(), None),
        (FixedDelay(9), EngineLost(), None),
        (FixedDelay(9), SuppressRestarts(), None),
    ],
)
def test_a_user_policy_overrides_neither_limits_nor_recovery_nor_fatal_failures(failed_by, strategy, error, refusal):
    decision = failed_by(strategy, error)
    assert decision.refusal is refusal
    assert not decision.may_be_overridden


def test_a_user_policy_that_answers_too_late_changes_nothing(world, failed_by):
    decision = failed_by(FixedDelay(9))
    with world.ledger.transaction("ladder") as session:
        session.get(AttemptRow, decision.attempt).state = AttemptState.COMMITTED.value
    assert override(world.airflow.services, "ladder", decision, PolicyAnswer(Action.FAIL, "mine")) == decision


def test_failures_of_a_task_are_counted_for_a_policy_of_the_users_own(failed_by):
    assert [failed_by(FixedDelay(9)).failures for _ in range(3)] == [1, 2, 3]


def test_budgets_are_as_documented_by_default():
    assert RecoverySettings() == RecoverySettings.from_options({})
    assert RecoverySettings().budgets == Budgets(20, 20, 30, 30)


def test_a_user_policy_that_retries_restarts_what_the_strategy_would_have(world):
    """With `failover="full"` a task that is tried again has the others with it."""
    airflow = world.airflow
    airflow.flow = replace(airflow.flow, failover="full")
    airflow.strategy = NoRestart()
    run = airflow.dag_run()
    airflow.during = raising({"joined": ValueError})

    def pending():
        with world.ledger.transaction() as session:
            return {row.region for row in session.query(PendingClearRow)}

    while airflow.task(run, "joined", 0).state != "failed":
        airflow.step(airflow._ready())
    assert pending() == set()
    [failed] = [row for row in rows_of(world, "joined") if row.failure]
    decision = FailureDecision(
        action=Action.FAIL,
        delay_seconds=0,
        reason="refused",
        attempt=failed.id,
        failure=FailureClass.APPLICATION,
        refusal=Refusal.STRATEGY,
    )
    override(airflow.services, "ladder", decision, PolicyAnswer(Action.RETRY, "mine"))
    assert {"raw-clean", "weather"} <= pending()


# Against the definition of what counts


FAILURES = (None, FailureClass.BACKTRACK, FailureClass.CONFLICT, FailureClass.APPLICATION, FailureClass.KILLED)
ENDS = st.sampled_from([(AttemptState.COMMITTED, None), *((AttemptState.RETRYING, each) for each in FAILURES)])
TRIES = st.lists(st.tuples(st.sampled_from([Origin.RETRY, Origin.CLEARED_BY_WEIR, Origin.CLEARED_BY_PERSON]), ENDS))


def ended_rows(tries):
    return [
        AttemptRow(
            try_number=number,
            origin=origin.value,
            state=state.value,
            failure=None if failure is None else failure.value,
            ended_at=AT + timedelta(minutes=number),
        )
        for number, (origin, (state, failure)) in enumerate(tries, 1)
    ]


def since(tries, *, is_commit_last):
    """The tries since a person's last clear, with the cleared one; and perhaps after the last commit."""
    last = 0
    for number, (origin, (state, _)) in enumerate(tries):
        last = number if origin is Origin.CLEARED_BY_PERSON else last
        last = number + 1 if is_commit_last and state is AttemptState.COMMITTED else last
    return tries[last:]


@given(TRIES)
def test_a_budget_is_spent_by_the_failures_since_the_last_commit_or_clear(tries):
    failed = [failure for _, (_, failure) in since(tries, is_commit_last=True)]
    for each in FAILURES[1:]:
        assert spent(ended_rows(tries), each) == failed.count(each)


@given(TRIES)
def test_the_restart_strategy_is_told_of_the_failures_since_the_last_clear(tries):
    counted = (FailureClass.APPLICATION, FailureClass.KILLED)
    recent = [failure for _, (_, failure) in since(tries, is_commit_last=False) if failure in counted]
    found = failures_since_clear(ended_rows(tries), counted)
    assert len(found) == len(recent)
    assert found == sorted(found)
