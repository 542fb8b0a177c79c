"""The experiment of Flink's "fine-grained recovery of bounded data sets" (January 2021), with a clock that is fake.

A job like TPC-H's query 3 runs on four workers with two slots each; without failures it takes fifteen minutes. At
exponentially distributed intervals a slot is struck and the task in it fails, or a worker is killed with both of its
tasks. What restarts is asked of Weir's own core, as is when. A task that restarts begins anew.

There slots were struck that had a task in them, here any: an idle one comes to no harm.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from tests.conformance.flink.job_graph import JobEdge, JobGraph, JobVertex, PartitionType, Pattern, pipelined_regions
from tests.conformance.flink.restart_set import JobPartition, restart_set

from weir.dataflow.dataflow import Consumers, FailoverStrategy
from weir.restarts.strategy import ExponentialDelay, seeded_jitter

WORKERS, SLOTS_EACH = 4, 2
SLOTS = WORKERS * SLOTS_EACH
MINUTES = {"customer": 1, "orders": 3, "lineitem": 4, "customer_orders": 3, "items": 3, "revenue": 1}
"""How long each stage takes on all slots: fifteen minutes together."""
CLEAN = 60.0 * sum(MINUTES.values())
NEVER = 12 * 3600.0
"""Seconds after which a run is given up."""

UNLIMITED = ExponentialDelay(jitter_factor=0)
"""Flink's default: 1 s, growing to a minute; for ever."""


class Fault(Enum):
    """What happens at exponentially distributed intervals."""

    TASK = "a task fails"
    WORKER = "a worker is killed"


class Results(Enum):
    """Where the results of tasks are."""

    ON_WORKER = "on the worker"
    """Lost with it, as in Flink without a remote shuffle."""
    IN_STORE = "in the store"
    """As in Weir."""


@dataclass(frozen=True)
class Setup:
    """What is compared."""

    name: str
    exchanges: PartitionType
    strategy: FailoverStrategy = FailoverStrategy.REGION
    consumers: Consumers = Consumers.IF_CHANGED
    results: Results = Results.IN_STORE


FULL = Setup("pipelined, full", PartitionType.PIPELINED, FailoverStrategy.FULL)
REGION = Setup("blocking, region", PartitionType.BLOCKING)
FLINK = Setup(
    "consumers always, results on the worker",
    PartitionType.BLOCKING,
    consumers=Consumers.ALWAYS,
    results=Results.ON_WORKER,
)
ON_DEMAND = Setup("consumers if changed, results on the worker", PartitionType.BLOCKING, results=Results.ON_WORKER)


@dataclass(frozen=True)
class Outcome:
    """Seconds until the job was done (none: given up), failures, and seconds of slots that were spent on work."""

    seconds: float | None
    failures: int
    worked: float


def query3(exchanges: PartitionType) -> JobGraph:
    reads = {"customer_orders": ("customer", "orders"), "items": ("customer_orders", "lineitem"), "revenue": ("items",)}
    return JobGraph(
        [JobVertex(stage, SLOTS) for stage in MINUTES],
        [
            JobEdge(producer, consumer, Pattern.ALL_TO_ALL, exchanges)
            for consumer, producers in reads.items()
            for producer in producers
        ],
    )


