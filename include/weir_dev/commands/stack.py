"""`weir up`, `weir down`, `weir status`, `weir demo`: the local stack at a person's hand."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from weir.cli.progress import Progress, exits_on_signals
from weir.cli.tables import key, number, print_cells, value
from weir.local_stack import PROJECT_VARIABLE
from weir.secrecy import without_secrets
from weir_dev.ports import LOCALHOST, LOOPBACK
from weir_dev.project import project_root, state_folder
from weir_dev.stack.airflow_environment import API, SPARK, SPARK_UI, database_of, lake_folder, needs_postgres
from weir_dev.stack.credentials import FILE_NAME as SECRETS
from weir_dev.stack.credentials import PERSON
from weir_dev.stack.keeper import NAME as KEEPER
from weir_dev.stack.postgres import REPORTS, SERVICES
from weir_dev.stack.spark_cluster import MASTER, MASTER_UI, master_url
from weir_dev.stack.stack import Stack
from weir_dev.stack.state import Database, Phase, StackRequest, StackState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


_SQLITE_HELP = "Keep Airflow's database and the ledger in SQLite files, not in a PostgreSQL server."

EXIT_WRONG = 1

EXIT_DOWN = 3
"""The exit status of `status` if no stack runs, as service managers have it."""


def up(
    spark_workers: Annotated[
        int, typer.Option(min=0, max=8, help="compute on a standalone Spark cluster of so many workers")
    ] = 0,
    sqlite: Annotated[bool, typer.Option("--sqlite", help=_SQLITE_HELP)] = False,
) -> None:
    """Start Airflow and Spark in the background, and say how to log in."""
    console = Console()
    progress = Progress(console)
    stack = stack_of_project(
        lambda state: progress.say(state.describe()), spark_workers, Database.SQLITE if sqlite else None
    )
    if stack.is_running():
        console.print("The stack is running already.")
    else:
        with exits_on_signals(), progress.phase("starting Airflow and Spark"):
            stack.start()
    _print_access(console, stack)


def down() -> None:
    """Stop what `weir up` has started; runs, results and the ledger stay."""
    console = Console()
    stack = stack_of_project()
    was_running = stack.is_running()
    with Progress(console).phase("stopping Airflow and Spark"):
        stack.stop()
    if not was_running:
        console.print("The stack was not running.")


def status() -> None:
    """Show the components of the stack, its addresses, and how to log in."""
    console = Console()
    stack = stack_of_project()
    state = stack.state
    if not stack.is_running():
        console.print("The stack is not running; ./weir up starts it.")
        if state.phase is Phase.FAILED:
            console.print(f"The last start failed: {state.message}", markup=False)
        left = [f"{one.name} ({one.pid})" for one in state.processes if one.is_alive()]
        if left:
            console.print(
                f"Left behind by a keeper that was killed: {', '.join(left)}; ./weir down ends them.", soft_wrap=True
            )
        raise typer.Exit(EXIT_DOWN)
    console.print(f"The stack is {state.phase.value}{not_ready(state)}. {state.message}".rstrip())
    print_cells((key("component"), number("pid"), value("state"), number("started again")), _components(state), console)
    _print_access(console, stack)


def demo(
    sqlite: Annotated[bool, typer.Option("--sqlite", help=_SQLITE_HELP)] = False,
    picture: Annotated[
        Path | None,
        typer.Option("--picture", help="Write what it prints of the recovery to this SVG file.", show_default=False),
    ] = None,
) -> None:
    """Run two days of real data, lose a result, and watch it heal; about two minutes."""
    from weir_dev.demo.demo import run_demo  # noqa: PLC0415  imports pyarrow

    with exits_on_signals():
        is_right = run_demo(
            Console(width=None if sys.stdout.isatty() and picture is None else 120),
            Database.SQLITE if sqlite else Database.POSTGRES,
            picture,
        )
    raise typer.Exit(0 if is_right else EXIT_WRONG)


def stack_of_project(
    on_change: Callable[[StackState], None] | None = None, spark_workers: int = 0, database: Database | None = None
) -> Stack:
    """The stack of the project, running or not, with the kind of database that it has, unless another is given.

    Raises Misconfigured if Weir is installed without one.
    """
    root = project_root()
    request = StackRequest(
        folder=state_folder(),
        dags=(root / "dags",),
        plugins=root / "plugins",
        cache=state_folder() / "cache",
        spark_workers=spark_workers,
        database=database or database_of(state_folder()) or Database.POSTGRES,
        preferred_ports={API: 8080, SPARK_UI: 4040, MASTER: 7077, MASTER_UI: 8081},
    )
    return Stack(request, on_change)


def not_ready(state: StackState) -> str:
    """Name what does not answer in a stack that was up: it is being started again."""
    names = [one.name for one in state.processes if one.name not in {*state.ready, KEEPER}]
    return f", but {', '.join(names)} does not answer yet" if names and state.phase is Phase.UP else ""


def _components(state: StackState) -> Iterator[tuple[str, ...]]:
    for one in state.processes:
        word = "running" if one.name in {*state.ready, KEEPER} else "starting"
        again = max(0, state.starts.get(one.name, 1) - 1)
        yield one.name, str(one.pid), word if one.is_alive() else "dead", str(again)


def _print_access(console: Console, stack: Stack) -> None:
    lines = {
        "look first": f"{stack.url}/dags: switch a DAG on; its grid shows what runs, and weir runs what has run",
        "Airflow": stack.url,
        "log in as": f"{PERSON}, password {stack.credentials.person_password}",
        "Spark": f"sc://{LOCALHOST}:{stack.state.ports[SPARK]}, its token in {stack.folder / SECRETS}, its UI at http://{LOOPBACK}:{stack.state.ports[SPARK_UI]}",
        **_cluster(stack.state),
        "results": stack.store_url,
        **({} if PROJECT_VARIABLE in os.environ else {"report": _where_the_report_is(stack)}),
        "ledger": without_secrets(stack.ledger_url) + _why_sqlite(stack),
        "logs": f"{stack.logs}, of tasks {stack.task_logs}",
        "stop": "./weir down",
    }
    for name, said in lines.items():
        console.print(f"[bold]{name:>10}[/]  {said}", soft_wrap=True, highlight=False)


def _why_sqlite(stack: Stack) -> str:
    if stack.request.database is Database.POSTGRES:
        return ""
    return ", with Airflow's database beside it in SQLite, where one of several writers at once may be refused"


def _where_the_report_is(stack: Stack) -> str:
    table = ""
    if needs_postgres(stack.request):
        table = f"; table delays: PGSERVICEFILE={stack.folder / SERVICES} psql service={REPORTS}"
    return f"{lake_folder(stack.folder)}/date=*/*.parquet{table}"


def _cluster(state: StackState) -> dict[str, str]:
    if state.process(MASTER) is None:
        return {}
    return {"cluster": f"{master_url(state.ports)}, its UI at http://{LOOPBACK}:{state.ports[MASTER_UI]}"}
