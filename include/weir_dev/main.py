"""The launcher's command line: the verbs of the product, those of the local stack, and those of a checkout alone."""

from __future__ import annotations

import os
import sys
from typing import Final

import typer

from weir.cli.main import COMMANDS, command_line
from weir.local_stack import PROJECT_VARIABLE
from weir_dev.project import checkout

OF_A_CHECKOUT: Final = {
    "demo": "weir_dev.commands.stack:demo",
    "init": "weir_dev.commands.init:init",
    "chaos": "weir_dev.commands.chaos:chaos",
}
"""Verbs that a project made by `init` does not have."""

app = command_line(
    {
        **COMMANDS,
        "doctor": "weir_dev.commands.doctor:doctor",
        "airflow": "weir_dev.commands.airflow:airflow",
        "up": "weir_dev.commands.stack:up",
        "down": "weir_dev.commands.stack:down",
        "status": "weir_dev.commands.stack:status",
        **({} if PROJECT_VARIABLE in os.environ else OF_A_CHECKOUT),
    }
)


def test(context: typer.Context) -> None:
    """Run the tests, in several processes unless a path follows; --soak runs the long ones. All else is pytest's."""
    os.chdir(checkout())
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "pytest", "-n", "auto", *context.args])  # noqa: S606  no shell is wanted


if PROJECT_VARIABLE not in os.environ:
    app.command(
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
        add_help_option=False,
    )(test)


if __name__ == "__main__":
    app(prog_name="weir")
