"""Replays recorded failures in a dataflow as it is declared, or might be, and adds up what they cost.

The engine that decides in production says what each failure restarts. Invariant: one model costs the dataflow as it is
declared and as it might be, so that two costs differ by the declarations only.

The model. All seconds are those of tasks, as in a plan: tasks that run side by side add up. An attempt takes a fixed
time and its share of the work of its stages, one stage after another. Work is measured by region: several stages in one
task, of which Spark makes one plan, have equal parts of it. A failure strikes at the second at which it was recorded,
and loses what the attempt has done since the last result from which it resumes. Results that are written now are part
of the work, and stay so where they would no longer be; a further one costs its bytes at the rate of all tasks, which
includes computing. So what is in doubt speaks for what is declared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf

from weir.dataflow.dataflow import Consumers, Dataflow, FailoverStrategy
from weir.dataflow.graph import reachable
from weir.dataflow.stage import ExchangeKind, Stage, StageKind
from weir.execution.partition_state import PartitionState
from weir.execution.run_state import RunState
from weir.recovery.rules.backtrack import Occasion
from weir.recovery.rules.committed_run import committed_run, decided
from weir.recovery.rules.plan import Plan, StepKind
from weir.topology.regions import RegionId, Topology

_WITHOUT_WORK = (StageKind.SINK, StageKind.STATE)


@dataclass(frozen=True, slots=True)
class Strike:
    """A recorded failure: its region, by the name and subtask that it has as declared, and how long the attempt ran.

    The region is None if no attempt failed: a loss was found before. `lost` are the regions whose results were lost.
    """

    region: RegionId | None
    seconds: float = 0.0
    lost: frozenset[RegionId] = frozenset()


@dataclass(frozen=True, slots=True)
class LateClear:
    """A region that a person has cleared after its run was closed, so many later runs and so many hours after that."""

    region: RegionId
    later_runs: int
    hours: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What the runs of a dataflow have cost that are closed and have the stages of the newest one.

    `seconds` are those of all subtasks of a region in a typical run, `bytes` those of a stage's result in one layout on
    average; `fixed` are the seconds of an attempt that do not depend on its rows, and `rate` the bytes that a task
    writes in a second (0: not known). `at_rest` are the bytes of intermediate results of a run in all layouts, `hours`
    those between two runs.
    """

    dataflow: Dataflow
    runs: int
    seconds: Mapping[str, float]
    fixed: float
    bytes: Mapping[str, float]
    rate: float
    strikes: tuple[Strike, ...] = ()
    late_clears: tuple[LateClear, ...] = ()
    at_rest: float = 0.0
    hours: float = 0.0


@dataclass(frozen=True, slots=True)
class Expected:
    """The seconds of all tasks of a run: without failures, and in addition because of them, on average."""

    work: float
    recovery: float

    @property
    def total(self) -> float:
        """Both together."""
        return self.work + self.recovery


