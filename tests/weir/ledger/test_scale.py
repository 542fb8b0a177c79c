"""What a step costs in the ledger does not grow with what lies behind it; counted, not timed."""

import re
from collections import Counter
from dataclasses import replace
from datetime import timedelta

import pytest
from tests.weir.counting import counting
from tests.weir.earlier_runs import RELEASED, STORED, enter_earlier
from tests.weir.small_dataflow import World

from weir.dataflow import Dataflow, Stage, blocking, previous, sink, source
from weir.dataflow.retention_settings import RetentionSettings
from weir.ledger import reads
from weir.ledger.housekeeping import note_done
from weir.recovery.questions import Question, ask
from weir.retention.sweep import DAILY
from weir.upkeep import RESULTS, settle_everywhere, sweep_everywhere

FEW, MORE = 25, 500
"""Earlier runs; what an attempt writes is estimated by the newest twenty."""

RUN, LATER = "square@20130101T000000Z", "square@20130103T000000Z"

GROWING = ("SELECT run.epoch FROM run WHERE run.dataflow",)
"""Upkeep compares the epochs in the store with all in the ledger: a row of an index each."""


def square(subtasks, **more):
    """All consumers read all producers, of this epoch and of the one before."""
    reads = {"read": blocking("read", by="k"), "before": previous("read", by="k", schema="k BIGINT")}
    stages = [
        source("read", "pipelines.ladder:raw", parallelism=subtasks),
        Stage("totals", "pipelines.ladder:totals", reads, parallelism=subtasks),
        sink("totals", "delays"),
    ]
    return Dataflow("square", stages, **more)


def normal(counts):
    """Counts by statement, whatever the number of values in its lists."""
    found = Counter()
    for statement, count in counts.items():
        found[re.sub(r"\(\?(, \?)*\)", "(...)", " ".join(statement.split()))] += count
    return found


def differing(few, more, allowed=lambda before: before):
    """The statements of which more is counted than `allowed`."""
    before, after = normal(few), normal(more)
    return {
        text: (before[text], count)
        for text, count in after.items()
        if count > allowed(before[text]) and not text.startswith(GROWING)
    }


def day_and_upkeep(world, day):
    """Let a day run, with a heartbeat a task, and all upkeep of every hour after it; return what each costs."""
    airflow = world.airflow
    airflow.during = lambda key: None if key.task_id == "weir_close" else airflow.heartbeat(key)
    airflow.time += timedelta(days=10)
    with world.ledger.transaction("square") as session:
        note_done(session, DAILY, "square", airflow.time)
    with counting() as counted:
        airflow.dag_run(day)
        airflow.run_until_quiet()
    with counting() as upkeep:
        settle_everywhere(world.services, RESULTS).require_whole()
        sweep_everywhere(world.services, airflow).require_whole()
    assert airflow.state_of(f"scheduled__2013-01-{day:02d}") == "success"
    return counted, upkeep


@pytest.mark.parametrize(("kind", "keep"), [(RELEASED, "2 runs"), (STORED, "1000 runs")])
def test_a_day_and_upkeep_cost_the_same_behind_hundreds_and_thousands_of_results(tmp_path, kind, keep):
    world = World(tmp_path, square(3, keep=keep))
    world.services = replace(world.services, retention=RetentionSettings(expire_runs=None))
    for day in (1, 2, 3, 4):
        day_and_upkeep(world, day)
    enter_earlier(world.ledger, LATER, FEW, kind)
    few = day_and_upkeep(world, 5)
    enter_earlier(world.ledger, LATER, MORE, kind)
    more = day_and_upkeep(world, 6)
    for one, other in zip(few, more, strict=True):
        assert differing(one.statements, other.statements) == {}
        assert differing(one.rows, other.rows) == {}
    if kind == RELEASED:  # the close of a run looks through an index of those that a policy retains
        assert differing(few[0].steps, more[0].steps, lambda before: 1.1 * before + 10) == {}


def made_again(folder, subtasks):
    """What it costs to make a producer again that all consumers have read, of its run and the next; and to plan it."""
    world = World(folder, square(subtasks))
    airflow = world.airflow
    for day in (1, 2):
        airflow.dag_run(day)
        airflow.run_until_quiet()
    with counting() as planned:
        ask(world.services, Question(RUN, lost=("read[0]",)))
    world.content["read"] = "other"
    airflow.clear_by_hand("scheduled__2013-01-01", "read", 0)
    with counting() as done:
        airflow.step(airflow.task("scheduled__2013-01-01", "read", 0))
    cleared = [key for key, task in airflow.tasks.items() if task.state is None]
    assert len(cleared) == 2 * subtasks
    world.ledger.close()
    return planned, done


def test_a_producer_with_later_readers_is_made_again_by_as_many_statements_as_one_with_few(tmp_path, monkeypatch):
    monkeypatch.setattr(reads, "_known_members", {})  # what other tests have read is forgotten at some time
    few, more = (made_again(tmp_path / str(subtasks), subtasks) for subtasks in (3, 9))
    for one, other in zip(few, more, strict=True):
        assert differing(one.rows, other.rows, lambda before: 3 * before) == {}
        assert differing(one.statements, other.statements) == {}
