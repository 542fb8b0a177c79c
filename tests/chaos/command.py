"""What `./weir chaos` does.

Invariant: the stack, the database and every frozen process end with the command.
"""

from __future__ import annotations

import shutil
import sys
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import Console

from weir.cli.progress import Progress, exits_on_signals
from weir.errors import Misconfigured
from weir_dev.project import checkout, state_folder
from weir_dev.stack.stack import Stack
from weir_dev.stack.state import Database, StackRequest

if TYPE_CHECKING:
    from tests.servers.postgres import PostgresServer


BALANCER: Final = Path(__file__).parents[1] / "servers" / "balancer.py"

HEARTBEAT_TIMEOUT: Final = 15
"""Seconds; with the local stack's own 30 every orphan and zombie would cost half a minute."""

DATABASE: Final = "database"
"""The folder of the log of the command's own PostgreSQL; a folder `postgres` would be the stack's."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The options of the command."""

    minutes: float
    seed: int
    spark_workers: int
    faults: str

    @property
    def names(self) -> list[str]:
        """The names of the faults; none for all."""
        return [name.strip() for name in self.faults.split(",") if name.strip()]

    def __str__(self) -> str:
        return f"Seed [bold]{self.seed}[/], {self.minutes:g} minutes of: "


def run(shape: Shape, *, postgres: bool, ha: bool) -> bool:
    """Inject faults into a dataflow, and report whether it published what it would have without them."""
    console = Console(width=None if sys.stdout.isatty() else 120)
    with exits_on_signals(), ExitStack() as ends:
        return _run_ha(console, ends, shape) if ha else _run(console, ends, shape, wants_postgres=postgres)


class _Database:
    """PostgreSQL for Airflow and the ledger, from when it is opened."""

    def open(self, ends: ExitStack, folder: Path) -> None:
        """Start it; when it ends, the ledger stays in the folder."""
        from tests.servers.postgres import running_postgres

        self._server: PostgresServer = ends.enter_context(running_postgres(folder / DATABASE))
        ends.callback(_keep_ledger, self._server.url("weir"), folder / "ledger.db")

    def environment(self) -> dict[str, str]:
        """Return the environment with which a stack uses it."""
        return {
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": self._server.url("airflow"),
            "WEIR_LEDGER": self._server.url("weir"),
        }

    def stop(self) -> None:
        """Stop it at once."""
        self._server.stop()

    def start(self) -> None:
        """Start it again."""
        self._server.start()


def _run(console: Console, ends: ExitStack, shape: Shape, *, wants_postgres: bool) -> bool:
    from tests.chaos.chaos import Chaos, write_control
    from tests.chaos.field import Field
    from tests.chaos.plan import chosen, known_faults

    folder = state_folder() / "chaos"
    control = folder / "control" / "ladder.json"
    progress = Progress(console)
    database = _Database() if wants_postgres else None
    faults = chosen(known_faults(HEARTBEAT_TIMEOUT, shape.spark_workers, database), shape.names)
    _clear(folder)
    write_control(control)
    console.print(f"{shape}{', '.join(fault.name for fault in faults)}", soft_wrap=True)
    if database is not None:
        database.open(ends, folder)
    environment = {} if database is None else database.environment()
    stack = _started(ends, progress, _request(folder, control, shape.spark_workers, environment))
    field = Field(stack, control)
    ends.callback(field.close)
    is_right = Chaos(field, console, progress, shape.seed, shape.minutes, faults).run()
    _tell(console, stack, shape, is_right=is_right)
    return is_right


