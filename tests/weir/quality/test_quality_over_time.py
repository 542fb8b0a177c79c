"""Checks over tries, epochs and rebuilt ledgers: what is not checked again, and what is kept."""

from dataclasses import replace

import pytest
from sqlalchemy import select
from tests.messages.kinds import of_kind
from tests.weir.checking import (
    NOT_NULL,
    UNIQUE,
    attempts,
    checks,
    gated,
    outcomes,
    results,
    run,
    use,
    with_suites,
    write_suite,
)

from weir.dataflow import Dataflow, Stage, blocking, digest, expectations, keyed_state, previous, sink, source
from weir.errors import Misconfigured
from weir.formats.checks import BUILT_IN
from weir.ledger.database.tables import RunRow
from weir.reading.opening import open_results
from weir.rebuild.rebuild import rebuild
from weir.recovery.adopt import adopt
from weir.restarts.strategy import FixedDelay
from weir.retention.release import delete_released, release
from weir.retention.sizes import bytes_at_rest
from weir.retention.sweep import sweep
from weir.testing.fakes.airflow import Killed
from weir.testing.fakes.engine import FakeEngine
from weir.views.results import run_results

CLOSE = "weir_close"
RESTORED = expectations("clean_rows", when="restored")


@pytest.fixture
def suites(world):
    folder = with_suites(world)
    write_suite(folder, "clean_rows", NOT_NULL)
    return folder


@pytest.fixture
def engine(world):
    return world.airflow.engine


def clear(world, run_id, *tasks):
    for task in tasks:
        world.airflow.clear_by_hand(run_id, task)
    world.airflow.run_until_quiet()


# What is checked, and why


def test_rows_that_have_passed_are_not_checked_again(world, suites, engine):
    run_id = run(world, gated(expectations("clean_rows")))
    clear(world, run_id, "clean")
    engine.violated["clean"] = {NOT_NULL}  # nobody looks
    clear(world, run_id, "clean")
    assert outcomes(world) == [
        ("clean[0]", "clean_rows", "fresh", "passed"),
        ("clean[0]", "clean_rows", "recomputed", "same"),
        ("clean[0]", "clean_rows", "recomputed", "same"),
    ]
    write_suite(suites, "clean_rows", NOT_NULL, UNIQUE)  # another suite: all are looked at
    clear(world, run_id, "clean")
    assert outcomes(world)[-1] == ("clean[0]", "clean_rows", "recomputed", "failed")


def test_rows_with_a_digest_that_leaves_something_out_are_checked_again(world, suites, engine):
    flow = gated(expectations("clean_rows"))
    leaving_out = [replace(each, digest=digest(ignore=["n"])) if each.name == "clean" else each for each in flow.stages]
    run_id = run(world, replace(flow, stages=leaving_out))
    engine.violated["clean"] = {NOT_NULL}  # of rows that differ in that column alone
    clear(world, run_id, "clean")
    assert outcomes(world)[-1] == ("clean[0]", "clean_rows", "recomputed", "failed")


def test_a_suite_for_what_was_restored_is_not_run_on_a_fresh_result(world, suites):
    run_id = run(world, gated(RESTORED))
    assert outcomes(world) == []
    clear(world, run_id, "clean")
    assert outcomes(world) == [("clean[0]", "clean_rows", "recomputed", "passed")]


def test_a_backfill_is_no_fresh_result(world, suites):
    world.airflow.deploy(gated(RESTORED))
    world.airflow.dag_run(3, kind="backfill")
    world.airflow.run_until_quiet()
    assert outcomes(world) == [("clean[0]", "clean_rows", "backfill", "passed")]


def test_a_recomputed_result_that_fails_leaves_the_previous_one_in_its_place(world, suites, engine):
    run_id = run(world, gated(RESTORED))
    engine.violated["clean"] = {NOT_NULL}
    clear(world, run_id, "clean")
    assert world.airflow.task(run_id, "clean").state == "failed"
    assert [(row.state, row.is_current) for row in results(world, "clean")] == [
        ("finished", True),
        ("quarantined", False),
    ]
    assert world.airflow.task(run_id, "totals-delays").runs == [1]


def killed_behind_its_commit(world, task):
    """The process of the next try of `task` ends between its commit and its end."""

    def kill(key):
        if key.task_id == task:
            world.airflow.after_commit = lambda _key: None
            raise Killed

    world.airflow.after_commit = kill


