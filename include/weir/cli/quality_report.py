"""What checks have found, as a person reads it, and as JSON. Invariant: what a line leaves out, `--json` has."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from weir.quality.check import ExpectationResult, Outcome
from weir.quality.suite import Severity
from weir.results.codec import expectation_results_from_plain

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from weir.ledger.quality_models import QualityCheckRow

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
"""How many violated expectations a line names, and how many examples."""


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


def tell_checks(found: Sequence[QualityCheckRow]) -> None:
    """Print a line for each check."""
    if not found:
        _say("No check is recorded that matches.")
        return
    table = Table("dataflow", "epoch", "partition", "suite", "why", "came to", "met", "violated", "attempt", "by")
    for row in found:
        results = expectation_results_from_plain(row.results)
        wrong = [str(each) for each in results if not each.success]
        more = f"; and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        met = f"{len(results) - len(wrong)} of {len(results)}" if results else ""
        by = row.by_attempt if row.by_attempt != row.attempt else ""
        cells = (*_place(row), row.suite, row.why, row.outcome, met, "; ".join(wrong[:_SHOWN]) + more, row.attempt, by)
        table.add_row(*(_plain(each) for each in cells))
    Console().print(table)


def tell_expectations(
    found: Sequence[QualityCheckRow], type_: str | None, column: str | None, *, is_violated: bool
) -> None:
    """Print a line for each matching expectation of each check."""
    table = Table("dataflow", "epoch", "partition", "suite", "expectation", "is", "found", "why", "attempt")
    suites = {row.suite for row, _, _ in _matching(found, type_, column, is_violated=is_violated)}
    for row in found:
        lines = [
            (_named(result), _verdict(result), _found(result))
            for _, _, result in _matching([row], type_, column, is_violated=is_violated)
        ]
        if row.outcome == Outcome.SAME.value and row.suite in suites and not is_violated:
            lines.append(("", "met", "rows with this digest had passed before"))
        for said in lines:
            table.add_row(*(_plain(each) for each in (*_place(row), row.suite, *said, row.why, row.attempt)))
    if not table.row_count:
        _say("No expectation is recorded that matches.")
        return
    Console().print(table)


def tell_run(found: Sequence[QualityCheckRow]) -> None:
    """Print all that was found in a run."""
    if not found:
        _say("Nothing was checked in this run: its stages have no quality=, or have not committed yet.")
    for row in found:
        by = f", checked by {row.by_attempt}" if row.by_attempt != row.attempt else ""
        _say(
            f"{row.stage}[{row.subtask}] of {row.attempt}: {row.suite} {row.outcome} ({row.why}, policy {row.policy}; "
            f"{row.rows:,} rows, {row.seconds:.1f} s on {row.checked_at:%Y-%m-%d %H:%M:%S} UTC{by})"
        )
        if row.outcome == Outcome.SAME.value:
            _say("  not checked again: rows with the same digest have passed")
        for result in expectation_results_from_plain(row.results):
            _say(f"  {_verdict(result):8}  {_named(result)}: {_found(result)}")
        for each in row.blamed:
            _say(f"  distrusted: {each['stage']}[{each['subtask']}] of {each['attempt']}, in run {each['run']}")
        if row.page:
            _say(f"  page: {row.page}")


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


def _place(row: QualityCheckRow) -> tuple[str, str, str]:
    return row.dataflow, row.epoch, f"{row.stage}[{row.subtask}]"


def _named(result: ExpectationResult) -> str:
    """The type with its arguments, as a person tells one from another."""
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


def _plain(text: str) -> str:
    """Brackets are subtasks here, and no markup."""
    return text.replace("[", r"\[")


def _say(text: str) -> None:
    Console().print(text, markup=False, highlight=False, soft_wrap=True)