def _run_ha(console: Console, ends: ExitStack, shape: Shape) -> bool:
    from tests.chaos.field import Field
    from tests.chaos.ha import HighAvailability, write_ha_control
    from tests.chaos.ha_faults import ha_faults
    from tests.chaos.plan import chosen
    from tests.servers.postgres_pair import running_pair

    folder = state_folder() / "chaos"
    control = folder / "control" / "ladder.json"
    progress = Progress(console)
    _clear(folder)
    write_ha_control(control)
    pair = ends.enter_context(running_pair(folder / DATABASE))
    ends.callback(_keep_ledger, pair.url("weir"), folder / "ledger.db")
    faults = chosen(ha_faults(pair), shape.names)
    console.print(f"{shape}{', '.join(fault.name for fault in faults)}", soft_wrap=True)
    environment = {
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": pair.url("airflow", connect_timeout="3"),
        # asyncpg, which does not know `connect_timeout`
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC": pair.url("airflow").replace("+psycopg2:", "+asyncpg:"),
        "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": str(HEARTBEAT_TIMEOUT),
        # Two of each on one machine: what they do while nothing happens costs the others' seconds.
        "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.5",
        "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "3",
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "15",
        "WEIR_LEDGER": pair.url("weir", connect_timeout="3"),
    }
    request = _request(folder, control, shape.spark_workers, environment)
    stack = _started(ends, progress, replace(request, balancer=BALANCER))
    field = Field(stack, control)
    ends.callback(field.close)
    is_right = HighAvailability(field, console, progress, shape.seed, shape.minutes, faults).run()
    _tell(console, stack, shape, is_right=is_right)
    return is_right


def _started(ends: ExitStack, progress: Progress, request: StackRequest) -> Stack:
    stack = Stack(request, lambda state: progress.say(state.describe()))
    ends.callback(_stop, progress, stack)
    with progress.phase("starting Airflow and Spark"):
        stack.start()
    return stack


def _tell(console: Console, stack: Stack, shape: Shape, *, is_right: bool) -> None:
    if is_right:
        console.print(f"\n[bold green]Unharmed[/]: seed {shape.seed} changed nothing of what is published.")
    else:
        console.print(
            f"\n[bold red]Seed {shape.seed} has found a bug.[/] Please report it with what is in these folders."
        )
    kept = {"logs": stack.logs, "tasks' logs": stack.task_logs, "store": stack.folder / "store"}
    for name, path in {**kept, "ledger": stack.folder / "ledger.db"}.items():
        console.print(f"[bold]{name:>12}[/]  {path}", soft_wrap=True, highlight=False)


def _clear(folder: Path) -> None:
    """End what a run that was killed has left, and begin with an empty folder."""
    left = Stack(_request(folder, folder, 0, {}))
    if left.is_running():
        raise Misconfigured(f"another chaos run is going on, at {left.url}: wait until it ends")
    left.stop()
    shutil.rmtree(folder, ignore_errors=True)


def _request(folder: Path, control: Path, spark_workers: int, environment: dict[str, str]) -> StackRequest:
    root = checkout()
    flows = root / "tests" / "flows"
    if not flows.is_dir():
        raise Misconfigured(
            f"weir chaos runs the dataflow of {flows}, which is not there: use a whole checkout of Weir"
        )
    return StackRequest.owned_by_this_process(
        folder=folder,
        dags=(root / "dags", flows / "dags"),
        plugins=root / "plugins",
        cache=state_folder() / "cache",
        spark_workers=spark_workers,
        database=Database.SQLITE,
        environment={
            "WEIR_LADDER": str(control),
            "PYTHONPATH": str(flows),
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": str(HEARTBEAT_TIMEOUT),
            **environment,
        },
    )


def _keep_ledger(url: str, path: Path) -> None:
    """Copy the ledger out of a database that ends with the command."""
    from sqlalchemy import create_engine, select

    from weir.ledger.database.tables import Table
    from weir.ledger.ledger import Ledger

    copied = f"sqlite:///{path}"
    for each in (url, copied):
        Ledger.open(each).close()
    with create_engine(url).connect() as source, create_engine(copied).begin() as target:
        for table in Table.metadata.sorted_tables:
            rows = [dict(row) for row in source.execute(select(table)).mappings()]
            if rows:
                target.execute(table.delete())  # the id of its own
                target.execute(table.insert(), rows)


def _stop(progress: Progress, stack: Stack) -> None:
    with progress.phase("stopping Airflow and Spark"):
        stack.stop()
