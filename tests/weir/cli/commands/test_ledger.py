"""What a person reads of the ledger, and what repairs it."""

import json
import shutil

import pytest
from sqlalchemy import select
from tests.messages.kinds import of_kind
from tests.servers.s3 import running_s3
from tests.weir.command_line import typed, use
from tests.weir.small_dataflow import World, ladder

from weir.errors import Misconfigured
from weir.ledger.database.tables import AttemptRow, DataflowRow, ResultRow
from weir.ledger.housekeeping import CAUGHT_UP, note_done
from weir.store.store import Store


@pytest.fixture
def healed(tmp_path, monkeypatch):
    """A run in which one lost result was recomputed."""
    world = World(tmp_path, ladder())
    run = world.run_first(1)
    with world.ledger.transaction() as session:
        [folder] = session.scalars(select(ResultRow.folder).where(ResultRow.stage == "joined", ResultRow.subtask == 1))
    shutil.rmtree(tmp_path / "store" / folder)
    world.airflow.clear_by_hand(run, "totals", 0)
    world.airflow.run_until_quiet()
    use(monkeypatch, tmp_path)
    return world


def test_runs_are_listed_with_their_state(healed):
    [line] = [line for line in typed("runs").splitlines() if "scheduled__2013-01-01" in line]
    assert "20130101T000000Z" in line
    assert "9 valid, 0 stale, 0 missing" in line
    assert "delays v1" in line


def test_a_task_that_has_failed_for_good_is_named_though_all_results_are_valid(healed):
    with healed.ledger.transaction("ladder") as session:
        tries = select(AttemptRow).where(AttemptRow.region == "totals", AttemptRow.subtask == 0)
        session.scalars(tries.order_by(AttemptRow.try_number.desc())).first().state = "failed"
    [line] = [line for line in typed("runs").splitlines() if "scheduled__2013-01-01" in line]
    assert "9 valid, 0 stale, 0 missing; failed: totals[0]" in line


def test_of_many_runs_the_newest_are_listed(healed):
    for day in (2, 3):
        healed.airflow.dag_run(day)
        healed.airflow.run_until_quiet()
    told = typed("runs", "--limit", "2")
    assert [f"2013010{day}T" in told for day in (1, 2, 3)] == [False, True, True]
    assert told.splitlines()[-1] == "1 older run(s) are not listed: --limit 0 lists all."
    assert [f"2013010{day}T" in typed("runs", "--limit", "0") for day in (1, 2, 3)] == [True] * 3
    assert "not listed" not in typed("runs")


def test_below_the_runs_it_says_of_which_dataflows_the_ledger_had_lost_commits(healed):
    assert "lost commits" not in typed("runs")
    with healed.ledger.transaction("ladder") as session:
        note_done(session, CAUGHT_UP, "ladder", healed.services.now())
    assert "ladder: the ledger had lost commits, and caught up with the store at 2026-01-01" in typed("runs", "ladder")
    with healed.ledger.transaction("ladder") as session:
        session.get_one(DataflowRow, "ladder").is_behind = True
    assert "ladder: the ledger has lost commits" in typed("runs")


def test_failovers_are_told_with_their_causes_and_steps(healed):
    told = typed("failovers", "ladder", "20130101T000000Z")
    assert "totals[0], attempt t0002-" in told
    assert "cause: joined[1]" in told
    assert (
        told.index("will re-run: joined[1]")
        < told.index("if its input changes: totals[1]")
        < told.index("spared: 8 region(s)")
    )
    assert told.count("spared: ") == 1


def test_failovers_of_what_the_ledger_does_not_know_are_refused(healed):
    with pytest.raises(Misconfigured, check=of_kind("ledger.dataflow_unknown", name="lader")):
        typed("failovers", "lader")
    with pytest.raises(
        Misconfigured, check=of_kind("ledger.run_unknown", name="ladder@2013-01-02", where="ladder has no run")
    ):
        typed("failovers", "ladder", "2013-01-02")
    assert typed("failovers", "ladder", "2013-01-01") == typed("failovers", "ladder", "20130101T000000Z")
    assert typed("failovers", "ladder@20130101T000000Z") == typed("failovers", "ladder", "20130101T000000Z")


def test_a_subtask_that_there_is_not_is_refused_with_those_that_there_are(healed):
    with pytest.raises(
        Misconfigured,
        check=of_kind(
            "views.subtask_unknown", each="joined", parallelism="1", run="ladder@20130101T000000Z", subtask="7"
        ),
    ):
        typed("why", "joined[7]", "--run", "ladder@20130101T000000Z")


def test_a_task_that_has_not_begun_is_said_to_wait(healed):
    run = healed.airflow.dag_run(2)
    healed.airflow.step(healed.airflow.task(run, "weather"))
    with pytest.raises(
        Misconfigured, check=of_kind("views.task_not_begun", run="scheduled__2013-01-02", task="routes")
    ):
        typed("why", "routes", "--run", run)
    assert "weather[0]" in typed("why", "weather", "--run", run)


