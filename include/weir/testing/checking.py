"""How the fake engine checks rows. Invariant: what is asked is answered, and what has passed is not checked again."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from weir.dataflow.quality import Policy
from weir.quality.check import BUILT_IN, CheckReport, CheckToRun, ExpectationResult, Why
from weir.quality.suite import Severity
from weir.results.region_job import OutputReport, RegionJob, RestoredToCheck

BUILT_IN_TYPES = ("weir_digest_as_recorded", "weir_rows_as_recorded", "weir_schema_as_recorded")

Violated = Mapping[str, Collection[str]]


def stage_reports(
    job: RegionJob, outputs: Iterable[OutputReport], contents: Mapping[str, str], violated: Violated
) -> tuple[CheckReport, ...]:
    """What is found in what was written; rows that are not written have their content for a digest."""
    digests = {each.stage: str(each.digest) for each in outputs}
    return tuple(
        _report(stage.name, stage.subtask, digests.get(stage.name) or contents[stage.name], check, violated)
        for stage in job.stages
        for check in stage.checks
    )


def _report(
    stage: str, subtask: int, digest: str, check: CheckToRun, violated: Violated, name: str | None = None
) -> CheckReport:
    is_same = digest in check.passed
    found = () if is_same else tuple(_results(check, violated.get(name or stage, ())))
    suite = check.suite
    return CheckReport(
        stage, subtask, suite.name, suite.fingerprint, check.policy, check.why, digest, 1, found, 0.0, is_same
    )


def _results(check: CheckToRun, violated: Collection[str]) -> Iterator[ExpectationResult]:
    for each in check.suite.expectations:
        is_met = each.type not in violated
        count = None if is_met else 1
        yield ExpectationResult(
            each.type, each.kwargs, each.severity, is_met, None, 1, count, ("bad",)[:count], each.blames
        )


def restored_reports(job: RegionJob, violated: Violated) -> tuple[CheckReport, ...]:
    """What is found in inputs that were restored, and in what is only to be checked."""
    inputs = [(stage, read) for stage in job.stages for read in stage.inputs]
    asked = [(read.argument, each, Why.RESTORED) for _, read in inputs for each in read.restored]
    asked += [("", each, job.why) for each in job.to_check]
    return tuple(report for each in asked for report in _of_restored(*each, violated))


def _of_restored(argument: str, restored: RestoredToCheck, why: Why, violated: Violated) -> Iterator[CheckReport]:
    """First what is built in, then the suites."""
    stage, subtask, name = restored.stage, restored.subtask, f"restored {restored.stage}"
    found = tuple(
        ExpectationResult(each, {}, Severity.FAIL, each not in violated.get(name, ())) for each in BUILT_IN_TYPES
    )
    built_in = CheckReport(stage, subtask, BUILT_IN, "", Policy.FAIL, why, restored.digest, 1, found, 0.0)
    suites = [_report(stage, subtask, restored.digest, check, violated, name) for check in restored.checks]
    for report in (built_in, *suites):
        yield replace(report, argument=argument, run=restored.run, layout=restored.layout.id, attempt=restored.attempt)
