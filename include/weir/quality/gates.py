"""Gates of an attempt: read the suites that check its rows, and refuse an attempt that can only fail again.

Invariant: all suites are read before anything is computed, also those that this attempt does not need. A suspected
input that was recomputed with equal rows is not recomputed again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from sqlalchemy.orm import Session

from weir.attempts.rooms import AddChecks
from weir.coordination.registered import Gathered, Registered
from weir.coordination.services import Services
from weir.coordination.values import BeginRequest, Begun, Evaluated
from weir.dataflow.quality import Gate, Policy, When
from weir.dataflow.stage import Stage, StageKind
from weir.errors import Internal, Message, Misconfigured, QualityFailed
from weir.execution.failure_class import FailureClass
from weir.execution.run_state import DONE, AttemptState, CurrentResult, ReadResult, RunState
from weir.formats.checks import CheckReason, CheckToRun
from weir.formats.manifest import digest_rule
from weir.formats.region_job import RegionJob, RegionReport
from weir.formats.suite import Suite
from weir.ledger.attempts import Origin, attempts_ever_of, attempts_known, attempts_of
from weir.ledger.database.tables import AttemptRow, QualityCheckRow, RunRow
from weir.ledger.reads import reads_of
from weir.quality.check_queries import SuspectedInput, failed_checks, has_checks, passed_digests, suspected_inputs
from weir.quality.evaluation import evaluate
from weir.quality.restored_checks import ChecksOf, with_restored_checks
from weir.quality.rules import suite_problems
from weir.quality.suites import read_suite
from weir.topology.ids import run_ref
from weir.topology.regions import PartitionId, Topology

_KILLED = FailureClass.KILLED.value

_FINAL = (Policy.FAIL.value, Policy.BACKTRACK.value)
"""A violation is final under these policies; under `backtrack`, if no input is suspected."""


@dataclass(frozen=True, slots=True)
class StageChecks:
    """The checks for the rows of each stage, and the stages that must not resume from cached stage output.

    No stage resumes after rows have failed, nor does one whose cached rows came from other rows than those that are
    checked or written now.
    """

    checks: Mapping[str, tuple[CheckToRun, ...]]
    computed_anew: frozenset[str]
    have_failed: bool = False
    """Rows of this task have failed: it computes others, and takes none."""


@dataclass(frozen=True, slots=True)
class SuiteGates:
    """The gates that the suites of a deployment are, for attempts (`weir.attempts.rooms.Gates`)."""

    services: Services

    def open(self, registered: Registered, gathered: Gathered, request: BeginRequest) -> AddChecks:
        """Read the suites of an attempt; return what adds them to its job, with the checks of restored inputs.

        Raises Misconfigured for a suite that is missing or invalid, and QualityFailed if the attempt can only compute
        rows that have failed already.
        """
        found = gates_of(self.services, registered, gathered.state, request)

        def added(job: RegionJob) -> RegionJob:
            checks = checks_of_restored(self.services, registered)
            state, manifests = gathered.state, gathered.manifests
            return with_restored_checks(self.services, registered, state, manifests, with_gates(job, found), checks)

        return added

    def has_passed_all(self, session: Session, registered: Registered, state: RunState) -> bool:
        """Report whether the region's committed results have passed the gates for restored results."""
        for stage in registered.topology.stages_of(registered.attempt.region.name):
            digests = {
                state.results[each].digest
                for each in registered.topology.outputs(registered.attempt.region)
                if each.stage == stage.name
            }
            for gate in stage.gates:
                if gate.when is not When.RESTORED:
                    continue
                suite, subtask = read_suite(self.services, gate.suite), registered.attempt.region.subtask
                name = registered.run.dataflow.name
                passed = passed_digests(session, name, stage.name, subtask, suite.name, suite.fingerprint)
                if not digests or not digests <= {*passed}:
                    return False
        return True

    def evaluate(self, begun: Begun, report: RegionReport) -> Evaluated:
        """Release the results for the commit, or put them in quarantine."""
        return evaluate(self.services, begun, report)

    def require_evaluated(self, session: Session, begun: Begun) -> None:
        """Raise Internal if the attempt was to be checked, and has not been."""
        if any(stage.checks for stage in begun.job.stages) and not has_checks(session, begun.attempt.id):
            raise Internal.of("quality.checks_not_evaluated", attempt_id=begun.attempt.id)


