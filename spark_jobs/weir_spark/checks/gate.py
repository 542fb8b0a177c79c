"""Checks rows by a suite, and reports the results. Invariant: a violation is no error here; the coordinator decides."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention

from weir.formats.checks import CheckReport, CheckToRun, ExpectationResult
from weir.formats.expectation_types import CONDITION, PARSER, sql_condition, without_condition
from weir.formats.suite import Expectation, Suite
from weir_spark.checks import gx
from weir_spark.checks.expectation_kwargs import NoColumn, NotPlain
from weir_spark.checks.one_aggregation import Plain, answers, in_one_line, result_of
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
        suite=to_run.suite.name,
        fingerprint=to_run.suite.fingerprint,
        policy=to_run.policy,
        why=to_run.why,
        results=results,
        seconds=round(seconds, 3),
        is_same=is_same,
        **asdict(about),
    )


def _results(rows: DataFrame, suite: Suite) -> tuple[ExpectationResult, ...]:
    """Return the results of the expectations, in the suite's order; those with one condition are checked together."""
    by_condition: dict[str, dict[int, Expectation]] = {}
    for number, expectation in enumerate(suite.expectations):
        condition = json.dumps([expectation.kwargs.get(each) or "" for each in (CONDITION, PARSER)])
        by_condition.setdefault(condition, {})[number] = expectation
    found: dict[int, ExpectationResult] = {}
    for of_condition in by_condition.values():
        found.update(_of_condition(rows, of_condition))
    return tuple(found[number] for number in range(len(suite.expectations)))


def _of_condition(rows: DataFrame, expectations: Mapping[int, Expectation]) -> dict[int, ExpectationResult]:
    """Return the results of expectations of the same rows: of those for which the condition is true."""
    one = next(iter(expectations.values()))
    if not one.kwargs.get(CONDITION):
        return _of_rows(rows, expectations)
    bare = {number: replace(each, kwargs=without_condition(each.kwargs)) for number, each in expectations.items()}
    condition = sql_condition(one.kwargs)
    try:
        chosen = rows.where(condition) if condition else gx.chosen(rows, one)
        _ = chosen.select(F.lit(1)).schema  # a remote session analyses it now; the schema of the rows it knows
    except AnalysisException as error:
        reason = f"its {CONDITION} {one.kwargs[CONDITION]!r}: {in_one_line(error)}"
        return {number: result_of(each, reason) for number, each in expectations.items()}
    found = _of_rows(chosen, bare)
    return {number: replace(each, kwargs=expectations[number].kwargs) for number, each in found.items()}


def _of_rows(rows: DataFrame, expectations: Mapping[int, Expectation]) -> dict[int, ExpectationResult]:
    plains: dict[int, Plain] = {}
    others: dict[int, Expectation] = {}
    found: dict[int, ExpectationResult] = {}
    for number, expectation in expectations.items():
        try:
            plains[number] = plain(expectation, rows.schema)
        except NotPlain:
            others[number] = expectation
        except NoColumn as error:
            found[number] = result_of(expectation, str(error))
    if plains:
        found.update(zip(plains, answers(rows, list(plains.values())), strict=True))
    found.update(zip(others, gx.validate(rows, list(others.values())), strict=True))
    return found
