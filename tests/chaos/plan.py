"""The order and the times of faults. Invariant: they follow from the seed alone; the targets depend on what runs.

Faults are drawn from a shuffled deck, so that every kind is injected once before any is injected again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from tests.chaos.data_faults import ChangeInput, ClearFinished, ClearRunning, Damage, DamageKind, DamageState
from tests.chaos.faults import Fault
from tests.chaos.server_faults import FreezeServer, KillExecutor, KillProgram, KillWorker, Server, StopDatabase
from tests.chaos.task_faults import FreezeTask, KillSupervisor, KillTask

from weir.errors import Misconfigured
from weir.wording import did_you_mean
from weir_dev.stack.spark_cluster import MASTER
from weir_dev.stack.spark_server import NAME as SPARK

SHORTEST_SECONDS: Final = 3.0

LONGEST_SECONDS: Final = 15.0
"""Between two faults: the next is often injected before Weir has recovered from the last."""


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """A fault to inject: so many seconds after the one before, with its own random numbers."""

    after: float
    fault: Fault
    chance: Random


def known_faults(heartbeat_timeout: float, spark_workers: int, database: Server | None) -> tuple[Fault, ...]:
    """Return all kinds of faults that a stack of this shape has."""
    always = (
        KillTask(),
        KillSupervisor(),
        FreezeTask(heartbeat_timeout),
        *(KillProgram(name, name) for name in ("scheduler", "api-server", "dag-processor", "triggerer")),
        KillProgram("spark", SPARK),
        FreezeServer(),
        *(Damage(kind) for kind in DamageKind),
        DamageState(),
        ClearFinished(),
        ClearRunning(),
        ChangeInput(),
    )
    on_cluster = (KillExecutor(), KillWorker(), KillProgram("master", MASTER)) if spark_workers else ()
    return (*always, *on_cluster, *(() if database is None else (StopDatabase(database),)))


def chosen(faults: Sequence[Fault], names: Sequence[str]) -> tuple[Fault, ...]:
    """Return the faults of these names; all if there are no names. Raises Misconfigured for an unknown name."""
    known = {fault.name: fault for fault in faults}
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known, ".", lead=": ", form="{}")
            raise Misconfigured(
                f"there is no fault {name!r} on this stack{hint} Known are {', '.join(known)}; executor, worker and "
                "master come with --spark-workers, postgres with --postgres"
            )
    return tuple(known[name] for name in names) or tuple(faults)


def planned_faults(seed: int, faults: Sequence[Fault]) -> Iterator[PlannedFault]:
    """Yield the endless sequence of faults of a seed."""
    chance = Random(seed)
    while True:
        for fault in chance.sample(list(faults), len(faults)):
            after = chance.uniform(SHORTEST_SECONDS, LONGEST_SECONDS)
            yield PlannedFault(after, fault, Random(chance.getrandbits(64)))