@pytest.mark.parametrize("when", ["always", "restored"])
def test_what_is_taken_over_has_passed_the_gates_that_are_for_it(world, suites, engine, when):
    killed_behind_its_commit(world, "clean")
    run_id = run(world, gated(expectations("clean_rows", when=when)))
    assert world.airflow.task(run_id, CLOSE).state == "success"
    states = [row.state for row in attempts(world, "clean")]
    if when == "always":
        assert states == ["committed", "adopted"]
        assert [each[2:] for each in outcomes(world)] == [("fresh", "passed")]
    else:
        assert states == ["committed", "committed"]
        assert [each[2:] for each in outcomes(world)] == [("recomputed", "passed")]
    killed_behind_its_commit(world, "clean")
    clear(world, run_id, "clean")
    assert attempts(world, "clean")[-1].state == "adopted"  # those rows have passed
    assert engine.computed.count("clean") == (2 if when == "always" else 3)


# The epoch before, and state


def remembering(ranks=(), **state):
    """A stage that reads what it made the day before, and one that keeps a state."""
    return Dataflow(
        "remembering",
        [
            source("flights", "pipelines.remembering:flights"),
            Stage(
                "ranks",
                "pipelines.remembering:ranks",
                {"flights": blocking("flights"), "before": previous("ranks", schema="k BIGINT")},
                quality=ranks,
            ),
            Stage(
                "aircraft",
                "pipelines.remembering:aircraft",
                [blocking("flights", by="k")],
                state=keyed_state("history", key="k", schema="k BIGINT, n BIGINT", **state),
            ),
            sink("ranks", "rank"),
            sink("aircraft", "known"),
        ],
        keep="60 days",
    )


def of(world, stage, run_id):
    """The task of a run that computes a stage."""
    tasks = [each for key, each in world.airflow.tasks.items() if key.run_id == run_id]
    (found,) = [each for each in tasks if each.key.task_id.startswith(stage)]
    return found


def test_the_previous_epoch_is_recomputed_if_it_is_suspected(world, suites, engine):
    write_suite(suites, "ranks", (NOT_NULL, {"meta": {"blames": ["before"]}}))
    flow = remembering(expectations("ranks", policy="backtrack"))
    first = run(world, flow)
    engine.violated["ranks"] = {NOT_NULL}
    world.airflow.during = lambda key: key.run_id == first and engine.violated.clear()
    second = run(world, flow, day=2)
    (blamed,) = [row for row in checks(world) if row.blamed]
    assert [(each["run"], each["stage"]) for each in blamed.blamed] == [("remembering@20130101T000000Z", "ranks")]
    again, failed = of(world, "ranks", first), of(world, "ranks", second)
    assert (again.runs, again.state) == ([1, 2], "success")
    assert (failed.runs, failed.state) == ([1, 2], "failed")
    assert "the data is bad, not the copy: ranks[0] of remembering@20130101T000000Z" in failed.notes[-1]


@pytest.mark.parametrize("by", ["a clear", "a success by hand"])
def test_an_epoch_waits_for_an_earlier_one_whose_rows_were_refused_until_a_person_has_corrected_it(
    world, suites, engine, by
):
    engine.violated["ranks"] = {NOT_NULL}
    flow = remembering(expectations("clean_rows"))
    first = run(world, flow)
    second = world.airflow.dag_run(2)
    for _ in range(12):
        world.airflow.step(world.airflow._ready())
    refused, waiting = of(world, "ranks", first), of(world, "ranks", second)
    assert (refused.state, refused.runs) == ("failed", [1])
    assert (waiting.state, waiting.try_number) == ("up_for_reschedule", 1)
    engine.violated.clear()
    if by == "a clear":
        world.airflow.clear_by_hand(first, refused.key.task_id)
    else:
        refused.state = "success"
    world.airflow.run_until_quiet()
    assert (refused.runs, waiting.state) == ([1, 2], "success")
    assert [world.airflow.task(each, CLOSE).state for each in (first, second)] == ["success", "success"]


def test_it_waits_too_where_all_tries_have_been_used_up(world, suites, engine):
    engine.violated["ranks"] = {NOT_NULL}
    world.airflow.strategy = FixedDelay(1, 1_000)
    flow = remembering(expectations("clean_rows", policy="retry"))
    first = run(world, flow)
    second = world.airflow.dag_run(2)
    for _ in range(20):
        world.airflow.step(world.airflow._ready())
    refused, waiting = of(world, "ranks", first), of(world, "ranks", second)
    assert (refused.state, refused.runs) == ("failed", [1, 2])
    assert waiting.state == "up_for_reschedule"
    assert "ranks-rank[0] of remembering@20130101T000000Z failed for good" in waiting.waits_on


