"""The topologies of FLIP-1's figures restart the tasks that docs/scenarios.md says, as planned and as carried out."""

import json
import re
from collections import Counter
from functools import partial

import pytest
from tests.conformance.flink.job_graph import JobEdge, JobGraph, JobVertex, PartitionType, Pattern, pipelined_regions
from tests.conformance.flink.restart_set import tasks_to_restart
from tests.messages.kinds import of_kind
from tests.weir.cli.test_guides import DOCS
from tests.weir.command_line import typed, use
from tests.weir.small_dataflow import World

from weir.dataflow import Dataflow, Stage, blocking, cached, pipelined, sink, source
from weir.errors import Misconfigured
from weir.recovery.rules.plan import Plan, StepKind


def stage(name, *inputs, parallelism=2):
    return Stage(name, f"pipelines.flip1:{name}", list(inputs), parallelism=parallelism)


def flow(*stages, **more):
    """A dataflow that publishes its last stage."""
    return Dataflow("flip1", [*stages, sink(stages[-1].name, "out")], **more)


A, B = source("a", "pipelines.flip1:a", parallelism=2), stage("b", pipelined("a"))
TWO_REGIONS = (A, B, stage("c", blocking("b", by="k")), stage("d", pipelined("c")))
IN_ONE_TASK = {"parallelism": 1}


def chain(exchange):
    return (
        source("a", "pipelines.flip1:a"),
        stage("b", exchange("a"), **IN_ONE_TASK),
        stage("c", exchange("b"), **IN_ONE_TASK),
    )


FLOWS = {
    "pipelines": flow(A, B, stage("c", pipelined("b"))),
    "regions": flow(*TWO_REGIONS),
    "regions, always": flow(*TWO_REGIONS, consumers="always"),
    "regions, full": flow(*TWO_REGIONS, failover="full"),
    "chain": flow(*chain(blocking)),
}


def rows_of(title):
    """The rows of the table below a heading of the page, each as the names in its cells."""
    section = (DOCS / "scenarios.md").read_text().partition(f"\n### {title}\n")[2].partition("\n##")[0]
    rows = [line.split("|")[1:-1] for line in section.splitlines() if line.startswith("| `")]
    return [[re.findall(r"`(.+?)`", cell) for cell in row] for row in rows]


class Scene:
    """A run of a dataflow, and what has been executed of it."""

    def __init__(self, folder, flow):
        self.world = World(folder, flow)
        self.airflow = self.world.airflow
        self.run = self.airflow.dag_run()

    def fail_once(self, task, lost):
        """Let a task fail in the middle of its first try, by when results are lost; plan that before."""
        planned = []

        def fail(key):
            if f"{key.task_id}[{max(key.map_index, 0)}]" == task and not planned:
                planned.append(self.planned(task, lost))
                self.lose(lost)
                raise RuntimeError("boom")

        self.airflow.during = fail
        self.airflow.run_until_quiet()
        assert set(self.airflow.states().values()) == {"success"}
        return planned[0]

    def lose(self, lost):
        for each in lost:
            name, _, subtask = each.rstrip("]").partition("[")
            self.world.lose(name, int(subtask))

    def planned(self, task, lost):
        """What `weir plan` says would run again: the task itself, and the others."""
        words = [word for each in lost for word in ("--lost", each)]
        plan = Plan.from_json(json.loads(typed("plan", "flip1@20130101T000000Z", "--fail", task, *words, "--json")))
        return {str(plan.failed), *(str(step.region) for step in plan.of(StepKind.RERUN))}

    def executed(self):
        return Counter(self.airflow.executed(self.run))


@pytest.fixture
def scene(tmp_path, monkeypatch):
    use(monkeypatch, tmp_path)
    return lambda name: Scene(tmp_path, FLOWS[name])


@pytest.mark.parametrize(("of", "fails", "lost", "restarts"), rows_of("A task fails"), ids=str)
def test_a_task_that_fails_restarts_what_the_page_says(scene, of, fails, lost, restarts):
    found = scene(of[0])
    planned = found.fail_once(fails[0], lost)
    assert planned == set(restarts)
    assert {task for task, tries in found.executed().items() if tries > 1} == set(restarts)


@pytest.mark.parametrize(
    ("of", "cleared", "lost", "changes", "restarts"), rows_of("A finished task runs again"), ids=str
)
def test_a_finished_task_that_runs_again_restarts_what_the_page_says(scene, of, cleared, lost, changes, restarts):
    found = scene(of[0])
    found.airflow.run_until_quiet()
    before = found.executed()
    found.lose(lost)
    found.world.content.update(dict.fromkeys(changes, "other rows"))
    task, _, index = cleared[0].rstrip("]").partition("[")
    found.airflow.clear_by_hand(found.run, task, int(index))
    found.airflow.run_until_quiet()
    assert set(found.airflow.states().values()) == {"success"}
    assert set(found.executed() - before) - {"weir_close[0]"} == set(restarts)


def test_a_pipelined_exchange_between_all_subtasks_makes_one_region_and_is_refused():
    graph = JobGraph(
        [JobVertex("a", 2), JobVertex("b", 3)], [JobEdge("a", "b", Pattern.ALL_TO_ALL, PartitionType.PIPELINED)]
    )
    assert len(tasks_to_restart(graph, pipelined_regions(graph), 0)) == 5
    with pytest.raises(Misconfigured, check=of_kind("dataflow.parallelism_differs")):
        flow(A, stage("b", pipelined("a"), parallelism=3))


EXCHANGES = {"pipelined": pipelined, "cached": cached, "cached, durable=False": partial(cached, durable=False)}


@pytest.mark.parametrize(("exchange", "again"), rows_of("What the next try of a task computes"), ids=str)
def test_the_next_try_goes_on_from_the_newest_result_in_the_store(tmp_path, exchange, again):
    found = Scene(tmp_path, flow(*chain(EXCHANGES[exchange[0]])))

    first = []

    def fail(_key):
        if not first:
            first.extend(found.airflow.engine.computed)
            raise RuntimeError("boom")

    found.airflow.during = fail
    found.airflow.run_until_quiet()
    assert found.executed() == {"a-b-c-out[0]": 2, "weir_close[0]": 1}
    assert first == ["a", "b", "c", "out"]
    assert found.airflow.engine.computed[len(first) :] == again
