"""No query that runs again and again reads all results of all runs."""

import re

import pytest
from sqlalchemy import Engine, event, text
from tests.weir.datasets.neighbours import Neighbours, reader, trips
from tests.weir.restoring import aircraft, go_on, keep_savepoints, restore, run_days
from tests.weir.small_dataflow import World, ladder

from weir.dataflow import dataset, last
from weir.upkeep import RESULTS, scrub_everywhere, settle_everywhere, sweep_everywhere

TABLES = "result|attempt|consumption|result_event|pending_clear"
"""The tables that grow with each try."""


class Statements:
    """The statements of all SQLite ledgers, each with values that it had."""

    def __init__(self):
        self.seen = {}

    def __call__(self, connection, cursor, statement, parameters, context, executemany):
        if statement.startswith(("SELECT", "UPDATE", "DELETE", "INSERT")):
            is_one_of_many = executemany and isinstance(parameters[0], tuple)
            self.seen.setdefault(statement, parameters[0] if is_one_of_many else parameters)


@pytest.fixture
def statements():
    found = Statements()
    event.listen(Engine, "before_cursor_execute", found)
    yield found
    event.remove(Engine, "before_cursor_execute", found)


def scans(ledger, statements, tables=TABLES):
    """The statements that read a whole table, each with the plan of SQLite."""
    found = []
    with ledger.transaction() as session:
        cursor = session.connection().connection.cursor()
        for statement, values in statements.seen.items():
            plan = [row[-1] for row in cursor.execute(f"EXPLAIN QUERY PLAN {statement}", values)]
            if any(
                re.match(rf"SCAN ({tables})\b(?! USING (COVERING )?INDEX (one_|unsettled_))", step) for step in plan
            ):
                found.append((statement, plan))
    return found


def test_no_query_of_a_run_and_of_upkeep_reads_all_results(world, statements):
    world.run_first(1)
    world.content["weather"] = "new"
    world.airflow.clear_run_by_hand("scheduled__2013-01-01")
    world.airflow.run_until_quiet()
    flow = world.airflow.flow
    world.airflow.deploy(type(flow)(flow.name, flow.stages, keep="on_consumed"))
    run_days(world.airflow, 2, 3)
    for _ in range(2):
        settle_everywhere(world.services, RESULTS)
        scrub_everywhere(world.services, world.airflow)
        sweep_everywhere(world.services, world.airflow)
        world.airflow.time += 2 * world.services.retention.orphan_age
    assert len(statements.seen) > 100
    assert scans(world.ledger, statements) == []


def test_no_query_of_state_reads_all_results(tmp_path, statements):
    (tmp_path / "store").mkdir()
    world = World(tmp_path, aircraft(retained_checkpoints=1))
    run_days(world.airflow, 1, 2, 3)
    keep_savepoints(world, 3)
    restore(world, "day3")
    go_on(world)
    settle_everywhere(world.services, RESULTS)
    scrub_everywhere(world.services, world.airflow)
    sweep_everywhere(world.services, world.airflow)
    assert scans(world.ledger, statements) == []


def test_no_query_of_data_sets_reads_all_versions_or_all_that_was_read(tmp_path, statements):
    town = Neighbours(tmp_path)
    flow = town.add(trips(by="k"))
    town.add(reader(zones=dataset("trips.zones", by="k", epoch=last(2))))
    for day in (1, 2, 3):
        town.run("trips", day)
        town.run("report", day)
    town.content["trips"] = "other"
    flow.clear_run_by_hand("scheduled__2013-01-02")
    town.run("trips", 2)
    town.run("report", 2)
    settle_everywhere(town.services, RESULTS)
    scrub_everywhere(town.services, flow)
    sweep_everywhere(town.services, flow)
    assert scans(town.ledger, statements, f"{TABLES}|publication|dataset_input|dataset_epoch|untold_version") == []


def test_a_scan_is_found(tmp_path, statements):
    (tmp_path / "store").mkdir()
    world = World(tmp_path, ladder())
    with world.ledger.transaction() as session:
        session.execute(text("SELECT id FROM result WHERE folder = 'x'"))
    assert [plan for _, plan in scans(world.ledger, statements)] == [["SCAN result"]]
