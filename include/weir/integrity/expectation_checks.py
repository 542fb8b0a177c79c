"""Check committed results by the suites of their stages, on request (`weir verify --expectations`).

Invariant: the only consequence is a record of what was found; results are under lease while they are checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from weir.coordination.read_leases import leased_reading, reader
from weir.coordination.services import Services
from weir.dataflow import Dataflow
from weir.execution.partition_state import PartitionState
from weir.formats.checks import CheckOutcome, CheckReason, CheckReport, CheckToRun
from weir.formats.region_job import CheckJob, RegionReport, RestoredToCheck
from weir.integrity.verify import results_to_verify
from weir.ledger.database.tables import ResultRow, RunRow
from weir.ledger.runs import dataflow_of, epoch_of_run, runs_named, topology_of
from weir.quality.check_queries import enter_checks
from weir.quality.stored_checks import checking_job, checks_now, recorded_in, to_check
from weir.store.probe import read_manifest

Check = Callable[[CheckJob], RegionReport]
"""Has Spark look at what a job names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChecksReport:
    """The checks of some results; `problem` is why they could not run, `is_recorded` whether the ledger has them."""

    what: str
    checks: tuple[CheckReport, ...] = ()
    problem: str = ""
    is_recorded: bool = True

    @property
    def is_right(self) -> bool:
        """Report whether nothing is wrong."""
        return not self.problem and all(each.outcome is not CheckOutcome.FAILED for each in self.checks)


def check_expectations(services: Services, name: str | None, check: Check) -> ChecksReport:
    """Check the current results of a run, of a dataflow, or of all, dataflow by dataflow.

    Raises Misconfigured for an unknown name, or a suite that is missing or invalid; Retryable; and the errors of
    `check`.
    """
    with services.ledger.transaction() as session:
        runs = runs_named(session, name)
        rows = _in_one_layout(results_to_verify(session, runs, [PartitionState.FINISHED]))
        pinned = {run: session.get_one(RunRow, run).pinned for run in runs}
    flows = {run: topology_of(found).dataflow for run, found in pinned.items() if found is not None}
    checks: list[CheckReport] = []
    for dataflow, of_dataflow in groupby([row for row in rows if row.run in flows], lambda row: dataflow_of(row.run)):
        checks += _checked(services, dataflow, list(of_dataflow), flows, check)
    what = f"current results of {len(runs)} run(s) whose stages have suites"
    return ChecksReport(what=what, checks=tuple(checks))


def _in_one_layout(rows: Sequence[ResultRow]) -> list[ResultRow]:
    """Return one result for each partition: its layouts have the same rows."""
    found: dict[tuple[str, str, int], ResultRow] = {}
    for row in rows:
        if row.is_current:
            found.setdefault((row.run, row.stage, row.subtask), row)
    return list(found.values())


def _checked(
    services: Services, dataflow: str, rows: Sequence[ResultRow], flows: dict[str, Dataflow], check: Check
) -> tuple[CheckReport, ...]:
    by = reader("weir verify --expectations")
    with leased_reading(services, dataflow, [row.id for row in rows], by) as lease:
        wanted = list(_wanted(services, [row for row in rows if row.id in lease.results], flows))
        if not wanted:
            return ()
        epoch = epoch_of_run(wanted[0].run)
        job = checking_job(services.store, dataflow, epoch, services.synthetic_attempt_id(), wanted, CheckReason.ASKED)
        checks = check(job).checks
    with services.ledger.transaction(dataflow) as session:
        epochs: dict[str, str] = {each.run: epoch_of_run(each.run) for each in wanted}
        enter_checks(session, dataflow, epochs, "", checks, services.now())
    return checks


def _wanted(services: Services, rows: Sequence[ResultRow], flows: dict[str, Dataflow]) -> Iterator[RestoredToCheck]:
    known: dict[tuple[int, str], tuple[CheckToRun, ...]] = {}
    for row in rows:
        flow = flows[row.run]
        if (id(flow), row.stage) not in known:
            known[id(flow), row.stage] = checks_now(services, flow.name, flow, row.stage, CheckReason.ASKED)
        checks = known[id(flow), row.stage]
        if checks:
            manifest = read_manifest(services.store, row.folder)
            yield to_check(services.store, flow, manifest, row.folder, recorded_in(manifest), checks)
