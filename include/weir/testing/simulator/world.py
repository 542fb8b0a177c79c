"""One simulation: a coordinator, a ledger, a store and an Airflow, the processes that use them, and their observer.

Invariant: the same scene and the same actions give the same outcome.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Final

from weir.coordination.airflow import ClearAnswer
from weir.coordination.services import Services
from weir.restarts.recovery_settings import RecoverySettings
from weir.restarts.strategy import ExponentialDelay
from weir.settings import EXPECTATIONS
from weir.store.store import Store
from weir.testing.simulator.airflow import SimulatedAirflow, Unexpected
from weir.testing.simulator.dataflows import Scene, suite_folder
from weir.testing.simulator.engine import SimulatedEngine
from weir.testing.simulator.history.history import History
from weir.testing.simulator.ledger import SimulatedLedger
from weir.testing.simulator.observer import Broken, Observer
from weir.testing.simulator.process import Process, ProcessFault
from weir.testing.simulator.store import Condition, MemoryFiles
from weir.topology.regions import Topology

PATIENT: Final = ExponentialDelay(attempts_before_reset=10_000)


@contextmanager
def _known_errors() -> Iterator[None]:
    """Raise Broken for an error that must never be raised."""
    try:
        yield
    except Unexpected as error:
        raise Broken("only_known_errors_are_raised", str(error)) from error


class World:
    """Everything that one simulation consists of."""

    def __init__(self, scene: Scene) -> None:
        self.scene, self.sources = scene, scene.sources
        self.content: dict[str, int] = {}
        self.files = MemoryFiles(self._step, self._file_changed, lambda: self.airflow.time)
        self.store = Store(self.files)
        self.ledger = SimulatedLedger(self._change_depth, self._step, self._transaction_committed)
        numbers = count(1)
        self._suites = suite_folder(scene)
        self.services = Services(
            ledger=self.ledger,
            store=self.store,
            now=lambda: self.airflow.time,
            new_uuid=lambda: uuid.UUID(int=next(numbers) << 96),
            recovery=RecoverySettings(largest_plan=scene.largest_plan),
            expectations=EXPECTATIONS if self._suites is None else self._suites.name,
        )
        self.engine = SimulatedEngine(self.store, self.content, scene.natures)
        self.airflow = SimulatedAirflow(self.services, self.engine, scene.flow)
        self.airflow.on_answer, self.airflow.collects = self._airflow_answered, scene.collects
        self.airflow.has_code = scene.modules is not None
        self.airflow.strategy = PATIENT if scene.is_patient else self.airflow.strategy
        self.history = History(
            self.ledger.connection, Topology(scene.flow), self.engine, self.files.data, lambda: self.airflow.time
        )
        self.history.cleared, self.history.archives = self.airflow.cleared, self.airflow.archives
        self.observer = Observer(self.history)
        self.airflow.on_stop = self.observer.attempt_stopped
        self.suspended: list[Process] = []
        self.pressed: set[Process] = set()
        """The processes that need free space."""
        self.notebooks: list[str] = []
        """The holders of the read leases of notebooks."""
        self.runs = [self.airflow.dag_run(1)]
        self.changed_sources: set[str] = set()
        self.damaged_files: dict[str, bytes] = {}
        """By path, the content of a lost or damaged file before the damage."""
        self._process: Process | None = None

    def run(self, process: Process, fault: ProcessFault) -> None:
        """Run a process until it ends or is suspended. Raises Broken."""
        self._process = self.airflow.process = process
        if self.files.condition is Condition.FULL:
            self.pressed.add(process)
        self.history.is_reclaiming = process in self.pressed
        if process in self.suspended:
            self.suspended.remove(process)
        try:
            with _known_errors():
                process.run(fault)
        finally:
            self._process = self.airflow.process = None
            self.history.is_reclaiming = False
        if not process.is_over:
            self.suspended.append(process)

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

    def _step(self, refusal: Exception) -> None:
        if self._process is not None:
            self._process.step(refusal)

    def _change_depth(self, by: int) -> None:
        if self._process is not None:
            self._process.depth += by

    def _transaction_committed(self) -> None:
        self.observer.transaction_committed()

    def _file_changed(self, how: str, path: str, data: bytes) -> None:
        self.observer.file_changed(how, path, data)

    def _airflow_answered(self, answers: list[ClearAnswer]) -> None:
        self.observer.airflow_answered(answers)