def gates_of(services: Services, registered: Registered, state: RunState, request: BeginRequest) -> StageChecks:
    """Return the gates of an attempt.

    Raises Misconfigured for a suite that is missing or invalid, and QualityFailed if the attempt can only compute rows
    that have failed already.
    """
    stages = [each for each in registered.topology.stages_of(registered.attempt.region.name) if each.gates]
    suites = {gate.suite: read_suite(services, gate.suite, stage.name) for stage in stages for gate in stage.gates}
    for stage in stages:
        _require_fitting(registered, stage, [suites[gate.suite] for gate in stage.gates])
    of_region = registered.topology.stages_of(registered.attempt.region.name)
    written = {each.stage for each in registered.topology.outputs(registered.attempt.region)}
    if not stages:
        return StageChecks({}, frozenset(_after_other_rows(of_region, written)))
    with services.ledger.transaction() as session:
        failed = _require_worth_trying(session, registered, state, suites)
        why = _why(session, registered, request)
        checks = {stage.name: _checks(session, registered, stage, suites, why) for stage in stages}
        seen = {name for name, found in checks.items() if found} | written
        anew = (each.name for each in of_region) if failed else _after_other_rows(of_region, seen)
        return StageChecks(checks, frozenset(anew), have_failed=bool(failed))


def with_gates(job: RegionJob, found: StageChecks) -> RegionJob:
    """Return the job with its checks."""
    stages = [replace(each, checks=found.checks.get(each.name, ())) for each in job.stages]
    return replace(
        job,
        stages=tuple(replace(each, resume=None) if each.name in found.computed_anew else each for each in stages),
        take=None if found.have_failed else job.take,
    )


def _after_other_rows(stages: Sequence[Stage], seen: Collection[str]) -> Iterator[str]:
    """Return the stages that follow, in one Spark plan, a non-deterministic stage that is in `seen`.

    The stages in `seen` are checked or written; the rows of all others leave the plan nowhere else.
    """
    nondeterministic, after = set[str](), set[str]()
    for stage in stages:
        before = {each.stage for each in stage.exchanges.values() if each.joins_plan}
        if stage.kind is StageKind.SOURCE or not stage.deterministic or before & nondeterministic:
            nondeterministic.add(stage.name)
        if before & after or any(each in seen and each in nondeterministic for each in before):
            after.add(stage.name)
            yield stage.name


def checks_of_restored(services: Services, registered: Registered) -> ChecksOf:
    """Return the function that gives the suites for a restored partition: all of its stage.

    The stage is as the reader's run declares it; if that has no such stage, as the restored run does.
    """
    dataflow = registered.run.dataflow.name

    def checks(topology: Topology, partition: PartitionId) -> tuple[CheckToRun, ...]:
        declared = {stage.name: stage.gates for stage in registered.run.dataflow.stages}
        gates = declared.get(partition.stage, topology.dataflow.stage(partition.stage).gates)
        suites = {gate.suite: read_suite(services, gate.suite) for gate in gates}
        with services.ledger.transaction() as session:
            return tuple(
                _check(
                    session,
                    dataflow,
                    partition.stage,
                    partition.subtask,
                    gate,
                    suites[gate.suite],
                    CheckReason.RESTORED,
                )
                for gate in gates
            )

    return checks


def _checks(
    session: Session, registered: Registered, stage: Stage, suites: Mapping[str, Suite], why: CheckReason
) -> tuple[CheckToRun, ...]:
    dataflow, subtask = registered.run.dataflow.name, registered.attempt.region.subtask
    return tuple(
        _check(session, dataflow, stage.name, subtask, gate, suites[gate.suite], why)
        for gate in stage.gates
        if gate.when is When.ALWAYS or why is not CheckReason.FRESH
    )


def _check(
    session: Session, dataflow: str, stage: str, subtask: int, gate: Gate, suite: Suite, why: CheckReason
) -> CheckToRun:
    passed = passed_digests(session, dataflow, stage, subtask, suite.name, suite.fingerprint)
    return CheckToRun(suite, gate.policy, why, passed)


