"""The command line. Each group of verbs has a module of its own; this one puts them together.

Invariant: an error of Weir is a message on stderr and exit code 2, never a traceback.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import typer
from rich.console import Console

from weir.cli import (
    chaos_commands,
    checkpoint_commands,
    doctor,
    failover_commands,
    gc_commands,
    ledger_commands,
    plan_commands,
    quality_commands,
    restore_commands,
    results_commands,
    savepoint_commands,
    stack_commands,
    state_commands,
    verify_commands,
)
from weir.cli.project import project_root
from weir.errors import WeirError

EXIT_ERROR = 2


class WeirApp(typer.Typer):
    """A Typer application that knows Weir's errors."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the command line of this process."""
        try:
            return super().__call__(*args, **kwargs)
        except WeirError as error:
            Console(stderr=True).print(str(error), style="red", markup=False, highlight=False, soft_wrap=True)
            sys.exit(EXIT_ERROR)


app = WeirApp(
    name="weir",
    help="Fine-grained recovery and incremental checkpoints for pipelines that Airflow schedules and Spark computes.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

app.command()(stack_commands.demo)
app.command()(stack_commands.up)
app.command()(stack_commands.down)
app.command()(stack_commands.status)
app.command()(chaos_commands.chaos)
app.command()(doctor.doctor)
app.command()(ledger_commands.runs)
app.command()(results_commands.results)
app.command()(failover_commands.failovers)
app.command()(plan_commands.plan)
app.command()(failover_commands.why)
app.command()(gc_commands.gc)
app.command()(verify_commands.verify)
app.command()(checkpoint_commands.checkpoints)
app.command()(restore_commands.restore)
app.add_typer(savepoint_commands.savepoint_app, name="savepoint")
app.add_typer(quality_commands.quality_app, name="quality")
app.add_typer(ledger_commands.run_app, name="run")
app.add_typer(ledger_commands.ledger_app, name="ledger")
app.add_typer(state_commands.state_app, name="state")


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
    add_help_option=False,
)
def test(context: typer.Context) -> None:
    """Run the tests, in several processes unless a path follows; with --soak those that take long."""
    os.chdir(project_root())
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "pytest", "-n", "auto", *context.args])  # noqa: S606  no shell is wanted


if __name__ == "__main__":
    app()
