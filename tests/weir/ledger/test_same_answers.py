"""Commands answer the same from the same rows on SQLite and on PostgreSQL.

The databases differ in how they sort texts and NULLs, in sums of integers, in comparisons of texts, and in what a
query may group by.
"""

import re

import pytest
from tests.postgres_ledgers import fill
from tests.weir.checking import NOT_NULL, UNIQUE, gated, violate
from tests.weir.command_line import invoked, use
from tests.weir.restoring import aircraft, keep_savepoints, run_days, spoil
from tests.weir.restoring import restore as restored
from tests.weir.small_dataflow import World, ladder

from weir.dataflow import expectations, keyed_state
from weir.ledger.ledger import Ledger
from weir.upkeep import RESULTS, settle_everywhere

RUN = "ladder@20130101T000000Z"
GATED = "gated@20130103T000000Z"

LOOKED_AT = re.compile(r'"looked_at": "[^"]*"')
"""When a command has looked into the store: each at its own time."""


def edited_and_lost(world):
    """A day with newer code in one subtask, a lost result and its failover, and a region that failed."""
    airflow = world.airflow
    world.deploy()
    airflow.dag_run()
    airflow.run_until_quiet()
    world.deploy(totals=1)
    airflow.clear_by_hand("scheduled__2013-01-01", "totals", 1)
    airflow.run_until_quiet()
    world.lose("weather", 0)
    airflow.clear_by_hand("scheduled__2013-01-01", "joined", 1)
    airflow.step(airflow.task("scheduled__2013-01-01", "joined", 1))
    airflow.dag_run(2)
    airflow.step(airflow.task("scheduled__2013-01-02", "weather"))


def checked(world):
    """Three days, of which one warns, and one is refused."""
    violate(world, set(), {UNIQUE}, {NOT_NULL, UNIQUE})


def kept(world):
    """Days with state that is compacted, one spoilt and restored, and a fork."""
    run_days(world.airflow, 1, 2, 3)
    keep_savepoints(world, 2, 3)
    spoil(world, 3)
    restored(world, "day3")
    restored(world, "day2", fork="ladder_2")
    settle_everywhere(world.services, RESULTS)


WORLDS = {
    edited_and_lost: (
        ladder(),
        (
            "runs",
            "runs ladder",
            f"results {RUN}",
            f"results {RUN} --json",
            f"results {RUN} --stage joined --story",
            "results ladder@20130102T000000Z",
            "failovers",
            "failovers --json",
            f"failovers ladder {RUN.partition('@')[2]}",
            f"why joined[1] --run {RUN}",
            f"why totals[0] --run {RUN}",
            f"plan {RUN}",
            "code ladder",
            "code ladder --json",
            "gc ladder --full --dry-run --json",
            "verify ladder",
        ),
    ),
    checked: (
        gated(expectations("clean_rows")),
        (
            "runs",
            f"results {GATED} --json",
            "quality gated",
            "quality gated --json",
            "quality --violations --epochs 2",
            f"quality gated --expectation {NOT_NULL} --column k",
            f"quality --expectation {NOT_NULL} --violations --json",
            f"quality show {GATED}",
            f"why clean --run {GATED}",
            f"plan {GATED}",
        ),
    ),
    kept: (
        aircraft(states=(keyed_state("history", key="k", schema="k BIGINT, n BIGINT", runs=2),), keep="on_consumed"),
        (
            "runs",
            "checkpoints",
            "checkpoints ladder --json",
            "savepoint list",
            "savepoint list --json",
            "savepoint show ladder day2",
            "results ladder@20130103T000000Z --json",
            "restore ladder day2 --dry-run --json",
            "restore ladder day2 --as another --dry-run",
            "gc --full --dry-run --json",
            "code ladder",
            "verify ladder",
        ),
    ),
}


@pytest.mark.parametrize("lived", WORLDS, ids=lambda lived: lived.__name__)
def test_commands_answer_the_same_from_the_same_rows(lived, new_postgres_url, monkeypatch, tmp_path):
    flow, commands = WORLDS[lived]
    world = World(tmp_path, flow)
    lived(world)
    url = new_postgres_url()
    fill(Ledger.open(url), world.ledger)
    use(monkeypatch, tmp_path)
    differing = {}
    for words in commands:
        answers = []
        for ledger in (f"sqlite:///{tmp_path}/ledger.db", url):
            monkeypatch.setenv("WEIR_LEDGER", ledger)
            done = invoked(*words.split())
            answers.append((done.exit_code, LOOKED_AT.sub("", done.stdout)))
        assert answers[0][1], words
        if answers[0] != answers[1]:
            differing[words] = answers
    assert differing == {}