def test_in_the_first_epoch_no_previous_epoch_can_be_suspected(world, suites, engine):
    write_suite(suites, "ranks", (NOT_NULL, {"meta": {"blames": ["before"]}}))
    engine.violated["ranks"] = {NOT_NULL}
    first = run(world, remembering(expectations("ranks", policy="backtrack")))
    failed = of(world, "ranks", first)
    assert (failed.state, failed.runs) == ("failed", [1])
    assert "the suspected input is nothing that was read" in failed.notes[-1]


def test_a_suspected_state_is_recomputed_by_the_stage_that_keeps_it(world, suites, engine):
    write_suite(suites, "whole", (NOT_NULL, {"meta": {"blames": ["history"]}}))
    flow = remembering(quality=expectations("whole", policy="backtrack"))
    first = run(world, flow)
    engine.violated["history"] = {NOT_NULL}

    def corrected(key):
        if key.run_id == first:
            engine.violated.clear()
            world.content["history in 20130101T000000Z"] = "another copy"

    world.airflow.during = corrected
    second = run(world, flow, day=2)
    assert world.airflow.task(second, CLOSE).state == "success"
    assert [of(world, "aircraft", each).runs for each in (first, second)] == [[1, 2], [1, 2]]
    assert [(row.run[-16:], row.state) for row in results(world, "history")] == [
        ("20130101T000000Z", "superseded"),
        ("20130102T000000Z", "quarantined"),
        ("20130101T000000Z", "finished"),
        ("20130102T000000Z", "finished"),
    ]


class Counting(FakeEngine):
    """An engine that counts the rows that the epoch before had."""

    before = 5

    def _state(self, job, stage, output, contents):
        found = super()._state(job, stage, output, contents)
        return replace(found, state=replace(found.state, rows_before=self.before))


def test_nor_where_the_parallelism_is_another_one_since(world, suites):
    world.airflow.engine = Counting(world.store, world.content)
    run(world, remembering(grows=True))
    flow = remembering(grows=True)
    wider = [replace(each, parallelism=2) if each.name == "aircraft" else each for each in flow.stages]
    second = run(world, replace(flow, stages=wider), day=2)
    failed = [task for task in world.airflow.tasks.values() if task.state == "failed"]
    assert {task.key.run_id for task in failed} == {second}
    assert "weir_rows_never_fewer(): found 1" in failed[0].notes[-1]


class Forgetful(FakeEngine):
    """An engine that writes fewer rows of a state each day."""

    rows = 3

    def _state(self, job, stage, output, contents):
        found = super()._state(job, stage, output, contents)
        tallies = tuple(replace(each, rows=self.rows) for each in found.state.tallies)
        return replace(found, state=replace(found.state, tallies=tallies))


def test_a_state_that_grows_is_never_committed_with_fewer_rows(world, suites):
    world.airflow.engine = engine = Forgetful(world.store, world.content)
    run(world, remembering(grows=True))
    second = run(world, remembering(grows=True), day=2)
    assert world.airflow.task(second, CLOSE).state == "success"
    engine.rows = 2
    third = run(world, remembering(grows=True), day=3)
    (failed,) = [task for task in world.airflow.tasks.values() if task.state == "failed"]
    assert failed.key.run_id == third
    assert "weir_rows_never_fewer(): found 2" in failed.notes[-1]
    rows = [row for row in checks(world) if row.suite == BUILT_IN]
    assert [(row.stage, row.outcome) for row in rows] == [
        ("history", "passed"),
        ("history", "passed"),
        ("history", "failed"),
    ]
    with open_results("remembering", state="history", attempt=rows[-1].attempt, services=world.services) as history:
        assert history.rows == 2


# What is kept


def rows_of(world):
    return [(row.state, row.is_current, row.deleted_at is None) for row in results(world, "clean")]


@pytest.fixture
def retried(world, suites, engine):
    """A run of which a result of clean is in quarantine, and another one has been committed."""
    engine.violated["clean"] = {NOT_NULL}
    world.airflow.during = lambda key: engine.computed.count("clean") == 2 and engine.violated.clear()
    world.run = run(world, gated(expectations("clean_rows", policy="retry")))
    return world


