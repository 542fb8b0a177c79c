"""Draws dataflows over event time: a source, its watermark, windows, and late rows; some have a standing query, too.

Invariant: they are ordinary scenes; only the natures of their stages tell that their rows have times.
"""

from __future__ import annotations

from random import Random

from tests.simulator.dataflows import SCHEMA, SPLITS, Scene, new_flow
from tests.simulator.engine import OF_EVENT_TIME

from weir.dataflow import Stage, blocking, cached, keyed_state, list_state, pipelined, source
from weir.dataflow.dataflow import Consumers, FailoverStrategy

DATA_SETS = 1000
"""A source's name tells which rows it has."""

STANDING = 0.35
"""The share of scenes in which a second source changes what the windows aggregate."""

NATURES = {each.value[0]: each for each in OF_EVENT_TIME}
"""By the first letter of a stage's name."""


def windowed_scene(random: Random) -> Scene:
    """Draw the stages, each of parallelism 1 to 3 but the watermark's; what fires and what is late is published."""
    name = f"e{random.randrange(DATA_SETS)}"
    parallelism = random.choice([1, 1, 2, 3])
    events = source(name, f"simulated:{name}", parallelism=parallelism, resolve=random.choice([None, SPLITS]))
    join = random.choice([blocking, blocking, pipelined, cached]) if parallelism == 1 else blocking
    marks = Stage("marks", "simulated:marks", [join(events)], state=list_state("arrived"))
    asked = _standing(random) if random.random() < STANDING else []
    windows = _windows(random, events, [marks, *asked[1:]])
    stages = [events, marks, *asked, windows, _late(random, events, marks)]
    failover = random.choices(list(FailoverStrategy), [6, 1, 1])[0]
    consumers = random.choices(list(Consumers), [5, 1])[0]
    natures = {each.name: NATURES[each.name[0]] for each in stages}
    flow = new_flow(stages, failover, consumers, None, None)
    return Scene(flow, natures, random.random() < 0.8, random.choice([1.0, 1.0, 0.5]))


def _standing(random: Random) -> list[Stage]:
    name = f"q{random.randrange(DATA_SETS)}"
    queries = source(name, f"simulated:{name}")
    return [queries, Stage("standing", "simulated:standing", [blocking(queries)], state=list_state("known"))]


def _windows(random: Random, events: Stage, others: list[Stage]) -> Stage:
    parallelism = random.choice([1, 1, 2, 3])
    kept = keyed_state("open", key="k", schema=SCHEMA, runs=2, incremental=random.random() >= 0.15)
    read = [blocking(events, by="k"), *(blocking(each, broadcast=parallelism > 1) for each in others)]
    return Stage("windows", "simulated:windows", read, parallelism, state=kept)


def _late(random: Random, events: Stage, marks: Stage) -> Stage:
    if events.parallelism > 1 and random.random() < 0.5:
        read = [blocking(events, pointwise=True), blocking(marks, broadcast=True)]
        return Stage("late", "simulated:late", read, events.parallelism)
    return Stage("late", "simulated:late", [blocking(events), blocking(marks)])
