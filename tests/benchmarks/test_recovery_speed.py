"""How fast it is decided what restarts and what may be released, on the shapes that Flink 2.3's classes were timed on.

    pytest tests/benchmarks/test_recovery_speed.py --benchmark-only -s

Flink's figures are medians of five after a warm-up, classes only, on a machine like this one with nothing else to do.
Ours are the fastest of many rounds: what else the machine does only ever adds. The table at the end is Markdown.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.conformance.flink.job_graph import JobEdge, JobGraph, JobVertex, PartitionType, Pattern, pipelined_regions
from tests.conformance.flink.region_release import RegionRelease
from tests.conformance.flink.restart_set import restart_set, tasks_to_restart

from weir.dataflow import Dataflow, Stage, blocking, sink, source
from weir.dataflow.dataflow import Consumers
from weir.errors import Fault, Loss
from weir.execution.partition_state import PartitionState
from weir.execution.run_state import AttemptState, CurrentResult, ReadResult, ReadSet, RegionState, RunState
from weir.recovery.rules.decision import Failure, NeedsProbe, decide
from weir.recovery.rules.plan import Plan, StepKind
from weir.topology.regions import RegionId, Topology

BLOCKING, PIPELINED = PartitionType.BLOCKING, PartitionType.PIPELINED
ROUNDS = 15


@pytest.fixture(scope="module")
def table() -> Iterator[list[tuple[str, str, float, float | None]]]:
    """Rows of shape, question, our ms and Flink's ms; printed when all are there."""
    rows: list[tuple[str, str, float, float | None]] = []
    yield rows
    print("\n\n| shape | question | Weir, ms | Flink 2.3, ms | Flink's / Weir's |\n|---|---|---|---|---|")
    for shape, question, ours, flinks in rows:
        compared = f"{flinks:g} | {flinks / ours:.1f}" if flinks else "| "
        print(f"| {shape} | {question} | {ours:.3g} | {compared} |")


@pytest.fixture
def measure(benchmark, table):
    def measured(shape, question, flinks, call, *, setup=None):
        answer = benchmark.pedantic(call, setup=setup, rounds=ROUNDS, warmup_rounds=1)
        ours = benchmark.stats.stats.min * 1000
        benchmark.extra_info.update(shape=shape, question=question, flink_ms=flinks)
        table.append((shape, question, ours, flinks))
        return answer

    return measured


def all_to_all(parallelism, kind=BLOCKING):
    edge = JobEdge("a", "b", Pattern.ALL_TO_ALL, kind)
    graph = JobGraph([JobVertex("a", parallelism), JobVertex("b", parallelism)], [edge])
    return graph, pipelined_regions(graph)


def pointwise():
    """Six stages of 10,000, two of which are a region each time: 60,000 vertices, 30,000 regions."""
    return JobGraph(
        [JobVertex(f"s{i}", 10_000) for i in range(6)],
        [
            JobEdge(f"s{i}", f"s{i + 1}", Pattern.POINTWISE, BLOCKING if i % 2 else PIPELINED)
            for i in range(5)
        ],
    )  # fmt: skip


@pytest.mark.parametrize(("parallelism", "flinks"), [(1_000, 1.7), (4_000, 6.9), (10_000, 6.4)])
def test_a_source_of_an_all_to_all_exchange_fails(measure, parallelism, flinks):
    graph, regions = all_to_all(parallelism)
    shape = f"{parallelism:,} x {parallelism:,} all-to-all, blocking"
    restarted = measure(shape, "a source fails", flinks, lambda: tasks_to_restart(graph, regions, 0))
    assert len(restarted) == parallelism + 1


def test_a_consumer_of_an_all_to_all_exchange_fails(measure):
    graph, regions = all_to_all(10_000)
    shape = "10,000 x 10,000 all-to-all, blocking"
    assert measure(shape, "a sink fails", 0.4, lambda: tasks_to_restart(graph, regions, 10_000)) == (10_000,)


def test_one_of_20_000_pipelined_tasks_fails(measure):
    graph, regions = all_to_all(10_000, PIPELINED)
    shape = "10,000 x 10,000 all-to-all, pipelined"
    assert len(measure(shape, "a source fails", 4.8, lambda: tasks_to_restart(graph, regions, 0))) == 20_000


def test_weirs_own_rule_for_consumers(measure):
    graph, regions = all_to_all(4_000)

    def decided():
        return restart_set(graph, regions, 0, consumers=Consumers.IF_CHANGED)

    found = measure("4,000 x 4,000 all-to-all, blocking", "a source fails; consumers if changed", None, decided)
    assert (len(found.restarted), len(found.if_changed)) == (1, 4_000)


def test_one_of_60_000_pointwise_tasks_fails(measure):
    graph = pointwise()
    regions = pipelined_regions(graph)
    shape = "6 x 10,000 pointwise, 30,000 regions"
    assert len(measure(shape, "a source fails", 0.06, lambda: tasks_to_restart(graph, regions, 0))) == 6