class Replay:
    """Costs one dataflow after another by what was measured of the declared one."""

    def __init__(self, measured: Measured) -> None:
        self.measured = measured
        self.declared = Topology(measured.dataflow)
        self._strikes = Counter(measured.strikes)
        self.work = {stage: part for region in self.declared.regions for stage, part in self._parts(region.name)}
        """The seconds of work of each stage in a run, over all subtasks."""
        self.recoveries: dict[Hashable, float] = {}
        """What failures cost, by all that decides it: a change elsewhere in a dataflow replays none of them again."""

    def _parts(self, region: str) -> Iterator[tuple[str, float]]:
        stages = self.declared.stages_of(region)
        working = [each for each in stages if each.kind not in _WITHOUT_WORK]
        fixed = self.measured.fixed * self.declared.region(region).parallelism
        work = max(0.0, self.measured.seconds.get(region, 0.0) - fixed)
        return ((each.name, work / len(working) if each in working else 0.0) for each in stages)

    def expected(self, dataflow: Dataflow) -> Expected:
        """Return what a run of this dataflow is expected to take."""
        one = _Costs(self, dataflow)
        recovery = sum(count * one.recovery(each) for each, count in self._strikes.items())
        return Expected(one.work(), recovery / self.measured.runs)

    def seconds_of(self, stages: Iterable[str]) -> float:
        """Return the measured seconds of a run of the tasks that these stages are in, as declared."""
        regions = {self.declared.logical_region_of(each).name for each in stages}
        return sum(self.measured.seconds.get(each, 0.0) for each in regions)

    def recomputed(self, clear: LateClear) -> float:
        """Return the seconds of the regions that run again with a cleared one if the results of its run are deleted."""
        return _Costs(self, self.measured.dataflow).recomputed(clear.region)

    def place(self, strike: Strike) -> tuple[str, float]:
        """Return the stage that ran when an attempt failed, and the share of its work that was done."""
        assert strike.region is not None  # noqa: S101  asked of a strike at an attempt only
        stages = self.declared.stages_of(strike.region.name)
        parallelism = self.declared.region(strike.region.name).parallelism
        left = max(0.0, strike.seconds - self.measured.fixed)
        for stage in (each.name for each in stages if each.kind not in _WITHOUT_WORK):
            part = self.work[stage] / parallelism
            if left < part:
                return stage, left / part
            left -= part
        return stages[-1].name, 1.0

    def seconds_of_writing(self, stage: str) -> float:
        """Return how long it takes to write a stage's result; infinite if that is not known.

        A result that has never been written is taken to be as large as the largest that its task reads or writes.
        """
        known, rate = self.measured.bytes, self.measured.rate
        region = self.declared.logical_region_of(stage).stages
        read = {each.stage for name in region for each in self.measured.dataflow.stage(name).exchanges.values()}
        near = [known[each] for each in ([stage] if stage in known else {*region, *read}) if each in known]
        return max(near) / rate if near and rate else inf