def test_the_story_of_a_task_is_told(healed):
    told = typed("why", "totals", "--run", "scheduled__2013-01-01")
    assert "totals[0]" in told
    assert "totals[1]" in told
    assert "try 1 (first): committed" in told
    assert "try 2 (cleared by a person): retrying" in told
    assert "backtrack: ResultUnavailable" in told or "backtrack: 1 result partition" in told
    told = typed("why", "joined[1]", "--run", "ladder@20130101T000000Z")
    assert "try 2 (cleared by weir): committed" in told
    assert "clear of try 1, by failover 1: cleared" in told
    assert "weir: joined[1]" in told
    assert "joined[0]" not in told


def test_an_unknown_task_is_refused_with_those_that_are_known(healed):
    with pytest.raises(Misconfigured, check=of_kind("ledger.task_unknown", task="nothing")):
        typed("why", "nothing", "--run", "scheduled__2013-01-01")


def test_a_run_is_adopted_by_its_name(healed):
    told = typed("run", "adopt", "ladder@20130101T000000Z")
    assert "9 result(s) superseded" in told
    assert "Next: clear the whole run scheduled__2013-01-01 of DAG dag" in told
    assert "to be pinned again" in typed("runs")


def test_the_ledger_is_built_again(healed, tmp_path):
    for file in tmp_path.glob("ledger.db*"):
        file.unlink()
    with pytest.raises(Misconfigured, check=of_kind("environment.no_ledger")):
        typed("runs")
    told = typed("ledger", "rebuild", "--all")
    assert "Dataflow ladder, lineage 2: 1 run(s)" in told
    assert "9 region(s) valid, 1 published version(s)" in told
    assert "What the store does not tell" in told
    assert "9 valid, 0 stale, 0 missing" in typed("runs", "ladder")
    assert "has the newest tables" in typed("ledger", "upgrade")


def test_a_rebuild_tells_of_damage_that_it_forgets_and_who_finds_it_again(healed):
    with healed.ledger.transaction() as session:
        [folder] = session.scalars(select(ResultRow.folder).where(ResultRow.stage == "weather"))
    healed.store.replace(f"{folder}/part-0.bin", b"other bytes")
    run = "ladder@20130101T000000Z"
    assert "1 lost" in typed("verify", run)
    forgotten = f"1 result(s) that were known to be lost or damaged count as whole again: `weir verify {run}` finds"
    assert forgotten in typed("ledger", "rebuild", "ladder")
    assert "1 lost" in typed("verify", run)
    assert "9 result(s)" not in typed("ledger", "rebuild", "ladder")


def test_a_rebuild_asks_what_to_rebuild(healed):
    with pytest.raises(Misconfigured, check=of_kind("cli.no_dataflow_to_rebuild")):
        typed("ledger", "rebuild")


def test_the_store_of_the_workers_is_opened_with_its_options(tmp_path, monkeypatch):
    with running_s3() as server:
        server.make_bucket("weir-of-cli")
        Store.open("s3://weir-of-cli/team", server.storage_options).initialise()
        monkeypatch.setenv("WEIR_STORE", "s3a://weir-of-cli/team")
        monkeypatch.setenv("WEIR_STORE_OPTIONS", json.dumps(server.storage_options))
        monkeypatch.setenv("WEIR_LEDGER", f"sqlite:///{tmp_path}/ledger.db")
        assert "The store has no dataflow" in typed("ledger", "rebuild", "--all")
        assert "hush" not in typed("runs")


def test_options_of_the_store_that_are_no_json_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("WEIR_STORE", "s3://bucket/weir")
    monkeypatch.setenv("WEIR_STORE_OPTIONS", "{'secret': 'hush'}")
    monkeypatch.setenv("WEIR_LEDGER", f"sqlite:///{tmp_path}/ledger.db")
    with pytest.raises(Misconfigured, check=of_kind("settings.store_options_not_json")) as refused:
        typed("ledger", "rebuild", "--all")
    assert "hush" not in str(refused.value)


def test_an_empty_database_of_postgresql_becomes_a_ledger_and_is_built_from_the_store(healed, monkeypatch, postgres):
    monkeypatch.setenv("WEIR_LEDGER", postgres.url("typed"))
    told = typed("ledger", "upgrade")
    assert "weir:***@" in told
    assert postgres.password not in told
    assert "No failover is recorded" in typed("failovers")
    assert "9 region(s) valid, 1 published version(s)" in typed("ledger", "rebuild", "--all")
    assert "9 valid, 0 stale, 0 missing" in typed("runs")
    postgres.drop_database("typed")
