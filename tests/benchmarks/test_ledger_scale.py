"""What each step costs in the ledger, by what lies behind it: `--benchmark-only -s`; a table for docs/measurements.md.

Cost is counted (statements, rows fetched, steps of SQLite) and timed (median and worst milliseconds of a machine that
does nothing else).
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from statistics import median
from typing import Any

import pytest
from sqlalchemy.orm import Session
from tests.builders.ledgers import fast_folder
from tests.weir.counting import counting
from tests.weir.earlier_runs import RELEASED, STORED, enter_earlier
from tests.weir.small_dataflow import World

from weir.attempts.coordinator import Coordinator
from weir.dataflow import Dataflow, Stage, blocking, previous, sink, source
from weir.ledger.housekeeping import note_done
from weir.ledger.ledger import Ledger
from weir.recovery.questions import Question, ask
from weir.recovery.standing import Asked
from weir.retention.sweep import DAILY
from weir.settling import Settling
from weir.topology.ids import RunId
from weir.upkeep import RESULTS, scrub_everywhere, settle_everywhere, sweep_everywhere
from weir.views.dataflows import dataflow_details, dataflow_overviews
from weir.views.documents import document
from weir.views.drawings import drawing_of, svg_of
from weir.views.runs import RunDetails, run_details, run_overviews
from weir.views.tasks import events_of, task_history

STEPS = {
    "begin": Coordinator,
    "heartbeat": Coordinator,
    "commit": Coordinator,
    "settle": Settling,
    "close": Coordinator,
}
TIMES = 5
FIRST, THIRD = RunId("wide@20130101T000000Z"), RunId("wide@20130103T000000Z")

HISTORIES = {
    "100 results in 1 run": (34, 1, RELEASED, 0),
    "10,000 in 100 runs": (34, 100, RELEASED, 0),
    "100,000 in 1,000 runs": (34, 1000, RELEASED, 0),
    "100,000, all stored": (34, 1000, STORED, 0),
    "90,000 in 300 runs": (100, 300, RELEASED, 0),
    "90,000 in 300 dataflows": (100, 1, RELEASED, 300),
}
"""Subtasks a stage, earlier runs, what became of these, other dataflows."""


def wide(subtasks: int, keep: str) -> Dataflow:
    """Three stages with an exchange of all to all between them; the second reads itself in the epoch before."""
    read = blocking("read", by="k")
    before = previous("totals", by="k", schema="k BIGINT")
    return Dataflow(
        "wide",
        [
            source("read", "pipelines.ladder:raw", parallelism=subtasks),
            Stage("totals", "pipelines.ladder:totals", {"read": read, "before": before}, parallelism=subtasks),
            Stage("routes", "pipelines.ladder:routes", [blocking("totals", by="k")], parallelism=subtasks - 1),
            sink("routes", "delays"),
        ],
        keep=keep,
    )


def square(subtasks: int) -> Dataflow:
    """Two stages with an exchange of all to all; the consumers read the producers of the epoch before, too."""
    reads = {"read": blocking("read", by="k"), "before": previous("read", by="k", schema="k BIGINT")}
    return Dataflow(
        "wide",
        [
            source("read", "pipelines.ladder:raw", parallelism=subtasks),
            Stage("totals", "pipelines.ladder:totals", reads, parallelism=subtasks),
            sink("totals", "delays"),
        ],
        max_parallelism=512,
    )


class Measured:
    """What calls cost, by name: statements, rows, steps, milliseconds."""

    def __init__(self) -> None:
        self.found: dict[str, list[tuple[float, ...]]] = defaultdict(list)

    def of(self, name: str, call: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        with counting() as counted:
            try:
                return call()
            finally:
                spent = (time.perf_counter() - start) * 1000
                self.found[name].append((*counted.total(), spent))

    def of_steps(self, patch: pytest.MonkeyPatch) -> None:
        """Measure the steps of all attempts from now on."""
        for name, owner in STEPS.items():
            patch.setattr(owner, name, self._measuring(name, getattr(owner, name)))

    def _measuring(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **named: self.of(name, lambda: call(*args, **named))

    def first_and_last(self) -> None:
        """Keep of several calls the first and the last."""
        for name in [each for each in self.found if each in STEPS]:
            calls = self.found.pop(name)
            self.found[f"{name}, first"] = calls[:1]
            if len(calls) > 1:
                self.found[f"{name}, last"] = calls[-1:]

    def rows(self, what: str) -> list[str]:
        """Lines of a table."""
        lines = []
        for name, calls in self.found.items():
            counts = [f"{median(each):,.0f}" for each in list(zip(*calls, strict=True))[:3]]
            spent = sorted(call[3] for call in calls)
            lines.append(f"| {what} | {name} | {' | '.join(counts)} | {median(spent):,.0f} | {spent[-1]:,.0f} |")
        self.found.clear()
        return lines


HEAD = "| behind | step | statements | rows | steps of SQLite / 10 | ms | at most |\n|---|---|---|---|---|---|---|"


@pytest.fixture(params=["sqlite", "postgresql"])
def new_world(request: pytest.FixtureRequest) -> Iterator[Callable[[Dataflow], World]]:
    empty = None
    if request.param == "postgresql":
        new_url = request.getfixturevalue("new_postgres_url")

        def empty() -> Ledger:
            return Ledger.open(new_url())

    with fast_folder() as folder:
        worlds: list[World] = []

        def made(flow: Dataflow) -> World:
            worlds.append(World(folder / str(len(worlds)), flow, empty))
            return worlds[-1]

        yield made
        for each in worlds:
            with closing(each.ledger):
                pass


def a_day(world: World, day: int) -> None:
    """Let all tasks of a day run, producers first; each takes a heartbeat."""
    airflow = world.airflow
    airflow.during = lambda key: None if key.task_id == "weir_close" else airflow.heartbeat(key)
    run_id = airflow.dag_run(day)
    order = {"read": 0, "totals": 1, "totals-delays": 1, "routes-delays": 2, "weir_close": 3}
    for task in sorted(
        (each for key, each in airflow.tasks.items() if key.run_id == run_id),
        key=lambda task: (order[task.key.task_id], task.key.map_index),
    ):
        airflow.step(task)
        assert task.state == "success", (task.key, task.failed_because, task.waits_on)


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("history", HISTORIES)
def test_what_a_step_costs_behind_earlier_results(new_world, history, benchmark, monkeypatch) -> None:
    subtasks, runs, kind, others = HISTORIES[history]
    world = new_world(wide(subtasks, "2 runs" if kind == RELEASED else "5000 runs"))
    for day in (1, 2, 3):  # the sizes in the first decide on the layouts of the second, which the third reads
        a_day(world, day)
    enter_earlier(world.ledger, THIRD, runs, kind)
    for number in range(others):
        enter_earlier(world.ledger, THIRD, 1, kind, dataflow=f"other{number}")
    measured = Measured()
    measured.of_steps(monkeypatch)
    benchmark.pedantic(a_day, args=(world, 4), rounds=1)
    lines = measured.rows(history)
    for _ in range(TIMES):
        measure_questions(world, measured)
    measured.of("upkeep: release", lambda: settle_everywhere(world.services, RESULTS).require_whole())
    measured.of("upkeep: sweep of recent runs", lambda: sweep_of_recent(world))
    measured.of("upkeep: scrub", lambda: scrub_everywhere(world.services, world.airflow))
    print("", HEAD, *lines, *measured.rows(history), sep="\n")


def sweep_of_recent(world: World) -> None:
    """As each hour: of all folders it is done once a day, and here it was."""
    with world.ledger.transaction("wide") as session:
        note_done(session, DAILY, "wide", world.airflow.time)
    sweep_everywhere(world.services, world.airflow)


def measure_questions(world: World, measured: Measured) -> None:
    def read(question: Callable[..., object]) -> object:
        with world.ledger.transaction() as session:
            return question(session)

    def why(session: Session) -> object:
        return [events_of(session, each) for each in task_history(session, newest, "read[0]")]

    newest = "wide@20130104T000000Z"
    measured.of("weir plan", lambda: ask(world.services, Question(newest)))
    measured.of("weir plan --fail", lambda: ask(world.services, Question(newest, fail="totals[0]")))
    measured.of("weir why", lambda: read(why))
    measured.of("weir runs", lambda: read(lambda session: run_overviews(session, "wide", 30)))
    reach = lambda: nullcontext(Asked(airflow=None))  # noqa: E731  the fake Airflow takes longer than all the rest
    measured.of("page of a run", lambda: shown(run_details(world.services, Question(newest, looks=False), reach)))
    measured.of("page of a dataflow", lambda: document(dataflow=dataflow_details(world.services, "wide", reach)))
    measured.of("page of all dataflows", lambda: document(dataflows=dataflow_overviews(world.services, reach)))


def shown(details: RunDetails) -> object:
    """Make what a page shows of a run: its document and its drawing."""
    assert details.graph is not None
    return document(run=details), svg_of(drawing_of(details.graph))


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("subtasks", [100, 500])
def test_what_a_step_costs_in_an_exchange_of_all_to_all(new_world, subtasks, benchmark, monkeypatch) -> None:
    world = new_world(square(subtasks))
    airflow = world.airflow
    airflow.collects = False  # the first run stays complete
    measured, lines = Measured(), []

    def told(what: str) -> None:
        measured.first_and_last()
        lines.extend(measured.rows(f"{subtasks} x {subtasks}: {what}"))

    def stage(day: int, task_id: str, *subtasks: int) -> None:
        for task in sorted(airflow.tasks.values(), key=lambda task: task.key.map_index):
            key = task.key
            if (key.run_id[-2:], key.task_id) != (f"{day:02d}", task_id) or task.state == "success":
                continue
            if not subtasks or key.map_index in subtasks:
                airflow.step(task)
                assert task.state == "success", (key, task.failed_because, task.waits_on)

    airflow.during = lambda key: None if key.task_id == "weir_close" else airflow.heartbeat(key)
    measured.of_steps(monkeypatch)
    runs = [airflow.dag_run(1), airflow.dag_run(2)]
    for day in (1, 2):
        for task_id, what in (("read", "producers"), ("totals-delays", "consumers"), ("weir_close", "close")):
            stage(day, task_id)
            told(f"{what} of day {day}")
    for _ in range(TIMES):
        measured.of("weir plan --lost", lambda: ask(world.services, Question(FIRST, lost=("read[0]",))))
    told("a loss of one partition of day 1")
    world.content["read"] = "other"
    airflow.clear_by_hand(runs[0], "read", 0)
    stage(1, "read")
    told("one producer of day 1 again, changed")
    for subtask in range(1, 10):
        airflow.clear_by_hand(runs[0], "read", subtask)
    stage(1, "read")
    told("nine more")
    stage(1, "totals-delays", 0)
    told("a consumer of day 1 again")
    measured.of("upkeep: release", lambda: settle_everywhere(world.services, RESULTS).require_whole())
    lines.extend(measured.rows(f"{subtasks} x {subtasks}"))
    benchmark.pedantic(ask, args=(world.services, Question(FIRST, lost=("read[0]",))), rounds=1)
    print("", HEAD, *lines, sep="\n")
