"""Versions of code in the ledger: who has run which, and what a declaration changes. `weir code` shows them."""

import pytest
from sqlalchemy import select

from weir.ledger.database.tables import ResultRow
from weir.recovery.versions import declare_equal
from weir.testing.fakes.code import archive_of_edits
from weir.views.code import code_of_task, difference, versions_of_tasks


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_a_stage_of_two_codes_is_of_one_after_these_were_declared_equal(world):
    airflow = world.airflow
    airflow.deployed = archive_of_edits(airflow.flow, {})
    run = airflow.dag_run()
    airflow.run_until_quiet()
    airflow.deployed = archive_of_edits(airflow.flow, {"totals": 1})
    airflow.clear_by_hand(run, "totals", 1)
    airflow.step(airflow.task(run, "totals", 1))
    with world.ledger.transaction() as session:
        old, new = (each for each in versions_of_tasks(session, "ladder") if each.region == "totals")
        [found] = code_of_task(session, old.run, "totals")
        current = select(ResultRow).where(ResultRow.stage == "totals", ResultRow.is_current)
        opener = session.scalars(current.where(ResultRow.subtask == 1)).one().attempt
    assert (old.generation, old.subtasks, new.generation, new.subtasks) == (1, 1, 2, 1)
    assert (found.version, found.opened_by, found.by_subtask) == (new.version, opener, {0: old.version, 1: new.version})
    assert "+    return 1" in difference(world.services, old.version, new.version)
    declared, results = declare_equal(world.services, "totals", old.version, new.version, "ada")
    assert (declared.one, declared.other, declared.declared_by, results) == (old.version, new.version, "ada", 2)
    with world.ledger.transaction() as session:
        [found] = code_of_task(session, old.run, "totals")
        assert (found.version, found.by_subtask) == (new.version, {})
        assert [set(row.versions) for row in session.scalars(current)] == [{old.version, new.version}] * 2
