"""What `weir verify` has found, as a person or a program reads it. Invariant: what is not shown is counted."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from weir.dataflow.keep import told_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from weir.coordinator.repair import Repair
    from weir.coordinator.verify import Verified
    from weir.coordinator.verify_records import Misfit

VERSION = 1

SHOWN = 40
"""How many of a list are shown; --json has all."""


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The runs that were looked at, what was found of each of their results, and what is wrong beside the data."""

    runs: tuple[str, ...]
    verified: tuple[Verified, ...]
    misfits: tuple[Misfit, ...]

    @property
    def bad(self) -> tuple[Verified, ...]:
        """The results that are not as they should be."""
        from weir.coordinator.verify import BAD  # noqa: PLC0415  SQLAlchemy is slow to import

        return tuple(each for each in self.verified if each.outcome in BAD)

    @property
    def is_right(self) -> bool:
        """Whether nothing is wrong."""
        return not self.bad and not self.misfits

    def counts(self) -> dict[str, tuple[int, int]]:
        """How many results, and bytes, came out how."""
        numbers = Counter(each.outcome.value for each in self.verified)
        sizes: Counter[str] = Counter()
        for each in self.verified:
            sizes[each.outcome.value] += each.bytes
        return {outcome: (count, sizes[outcome]) for outcome, count in numbers.items()}

    def to_json(self, repairs: Iterable[Repair]) -> dict[str, Any]:
        """As --json prints it."""
        return {
            "version": VERSION,
            "runs": list(self.runs),
            "results": {outcome: {"results": count, "bytes": size} for outcome, (count, size) in self.counts().items()},
            "bad": [_to_json(each) for each in self.bad],
            "misfits": [asdict(each) for each in self.misfits],
            "repairs": [asdict(each) | {"answer": each.answer.value} for each in repairs],
        }


def tell(report: VerifyReport, repairs: Sequence[Repair], settled: str, *, as_json: bool) -> None:
    """Print what was found and what follows."""
    if as_json:
        print(json.dumps(report.to_json(repairs)))
        return
    counts = report.counts()
    said = ", ".join(f"{count} {outcome} ({told_size(size)})" for outcome, (count, size) in sorted(counts.items()))
    _line(f"{len(report.verified)} result(s) of {len(report.runs)} run(s): {said or 'nothing is there'}.")
    if report.bad:
        Console().print(_table(report.bad[:SHOWN]))
    for line in _shown([str(each) for each in report.misfits]):
        _line(line)
    for repair in repairs:
        _line(str(repair))
    if settled:
        _line(settled)
    if report.bad and not repairs:
        runs = sorted({each.run for each in report.bad if each.is_current and each.loss is not None})
        for run in _shown([f"`weir verify {run} --repair` has what is needed of {run} made again" for run in runs]):
            _line(run)


def _table(bad: Iterable[Verified]) -> Table:
    table = Table("run", "result", "layout", "attempt", "bytes", "it is", "what was found")
    for each in bad:
        name = f"{each.stage}[{each.subtask}]"
        outcome = each.outcome.value
        table.add_row(each.run, name, each.layout, each.attempt, told_size(each.bytes), outcome, each.detail)
    return table


def _shown(lines: list[str]) -> list[str]:
    more = [f"and {len(lines) - SHOWN} more, which --json lists"] if len(lines) > SHOWN else []
    return [*lines[:SHOWN], *more]


def _to_json(each: Verified) -> dict[str, Any]:
    found = {key: value for key, value in asdict(each).items() if key not in {"loss", "result"}}
    return found | {"outcome": each.outcome.value, "fault": each.loss.fault.value if each.loss else None}


def _line(text: str) -> None:
    Console().print(text, markup=False, highlight=False, soft_wrap=True)
