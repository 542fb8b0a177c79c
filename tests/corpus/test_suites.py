"""Expectations are decided by the values themselves, in the column's type; a mistake of a suite is found in one try."""

from __future__ import annotations

import pytest
from tests.corpus.engines import Refused, on_both
from tests.corpus.suites import EXPECTED, Verdict

from weir.dataflow.quality import Policy
from weir.errors import Misconfigured
from weir.formats.checks import CheckReason, CheckToRun
from weir.formats.suite import suite_from_json

pytestmark = pytest.mark.spark

DECIDED = [each for each in EXPECTED if each.verdict is not Verdict.MISTAKE]


def expectation_of(each, column):
    kwargs = ", ".join(filter(None, [f'"column": "{column}"', each.kwargs.replace("COLUMN", column)]))
    return f'{{"type": "{each.type}", "kwargs": {{{kwargs}}}}}'


def check_of(*expectations):
    document = f'{{"name": "suite", "expectations": [{", ".join(expectations)}]}}'
    return CheckToRun(suite_from_json("suite", document.encode()), Policy.FAIL, CheckReason.FRESH, ())


def rows_of(cases):
    """A table with a column a case; null where a case has fewer rows."""
    height = max(len(each.rows) for each in cases)
    return " union all ".join(
        "select "
        + ", ".join(
            f"{each.rows[at] if at < len(each.rows) else 'null'} v{number}" for number, each in enumerate(cases)
        )
        for at in range(height)
    )


def job_of(jobs, code_of, cases):
    """A region whose one stage has the columns of all cases, and one suite of their expectations."""
    module, code = code_of(f"def values(ctx):\n    return ctx.spark.sql({rows_of(cases)!r})\n")
    check = check_of(*(expectation_of(each, f"v{number}") for number, each in enumerate(cases)))
    stage = jobs.stage("values", f"{module}:values", jobs.output("values"), is_source=True, checks=(check,))
    return jobs.region(stage, code=code)


def told(each):
    return f"{', '.join(each.rows)}: {each.type} {each.kwargs}"


def require_no_errors(report):
    """A mistake is told as the result of its expectation, which fails the stage, where only the rows show it."""
    for result in report.checks[0].results:
        if result.error:
            raise Misconfigured(result.error)


def test_values_are_compared_as_what_they_are(engine, jobs, store, code_of):
    (check,) = engine.run(job_of(jobs, code_of, DECIDED), store).checks
    found = {
        told(each): result.error or ("holds" if result.success else "violated")
        for each, result in zip(DECIDED, check.results, strict=True)
    }
    right = {told(each): each.verdict.value for each in DECIDED}
    assert {what: found[what] for what in right if found[what] != right[what]} == {}


@on_both([case for case in EXPECTED if case.verdict is Verdict.MISTAKE], told, lambda case: case.type)
def test_a_mistake_of_a_suite_is_found_in_one_try(engine, jobs, store, code_of, case):
    with pytest.raises((Misconfigured, Refused)) as refused:
        require_no_errors(engine.run(job_of(jobs, code_of, [case]), store))
    assert getattr(refused.value, "kind", "Misconfigured") == "Misconfigured", refused.value
