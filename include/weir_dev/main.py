"""The launcher's command line: the verbs of the product, and those that only a checkout has."""

from __future__ import annotations

import os
import sys

import typer

from weir.cli.main import COMMANDS, command_line
from weir_dev.project import project_root

app = command_line(
    {
        **COMMANDS,
        "demo": "weir_dev.commands.stack:demo",
        "up": "weir_dev.commands.stack:up",
        "down": "weir_dev.commands.stack:down",
        "status": "weir_dev.commands.stack:status",
        "chaos": "weir_dev.commands.chaos:chaos",
    }
)


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
    add_help_option=False,
)
def test(context: typer.Context) -> None:
    """Run the tests, in several processes unless a path follows; --soak runs the long ones. All else is pytest's."""
    os.chdir(project_root())
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "pytest", "-n", "auto", *context.args])  # noqa: S606  no shell is wanted


if __name__ == "__main__":
    app(prog_name="weir")