def test_what_is_in_quarantine_stays_as_long_as_its_run_and_is_deleted_then(retried):
    services = retried.services
    size = bytes_at_rest_of(retried)
    sweep(services, "gated")
    assert rows_of(retried) == [("quarantined", False, True), ("finished", True, True)]
    assert retried.store.size(f"{results(retried, 'clean')[0].folder}/part-0.bin") > 0
    kept = [each for each in release(services, "gated", is_dry=True) if "quarantine" in each.reason]
    assert [each.is_released for each in kept] == [False]
    for day in (2, 3, 4):
        run(retried, gated(expectations("clean_rows", policy="retry")), day=day)
    release(services, "gated")
    delete_released(services, "gated")
    first, *_ = results(retried, "clean")
    assert (first.state, first.deleted_at is None) == ("released", False)
    assert "it was in quarantine long enough" in first.state_reason
    assert bytes_at_rest_of(retried) != size


def bytes_at_rest_of(world):
    with world.ledger.transaction() as session:
        return bytes_at_rest(session, "gated")


def test_weir_results_shows_a_quarantined_result(retried):
    with retried.ledger.transaction() as session:
        memory = run_results(session, session.scalar(select(RunRow.id)), "clean", retried.services.now(), {})
    (stage,) = memory.stages
    first, second = stage.results
    assert [chapter.state.value for chapter in first.story] == ["writing", "quarantined"]
    assert NOT_NULL in first.reason
    assert [chapter.state.value for chapter in second.story] == ["writing", "finished"]
    assert stage.unfinished == ()


def test_a_quarantined_result_is_read_only_by_its_attempt(retried):
    bad, good = results(retried, "clean")
    with open_results("gated", attempt=bad.attempt, services=retried.services) as found:
        assert (found.rows, found.digest) == (1, bad.digest)
    with open_results("gated", stage="clean", services=retried.services) as found:
        assert [good.attempt in each for each in found.files] == [True]
    with pytest.raises(
        Misconfigured, check=of_kind("reading.attempt_wrote_nothing", attempt="t0001-0", what="nothing", where="gated")
    ):
        open_results("gated", attempt="t0001-0", services=retried.services)


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_a_ledger_that_is_built_again_takes_nothing_that_was_in_quarantine(retried):
    bad, good = results(retried, "clean")
    retried.lose_ledger()
    use(retried, replace(retried.services, expectations=str(retried.folder / "expectations")))
    rebuild(retried.services)
    assert {(row.attempt, row.state, row.is_current) for row in results(retried, "clean")} == {
        (bad.attempt, "quarantined", False),
        (good.attempt, "finished", True),
    }
    assert outcomes(retried) == [("clean[0]", "clean_rows", "rebuilt", "passed")]
    clear(retried, retried.run, "clean")
    assert outcomes(retried)[-1] == ("clean[0]", "clean_rows", "recomputed", "same")


@pytest.mark.parametrize("how", ["stale", "adopted"])
def test_what_was_made_before_the_ledger_was_built_again_is_no_fresh_result(world, suites, how):
    """A suite for what is recomputed is run, though the ledger does not know what had committed."""
    run_id = run(world, gated(RESTORED))
    if how == "stale":
        world.content["raw"] = "others"
        world.airflow.clear_by_hand(run_id, "raw")
        world.airflow.step(world.airflow.task(run_id, "raw"))
    else:
        adopt(world.services, run_id)
    world.lose_ledger()
    use(world, replace(world.services, expectations=str(suites)))
    rebuild(world.services)
    world.airflow.clear_run_by_hand(run_id)
    world.airflow.run_until_quiet()
    assert outcomes(world) == [("clean[0]", "clean_rows", "recomputed", "passed")]


def test_nor_if_nothing_else_was_made(world, suites, engine):
    engine.violated["clean"] = {NOT_NULL}
    run_id = run(world, gated(expectations("clean_rows")))
    world.lose_ledger()
    use(world, replace(world.services, expectations=str(suites)))
    (built,) = rebuild(world.services)
    assert "clean[0]" in {str(each) for each in built.runs[0].missing}
    assert [(row.state, row.is_current) for row in results(world, "clean")] == [("quarantined", False)]
    world.airflow.engine.violated.clear()
    clear(world, run_id, "clean")
    assert world.airflow.task(run_id, CLOSE).state == "success"
