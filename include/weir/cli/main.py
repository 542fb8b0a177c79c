"""The command line; each group of verbs has a module of its own.

Invariant: an error of Weir is a message on stderr and exit code 2, never a traceback.
"""

from __future__ import annotations

import sys
from typing import Any

import typer
from rich.console import Console

from weir.cli.commands import (
    checkpoints,
    code,
    doctor,
    failovers,
    gc,
    ledger,
    plan,
    quality,
    restore,
    results,
    savepoint,
    state,
    verify,
)
from weir.errors import WeirError

EXIT_ERROR = 2


class WeirApp(typer.Typer):
    """A Typer application that prints Weir's errors."""

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

app.command()(doctor.doctor)
app.command()(ledger.runs)
app.command()(results.results)
app.command()(failovers.failovers)
app.command()(plan.plan)
app.command()(failovers.why)
app.command()(gc.gc)
app.command()(verify.verify)
app.command()(checkpoints.checkpoints)
app.command()(restore.restore)
app.add_typer(code.code_app, name="code")
app.add_typer(savepoint.savepoint_app, name="savepoint")
app.add_typer(quality.quality_app, name="quality")
app.add_typer(ledger.run_app, name="run")
app.add_typer(ledger.ledger_app, name="ledger")
app.add_typer(state.state_app, name="state")


if __name__ == "__main__":
    app()
