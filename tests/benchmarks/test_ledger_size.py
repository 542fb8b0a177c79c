"""What a day costs in the ledger when it holds the results of years: `--benchmark-only -s`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import insert, text
from tests.weir.small_dataflow import World, ladder

from weir.ledger.database.tables import AttemptRow, ResultRow, RunRow
from weir.testing.fakes.ledgers import fast_folder

RESULTS = 86_000
RUNS = 400
ROUNDS = 5
NOW = datetime(2010, 1, 1, tzinfo=UTC)
INDEXES = ("results_of_run", "results_to_delete", "runs_by_age")


@pytest.fixture
def world() -> Iterator[World]:
    with fast_folder() as folder:
        (folder / "store").mkdir()
        made = World(Path(folder), ladder())
        yield made
        made.ledger.close()


def fill(world: World) -> None:
    """Enter the released results of earlier runs."""
    each = RESULTS // RUNS
    closed = dict.fromkeys(("created_at", "closed_at", "released_at"), NOW)
    interval = {"interval_start": NOW, "interval_end": NOW, "dag_id": "dag", "task_prefix": ""}
    ended = {"state": "committed", "session_id": "", "session_url": "", "began_at": NOW, "ended_at": NOW, "waits": 0}
    tries = {"try_number": 1, "max_tries": 0, "clear_number": 0, "lineage": 1, "ti_id": "x", "origin": "first"}
    gone = {"is_current": True, "state": "released", "state_at": NOW, "state_reason": "", "deleted_at": NOW}
    what = {"manifest_sha256": "", "digest": "", "rows": 1, "bytes": 1, "layout": "plain", "stage": "report"}
    with world.ledger.transaction("ladder") as session:
        pinned = world.airflow.flow.to_json()
        for number in range(RUNS):
            epoch = f"2009{number:04d}T000000Z"
            run = f"ladder@{epoch}"
            row = {"id": run, "dataflow": "ladder", "epoch": epoch, "run_id": epoch, "pinned": pinned, "parameters": {}}
            session.execute(insert(RunRow), [{**row, **closed, **interval}])
            tasks = [{"id": f"t0001-{number}-{at}", "run": run, "subtask": at, "map_index": at} for at in range(each)]
            names = {"region": "report", "task_id": "report"}
            session.execute(insert(AttemptRow), [{**task, **names, **ended, **tries} for task in tasks])
            results = [
                {"run": run, "subtask": at, "attempt": task["id"], "folder": f"ladder/{epoch}/report/plain/{at}"}
                for at, task in enumerate(tasks)
            ]
            session.execute(insert(ResultRow), [{**result, **gone, **what} for result in results])


def seconds_a_task(world: World, days: Iterator[int]) -> float:
    """The fastest day of some, per task."""
    found = []
    for day in (next(days) for _ in range(ROUNDS)):
        start = time.perf_counter()
        world.airflow.dag_run(day)
        world.airflow.run_until_quiet()
        found.append((time.perf_counter() - start) / len(world.airflow.flow.stages))
    return min(found)


def test_a_day_costs_the_same_behind_the_results_of_years(world, benchmark) -> None:
    days = iter(range(1, 32))
    alone = seconds_a_task(world, days)
    fill(world)
    behind = seconds_a_task(world, days)
    with world.ledger.transaction("ladder") as session:
        for index in INDEXES:
            session.execute(text(f"DROP INDEX {index}"))
    without = seconds_a_task(world, days)
    print(f"\n{alone:.4f} s a task; behind {RESULTS} results {behind / alone:.2f} times as much, without the indexes")
    print(f"{without / alone:.2f} times")
    benchmark.extra_info.update(results=RESULTS, ratio=behind / alone, without_indexes=without / alone)
    benchmark.pedantic(seconds_a_task, args=(world, days), rounds=1)
    assert behind / alone < 1.5
