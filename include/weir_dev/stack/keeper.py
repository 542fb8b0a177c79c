"""The process that keeps a local stack: it starts every component, starts again what dies, and ends all of it.

Invariant: when the keeper ends, however it is asked to, nothing that it started is running; and what a keeper that
was killed has left is ended by the next one before it starts anything.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import time
from contextlib import suppress
from dataclasses import replace
from threading import Event
from typing import IO, TYPE_CHECKING

from weir.errors import Misconfigured, Retryable, WeirError
from weir.java import find_java
from weir_dev.files import make_private, tail
from weir_dev.ports import choose_ports
from weir_dev.stack import airflow_database
from weir_dev.stack.airflow_components import DAG_PROCESSOR, SCHEDULERS, TRIGGERER, airflow_programs
from weir_dev.stack.airflow_environment import (
    SPARK,
    base_environment,
    component_environment,
    lake_folder,
    needs_postgres,
    postgres_folder,
    stack_ports,
    write_local_settings,
    write_passwords,
)
from weir_dev.stack.credentials import load_or_create
from weir_dev.stack.postgres import NAME as POSTGRES
from weir_dev.stack.postgres import SERVICES, PostgresServer, copy_files
from weir_dev.stack.processes import ProcessRecord, record, stop
from weir_dev.stack.product_environment import write_product_environment
from weir_dev.stack.spark_cluster import MASTER
from weir_dev.stack.spark_programs import is_of_spark, spark_programs
from weir_dev.stack.state import Phase, StackRequest, StackState, read_state, write_state

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from weir_dev.stack.processes import Program


NAME = "keeper"
LOCK_NAME = "keeper.lock"

EXIT_BUSY = 3
"""Another keeper has the folder."""

EXIT_FAILED = 4
"""The stack could not start or go on; the record says why."""

START_SECONDS = 240.0
"""How long a component may take until it is ready; on a slow machine Airflow needs a minute."""

SETTLED_SECONDS = 60.0
"""A component that ran this long before it died is started again at once."""

LONGEST_PAUSE_SECONDS = 30.0


class Keeper:
    """Keeps the stack of one state folder."""

    def __init__(self, request: StackRequest) -> None:
        self._request = request
        self._folder = request.folder
        self._asked_to_stop = Event()
        self._state = StackState()
        self._programs: dict[str, Program] = {}
        self._started_at: dict[str, float] = {}
        self._pauses: dict[str, float] = {}

    def run(self) -> int:
        """Keep the stack until asked to stop; the process's exit code."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: self._asked_to_stop.set())
        lock = take_lock(self._folder)
        if lock is None:
            return EXIT_BUSY
        try:
            self._clean_up()
            self._set(StackState(phase=Phase.STARTING, message="preparing", starts={}, ports=self._state.ports))
            self._write_down(record(NAME, os.getpid()))
            self._start()
            self._watch()
            self._end(Phase.DOWN, "")
        except WeirError as error:
            self._end(Phase.FAILED, str(error))
        except BaseException as error:
            self._end(Phase.FAILED, f"the keeper failed: {error!r}; see {self._log(NAME)}")
            raise
        return 0 if self._state.phase is Phase.DOWN else EXIT_FAILED

    def _clean_up(self) -> None:
        """End what an earlier keeper of this folder has left."""
        self._state = read_state(self._folder)
        left = stop([one for one in self._state.processes if one.pid != os.getpid()], grace_seconds=5.0)
        if left:
            raise Misconfigured.of("dev.leftovers_of_stack", left=[str(one.pid) for one in left])

    def _start(self) -> None:
        credentials = load_or_create(self._folder)
        write_passwords(self._folder, credentials)
        write_local_settings(self._folder)
        lake_folder(self._folder).parent.mkdir(exist_ok=True)
        ports = choose_ports(stack_ports(self._request), {**self._request.preferred_ports, **self._state.ports})
        self._set(replace(self._state, ports=ports))
        java = find_java(self._folder / "java", os.environ)
        base = {**base_environment(os.environ), **self._request.environment}
        base.update(java.environment(base))
        for program in spark_programs(self._request, self._log("").parent, ports, base, credentials):
            self._launch(program)
            if program.name == MASTER:
                # What does not find its master waits twenty seconds before it looks again.
                self._await(program)
        server = self._start_postgres(ports) if needs_postgres(self._request) else None
        environment = component_environment(self._request, ports, credentials, os.environ)
        environment.update(java.environment(environment))
        is_new = self._migrate(environment)
        if server is not None and is_new and not self._must_stop():
            self._keep_template(server)
        self._start_airflow(airflow_programs(self._request, self._log("").parent, ports, environment))
        self._set(replace(self._state, message="waiting until all components are ready"))

    def _start_airflow(self, programs: Sequence[Program]) -> None:
        """Start the schedulers when all else is ready: a task that finds no API server, or no Spark, is lost."""
        for program in programs:
            if program.name not in SCHEDULERS and not self._must_stop():
                self._launch(program)
        for needed in [one for one in self._programs.values() if one.name not in (DAG_PROCESSOR, TRIGGERER)]:
            self._set(replace(self._state, message=f"waiting for {needed.name}"))
            self._await(needed)
        for program in programs:
            if program.name in SCHEDULERS and not self._must_stop():
                self._launch(program)

    def _start_postgres(self, ports: Mapping[str, int]) -> PostgresServer:
        """Start the server of both databases; Spark, which takes longer, is already on its way."""
        server = PostgresServer(
            folder=postgres_folder(self._folder),
            log=self._log(POSTGRES),
            port=ports[POSTGRES],
            # What ends with the process that started it is of no use to anybody after a failure of the machine.
            is_durable=self._request.parent is None,
        )
        server.prepare(airflow_database.template_of_server(self._request))
        self._launch(server.program())
        self._await(self._programs[POSTGRES])
        if not self._must_stop():
            server.make_databases()
            server.write_services(self._folder / SERVICES)
        return server

    def _keep_template(self, server: PostgresServer) -> None:
        """Keep a copy of the files of a server that has nothing but an empty Airflow, for stacks to come."""
        program = self._programs.pop(POSTGRES)
        running = self._state.process(POSTGRES)
        if running is not None and stop([running], program.grace_seconds, signal.SIGINT):
            raise Retryable.of("dev.template_in_use")
        copy_files(server.folder, airflow_database.template_of_server(self._request))
        self._launch(program)
        self._await(program)

    def _migrate(self, environment: dict[str, str]) -> bool:
        """Migrate Airflow's database; report whether a copy of it is wanted."""
        program = airflow_database.migration(self._request, environment, self._log("migration"))
        if program is None or self._must_stop():
            return False
        self._set(replace(self._state, message="creating Airflow's database"))
        running = program.start(self._write_down)
        status = self._exit_status(running)
        if self._must_stop():
            return False
        if status != 0:
            raise Misconfigured.of("dev.migration_failed", tail=tail(program.log))
        self._set(self._state.without_process(program.name))
        return airflow_database.finish_migration(self._request)

    def _exit_status(self, running: ProcessRecord) -> int | None:
        while not self._must_stop():
            pid, status = os.waitpid(running.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            self._asked_to_stop.wait(0.05)
        return None

    def _launch(self, program: Program) -> None:
        self._programs[program.name] = program
        self._set(replace(self._state, message=f"starting {program.name}"))
        self._started_at[program.name] = time.monotonic()
        program.start(self._write_down)

    def _await(self, program: Program) -> None:
        while program.name not in self._state.ready and not self._must_stop():
            self._look_at(program.name)
            self._asked_to_stop.wait(0.1)

    def _watch(self) -> None:
        while not self._must_stop():
            for name in self._programs:
                self._look_at(name)
            if self._state.phase is Phase.STARTING and len(self._state.ready) == len(self._programs):
                self._set(replace(self._state, phase=Phase.UP, message=""))
            self._asked_to_stop.wait(0.2)

    def _look_at(self, name: str) -> None:
        program, running = self._programs[name], self._state.process(name)
        if running is None or not running.is_alive():
            self._raise_again(program, running)
        elif name not in self._state.ready:
            self._ask_if_ready(program)

    def _ask_if_ready(self, program: Program) -> None:
        if program.is_ready():
            self._set(replace(self._state, ready=(*self._state.ready, program.name)))
        elif self._state.phase is Phase.STARTING and self._age(program.name) > START_SECONDS:
            raise Retryable.of(
                "dev.program_not_ready",
                program=program.name,
                start_seconds=START_SECONDS,
                log=program.log,
                tail=tail(program.log),
            )

    def _raise_again(self, program: Program, dead: ProcessRecord | None) -> None:
        """Start a component again; one that dies before all are up has an error to repair first."""
        if dead is not None:
            _reap(dead)
        if self._state.phase is Phase.STARTING:
            raise Misconfigured.of("dev.program_ended", program=program.name, log=program.log, tail=tail(program.log))
        if self._age(program.name) > SETTLED_SECONDS:
            self._pauses.pop(program.name, None)
        pause = self._pauses.get(program.name, 0.0)
        if self._age(program.name) < pause:
            return
        self._pauses[program.name] = min(LONGEST_PAUSE_SECONDS, max(1.0, 2 * pause))
        if dead is not None:
            stop([dead], grace_seconds=0.0)  # what its session still holds
        self._launch(program)
        self._set(replace(self._state, message=""))

    def _end(self, phase: Phase, message: str) -> None:
        """End Airflow's components together, then Spark, of which their tasks take leave, then their database."""
        self._set(replace(self._state, phase=Phase.STOPPING, message="stopping"))
        spark = [one for one in self._state.processes if is_of_spark(one.name)]
        database = [one for one in self._state.processes if one.name == POSTGRES]
        components = [one for one in self._state.processes if one.name != NAME and one not in (*spark, *database)]
        # The Connect server takes leave of its cluster.
        left = stop(components, grace_seconds=5.0)
        left += stop([one for one in spark if one.name == SPARK], grace_seconds=8.0)
        left += stop([one for one in spark if one.name != SPARK], grace_seconds=5.0)
        # Its fast shutdown: at a SIGTERM it would wait for a person's session.
        left += stop(database, grace_seconds=10.0, request=signal.SIGINT)
        processes = tuple(left)
        if left:
            message = f"{message}\nthese processes do not end: {', '.join(str(one.pid) for one in left)}".strip()
        self._set(StackState(phase=phase, message=message, processes=processes, ports=self._state.ports))

    def _must_stop(self) -> bool:
        parent = self._request.parent
        if parent is not None and not parent.is_alive():
            self._asked_to_stop.set()
        return self._asked_to_stop.is_set()

    def _age(self, name: str) -> float:
        return time.monotonic() - self._started_at[name]

    def _log(self, name: str) -> Path:
        return self._folder / "logs" / f"{name}.log"

    def _write_down(self, started: ProcessRecord) -> None:
        self._set(self._state.with_process(started))

    def _set(self, state: StackState) -> None:
        if state != self._state:
            self._state = state
            write_product_environment(self._request, state)  # first: who waits for the record reads it then
            write_state(self._folder, state)


def take_lock(folder: Path) -> IO[str] | None:
    """Hold the state folder until the file is closed; None if another process has it."""
    make_private(folder)
    lock = (folder / LOCK_NAME).open("a")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    return lock


def _reap(dead: ProcessRecord) -> None:
    with suppress(ChildProcessError):
        os.waitpid(dead.pid, os.WNOHANG)


if __name__ == "__main__":
    sys.exit(Keeper(StackRequest.from_json(sys.stdin.read())).run())
