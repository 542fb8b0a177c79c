"""`weir quality`: the recorded results of quality checks, and pages about them.

Invariants: it changes no check; `--json` has everything that a line leaves out.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from weir.cli.default_command import with_default
from weir.cli.tables import key, print_rows, text, value
from weir.environment import opened_services
from weir.formats.checks import CheckOutcome, ExpectationResult
from weir.formats.codec import expectation_results_from_plain
from weir.formats.suite import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from weir.ledger.database.tables import QualityCheckRow


EPOCHS = 10
"""The default number of epochs."""

_HISTORY = "history"


quality_app = typer.Typer(
    cls=with_default(_HISTORY), help="Show the results of data quality checks, and create pages about them."
)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@quality_app.command(_HISTORY)
def history(
    dataflow: Annotated[str | None, typer.Argument(help="Only this dataflow.", show_default=False)] = None,
    stage: Annotated[str | None, typer.Option(help="Only this stage, or state.")] = None,
    suite: Annotated[
        str | None, typer.Option(help="Only this suite; `weir` is the suite of the built-in checks.")
    ] = None,
    expectation: Annotated[str | None, typer.Option(help="Only expectations of this type, one line for each.")] = None,
    column: Annotated[str | None, typer.Option(help="Only expectations of this column, one line for each.")] = None,
    epochs: Annotated[int, typer.Option(min=1, help="The number of newest epochs.")] = EPOCHS,
    violations: Annotated[bool, typer.Option("--violations", help="Only violated checks.")] = False,  # noqa: FBT002  Typer's
    as_json: AsJson = False,  # noqa: FBT002  Typer's
) -> None:
    """Show the checks of the newest epochs, the newest last (the verb can be omitted).

    A line for each check; with --expectation or --column, one for each expectation.
    """
    from weir.ledger.names import require_dataflow  # noqa: PLC0415
    from weir.quality.check_queries import CheckFilter, find_checks  # noqa: PLC0415  SQLAlchemy is slow to import

    asked = CheckFilter(dataflow=dataflow, stage=stage, suite=suite, epochs=epochs, is_violated=violations)
    with opened_services() as services, services.ledger.transaction() as session:
        found = find_checks(session, asked)
        if not found and dataflow is not None:
            require_dataflow(session, dataflow)
    if expectation is None and column is None:
        checks_json(found) if as_json else print_checks(found)
        return
    (expectations_json if as_json else print_expectations)(found, expectation, column, is_violated=violations)


@quality_app.command()
def show(
    run: Annotated[str, typer.Argument(metavar="RUN", help="DATAFLOW@EPOCH, or Airflow's run id.", show_default=False)],
    as_json: AsJson = False,  # noqa: FBT002  Typer's
) -> None:
    """Show all checks of a run, with the result of each expectation."""
    found = _checks_of(run)
    checks_json(found) if as_json else print_run(found)


@quality_app.command()
def docs(
    run: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="Only this run: DATAFLOW@EPOCH, or Airflow's run id.")
    ] = None,
) -> None:
    """Create the missing pages about checks, and print their place."""
    from weir.ledger.runs import named_run  # noqa: PLC0415  SQLAlchemy is slow to import
    from weir.quality.page_program import render_pages  # noqa: PLC0415
    from weir.quality.pages import make_all_pages  # noqa: PLC0415

    with opened_services() as services:
        runs: list[str] | None = None
        if run is not None:
            with services.ledger.transaction() as session:
                runs = [named_run(session, run).id]
        made = make_all_pages(services, render_pages, runs)
        where = services.store.url
    _print(str(made))
    if made.newest:
        _print(f"The newest is {where}/{made.newest}")


def _checks_of(run: str) -> list[QualityCheckRow]:
    from weir.ledger.runs import named_run  # noqa: PLC0415
    from weir.quality.check_queries import CheckFilter, find_checks  # noqa: PLC0415  SQLAlchemy is slow to import

    with opened_services() as services, services.ledger.transaction() as session:
        return find_checks(session, CheckFilter(run=named_run(session, run).id))


VERSION = 1
_COLUMNS = (
    "dataflow",
    "run",
    "epoch",
    "stage",
    "subtask",
    "attempt",
    "by_attempt",
    "suite",
    "fingerprint",
    "why",
    "policy",
    "outcome",
    "digest",
    "rows",
    "results",
    "blamed",
    "seconds",
    "page",
)

_SHOWN = 3
"""The number of violated expectations, and of examples, in a line."""


def checks_json(found: Sequence[QualityCheckRow]) -> None:
    """Print checks as JSON; times are in UTC, ISO 8601."""
    print(json.dumps({"version": VERSION, "checks": [_check_json(row) for row in found]}))


def expectations_json(
    found: Sequence[QualityCheckRow], type_: str | None, column: str | None, *, is_violated: bool
) -> None:
    """Print the matching expectations of checks as JSON, each with its check's epoch, partition and attempt."""
    plain = ("dataflow", "epoch", "stage", "subtask", "attempt", "suite", "why")
    lines = [
        {**{name: getattr(row, name) for name in plain}, **row.results[number]}
        for row, number, _ in _matching(found, type_, column, is_violated=is_violated)
    ]
    print(json.dumps({"version": VERSION, "expectations": lines}))


