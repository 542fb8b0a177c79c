"""The command line; each group of verbs has a module of its own.

Invariants: an error of Weir is a message on stderr and exit code 2, never a traceback. The module of a verb is imported
when that verb is typed: a command waits for no import of another one, and a list of all verbs for none. A process that
ends after its answer looks for no garbage among what it has imported.
"""

from __future__ import annotations

import ast
import atexit
import gc
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

from weir.errors import WeirError

if TYPE_CHECKING:
    from collections.abc import Mapping

EXIT_ERROR = 2

ALLOCATIONS: Final = 100_000
"""How many objects are made before Python looks for unreachable ones; 700 is its default."""

COMMANDS: Final = {
    "check": "weir.cli.commands.check:check",
    "try": "weir.cli.commands.trial:try_stage",
    "doctor": "weir.cli.commands.doctor:doctor",
    "dataflows": "weir.cli.commands.runs:dataflows",
    "runs": "weir.cli.commands.runs:runs",
    "results": "weir.cli.commands.results:results",
    "compare": "weir.cli.commands.compare:compare",
    "failovers": "weir.cli.commands.failovers:failovers",
    "plan": "weir.cli.commands.plan:plan",
    "clear": "weir.cli.commands.plan:clear",
    "advise": "weir.cli.commands.advise:advise",
    "why": "weir.cli.commands.failovers:why",
    "gc": "weir.cli.commands.gc:gc",
    "verify": "weir.cli.commands.verify:verify",
    "datasets": "weir.cli.commands.datasets:datasets",
    "sinks": "weir.cli.commands.sinks:sinks_app",
    "export": "weir.cli.commands.export:export",
    "notifications": "weir.cli.commands.sinks:notifications",
    "checkpoints": "weir.cli.commands.snapshots:checkpoints",
    "restore": "weir.cli.commands.restore:restore",
    "replay": "weir.cli.commands.restore:replay",
    "seal": "weir.cli.commands.restore:seal",
    "stop": "weir.cli.commands.restore:stop",
    "start": "weir.cli.commands.restore:start",
    "code": "weir.cli.commands.code:code_app",
    "savepoint": "weir.cli.commands.snapshots:savepoint_app",
    "quality": "weir.cli.commands.quality:quality_app",
    "run": "weir.cli.commands.runs:run_app",
    "ledger": "weir.cli.commands.ledger:ledger_app",
    "state": "weir.cli.commands.state:state_app",
    "airflow": "weir.cli.airflow_program:airflow",
}
"""Where each verb of the product is, in the order in which they are listed."""

OF_ANOTHER_PROGRAM: Final = frozenset({"airflow"})
"""Verbs after which all words are another program's, `--help` too."""


class WeirApp(typer.Typer):
    """A Typer application that prints Weir's errors."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the command line of this process."""
        _collect_little()
        try:
            return super().__call__(*args, **kwargs)
        except WeirError as error:
            from rich.console import Console  # noqa: PLC0415  only an error needs it here

            Console(stderr=True).print(str(error), style="red", markup=False, highlight=False, soft_wrap=True)
            sys.exit(EXIT_ERROR)


def _collect_little() -> None:
    """Look for unreachable objects seldom, and not when the process ends: that was a quarter of a short command's time.

    What is imported stays until then, and the operating system frees it.
    """
    gc.set_threshold(ALLOCATIONS)
    atexit.register(gc.freeze)


def command_line(places: Mapping[str, str]) -> WeirApp:
    """Return an application with these verbs; a place is `MODULE:NAME` of a function or of a group."""

    class Verbs(TyperGroup):
        def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002  Typer's
            return [*places, *(name for name in self.commands if name not in places)]

        def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002  Typer's
            if cmd_name in places and cmd_name not in self.commands:
                self.commands[cmd_name] = _imported(cmd_name, places[cmd_name])
            return self.commands.get(cmd_name)

        def resolve_command(self, ctx: Any, args: list[str]) -> Any:
            if args[0] not in places:
                self.commands = {**_listed(places), **self.commands}  # Typer looks for what a wrong verb resembles
            return super().resolve_command(ctx, args)

        def format_help(self, ctx: Any, formatter: Any) -> None:
            listed = TyperGroup(
                name=self.name,
                commands={**_listed(places), **self.commands},
                help=self.help,
                params=self.params,
                rich_markup_mode=self.rich_markup_mode,
            )
            listed.format_help(ctx, formatter)

    app = WeirApp(
        cls=Verbs,
        name="weir",
        help="Fine-grained recovery and incremental checkpoints for pipelines that Airflow schedules and Spark "
        "computes.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(lambda: None)  # Typer makes a group only of what has commands or this
    return app


def _listed(places: Mapping[str, str]) -> dict[str, Any]:
    """Return commands that can be listed: with the help that the sources of their modules have, which is read."""
    return {name: TyperCommand(name, help=_help_of(place)) for name, place in places.items()}


def _help_of(place: str) -> str | None:
    """Return the docstring of a function, or the help of a group."""
    module, _, attribute = place.partition(":")
    spec = find_spec(module)
    for node in ast.parse(Path(str(spec and spec.origin)).read_text()).body:
        match node:
            case ast.FunctionDef(name=name) if name == attribute:
                return ast.get_docstring(node)
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(keywords=options)) if name == attribute:
                return next((str(ast.literal_eval(each.value)) for each in options if each.arg == "help"), None)
    return None


_PASSED_ON: Final[Mapping[str, Any]] = {
    "add_help_option": False,
    "context_settings": {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
}


def _imported(name: str, place: str) -> Any:
    module, _, attribute = place.partition(":")
    found = getattr(import_module(module), attribute)
    alone = typer.Typer()
    if isinstance(found, typer.Typer):
        alone.add_typer(found, name=name)
    else:
        alone.command(name, **(_PASSED_ON if name in OF_ANOTHER_PROGRAM else {}))(found)
    return get_group(alone).commands[name]


app = command_line(COMMANDS)


if __name__ == "__main__":
    app()