def test_the_regions_of_60_000_pointwise_tasks(measure):
    found = measure(
        "6 x 10,000 pointwise, 30,000 regions", "graph and regions built", 173, lambda: pipelined_regions(pointwise())
    )
    assert len(found.members) == 30_000


@pytest.mark.parametrize(("parallelism", "flinks"), [(1_000, 1.3), (4_000, 6.3), (10_000, 10.5)])
def test_all_partitions_of_an_all_to_all_exchange_are_released(measure, parallelism, flinks):
    graph, regions = all_to_all(parallelism)

    def released():
        view = RegionRelease(graph, regions)
        return [partition for vertex in range(graph.size) for partition in view.finished(vertex)]

    shape = f"{parallelism:,} x {parallelism:,} all-to-all, blocking"
    assert len(measure(shape, "all partitions released", flinks, released)) == parallelism


class RealRun:
    """A run of a dataflow of 1,000 subtasks a stage, each of which has read all of the stage before."""

    def __init__(self, **options: str) -> None:
        parallel = 1_000
        self.topology = Topology(
            Dataflow(
                "wide",
                [
                    source("a", "m:a", parallelism=parallel),
                    Stage("b", "m:b", [blocking("a", by="k")], parallelism=parallel),
                    Stage("c", "m:c", [blocking("b", by="k")], parallelism=parallel),
                    sink("c", "out"),
                ],
                max_parallelism=4_096,
                **options,
            )
        )
        self.failed = RegionId("c-out", 3)
        (read,) = self.topology.inputs(self.failed)
        self.partitions = read.partitions
        self.results = {}
        sets = {}
        for region in self.topology.region_ids():
            reads = tuple(
                sets.setdefault(each.partitions, ReadSet(tuple(ReadResult(p, "t1", "d") for p in each.partitions)))
                for each in self.topology.inputs(region)
            )
            for each in self.topology.outputs(region):
                self.results[each] = CurrentResult(
                    partition=each,
                    result=1,
                    attempt="t1",
                    try_number=1,
                    state=PartitionState.FINISHED,
                    folder="f",
                    manifest_sha256="sha",
                    digest="d",
                    rows=1,
                    bytes=1,
                    reads=reads,
                    versions=frozenset({"code"}),
                )
        self.regions = {
            region: RegionState(region=region, newest_try=1, newest_state=AttemptState.COMMITTED, ended_try=1)
            for region in self.topology.region_ids()
        }

    def state(self):
        """As a snapshot of the ledger gives it: nothing is derived yet."""
        return RunState(run="run", topology=self.topology, results=self.results, regions=self.regions)

    def decide(self, lost):
        """All rounds of the decision, each of which begins with a new snapshot; what is asked for is there."""
        losses = {
            each: Loss("run", each.stage, each.subtask, each.layout, "t1", Fault.MISSING, "gone") for each in lost
        }
        intact = frozenset()
        while isinstance(
            plan := decide(self.state(), Failure(failed=self.failed, losses=losses, intact=intact)), NeedsProbe
        ):
            intact |= plan.partitions
        return plan


@pytest.fixture(scope="module")
def real():
    return RealRun()


@pytest.mark.parametrize("lost", [1, 1_000])
def test_a_plan_for_a_run_of_3_000_regions(measure, real, lost):
    shape = "dataflow of 3 x 1,000 subtasks, each stage read by key"
    plan = measure(shape, f"{lost:,} lost: all rounds, plan", None, lambda: real.decide(real.partitions[:lost]))
    assert isinstance(plan, Plan)
    assert len(plan.of(StepKind.RERUN)) == lost


@pytest.mark.parametrize("strategy", ["always", "full"])
def test_a_plan_for_a_run_of_3_000_regions_by_flinks_rules(measure, strategy):
    run = RealRun(**{"always": {"consumers": "always"}, "full": {"failover": "full"}}[strategy])
    shape = "dataflow of 3 x 1,000 subtasks, each stage read by key"
    question = {"always": "1 lost, consumers always: plan", "full": "1 lost, failover full: plan"}[strategy]
    plan = measure(shape, question, None, lambda: run.decide(run.partitions[:1]))
    assert len(plan.of(StepKind.RERUN)) == {"always": 1_000, "full": 2_999}[strategy]


def test_what_is_valid_in_a_run_of_3_000_regions(measure, real):
    shape = "dataflow of 3 x 1,000 subtasks, each stage read by key"
    assert measure(shape, "which results are valid", None, lambda: real.state().is_valid(real.partitions[0]))


def test_who_is_at_work_for_a_partition_of_3_000_regions(measure, real):
    shape = "dataflow of 3 x 1,000 subtasks, each stage read by key"
    question = "whom a result waits for"
    assert measure(shape, question, None, lambda: real.state().awaited_for(real.partitions[0])) == frozenset()
