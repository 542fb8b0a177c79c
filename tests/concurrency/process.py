"""A process that performs one operation after the other on a ledger and a store, and stops where it is told.

It is spawned once, with a pipe to the tests, and used for many cases. It stops before a statement, before a COMMIT,
before an operation of the store or before a question to Airflow: each is a point of the operation. A transaction that
only reads has one, before its first statement: from then on it sees a snapshot, and nobody waits for it.
"""

import random
import uuid
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import event
from sqlalchemy.orm import Session
from tests import store_guard
from tests.concurrency.writers import watch_rows
from tests.postgres_ledgers import ledger_that_stays_connected

from weir.assembly import coordinator_of
from weir.attempts.coordinator import Coordinator
from weir.coordination.services import Services
from weir.coordination.settled import Due
from weir.coordination.values import BeginRequest
from weir.errors import WeirError
from weir.ledger.database.reading import is_reading
from weir.ledger.ledger import Ledger
from weir.restarts.answer import Action
from weir.settling import Settling
from weir.snapshots.restore import RestoreRequest, restore
from weir.snapshots.savepoint import SavepointRequest, create
from weir.store.store import Store
from weir.testing.fakes.engine import FakeEngine
from weir.testing.fakes.task_ports import (
    FailedForGood,
    FakeTaskEngine,
    FakeTaskPorts,
    Rescheduled,
    answer_failure,
    run_task,
)
from weir.upkeep import RESULTS, scrub_everywhere, settle_everywhere, sweep_everywhere


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where an operation is performed, and when."""

    database: str
    store: str
    time: datetime
    content: dict


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """An operation; that of a task has a request."""

    kind: str
    request: BeginRequest | None = None
    restore: RestoreRequest | None = None
    savepoint: SavepointRequest | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The end of an operation: "done", "rescheduled", "failed" for good, or "raised", with what was raised.

    `decision` is what the retry policy answers to what a task has raised.
    """

    how: str
    said: str = ""
    kinds: tuple[str, ...] = ()
    decision: tuple[Action, float] | None = None
    seconds: float = 0
    points: tuple[str, ...] = ()
    strange_rows: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        return self.kinds[0] if self.kinds else self.how


class Points:
    """The points of the operation that is being performed."""

    def __init__(self, pipe):
        self._pipe, self._is_open, self._stop_at, self._statements = pipe, False, None, 0
        self.reached = []

    def reach(self, what):
        if not self._is_open:
            return
        self.reached.append(what)
        if len(self.reached) == self._stop_at:
            self._pipe.send(("paused", what))
            self._pipe.recv()

    @contextmanager
    def operation(self):
        """What is done within is the operation; all else a task does before and after it is not."""
        self._pipe.send(("ready", None))
        self._stop_at, self._is_open = self._pipe.recv(), True
        try:
            yield
        finally:
            self._is_open = False
            self._pipe.send(("did", None))
            self._pipe.recv()

    def watch(self, engine):
        event.listen(engine, "begin", self._begin)
        event.listen(engine, "before_cursor_execute", self._statement)
        event.listen(engine, "commit", self._commit)

    def _begin(self, _connection):
        self._statements = 0

    def _statement(self, connection, _cursor, statement, *_more):
        if statement.startswith("SET LOCAL"):
            return
        self._statements += 1
        if self._statements == 1 or not is_reading(connection):
            self.reach(" ".join(statement.split())[:200])

    def _commit(self, connection):
        if not is_reading(connection):
            self.reach("COMMIT")


class PausingFiles:
    """The files of a store, whose operations are points."""

    workers = 1

    def __init__(self, files, points):
        self._files, self._points = files, points

    def __getattr__(self, name):
        found = getattr(self._files, name)
        if not callable(found):
            return found

        def call(*args):
            self._points.reach(f"{name} {args[0] if args else ''}")
            return found(*args)

        return call


class DistantAirflow:
    """Airflow, which is in the process of the tests."""

    def __init__(self, pipe, points):
        self._pipe, self._points = pipe, points

    def __getattr__(self, name):
        def call(*args):
            self._points.reach(f"Airflow: {name}")
            self._pipe.send(("airflow", (name, args)))
            return self._pipe.recv()

        return call