def _why(session: Session, registered: Registered, request: BeginRequest) -> CheckReason:
    run = registered.run.id
    ever = attempts_ever_of(session, run, registered.attempt.region)
    if any(each.state == AttemptState.COMMITTED.value or each.origin == Origin.REBUILT.value for each in ever):
        return CheckReason.RECOMPUTED
    abandoned = session.get_one(RunRow, run).abandoned
    if abandoned and not attempts_known(session, run).issuperset(abandoned):
        return CheckReason.RECOMPUTED  # the ledger was rebuilt: what the run had before it was pinned anew is not known
    return CheckReason.BACKFILL if request.is_backfill else CheckReason.FRESH


def _require_fitting(registered: Registered, stage: Stage, suites: Iterable[Suite]) -> None:
    for suite in suites:
        for problem in suite_problems(registered.run.dataflow, stage.name, suite):
            raise Misconfigured.of("quality.suite_does_not_fit", suite=suite.name, stage=stage.name, problem=problem)


def _require_worth_trying(
    session: Session, registered: Registered, state: RunState, suites: Mapping[str, Suite]
) -> Sequence[QualityCheckRow]:
    """Return the checks that failed last; empty if none has.

    Raises QualityFailed if all inputs that were suspected then were recomputed with equal rows, or if the evaluation of
    the previous try was final and its process was killed before that was recorded; but not if an input or a suite has
    changed since.
    """
    tries = attempts_of(session, registered.run.id, registered.attempt.region)
    rows = _last_failed(session, tries)
    if not rows or _has_changed(session, registered, state, suites, rows):
        return rows
    suspected = [each for row in rows for each in suspected_inputs(row)]
    if suspected and all(_is_equal(state, each) for each in suspected):
        raise QualityFailed(_bad_data(rows, suspected), is_final=True)
    is_of_killed = len(tries) > 1 and (tries[-2].id, tries[-2].failure) == (rows[0].by_attempt, _KILLED)
    if is_of_killed and not suspected and any(row.policy in _FINAL and not row.layout for row in rows):
        raise QualityFailed(Message("quality.failed_before", named=_named(rows), tries_id=tries[-2].id), is_final=True)
    return rows


def _has_changed(
    session: Session,
    registered: Registered,
    state: RunState,
    suites: Mapping[str, Suite],
    rows: Sequence[QualityCheckRow],
) -> bool:
    """Report whether an input or a suite is another one than when rows failed."""
    of_gates = [row for row in rows if not row.layout]
    if any(row.suite in suites and suites[row.suite].fingerprint != row.fingerprint for row in of_gates):
        return True
    reads = reads_of(session, rows[0].by_attempt, registered.run.id)
    return not all(_has_same_rows(state.results.get(each.partition), each) for each in reads)


def _has_same_rows(now: CurrentResult | None, was: ReadResult | SuspectedInput) -> bool:
    """Report whether the current result has the rows that were read. A digest with a rule leaves out some values."""
    if now is None or now.digest != was.digest:
        return False
    return now.attempt == was.attempt or not digest_rule(was.digest)


def _last_failed(session: Session, tries: Sequence[AttemptRow]) -> Sequence[QualityCheckRow]:
    """Return the failed checks of the newest evaluated attempt since the last commit or clear by a person."""
    failed = failed_checks(session, [row.id for row in tries])
    for row in reversed(tries):
        if row.id in failed:
            return failed[row.id]
        if _starts_anew(row):
            return ()
    return ()


def _starts_anew(row: AttemptRow) -> bool:
    has_committed = row.state in DONE
    return has_committed or row.origin == Origin.CLEARED_BY_PERSON.value


def _is_equal(state: RunState, suspected: SuspectedInput) -> bool:
    run = run_ref(suspected.run, state.run)
    current = state.results.get(PartitionId(suspected.stage, suspected.subtask, suspected.layout, run))
    return current is not None and current.attempt != suspected.attempt and _has_same_rows(current, suspected)


def _bad_data(rows: Iterable[QualityCheckRow], suspected: Sequence[SuspectedInput]) -> str:
    named = ", ".join(dict.fromkeys(f"{each.stage}[{each.subtask}] of {each.run}" for each in suspected))
    return (
        f"the data is bad, not the copy: {named} was recomputed with equal rows, and results of it have failed "
        f"{_named(rows)}. Correct the data, the code or the suite, and clear the task. Nothing was computed"
    )


def _named(rows: Iterable[QualityCheckRow]) -> str:
    return ", ".join(dict.fromkeys(f"{row.suite} of {row.stage}[{row.subtask}]" for row in rows))
