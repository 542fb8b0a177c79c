"""One simulation: a coordinator, a ledger, a store and an Airflow, the processes that use them, and their observer.

Invariant: the same scene and the same actions give the same outcome.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from itertools import count
from typing import Final

from tests.simulator.airflow import SimulatedAirflow, Unexpected
from tests.simulator.dataflows import Scene, suite_folder
from tests.simulator.derived import WHAT_IS_DUE_IS_DECIDED, undecided
from tests.simulator.engine import SimulatedEngine
from tests.simulator.history.history import History
from tests.simulator.ledger import SimulatedLedger
from tests.simulator.listings import Listings
from tests.simulator.observer import Broken, Observer, require
from tests.simulator.on_call import OnCall
from tests.simulator.process import BACK, NO_FAULT, FaultKind, Process, ProcessFault
from tests.simulator.receiver import RECEIVED_BY, Log
from tests.simulator.store import Condition, MemoryFiles

from weir.coordination.airflow import ClearAnswer
from weir.coordination.services import Services
from weir.errors import Misconfigured
from weir.restarts.recovery_settings import RecoverySettings
from weir.restarts.strategy import ExponentialDelay
from weir.settings import EXPECTATIONS
from weir.store.store import Store
from weir.topology.regions import Topology

MACHINES: Final = 3
"""The machines that processes run on in turn, each with its own clock."""

PATIENT: Final = ExponentialDelay(attempts_before_reset=10_000)


@contextmanager
def _known_errors() -> Iterator[None]:
    """Raise Broken for an error that must never be raised."""
    try:
        yield
    except Unexpected as error:
        raise Broken("only_known_errors_are_raised", str(error)) from error


class World:
    """Everything that one simulation consists of; if it `derives`, what is due is derived after each transaction."""

    def __init__(self, scene: Scene, copies: int = 0, *, derives: bool = False) -> None:
        self.scene, self.sources = scene, scene.sources
        self._derives, self._derived_at = derives, 0
        self.is_lossy = copies > 0
        """True if the ledger may lose commits; it may lose `copies` at once."""
        self.content: dict[str, int] = {}
        self.listings = Listings(scene.listed, scene.going)
        self.files = MemoryFiles(
            lambda: self._process,
            self._file_changed,
            lambda: self.airflow.time,
        )
        self.store = Store(self.files)
        self.ledger = SimulatedLedger(
            lambda: self._process, self._transaction_committed, lambda: self.airflow.time, copies
        )
        numbers = count(1)
        self.new_uuid: Callable[[], uuid.UUID] = lambda: uuid.UUID(int=next(numbers) << 96)
        self._suites = suite_folder(scene)
        self.services = Services(
            ledger=self.ledger,
            store=self.store,
            open_store=_elsewhere,
            now=self._now,
            new_uuid=self._id,
            recovery=RecoverySettings(largest_plan=scene.largest_plan),
            expectations=EXPECTATIONS if self._suites is None else self._suites.name,
            variables=self.listings.variable,
        )
        self.engine = SimulatedEngine(self.store, self.content, scene.natures)
        self.airflow = SimulatedAirflow(self.services, self.engine, scene.flow)
        self.airflow.on_answer, self.airflow.collects = self._airflow_answered, scene.collects
        self.airflow.has_code = scene.modules is not None
        self.airflow.strategy = PATIENT if scene.is_patient else self.airflow.strategy
        self.history = History(
            self.ledger.connection, Topology(scene.flow), self.engine, self.files.data, lambda: self.airflow.time
        )
        self.history.listings = self.listings
        self.history.cleared, self.history.archives = self.airflow.cleared, self.airflow.archives
        self.observer = Observer(self.history)
        self.airflow.on_stop = self.observer.attempt_stopped
        self.airflow.on_look = self.observer.airflow_was_asked
        self.received, self.on_call = Log(self.history), OnCall(self.history, scene.flow.name)
        self.airflow.context = lambda: {RECEIVED_BY: self.received}
        self.suspended: list[Process] = []
        self.pressed: set[Process] = set()
        """The processes that need free space."""
        self.restored: set[int] = set()
        """The snapshots that a person has restored because nothing else helped."""
        self.has_begun_again = False
        """True if a person has given up the results of runs because nothing else helped."""
        self.rebuilders: set[Process] = set()
        """The processes that rebuild the ledger."""
        self.to_be_closed: set[str] = set()
        """The DagRuns that a person is to close again, as a rebuild has said; all if some are `unanswered_rebuilds`."""
        self.unanswered_rebuilds = 0
        self.notebooks: list[str] = []
        """The holders of the read leases of notebooks."""
        self.runs, self.days = [self.airflow.dag_run(1)], 1
        """The DagRuns that there are, and the number of days that have had one."""
        self.changed_sources: set[str] = set()
        self.damaged_files: dict[str, bytes] = {}
        """By path, the content of a lost or damaged file before the damage."""
        self.clocks = [timedelta()] * MACHINES
        """By machine, how fast its clock is."""
        self._slowest = self._fastest = timedelta()
        self._process = self._nobody = Process(0, lambda _mine: None)

    def run(self, process: Process, fault: ProcessFault) -> None:
        """Run a process until it ends or is suspended. Raises Broken."""
        self._process = self.airflow.process = process
        self._note_clocks(process, fault)
        if self.files.condition is Condition.FULL:
            self.pressed.add(process)
        self.history.is_reclaiming = process in self.pressed
        if process in self.suspended:
            self.suspended.remove(process)
        try:
            with _known_errors():
                process.run(fault)
        finally:
            self._process, self.airflow.process = self._nobody, None
            self.history.is_reclaiming = False
        if not process.is_over:
            self.suspended.append(process)

    @property
    def process(self) -> Process:
        """Return the process that runs now; that of number 0 where none does."""
        return self._process

    def set_clock(self, machine: int, to: timedelta) -> None:
        """Set the clock of a machine; processes run on there."""
        self.clocks[machine % MACHINES] = to
        self._note_clocks(self._nobody, NO_FAULT)

    def _note_clocks(self, process: Process, fault: ProcessFault) -> None:
        """Remember how far two clocks were apart at most."""
        last = process.clock - (BACK if fault.kind is FaultKind.BACK else timedelta())
        now = [timedelta(), *self.clocks, self._clock_of(process), self.clocks[process.number % MACHINES] + last]
        self._slowest, self._fastest = min(self._slowest, *now), max(self._fastest, *now)
        self.history.slack = self._fastest - self._slowest

    def beat(self, process: Process) -> None:
        """Take a heartbeat of a suspended process. Raises Broken."""
        with _known_errors():
            process.beat()

    def close(self) -> None:
        """End all processes, and delete the files of the expectation suites."""
        for process in self.suspended:
            process.end()
        if self._suites is not None:
            self._suites.cleanup()

    # What the store, the ledger and Airflow report while a process runs

    def _now(self) -> datetime:
        """Return the time of the clock of the machine that runs the process."""
        return self.airflow.time + self._clock_of(self._process)

    def _id(self) -> uuid.UUID:
        return self.new_uuid()

    def _clock_of(self, process: Process) -> timedelta:
        return self.clocks[process.number % MACHINES] + process.clock

    def _transaction_committed(self, late: Process | None, is_catching_up: bool) -> None:
        is_rebuilt = is_catching_up or (late or self._process) in self.rebuilders
        if late is None:
            self.observer.transaction_committed(is_rebuilt=is_rebuilt)
        else:
            was, self.history.is_reclaiming = self.history.is_reclaiming, late in self.pressed
            self.history.ledger.replace()
            self.observer.transaction_committed(is_rebuilt=is_rebuilt, sent_at=late.sent_at)
            self.history.is_reclaiming = was
        if self._derives and self._derived_at != self.ledger.connection.total_changes:
            with self.ledger.look() as session:
                require(WHAT_IS_DUE_IS_DECIDED, undecided(session, self.services))
            self._derived_at = self.ledger.connection.total_changes

    def _file_changed(self, how: str, path: str, data: bytes) -> None:
        if how == "delete" and path in self._process.may_delete:
            self.observer.file_deleted_late(path)
        else:
            self.observer.file_changed(how, path, data)

    def _airflow_answered(self, answers: list[ClearAnswer]) -> None:
        self.observer.airflow_answered(answers)


def _elsewhere(url: str) -> Store:
    raise Misconfigured(f"a simulation has one store, and {url} is not in it")