class _Costs:
    """What one dataflow costs: its regions, and what failures restart in it."""

    def __init__(self, replay: Replay, dataflow: Dataflow) -> None:
        self._replay, self._dataflow = replay, dataflow
        self._topology = Topology(dataflow)
        self._fixed = replay.measured.fixed
        self._written = _written(dataflow)

    @cached_property
    def _state(self) -> RunState:
        return committed_run(self._topology)

    def work(self) -> float:
        """Return the seconds of a run without failures."""
        fixed = sum(region.parallelism for region in self._topology.regions) * self._fixed
        return fixed + sum(self._replay.work.values()) + self._further_bytes()

    def _further_bytes(self) -> float:
        """Return the seconds of writing what is not written as declared, without those of copies that are left out."""
        declared = self._replay.measured.dataflow
        copied, before = _copied_in(self._dataflow.stages), _copied_in(declared.stages)
        further = sum(map(self._replay.seconds_of_writing, self._written - _written(declared)))
        further += sum(map(self._replay.seconds_of_writing, copied - before))
        return further - sum(x for x in map(self._replay.seconds_of_writing, before - copied) if x < inf)

    def seconds(self, region: RegionId) -> float:
        """Return the seconds of one attempt of a region."""
        logical = self._topology.region(region.name)
        return self._fixed + sum(self._replay.work[each] for each in logical.stages) / logical.parallelism

    def recovery(self, strike: Strike) -> float:
        """Return the seconds that a failure costs: what its attempt loses, and the regions that restart with it."""
        place = None if strike.region is None else self._replay.place(strike)
        lost = tuple(
            (partition.stage, producer)
            for producer in sorted(strike.lost)
            for partition in self._replay.declared.outputs(producer)
        )
        known = self._replay.recoveries
        key = strike, self._around({stage for stage, _ in lost} | ({place[0]} if place else set()))
        if key not in known:
            known[key] = self._recovery(strike.region, place, lost)
        return known[key]

    def _around(self, stages: set[str]) -> Hashable:
        """Return all of the declaration that decides what a failure in these stages and a loss of them restart."""
        dataflow = self._dataflow
        if dataflow.consumers is not Consumers.IF_CHANGED or dataflow.failover_strategy is FailoverStrategy.FULL:
            return tuple((each.name, each.parallelism, tuple(each.exchanges.items())) for each in dataflow.stages)
        regions = {self._topology.logical_region_of(each) for each in stages}
        return tuple(
            (region, tuple((each.name, tuple(each.exchanges.items()), each.name in self._written) for each in found))
            for region in sorted(regions, key=lambda each: each.name)
            for found in (self._topology.stages_of(region.name),)
        )

    def _recovery(
        self, failed: RegionId | None, place: tuple[str, float] | None, lost: Iterable[tuple[str, RegionId]]
    ) -> float:
        region, seconds = None, 0.0
        if failed is not None and place is not None:
            region = self._counterpart(place[0], failed)
            seconds = self._lost(region, *place)
        gone = frozenset(self._counterpart(stage, producer) for stage, producer in lost) - {region}
        return seconds + sum(map(self.seconds, self._restarted(region, gone)))

    def _counterpart(self, stage: str, region: RegionId) -> RegionId:
        """Return the region that has a stage here, at the subtask with the same rows as one of the declared region."""
        here = self._topology.logical_region_of(stage)
        before = self._replay.declared.region(region.name).parallelism
        return RegionId(here.name, min(here.parallelism - 1, region.subtask * here.parallelism // before))

    def _lost(self, region: RegionId, stage: str, share: float) -> float:
        """Return the seconds that an attempt has lost that fails after this share of a stage."""
        stages = self._topology.stages_of(region.name)
        names = [each.name for each in stages]
        before = set(names[: names.index(stage)])
        for copied in _copied_in(stages) & before:
            before -= _upstream(copied, stages)
        done = sum(self._replay.work[each] for each in before) + share * self._replay.work[stage]
        return self._fixed + done / self._topology.region(region.name).parallelism

    def _restarted(self, failed: RegionId | None, lost: Iterable[RegionId]) -> tuple[RegionId, ...]:
        """Return the regions that restart with a failed one if results are lost, as the engine decides."""
        gone = [each for region in lost for each in self._topology.outputs(region)]
        occasion = Occasion.REPAIR if failed is None else Occasion.LOSS if gone else Occasion.FAILURE
        return self._rerun(decided(self._state, failed, gone, occasion))

    def recomputed(self, region: RegionId) -> float:
        """Return the seconds of what restarts with a region of a run whose results, but published ones, are deleted."""
        kept = {each.name for each in self._dataflow.stages if each.kind in _WITHOUT_WORK}
        results = {
            partition: result if partition.stage in kept else replace(result, state=PartitionState.RELEASED)
            for partition, result in self._state.results.items()
        }
        plan = decided(replace(self._state, results=results), region, (), Occasion.LOSS)
        return sum(map(self.seconds, self._rerun(plan)))

    def _rerun(self, plan: Plan) -> tuple[RegionId, ...]:
        return tuple(each.region for each in plan.of(StepKind.RERUN) if self._topology.knows(each.region))


def _written(dataflow: Dataflow) -> set[str]:
    """Return the stages whose results are read by other tasks."""
    return {each.stage for stage in dataflow.stages for each in stage.exchanges.values() if each.is_of_results}


def _copied_in(stages: Iterable[Stage]) -> set[str]:
    """Return the stages of which a copy is written, from which a retry resumes."""
    return {
        each.stage
        for stage in stages
        for each in stage.exchanges.values()
        if each.kind is ExchangeKind.CACHED and each.durable
    }


def _upstream(stage: str, stages: Iterable[Stage]) -> set[str]:
    """Return a stage and those of the same task that it is computed from."""
    read = {each.name: {i.stage for i in each.exchanges.values() if i.joins_plan} for each in stages}
    return set(reachable([stage], lambda name: read.get(name, ())))
