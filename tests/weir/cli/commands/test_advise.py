"""`weir advise`: what a person reads of what would cost less."""

import json
from datetime import timedelta

import pytest
from sqlalchemy import select
from tests.weir.command_line import typed, use
from tests.weir.small_dataflow import World, ladder

from weir.advice.measurements import LEAST_RUNS
from weir.ledger.database.tables import AttemptRow


@pytest.fixture
def world(tmp_path, monkeypatch):
    use(monkeypatch, tmp_path)
    world = World(tmp_path, ladder())
    for day in range(1, LEAST_RUNS + 1):
        world.airflow.dag_run(day)
        world.airflow.run_until_quiet()
    return world


def test_advice_says_on_how_much_it_stands_and_what_it_saves(world):
    told = typed("advise", "ladder")
    assert f"ladder: from {LEAST_RUNS} closed runs with the stages of the newest one, 0 failure(s)" in told
    assert "Nothing to change. A run takes 0.0 s of tasks, 0% by failures." in told

    with world.ledger.transaction("ladder") as session:
        for row in session.scalars(select(AttemptRow).where(AttemptRow.state == "committed")):
            row.ended_at = row.began_at + timedelta(seconds=3)
            row.metrics = {"prepare": 1.0, "write x": 1.0}
    told = typed("advise", "ladder")
    [line] = [line for line in told.splitlines() if "parallelism of totals" in line]
    assert [cell.strip() for cell in line.strip("│").split("│")] == ["parallelism of totals", "2", "1", "2.0 s"]
    said = json.loads(typed("advise", "ladder", "--json"))
    assert (said["version"], said["runs"], said["failures"], said["late_clears"]) == (1, LEAST_RUNS, 0, 0)
    change = next(each for each in said["changes"] if each["what"] == "parallelism of totals")
    assert change == {"what": "parallelism of totals", "declared": "2", "advised": "1", "seconds": 2.0, "bytes": 0}
    assert said["before"] == {"work": 27.0, "recovery": 0.0, "total": 27.0}
    saved = sum(each["seconds"] for each in said["changes"])
    assert said["after"]["total"] == pytest.approx(27.0 - saved)