class PausingCoordinator(Coordinator):
    """A coordinator of which one step is the operation."""

    def __init__(self, services, points, kind):
        super().__init__(services, coordinator_of(services).rooms)
        self._points, self._kind = points, kind

    def begin(self, *args):
        return self._step("begin", super().begin, *args)

    def commit(self, *args):
        return self._step("commit", super().commit, *args)

    def close(self, *args):
        return self._step("close", super().close, *args)

    def _step(self, kind, step, *args):
        if kind != self._kind:
            return step(*args)
        with self._points.operation():
            return step(*args)


@dataclass
class Performer:
    """Performs what is asked in the place where it is."""

    pipe: object
    points: Points
    ledger: Ledger
    role: str
    strange_rows: list = field(default_factory=list)
    place: Place | None = None

    def perform(self, asked, place):
        self.place, self.points.reached = place, []
        self.ledger._seen.clear()  # of the databases of other cases
        self.strange_rows.clear()
        try:
            ended = self._task(asked) if asked.request is not None else self._command(asked)
        finally:
            self.ledger.close()
        return ended

    def _ended(self, how, error=None, **more):
        kinds = () if error is None else tuple(each.__name__ for each in type(error).__mro__)
        said = "" if error is None else str(error)
        points, strange = tuple(self.points.reached), tuple(self.strange_rows)
        return Ended(how=how, said=said, kinds=kinds, points=points, strange_rows=strange, **more)

    def _services(self):
        store = Store(PausingFiles(Store.open(self.place.store).files, self.points))
        numbers = random.Random(self.role)
        return Services(
            ledger=self.ledger,
            store=store,
            now=lambda: self.place.time,
            new_uuid=lambda: uuid.UUID(int=numbers.getrandbits(128), version=4),
        )

    def _command(self, asked):
        services, airflow = self._services(), DistantAirflow(self.pipe, self.points)
        with self.points.operation():
            try:
                COMMANDS[asked.kind](services, airflow, asked)
            except Exception as error:  # noqa: BLE001 - the tests tell whether it was to be expected
                return self._ended("raised", error)
        return self._ended("done")

    def _task(self, asked):
        services, request = self._services(), asked.request
        airflow = DistantAirflow(self.pipe, self.points)
        ports = FakeTaskPorts(airflow, PausingCoordinator(services, self.points, asked.kind))
        fake = FakeEngine(services.store, self.place.content)
        engine = FakeTaskEngine(services.store, fake.run)
        try:
            if asked.kind == "compact":
                with self.points.operation():
                    run_task(ports, engine, request.dataflow.name, request)
            else:
                run_task(ports, engine, request.dataflow.name, request)
        except Rescheduled as error:
            return self._ended("rescheduled", error, seconds=error.awaiting.seconds)
        except FailedForGood as error:
            return self._ended("failed", error)
        except WeirError as error:
            decision = answer_failure(ports, request.dataflow.name, request, error, request.restart)
            return self._ended("raised", error, decision=(decision.action, decision.delay_seconds))
        except Exception as error:  # noqa: BLE001 - likewise
            return self._ended("raised", error)
        return self._ended("done")


def upkeep(services, airflow, _asked):
    settle_everywhere(services, RESULTS).require_whole()
    sweep_everywhere(services, airflow).require_whole()
    scrub_everywhere(services, airflow).require_whole()


def release(services, airflow, _asked):
    Settling(services, lambda: airflow).settle("ladder", Due(runs=None)).require_whole()


COMMANDS = {
    "release": release,
    "upkeep": upkeep,
    "restore": lambda services, _airflow, asked: restore(services, asked.restore),
    "savepoint": lambda services, _airflow, asked: create(services, asked.savepoint),
}


def ledger_of_case(url, database):
    """A ledger whose database is that which `database()` names; it keeps its connections until it is closed."""
    ledger = ledger_that_stays_connected(url)
    dialect = ledger._engine.pool._dialect  # that which connects; the one of the engine is shared
    event.listen(dialect, "do_connect", lambda *each: each[-1].update(dbname=database()))
    ledger.close()
    return ledger


def main(pipe, url, role):
    """Perform what comes through the pipe until that is closed."""
    points = Points(pipe)
    performer = Performer(pipe, points, None, role)
    performer.ledger = ledger_of_case(url, lambda: performer.place.database)
    points.watch(performer.ledger._engine)
    watch_rows(performer.ledger, Session, performer.strange_rows)
    with store_guard.watched(), suppress(EOFError, BrokenPipeError):
        while True:
            asked = pipe.recv()
            pipe.send(("ended", performer.perform(*asked)))
