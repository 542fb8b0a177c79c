"""Which fault strikes when. Invariant: it follows from the seed alone; only what a fault finds to strike does not.

Faults are drawn from a shuffled deck, so that each kind has its turn before any has its second.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from weir.errors import Misconfigured
from weir_dev.chaos.data_faults import ChangeInput, ClearFinished, ClearRunning, Damage, DamageState, Harm
from weir_dev.chaos.faults import Fault
from weir_dev.chaos.server_faults import FreezeServer, KillExecutor, KillProgram, KillWorker, Server, StopDatabase
from weir_dev.chaos.task_faults import FreezeTask, KillSupervisor, KillTask
from weir_dev.stack.spark_cluster import MASTER
from weir_dev.stack.spark_server import NAME as SPARK

SHORTEST_SECONDS: Final = 3.0

LONGEST_SECONDS: Final = 15.0
"""Between two faults: the next often strikes while what the last one broke is not whole yet."""


@dataclass(frozen=True, slots=True)
class Blow:
    """A fault to come: so many seconds after the one before, and with its own chance."""

    after: float
    fault: Fault
    chance: Random


def known_faults(heartbeat_timeout: float, spark_workers: int, database: Server | None) -> tuple[Fault, ...]:
    """Every kind of fault that a stack of this shape has."""
    always = (
        KillTask(),
        KillSupervisor(),
        FreezeTask(heartbeat_timeout),
        *(KillProgram(name, name) for name in ("scheduler", "api-server", "dag-processor", "triggerer")),
        KillProgram("spark", SPARK),
        FreezeServer(),
        *(Damage(harm) for harm in Harm),
        DamageState(),
        ClearFinished(),
        ClearRunning(),
        ChangeInput(),
    )
    on_cluster = (KillExecutor(), KillWorker(), KillProgram("master", MASTER)) if spark_workers else ()
    return (*always, *on_cluster, *(() if database is None else (StopDatabase(database),)))


def chosen(faults: Sequence[Fault], names: Sequence[str]) -> tuple[Fault, ...]:
    """Those of these names; all if there are none. Raises Misconfigured for a name that is none."""
    known = {fault.name: fault for fault in faults}
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(name, list(known), n=1)
            meant = f": did you mean {close[0]}?" if close else "."
            raise Misconfigured(
                f"there is no fault {name!r} on this stack{meant} Known are {', '.join(known)}; executor, worker and "
                "master come with --spark-workers, postgres with --postgres"
            )
    return tuple(known[name] for name in names) or tuple(faults)


def blows(seed: int, faults: Sequence[Fault]) -> Iterator[Blow]:
    """The endless sequence of faults of a seed."""
    chance = Random(seed)  # noqa: S311 - nothing is kept secret
    while True:
        for fault in chance.sample(list(faults), len(faults)):
            after = chance.uniform(SHORTEST_SECONDS, LONGEST_SECONDS)
            yield Blow(after, fault, Random(chance.getrandbits(64)))  # noqa: S311 - likewise
