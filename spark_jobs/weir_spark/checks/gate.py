"""Checks rows by a suite, and reports the results. Invariant: a violation is no error here; the coordinator decides."""

from __future__ import annotations

import time
from dataclasses import dataclass

from pyspark.sql import DataFrame

from weir.formats.checks import CheckReport, CheckToRun, ExpectationResult
from weir.formats.suite import Expectation, Suite
from weir_spark.checks import gx
from weir_spark.checks.expectation_kwargs import NoColumn, NotPlain
from weir_spark.checks.one_aggregation import Plain, answers, result_of
from weir_spark.checks.plain_expectations import plain
from weir_spark.session import Log


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """Identity of checked rows: fields of a CheckReport, where they are described."""

    stage: str
    subtask: int
    digest: str
    rows: int
    argument: str = ""
    run: str = ""
    layout: str = ""
    attempt: str = ""

    def __str__(self) -> str:
        return f"{self.stage}[{self.subtask}]" + (f" of {self.run}" if self.run else "")


def check(rows: DataFrame, to_run: CheckToRun, about: Checked, log: Log = print) -> CheckReport:
    """Check rows by a suite; not at all if rows of the same digest have passed it."""
    start = time.monotonic()
    is_same = bool(about.digest) and about.digest in to_run.passed
    if is_same:
        log(f"{about}: rows with this digest have passed {to_run.suite.name}, they are not checked again")
    results = () if is_same else _results(rows, to_run.suite)
    made = report(to_run, about, results, time.monotonic() - start, is_same=is_same)
    if not is_same:
        log(line_of(made, about))
    return made


def line_of(made: CheckReport, about: Checked) -> str:
    """Return the results of a check as a line of the log."""
    violated = "; ".join(str(each) for each in made.results if not each.success) or "nothing is violated"
    return f"{about}: checked by {made.suite}, {len(made.results)} expectations in {made.seconds} s: {violated}"


def report(
    to_run: CheckToRun,
    about: Checked,
    results: tuple[ExpectationResult, ...],
    seconds: float,
    *,
    is_same: bool = False,
) -> CheckReport:
    """Return the report of a check."""
    return CheckReport(
        about.stage,
        about.subtask,
        to_run.suite.name,
        to_run.suite.fingerprint,
        to_run.policy,
        to_run.why,
        about.digest,
        about.rows,
        results,
        round(seconds, 3),
        is_same,
        about.argument,
        about.run,
        about.layout,
        about.attempt,
    )


def _results(rows: DataFrame, suite: Suite) -> tuple[ExpectationResult, ...]:
    """Return the results of the expectations, in the suite's order."""
    plains: dict[int, Plain] = {}
    others: dict[int, Expectation] = {}
    found: dict[int, ExpectationResult] = {}
    for number, expectation in enumerate(suite.expectations):
        try:
            plains[number] = plain(expectation, rows.schema)
        except NotPlain:
            others[number] = expectation
        except NoColumn as error:
            found[number] = result_of(expectation, str(error))
    if plains:
        found.update(zip(plains, answers(rows, list(plains.values())), strict=True))
    found.update(zip(others, gx.validate(rows, list(others.values())), strict=True))
    return tuple(found[number] for number in range(len(suite.expectations)))