class Cluster:
    """One run of the job: regions wait for their inputs and for slots, run, fail and run again."""

    def __init__(self, setup: Setup, fault: Fault, mean_seconds: float | None, seed: int) -> None:
        self.setup, self.fault, self.mean = setup, fault, mean_seconds
        self.random = random.Random(f"{seed} {mean_seconds}")
        self.graph = query3(setup.exchanges)
        self.regions = pipelined_regions(self.graph)
        self.now = self.worked = 0.0
        self.failed_at: dict[int, list[int]] = {}
        self.finished: set[int] = set()
        self.running: dict[int, tuple[float, float, list[int]]] = {}
        """By region: when it began, when it will have ended, and its slots."""
        self.not_before: dict[int, float] = {}
        self.worker_of: dict[int, int] = {}
        self.missing: set[JobPartition] = set()
        self.inputs = [frozenset(self._inputs(region)) for region in range(len(self.regions.members))]

    def run(self) -> Outcome:
        failures, next_failure = 0, self._interval()
        while len(self.finished) < len(self.regions.members):
            self._start_what_can()
            ends = [end for _, end, _ in self.running.values()]
            waits = [at for region, at in self.not_before.items() if at > self.now and region not in self.running]
            self.now = min([*ends, *waits, next_failure])
            if self.now >= NEVER:
                return Outcome(None, failures, self.worked)
            self._end_what_has()
            if self.now == next_failure:
                failures += self._strike()
                next_failure = self.now + self._interval()
        return Outcome(self.now, failures, self.worked)

    def _interval(self) -> float:
        return self.random.expovariate(1 / self.mean) if self.mean else float("inf")

    # Running

    def _inputs(self, region: int) -> Iterator[tuple[JobPartition, int]]:
        """What a region reads of others: each partition and the region that makes it."""
        for place, wiring in enumerate(self.graph.exchanges):
            if not any(self.regions.of[vertex] == region for vertex in wiring.consumers):
                continue
            for subtask, vertex in enumerate(wiring.producers):
                if self.regions.of[vertex] != region:
                    yield JobPartition(place, subtask), self.regions.of[vertex]

    def _start_what_can(self) -> None:
        for region in range(len(self.regions.members)):
            if region in self.finished or region in self.running or self.not_before.get(region, 0) > self.now:
                continue
            if any(producer not in self.finished for _, producer in self.inputs[region]):
                continue
            if any(partition in self.missing for partition, _ in self.inputs[region]):
                self._restart(region, self.regions.members[region][0], self.now)
                return self._start_what_can()
            self._start(region)
        return None

    def _start(self, region: int) -> None:
        members = self.regions.members[region]
        needed = max(sum(1 for v in members if v in stage) for stage in self.graph.subtasks.values())
        taken = {slot for _, _, slots in self.running.values() for slot in slots}
        free = [slot for slot in range(SLOTS) if slot not in taken]
        if len(free) < needed:
            return
        slots = free[:needed]
        work = sum(60 * minutes for name, minutes in MINUTES.items() for v in members if v in self.graph.subtasks[name])
        self.running[region] = (self.now, self.now + work / needed, slots)
        for place, vertex in enumerate(members):
            self.worker_of[vertex] = slots[place % needed] // SLOTS_EACH

    def _end_what_has(self) -> None:
        for region, (_, end, _) in list(self.running.items()):
            if end <= self.now:
                self._stop(region)
                self.finished.add(region)
                self.missing -= {each for vertex in self.regions.members[region] for each in self._outputs(vertex)}

    def _stop(self, region: int) -> None:
        begun, _, slots = self.running.pop(region)
        self.worked += (self.now - begun) * len(slots)

    def _outputs(self, vertex: int) -> Iterator[JobPartition]:
        for place, wiring in enumerate(self.graph.exchanges):
            if vertex in wiring.producers:
                yield JobPartition(place, vertex - wiring.producers.start)

    # Failing

    def _strike(self) -> int:
        if self.fault is Fault.TASK:
            slot = self.random.randrange(SLOTS)
            struck = [region for region, (_, _, slots) in self.running.items() if slot in slots]
            for region in struck:
                self._fail(region, self.random.choice(self.regions.members[region]))
            return len(struck)
        worker = self.random.randrange(WORKERS)
        if self.setup.results is Results.ON_WORKER:
            made = [vertex for region in self.finished for vertex in self.regions.members[region]]
            lost = [vertex for vertex in made if self.worker_of[vertex] == worker]
            self.missing.update(each for vertex in lost for each in self._outputs(vertex))
        for region in sorted(self.running):
            struck_ones = [v for v in self.regions.members[region] if self.worker_of[v] == worker]
            if struck_ones and region in self.running:
                self._fail(region, struck_ones[0])
        return 1

    def _fail(self, region: int, vertex: int) -> None:
        history = self.failed_at.setdefault(vertex, [])
        history.append(int(self.now * 1000))
        *_, newest = UNLIMITED.decisions(history, seeded_jitter(""))
        self._restart(region, vertex, self.now + newest.backoff_ms / 1000)

    def _restart(self, region: int, vertex: int, restart_at: float) -> None:
        decided = restart_set(
            self.graph,
            self.regions,
            vertex,
            consumers=self.setup.consumers,
            strategy=self.setup.strategy,
            missing=frozenset(self.missing),
        )
        for again in {self.regions.of[each] for each in decided.restarted}:
            if again in self.running:
                self._stop(again)
            elif again not in self.finished and again != region:
                continue
            self.finished.discard(again)
            self.not_before[again] = restart_at


def minutes(setup: Setup, fault: Fault, mean_minutes: float | None, seeds: range) -> list[float | None]:
    """Minutes of each run until it was done; none where it was given up."""
    mean = mean_minutes and mean_minutes * 60
    found = [Cluster(setup, fault, mean, seed).run().seconds for seed in seeds]
    return [None if seconds is None else seconds / 60 for seconds in found]
