"""The check that a state which only grows has not lost rows. Invariant: it is made of what is known, at no cost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from weir.coordinator.values import Begun
from weir.quality.check import CheckReport, ExpectationResult, Why
from weir.quality.suite import Severity
from weir.results.manifest import StateTally
from weir.results.region_job import OutputReport, RegionReport

NEVER_FEWER = "weir_rows_never_fewer"


def growth_checks(begun: Begun, report: RegionReport) -> Iterator[CheckReport]:
    """What is found of each state that is declared to grow.

    Its rows in the epoch before are known by the tallies; where those are of other key groups, the job has counted.
    """
    for output in report.outputs:
        share = begun.states.get(output.stage)
        if share is None or not share.state.grows or output.state is None:
            continue
        before = output.state.rows_before if share.tallies is None else _rows(share.tallies)
        if before is not None:
            yield _check(begun, output, before, _rows(output.state.tallies))


def _rows(tallies: Iterable[StateTally]) -> int:
    return sum(each.rows for each in tallies)


def _check(begun: Begun, output: OutputReport, before: int, rows: int) -> CheckReport:
    result = ExpectationResult(
        NEVER_FEWER, {"min_value": before}, Severity.FAIL, success=rows >= before, observed=rows, rows=rows
    )
    subtask, digest = begun.attempt.region.subtask, str(output.digest)
    return CheckReport.built_in(output.stage, subtask, Why.FRESH, digest, rows, result)