def print_checks(found: Sequence[QualityCheckRow]) -> None:
    """Print a line for each check."""
    if not found:
        _print("No recorded check matches. Only stages with quality= are checked, and states that were restored")
        return
    others = (value("why"), value("outcome"), value("met"), text("violated"), value("attempt"), value("checked by"))
    print_rows((*_PLACE, *others), map(_cells, found))


def _cells(row: QualityCheckRow) -> tuple[str, ...]:
    results = expectation_results_from_plain(row.results)
    wrong = [str(each) for each in results if not each.success]
    more = f"; and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
    met = f"{len(results) - len(wrong)} of {len(results)}" if results else ""
    by = row.by_attempt if row.by_attempt != row.attempt else ""
    return (*_place(row), row.why, row.outcome, met, "; ".join(wrong[:_SHOWN]) + more, row.attempt, by)


def print_expectations(
    found: Sequence[QualityCheckRow], type_: str | None, column: str | None, *, is_violated: bool
) -> None:
    """Print a line for each matching expectation of each check."""
    rows: list[tuple[str, ...]] = []
    suites = {row.suite for row, _, _ in _matching(found, type_, column, is_violated=is_violated)}
    for row in found:
        lines = [
            (_named(result), _verdict(result), _found(result))
            for _, _, result in _matching([row], type_, column, is_violated=is_violated)
        ]
        if row.outcome == CheckOutcome.SAME.value and row.suite in suites and not is_violated:
            lines.append(("", "met", "rows with this digest have passed before"))
        rows += [(*_place(row), *said, row.why, row.attempt) for said in lines]
    if not rows:
        _print("No recorded expectation matches.")
        return
    print_rows((*_PLACE, key("expectation"), value("is"), text("found"), value("why"), value("attempt")), rows)


def print_run(found: Sequence[QualityCheckRow]) -> None:
    """Print all checks of a run."""
    if not found:
        _print("Nothing was checked in this run: its stages have no quality=, or have not committed yet.")
    for row in found:
        by = f", checked by {row.by_attempt}" if row.by_attempt != row.attempt else ""
        _print(
            f"{row.stage}[{row.subtask}] of {row.attempt}: {row.suite} {row.outcome} ({row.why}, policy {row.policy}; "
            f"{row.rows:,} rows, {row.seconds:.1f} s on {row.checked_at:%Y-%m-%d %H:%M:%S} UTC{by})"
        )
        if row.outcome == CheckOutcome.SAME.value:
            _print("  not checked again: rows with the same digest have passed")
        for result in expectation_results_from_plain(row.results):
            _print(f"  {_verdict(result):8}  {_named(result)}: {_found(result)}")
        for each in row.blamed:
            _print(f"  suspected input: {each['stage']}[{each['subtask']}] of {each['attempt']}, in run {each['run']}")
        if row.page:
            _print(f"  page: {row.page}")


def _matching(
    found: Sequence[QualityCheckRow], type_: str | None, column: str | None, *, is_violated: bool
) -> Iterator[tuple[QualityCheckRow, int, ExpectationResult]]:
    for row in found:
        for number, result in enumerate(expectation_results_from_plain(row.results)):
            is_asked = type_ in (None, result.type) and (column is None or column in _columns(result))
            if is_asked and not (is_violated and result.success):
                yield row, number, result


def _columns(result: ExpectationResult) -> tuple[Any, ...]:
    names = ("column", "column_A", "column_B")
    return (*(result.kwargs.get(name) for name in names), *(result.kwargs.get("column_list") or ()))


_PLACE = (key("epoch"), key("dataflow"), key("partition"), key("suite"))


def _place(row: QualityCheckRow) -> tuple[str, str, str, str]:
    return row.epoch, row.dataflow, f"{row.stage}[{row.subtask}]", row.suite


def _named(result: ExpectationResult) -> str:
    """Return the type with its arguments."""
    return f"{result.type}({', '.join(f'{name}={_brief(value)}' for name, value in result.kwargs.items())})"


def _brief(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."


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


def _check_json(row: QualityCheckRow) -> dict[str, Any]:
    return {**{name: getattr(row, name) for name in _COLUMNS}, "checked_at": row.checked_at.isoformat()}


def _print(text: str) -> None:
    Console().print(text, markup=False, highlight=False, soft_wrap=True)
