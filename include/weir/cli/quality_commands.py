"""`weir quality`: what checks have found, epoch by epoch, and pages about them. Invariant: it changes no check."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from weir.cli.quality_report import checks_json, expectations_json, tell_checks, tell_expectations, tell_run
from weir.cli.services import opened_services
from weir.errors import Misconfigured

if TYPE_CHECKING:
    from weir.coordinator.quality_pages import Made
    from weir.coordinator.services import Services
    from weir.ledger.quality_models import QualityCheckRow

EPOCHS = 10
"""How many epochs are shown if nobody says otherwise."""

_HISTORY = "history"


class _HistoryUnlessNamed(TyperGroup):
    """`weir quality flight_delays` is `weir quality history flight_delays`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the verb in where none is named."""
        is_named = bool(args) and (args[0] in self.commands or args[0] == "--help")
        return super().parse_args(ctx, args if is_named else [_HISTORY, *args])


quality_app = typer.Typer(
    cls=_HistoryUnlessNamed, help="Tell what checks of data quality have found, and make pages about them."
)

AsJson = Annotated[bool, typer.Option("--json", help="Answer as JSON.")]


@quality_app.command(_HISTORY)
def history(
    dataflow: Annotated[str | None, typer.Argument(help="Only this dataflow.", show_default=False)] = None,
    stage: Annotated[str | None, typer.Option(help="Only this stage, or state.")] = None,
    suite: Annotated[str | None, typer.Option(help="Only this suite; weir is that of the built-in checks.")] = None,
    expectation: Annotated[str | None, typer.Option(help="Only expectations of this type, a line each.")] = None,
    column: Annotated[str | None, typer.Option(help="Only expectations of this column, a line each.")] = None,
    epochs: Annotated[int, typer.Option(min=1, help="How many of the newest epochs.")] = EPOCHS,
    violations: Annotated[bool, typer.Option("--violations", help="Only what is violated.")] = False,  # noqa: FBT002  Typer's
    as_json: AsJson = False,  # noqa: FBT002  Typer's
) -> None:
    """Tell what checks have found in the newest epochs, the newest last (the verb may be left out).

    A line for each check; with --expectation or --column, one for each expectation.
    """
    from weir.ledger.quality_history import ChecksAsked, checks_asked  # noqa: PLC0415  SQLAlchemy is slow to import

    asked = ChecksAsked(dataflow, stage=stage, suite=suite, epochs=epochs, is_violated=violations)
    with opened_services() as services, services.ledger.transaction() as session:
        found = checks_asked(session, asked)
        if not found:
            _require_known(session, dataflow)
    if expectation is None and column is None:
        checks_json(found) if as_json else tell_checks(found)
        return
    (expectations_json if as_json else tell_expectations)(found, expectation, column, is_violated=violations)


@quality_app.command()
def show(
    run: Annotated[str, typer.Argument(metavar="RUN", help="DATAFLOW@EPOCH, or Airflow's run id.", show_default=False)],
    as_json: AsJson = False,  # noqa: FBT002  Typer's
) -> None:
    """Tell all that was checked in a run, each expectation with what was found."""
    found = _checks_of(run)
    checks_json(found) if as_json else tell_run(found)


@quality_app.command()
def docs(
    run: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="Only this run: DATAFLOW@EPOCH, or Airflow's run id.")
    ] = None,
) -> None:
    """Make the pages about checks that have none, and say where they are."""
    from weir.ledger.runs import named_run  # noqa: PLC0415  SQLAlchemy is slow to import

    with opened_services() as services:
        runs = None
        if run is not None:
            with services.ledger.transaction() as session:
                runs = [named_run(session, run).id]
        made = _made(services, runs)
        where = services.store.url
    _say(str(made))
    if made.newest:
        _say(f"The newest is {where}/{made.newest}")


def _made(services: Services, runs: list[str] | None) -> Made:
    """All of them, a batch at a time."""
    from weir.cli.page_program import rendered  # noqa: PLC0415  SQLAlchemy is slow to import
    from weir.coordinator.quality_pages import Made, make_pages  # noqa: PLC0415

    total = Made()
    while True:
        made = make_pages(services, rendered, runs=runs)
        newest = made.newest or total.newest
        total = Made(total.pages + made.pages, newest, (*total.problems, *made.problems), made.is_all)
        if made.is_all or not made.pages:
            return total


def _checks_of(run: str) -> list[QualityCheckRow]:
    from weir.ledger.quality_history import ChecksAsked, checks_asked  # noqa: PLC0415  SQLAlchemy is slow to import
    from weir.ledger.runs import named_run  # noqa: PLC0415

    with opened_services() as services, services.ledger.transaction() as session:
        return checks_asked(session, ChecksAsked(run=named_run(session, run).id))


def _require_known(session: Any, dataflow: str | None) -> None:
    from weir.ledger.runs import runs_of  # noqa: PLC0415  SQLAlchemy is slow to import

    if dataflow is not None and not runs_of(session, dataflow):
        raise Misconfigured(f"the ledger knows no dataflow {dataflow}: `weir runs` lists what it knows")


def _say(text: str) -> None:
    Console().print(text, markup=False, highlight=False, soft_wrap=True)
