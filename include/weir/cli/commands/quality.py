"""`weir quality`: the recorded results of quality checks.

Invariants: it changes nothing; `--json` has everything that a line leaves out.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from weir.cli.default_command import with_default
from weir.cli.documents import AsJson, Listing, OnlyDataflow, print_document
from weir.cli.tables import at, key, of_partition, print_cells, print_line, text, value
from weir.environment import opened_services
from weir.formats.checks import ExpectationResult
from weir.formats.suite import Severity
from weir.ledger.names import require_dataflow
from weir.ledger.runs import named_run
from weir.views.documents import plain
from weir.views.quality import CheckFilter, CheckView, find_checks, matching
from weir.wording import shortened

EPOCHS = 10
"""The default number of epochs."""

_HISTORY = "history"

quality_app = typer.Typer(cls=with_default(_HISTORY), help="Show the results of data quality checks.")


@quality_app.command(_HISTORY)
def history(
    dataflow: OnlyDataflow = None,
    stage: Annotated[str | None, typer.Option(help="Only this stage, or state.")] = None,
    suite: Annotated[
        str | None, typer.Option(help="Only this suite; `weir` is the suite of the built-in checks.")
    ] = None,
    expectation: Annotated[str | None, typer.Option(help="Only expectations of this type, one line for each.")] = None,
    column: Annotated[str | None, typer.Option(help="Only expectations of this column, one line for each.")] = None,
    epochs: Annotated[int, typer.Option(min=1, help="The number of newest epochs.")] = EPOCHS,
    violations: Annotated[bool, typer.Option("--violations", help="Only violated checks.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the checks of the newest epochs, the newest last (the verb can be omitted).

    A line for each check; with --expectation or --column, one for each expectation.
    """
    asked = CheckFilter(dataflow=dataflow, stage=stage, suite=suite, epochs=epochs, is_violated=violations)
    with opened_services() as services, services.ledger.transaction() as session:
        checks = find_checks(session, asked)
        if not checks and dataflow is not None:
            require_dataflow(session, dataflow)
    if expectation is None and column is None:
        _CHECKS.show(checks, as_json=as_json)
    elif as_json:
        found = matching(checks, expectation, column, is_violated=violations)
        print_document(expectations=[_expectation(check) | plain(result) for check, result in found])
    else:
        _print_expectations(checks, expectation, column, is_violated=violations)


@quality_app.command()
def show(
    run: Annotated[str, typer.Argument(metavar="RUN", help="DATAFLOW@EPOCH, or Airflow's run id.", show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Show all checks of a run, with the result of each expectation."""
    with opened_services() as services, services.ledger.transaction() as session:
        checks = find_checks(session, CheckFilter(run=named_run(session, run).id))
    if as_json:
        print_document(checks=checks)
    else:
        _print_run(checks)


_SHOWN = 3
"""The number of violated expectations, and of examples, in a line."""


def _violated(check: CheckView) -> str:
    more = f"; and {len(check.violated) - _SHOWN} more" if len(check.violated) > _SHOWN else ""
    return "; ".join(map(str, check.violated[:_SHOWN])) + more


def _met(check: CheckView) -> str:
    return f"{len(check.results) - len(check.violated)} of {len(check.results)}" if check.results else ""


_PLACE = (key("epoch"), key("dataflow"), key("partition", of_partition), key("suite"))

_CHECKS = Listing(
    "checks",
    (
        *(*_PLACE, value("why"), value("outcome"), value("met", _met), text("violated", _violated)),
        *(value("attempt"), value("checked by", "checked_by")),
    ),
    "No recorded check matches. Only stages with quality= are checked, and states that were restored",
)


def _expectation(check: CheckView) -> dict[str, Any]:
    names = ("dataflow", "epoch", "stage", "subtask", "attempt", "suite", "why")
    return {name: getattr(check, name) for name in names}


def _print_expectations(
    checks: Sequence[CheckView], type_: str | None, column: str | None, *, is_violated: bool
) -> None:
    """Print a line for each matching expectation of each check, and for what was not checked again."""
    suites = {check.suite for check, _ in matching(checks, type_, column, is_violated=is_violated)}
    rows = []
    for check in checks:
        found = matching([check], type_, column, is_violated=is_violated)
        lines = [(_named(result), _verdict(result), _found(result)) for _, result in found]
        if check.is_same and check.suite in suites and not is_violated:
            lines.append(("", "met", "rows with this digest have passed before"))
        place = [each.cell(check) for each in _PLACE]
        rows += [(*place, *line, check.why, check.attempt) for line in lines]
    if rows:
        columns = (*_PLACE, key("expectation"), value("is"), text("found"), value("why"), value("attempt"))
        print_cells(columns, rows)
    else:
        print_line("No recorded expectation matches.")


def _print_run(checks: Sequence[CheckView]) -> None:
    """Print all checks of a run."""
    if not checks:
        print_line("Nothing was checked in this run: its stages have no quality=, or have not committed yet.")
    for check in checks:
        by = f", checked by {check.checked_by}" if check.by_attempt != check.attempt else ""
        print_line(
            f"{of_partition(check)} of {check.attempt}: {check.suite} {check.outcome} ({check.why}, policy "
            f"{check.policy}; {check.rows:,} rows, {check.seconds:.1f} s on {at(check.checked_at)}{by})"
        )
        if check.is_same:
            print_line("  not checked again: rows with the same digest have passed")
        for result in check.results:
            print_line(f"  {_verdict(result):8}  {_named(result)}: {_found(result)}")
        for each in check.blamed:
            print_line(
                f"  suspected input: {each['stage']}[{each['subtask']}] of {each['attempt']}, in run {each['run']}"
            )


def _named(result: ExpectationResult) -> str:
    """Return the type with its arguments."""
    return f"{result.type}({', '.join(f'{name}={_brief(value)}' for name, value in result.kwargs.items())})"


def _brief(value: Any) -> str:
    text = json.dumps(value, default=str)
    return shortened(text, 60)


def _verdict(result: ExpectationResult) -> str:
    if result.success:
        return "met"
    return "VIOLATED" if result.severity is Severity.FAIL else "warns"


def _found(result: ExpectationResult) -> str:
    if result.error:
        return result.error
    if result.unexpected is None:
        return f"observed {_brief(result.observed)}" if result.observed is not None else ""
    examples = ", ".join(_brief(each) for each in result.examples[:_SHOWN])
    return f"{result.unexpected} of {result.rows} rows" + (f", such as {examples}" if examples else "")
