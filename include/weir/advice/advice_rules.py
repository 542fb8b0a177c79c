"""Advises on exchanges, parallelism and retention: what would have cost less in the runs that were measured.

Invariant: what is advised costs less than what is declared in the same replay, as a whole and with each change; and it
can be declared: it is a valid dataflow whose stages compute the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta

from weir.advice.replay_rules import Expected, LateClear, Measured, Replay
from weir.dataflow.dataflow import Dataflow
from weir.dataflow.retention import RetainUntil, RetentionPolicy
from weir.dataflow.stage import Exchange, ExchangeKind, Stage, StageKind, blocking, cached, pipelined
from weir.errors import Misconfigured
from weir.topology.regions import Topology

LEAST_SAVING = 0.05
"""The share of the seconds of its tasks that a change has to save: measured seconds vary by as much."""

LEAST_CLEARS = 3
"""The number of late clears from which on a shorter retention is advised: that nobody has cleared proves little."""

_NOTHING = 1e-6
"""In seconds: a difference of sums of floating-point numbers."""

_FIXED = (StageKind.SINK, StageKind.STATE)
_RETENTION = tuple(map(RetentionPolicy.from_text, ("end_of_run", "1 run", "2 runs", "3 runs", "5 runs", "7 runs")))


@dataclass(frozen=True, slots=True)
class Change:
    """One change of the declaration, and the seconds of a run that it saves; `bytes` is what it deletes earlier."""

    what: str
    declared: str
    advised: str
    seconds: float
    bytes: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The changes to make, none where what is declared is best, and the cost of a run before and after them."""

    dataflow: str
    runs: int
    failures: int
    late_clears: int
    changes: tuple[Change, ...]
    before: Expected
    after: Expected
    advised: Dataflow


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A dataflow that differs from another one in one place."""

    what: str
    declared: str
    advised: str
    stages: tuple[Stage, ...]
    touched: frozenset[str]
    """The stages whose tasks it changes."""

    def of(self, dataflow: Dataflow) -> Dataflow | None:
        """Return the dataflow with this change of its stages; None where it is not valid."""
        changed = {each.name: each for each in self.stages}
        try:
            return replace(dataflow, stages=[changed.get(each.name, each) for each in dataflow.stages], is_record=True)
        except Misconfigured:
            return None


def advise(measured: Measured, keep: RetentionPolicy) -> Advice:
    """Advise on a dataflow whose intermediate results are retained by `keep`."""
    replay = Replay(measured)
    before = replay.expected(measured.dataflow)
    best, expected, changes = measured.dataflow, before, list[Change]()
    while found := _found(replay, best, expected):
        changed = set[str]()
        for candidate in found:
            if not changed & candidate.touched and (now := _costs_less(replay, candidate, best, expected)) is not None:
                changed |= candidate.touched
                best, saved, expected = now[0], expected.total - now[1].total, now[1]
                changes.append(Change(candidate.what, candidate.declared, candidate.advised, saved))
    retention = _retention(replay, keep)
    return Advice(
        dataflow=measured.dataflow.name,
        runs=measured.runs,
        failures=len(measured.strikes),
        late_clears=len(measured.late_clears),
        changes=(*_merged(changes), *([retention] if retention else [])),
        before=before,
        after=expected,
        advised=best,
    )


def _found(replay: Replay, dataflow: Dataflow, expected: Expected) -> list[_Candidate]:
    """Return the changes that each save something by themselves, what saves most first."""
    found = [
        (now[1].total, candidate)
        for candidate in (*_exchanges(dataflow), *_parallelisms(dataflow))
        if (now := _costs_less(replay, candidate, dataflow, expected)) is not None
    ]
    return [candidate for _, candidate in sorted(found, key=lambda each: each[0])]


def _costs_less(
    replay: Replay, candidate: _Candidate, dataflow: Dataflow, expected: Expected
) -> tuple[Dataflow, Expected] | None:
    """Return a changed dataflow and its cost; None if it saves no share of the seconds of the tasks that it changes."""
    changed = candidate.of(dataflow)
    if changed is None:
        return None
    now = replay.expected(changed)
    is_enough = expected.total - now.total > LEAST_SAVING * replay.seconds_of(candidate.touched) + _NOTHING
    return (changed, now) if is_enough else None


def _merged(changes: list[Change]) -> Iterator[Change]:
    """Yield one change where several were made in one place, one after another."""
    of: dict[str, list[Change]] = {}
    for each in changes:
        of.setdefault(each.what, []).append(each)
    for what, found in of.items():
        if found[0].declared != found[-1].advised:
            yield Change(what, found[0].declared, found[-1].advised, sum(each.seconds for each in found))


# Exchanges


def _exchanges(dataflow: Dataflow) -> Iterator[_Candidate]:
    """Yield dataflows in which one exchange is of another kind, and the same rows are read over it."""
    for stage in dataflow.stages:
        for argument, exchange in stage.exchanges.items():
            if exchange.is_dataset:
                continue
            producer = dataflow.stage(exchange.stage)
            for other in _others(exchange, producer, stage):
                changed = replace(stage, inputs={**stage.exchanges, argument: other})
                yield _Candidate(
                    f"{producer.name} -> {stage.name}",
                    _text(exchange),
                    _text(other),
                    (changed,),
                    frozenset({producer.name, stage.name}),
                )


def _others(exchange: Exchange, producer: Stage, reader: Stage) -> Iterator[Exchange]:
    is_fixed = {producer.kind, reader.kind} & set(_FIXED) or exchange.is_previous or not exchange.durable
    is_by_index = exchange.pointwise or producer.parallelism == reader.parallelism == 1 or exchange.joins_plan
    if is_fixed or not is_by_index or producer.parallelism != reader.parallelism:
        return
    if exchange.kind is not ExchangeKind.PIPELINED:
        yield pipelined(producer)
    if exchange.kind is not ExchangeKind.CACHED:
        yield cached(producer)
    if exchange.kind is not ExchangeKind.BLOCKING:
        yield blocking(producer, pointwise=producer.parallelism > 1)


def _text(exchange: Exchange) -> str:
    by = f", by={', '.join(exchange.keys)}" if exchange.keys else ""
    way = ", broadcast" if exchange.broadcast else ", pointwise" if exchange.pointwise else ""
    return exchange.kind.value + by + way


# Parallelism


def _parallelisms(dataflow: Dataflow) -> Iterator[_Candidate]:
    """Yield dataflows in which tasks that have to have one number of subtasks have another one."""
    topology = Topology(dataflow)
    joined = {each.name: pipeline for pipeline in topology.pipelines for each in pipeline}
    for group in dict.fromkeys(joined.get(each.name, (each,)) for each in topology.regions):
        stages = [dataflow.stage(name) for region in group for name in region.stages]
        # A source divides its rows by itself, and a state would be divided anew. A function that has all rows may not
        # be one of its keys alone.
        now = group[0].parallelism
        if now == 1 or any(each.states or each.kind is StageKind.SOURCE for each in stages):
            continue
        for other in sorted({1, now // 2, 2 * now} - {0, now}):
            changed = tuple(replace(each, parallelism=other) for each in stages)
            name = "parallelism of " + ", ".join(each.name for each in group)
            yield _Candidate(name, str(now), str(other), changed, frozenset(each.name for each in stages))


# Retention


def _retention(replay: Replay, keep: RetentionPolicy) -> Change | None:
    """Advise on the shortest retention by which late clears would have recomputed least."""
    measured = replay.measured
    of_clear = [(each, replay.recomputed(each)) for each in measured.late_clears]

    def lost(policy: RetentionPolicy) -> float:
        return sum(seconds for each, seconds in of_clear if not _is_kept(policy, each))

    best = min(_RETENTION, key=lambda each: (lost(each), _bytes(each, measured)))
    saved_seconds = (lost(keep) - lost(best)) / measured.runs
    saved_bytes = _bytes(keep, measured) - _bytes(best, measured)
    is_shorter = saved_seconds == 0 and saved_bytes > 0 and len(of_clear) >= LEAST_CLEARS
    if saved_seconds > 0 or is_shorter:
        return Change("keep", str(keep), str(best), saved_seconds, saved_bytes)
    return None


def _is_kept(policy: RetentionPolicy, clear: LateClear) -> bool:
    """Report whether results of a closed run were still there when a region of it was cleared."""
    if policy.until is RetainUntil.RUNS:
        return clear.later_runs < policy.runs
    return policy.until is RetainUntil.TIME and timedelta(hours=clear.hours) <= policy.time


def _bytes(policy: RetentionPolicy, measured: Measured) -> float:
    """Return the bytes of closed runs that a policy keeps at rest."""
    if policy.until is RetainUntil.RUNS:
        return policy.runs * measured.at_rest
    if policy.until is RetainUntil.TIME and measured.hours:
        return policy.time / timedelta(hours=measured.hours) * measured.at_rest
    return 0.0
