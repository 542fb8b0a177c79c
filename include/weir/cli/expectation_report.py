"""What checks have found, as a person or a program reads it. Invariant: each check has its line."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weir.quality.check import CheckReport

VERSION = 1


@dataclass(frozen=True, slots=True)
class Looked:
    """What was looked at, and what was found; `problem` is why it could not be; the ledger may not know whose it is."""

    what: str
    checks: tuple[CheckReport, ...]
    problem: str
    is_recorded: bool = True

    @property
    def is_right(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problem and not any(each.violated for each in self.checks)

    def to_json(self) -> dict[str, Any]:
        """As --json prints it."""
        from weir.results.codec import expectation_results_to_plain  # noqa: PLC0415  it reads all documents' types

        return {
            "what": self.what,
            "is_right": self.is_right,
            "problem": self.problem,
            "is_recorded": self.is_recorded,
            "checks": [
                {
                    "run": each.run,
                    "stage": each.stage,
                    "subtask": each.subtask,
                    "layout": each.layout,
                    "attempt": each.attempt,
                    "suite": each.suite,
                    "outcome": each.outcome.value,
                    "rows": each.rows,
                    "results": expectation_results_to_plain(each.results),
                }
                for each in self.checks
            ],
        }


def tell(looked: Sequence[Looked], *, as_json: bool) -> None:
    """Print what was found."""
    if as_json:
        print(json.dumps({"version": VERSION, "looked_at": [each.to_json() for each in looked]}))
        return
    for each in looked:
        _line(f"{each.what}. {_summary(each)}")
        if each.checks:
            Console().print(_table(each.checks))
        if each.problem:
            _line(each.problem)
        if not (each.is_recorded or each.problem):
            _line("The ledger does not know this dataflow, so nothing of this is recorded")
    if not looked:
        _line("No dataflow keeps a checkpoint: there is nothing to restore")


def _summary(looked: Looked) -> str:
    failed = sum(bool(each.violated) for each in looked.checks)
    if looked.problem:
        return "Nothing could be checked"
    return f"{len(looked.checks)} check(s), {failed or 'none'} failed"


def _table(checks: Sequence[CheckReport]) -> Table:
    table = Table("partition", "attempt", "suite", "rows", "came to", "what was found")
    for each in checks:
        table.add_row(*_cells(each))
    return table


def _cells(check: CheckReport) -> tuple[str, ...]:
    wrong = "; ".join(str(each) for each in check.results if not each.success)
    met = f"{len(check.results)} expectation(s) met"
    partition = f"{check.stage}[{check.subtask}] of {check.run}"
    return partition, check.attempt, check.suite, str(check.rows), check.outcome.value, wrong or met


def _line(text: str) -> None:
    Console().print(text, markup=False, highlight=False, soft_wrap=True)
