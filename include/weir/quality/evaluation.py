"""Evaluates the checks of an attempt between its computation and its commit.

Invariant: rows that violate an expectation never become current. The quarantine of the results, the findings and the
suspected inputs are recorded in one transaction; a crash before it leaves garbage, and one after it changes nothing.

The check that a growing state has not lost rows compares numbers that are already known, and reads no rows.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from sqlalchemy.orm import Session

from weir.attempts.commit import check_inputs, written_results
from weir.attempts.commit_check import require_unchanged
from weir.coordination.registered import require_newest
from weir.coordination.services import Services
from weir.coordination.values import Begun, Evaluated
from weir.dataflow.quality import Policy
from weir.errors import Fault, Internal, Loss, QualityFailed, ResultUnavailable
from weir.formats.checks import BUILT_IN, CheckReason, CheckReport, ExpectationResult
from weir.formats.manifest import UpdateDigest
from weir.formats.region_job import OutputReport, RegionJob, RegionReport
from weir.formats.suite import Severity
from weir.ledger.database.columns import taken
from weir.ledger.reads import record_reads
from weir.ledger.results import NewResult, quarantine_results, record_losses
from weir.ledger.snapshot import run_state
from weir.quality.check_queries import SuspectedInput, has_checks, previously_suspected, record_checks
from weir.quality.restored_checks import restored_loss
from weir.quality.rules import described, policy_of, suspected_arguments, suspected_names, warnings_of
from weir.topology.ids import is_synthetic

_Blamed = Mapping[int, tuple[SuspectedInput, ...]]
"""The suspected inputs, by the number of the report."""

_NO_SUSPECTS: _Blamed = types.MappingProxyType({})

NEVER_FEWER = "weir_rows_never_fewer"


def evaluate(services: Services, begun: Begun, report: RegionReport) -> Evaluated:
    """Release the results for commit, or put them in quarantine.

    Raises QualityFailed, ResultUnavailable where inputs are suspected (or were damaged when they were read), Conflict
    where an input has changed since, Fenced, or Retryable.
    """
    _require_all_checks(begun.job, report)
    report = replace(report, checks=(*report.checks, *growth_checks(begun, report)))
    failed = [each for each in report.checks if each.violated]
    if failed:
        raise _refused(services, begun, report, failed)
    if report.checks:
        services.ledger.perform(
            begun.run.dataflow.name, lambda session: _enter(session, services, begun, report, (), {}, ())
        )
    return Evaluated(report, tuple(described(each, found) for each in report.checks if (found := warnings_of(each))))


def _refused(
    services: Services, begun: Begun, report: RegionReport, failed: Sequence[CheckReport]
) -> QualityFailed | ResultUnavailable:
    # Rows that were computed from damaged bytes say nothing about the data.
    check_inputs(services, begun)
    restored = [each for each in failed if each.attempt]
    losses, blamed, policy = _losses_of_restored(services, restored), _NO_SUSPECTS, policy_of(failed)
    if not restored and policy is Policy.BACKTRACK:
        blamed = _blamed(services, begun, report.checks)
        losses = _losses(begun, report.checks, blamed)
    results = () if restored else written_results(services, begun, report)
    services.ledger.perform(
        begun.run.dataflow.name, lambda session: _enter(session, services, begun, report, results, blamed, losses)
    )
    if losses:
        return ResultUnavailable(losses)
    written = [each.partition.stage for each in results]
    return QualityFailed(_message(begun, failed, policy, written), is_final=policy is not Policy.RETRY)


def _enter(
    session: Session,
    services: Services,
    begun: Begun,
    report: RegionReport,
    results: Sequence[NewResult],
    blamed: _Blamed,
    losses: Sequence[Loss],
) -> None:
    """Record the findings; after a broken connection this may be the second time."""
    if has_checks(session, begun.attempt.id):
        return
    require_newest(session, begun.run, begun.attempt.region, begun.attempt.id)
    if results or losses:
        require_unchanged(session, run_state(session, begun.run, begun.topology), begun.reads, begun.attempt.region)
    now = services.now()
    record_checks(session, begun.run, begun.attempt.id, report.checks, now, blamed)
    violated = "; ".join(described(each, each.violated) for each in report.checks if each.violated)
    quarantine_results(session, begun.run.id, begun.attempt.id, results, violated, now)
    if results:
        record_reads(session, begun.run.dataflow.name, begun.attempt.id, begun.reads)
    record_losses(session, losses, now)


def _require_all_checks(job: RegionJob, report: RegionReport) -> None:
    """Refuse a report without the result of a check that the job was to run."""
    if any(each.attempt and each.violated for each in report.checks):
        return  # the job has computed nothing
    asked = {(stage.name, check.suite.name, "") for stage in job.stages for check in stage.checks}
    restored = [each for stage in job.stages for read in stage.inputs for each in read.restored]
    asked |= {(each.stage, BUILT_IN, each.attempt) for each in restored}
    asked |= {(each.stage, check.suite.name, each.attempt) for each in restored for check in each.checks}
    missing = asked - {(each.stage, each.suite, each.attempt) for each in report.checks}
    if missing:
        named = ", ".join(sorted(f"{suite} of {stage}" for stage, suite, _ in missing))
        raise Internal.of("quality.check_without_result", attempt=job.attempt, named=named)


def _blamed(services: Services, begun: Begun, reports: Sequence[CheckReport]) -> _Blamed:
    """Return the partitions that were read over the suspected inputs, and that their producers can recompute.

    Inputs that were already recomputed and are equal are left out (all subtasks of a stage suspect a broadcast input,
    which is recomputed once), and so are restored ones, which cannot be recomputed.
    """
    found = {}
    for number, report in enumerate(reports):
        read = tuple(each for each in _read_of_blamed(begun, report) if not is_synthetic(each.attempt))
        with services.ledger.transaction() as session:
            before = previously_suspected(session, begun.run.id, report.stage) if read else frozenset()
        found[number] = tuple(each for each in read if not any(each.is_equal_to(other) for other in before))
    return found


def _read_of_blamed(begun: Begun, report: CheckReport) -> tuple[SuspectedInput, ...]:
    arguments = suspected_arguments(begun.run.dataflow, report.stage, suspected_names(report))
    return tuple(dict.fromkeys(taken(SuspectedInput, read) for read in begun.reads if read.argument in arguments))


def _losses(begun: Begun, reports: Sequence[CheckReport], blamed: _Blamed) -> tuple[Loss, ...]:
    losses: dict[SuspectedInput, Loss] = {}
    for number, report in enumerate(reports):
        for each in blamed.get(number, ()):
            detail = f"{described(report, report.violated)}. {begun.attempt.id} was made of it, and is in quarantine"
            names = (each.run, each.stage, each.subtask, each.layout, each.attempt)
            losses.setdefault(each, Loss(*names, Fault.SUSPECTED, detail))
    return tuple(losses.values())


def _losses_of_restored(services: Services, reports: Sequence[CheckReport]) -> tuple[Loss, ...]:
    if not reports:
        return ()
    with services.ledger.transaction() as session:
        return tuple(restored_loss(session, each) for each in reports)


def _message(begun: Begun, failed: Sequence[CheckReport], policy: Policy | None, written: Sequence[str]) -> str:
    stage, flow = failed[0].stage, begun.run.dataflow.name
    shown = stage if stage in written else written[0]
    kind = "state" if shown in begun.topology.states else "stage"
    violated = "; ".join(described(each, each.violated) for each in failed)
    applied = policy.value if policy else "fail"
    if policy is Policy.BACKTRACK:
        read = [one for each in failed for one in _read_of_blamed(begun, each)]
        why = "was recomputed and is equal: the data is bad, not the copy" if read else "is nothing that was read"
        if any(is_synthetic(each.attempt) for each in read):
            why = "was restored, and cannot be recomputed: restore another one, or correct the suite"
        applied += f", and the suspected input {why}"
    return (
        f"{violated}. Policy: {applied}. What attempt {begun.attempt.id} has written is in "
        f'quarantine, and nothing was committed. `weir.open("{flow}", attempt="{begun.attempt.id}", {kind}="{shown}")` '
        f"reads it, and `weir quality {flow}` lists earlier findings"
    )


def growth_checks(begun: Begun, report: RegionReport) -> Iterator[CheckReport]:
    """Check the number of rows of each state that is declared to grow.

    The rows of the epoch before are known by its per-update digests; where these are of other key groups, the job has
    counted the rows.
    """
    for output in report.outputs:
        share = begun.states.get(output.stage)
        if share is None or not share.state.grows or output.state is None or output.state.tallies is None:
            continue
        before = output.state.rows_before if share.tallies is None else _rows(share.tallies)
        if before is not None:
            yield _check(begun, output, before, _rows(output.state.tallies))


def _rows(tallies: Iterable[UpdateDigest]) -> int:
    return sum(each.rows for each in tallies)


def _check(begun: Begun, output: OutputReport, before: int, rows: int) -> CheckReport:
    result = ExpectationResult(
        NEVER_FEWER, {"min_value": before}, Severity.FAIL, success=rows >= before, observed=rows, rows=rows
    )
    subtask, digest = begun.attempt.region.subtask, str(output.digest)
    return CheckReport.built_in(output.stage, subtask, CheckReason.FRESH, digest, rows, result)
