"""Faults of a redundant stack: a component, the primary or the replica is killed, or frozen and killed some time later.

Invariant: what is frozen is killed before anything takes its place, as an operator's fencing does.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Event, Thread
from typing import TYPE_CHECKING, Final

from tests.chaos.faults import Injection
from tests.chaos.server_faults import is_replaced, ready

from weir_dev.stack.airflow_components import DAG_PROCESSOR, SCHEDULERS, TRIGGERER
from weir_dev.stack.airflow_environment import API_SERVERS
from weir_dev.stack.postgres import AIRFLOW, LEDGER
from weir_dev.stack.processes import send, session_members

if TYPE_CHECKING:
    from random import Random

    from tests.chaos.faults import Fault
    from tests.chaos.field import Field
    from tests.servers.postgres_pair import PostgresPair


SHORTEST_SECONDS: Final = 1.0

LONGEST_SECONDS: Final = 6.0
"""How long it takes the operator to see that something does not answer, and to kill it."""

LOSS_SECONDS: Final = 20.0
"""How long to wait until both databases have committed what is then lost."""


@dataclass(frozen=True, slots=True)
class LoseComponent:
    """A component of Airflow with all of its processes, as if its machine was gone; the keeper starts another."""

    name: str
    programs: tuple[str, ...]
    is_frozen: bool

    def inject(self, field: Field, chance: Random) -> Injection | None:
        """Kill or freeze one of them; None while one of them is not ready, since the other shall go on."""
        running = [one for one in (ready(field, name) for name in self.programs) if one is not None]
        if len(running) < len(self.programs):
            return None
        lost = chance.choice(running)
        processes = (lost, *session_members(lost))
        seconds = chance.uniform(SHORTEST_SECONDS, LONGEST_SECONDS) if self.is_frozen else 0.0
        for one in processes if self.is_frozen else ():
            send(one, signal.SIGSTOP)

        def kill() -> None:
            for one in (*processes, *session_members(lost)):
                send(one, signal.SIGKILL)

        work = Work(seconds, kill)
        is_over = is_replaced(field, lost)
        return Injection(_told(lost.name, seconds), lambda: work.is_over() and is_over(), work.finish)


@dataclass(frozen=True, slots=True)
class LosePrimary:
    """The primary is killed or frozen; its replica is promoted, and gets a replica of its own.

    With `loses_commits` the replica has received nothing for a while, so that both databases have lost commits.
    """

    name: str
    pair: PostgresPair
    is_frozen: bool = False
    loses_commits: bool = False

    def inject(self, field: Field, chance: Random) -> Injection | None:
        """Kill or freeze it, perhaps when the replica has missed something."""
        del field
        seconds = chance.uniform(SHORTEST_SECONDS, LONGEST_SECONDS)
        lost = _let_miss(self.pair) if self.loses_commits else ""
        if self.is_frozen:
            self.pair.primary.freeze()
        else:
            self.pair.primary.kill()
        work = Work(seconds, self.pair.fail_over, self.pair.add_replica)
        what = _told("the primary", seconds if self.is_frozen else 0.0)
        return Injection(f"{what}; its replica is promoted after {seconds:.0f} s{lost}", work.is_over, work.finish)


@dataclass(frozen=True, slots=True)
class LoseReplica:
    """The replica is killed or frozen; commits wait until the operator lets the primary go on without it."""

    name: str
    pair: PostgresPair
    is_frozen: bool = False

    def inject(self, field: Field, chance: Random) -> Injection | None:
        """Kill or freeze it."""
        del field
        seconds = chance.uniform(SHORTEST_SECONDS, LONGEST_SECONDS)
        if self.is_frozen:
            self.pair.replica.freeze()
        else:
            self.pair.replica.kill()
        work = Work(seconds, self.pair.lose_replica, self.pair.add_replica)
        what = _told("the replica", seconds if self.is_frozen else 0.0)
        return Injection(f"{what}; the primary waits for it for {seconds:.0f} s", work.is_over, work.finish)


def ha_faults(pair: PostgresPair) -> tuple[Fault, ...]:
    """Return all kinds of faults of a redundant stack on this pair."""
    groups: dict[str, tuple[str, ...]] = {"scheduler": SCHEDULERS, "api-server": API_SERVERS}
    groups |= {name: (name,) for name in (DAG_PROCESSOR, TRIGGERER)}
    return (
        *(LoseComponent(name, programs, is_frozen=False) for name, programs in groups.items()),
        *(LoseComponent(f"{name}-freeze", programs, is_frozen=True) for name, programs in groups.items()),
        LosePrimary("primary", pair),
        LosePrimary("primary-freeze", pair, is_frozen=True),
        LosePrimary("primary-loss", pair, loses_commits=True),
        LoseReplica("replica", pair),
        LoseReplica("replica-freeze", pair, is_frozen=True),
    )


class Work:
    """Steps that a thread takes one after the other, the first after some seconds."""

    def __init__(self, seconds: float, *steps: Callable[[], None]) -> None:
        self._steps = steps
        self._seconds = seconds
        self._is_wanted_now = Event()
        self._error: BaseException | None = None
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    def is_over(self) -> bool:
        """Report whether all steps were taken. Raises the error of one that failed."""
        if self._error is not None:
            raise self._error
        return not self._thread.is_alive()

    def finish(self) -> None:
        """Take the first step now, and wait for the last."""
        self._is_wanted_now.set()
        self._thread.join()

    def _run(self) -> None:
        self._is_wanted_now.wait(self._seconds)
        try:
            for step in self._steps:
                step()
        except BaseException as error:  # noqa: BLE001  raised where the work is waited for
            self._error = error


def _let_miss(pair: PostgresPair) -> str:
    """Cut the replica off until it misses commits of both databases; return how much."""
    pair.cut_replica()
    before, deadline = pair.changes(), time.monotonic() + LOSS_SECONDS
    while True:
        changed = {name: pair.changes()[name] - before[name] for name in (AIRFLOW, LEDGER)}
        if all(changed.values()) or time.monotonic() > deadline:
            rows = " and ".join(f"{rows} changes of rows of {name}" for name, rows in changed.items())
            return f", without the last {pair.missing_bytes()} bytes of log, {rows}"
        time.sleep(0.2)


def _told(what: str, seconds: float) -> str:
    return f"SIGSTOP to {what}, and SIGKILL {seconds:.0f} s later" if seconds else f"SIGKILL to {what}"
