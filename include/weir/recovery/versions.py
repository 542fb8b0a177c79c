"""Declares versions of code equal.

Invariant: versions are declared equal in one transaction with the versions of all current results that this concerns,
so that a result's validity depends on its own row alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from weir.code.generation_rules import agreed, short, with_equal
from weir.coordination.services import Services
from weir.coordination.values import Begun
from weir.errors import Misconfigured
from weir.execution.run_state import CurrentResult, RunState
from weir.formats.manifest import digest_schema
from weir.ledger.code import equal_versions
from weir.ledger.database.code_tables import SameCodeRow
from weir.ledger.database.tables import AttemptRow, ResultRow, RunRow
from weir.ledger.names import require_dataflow, unknown_stage
from weir.ledger.results import NewResult
from weir.ledger.runs import run_by_id
from weir.ledger.snapshot import run_state
from weir.recovery.reconcile import reconcile
from weir.topology.regions import PartitionId


@dataclass(frozen=True, slots=True, kw_only=True)
class EqualVersions:
    """Two versions of a stage's code that a person has declared equal."""

    dataflow: str
    stage: str
    one: str
    other: str
    declared_at: datetime
    declared_by: str


def declare_equal(
    services: Services, stage: str, old: str, new: str, who: str, dataflow: str | None = None
) -> tuple[EqualVersions, int]:
    """Declare two versions of a stage's code equal, and return them with the number of results that count as of both.

    The versions are named by their beginnings. Raises Misconfigured for a stage or version that is not known, where
    several dataflows have the stage and none is named, and where the versions have made results of unequal columns.
    """
    with services.ledger.transaction() as session:
        dataflow = _dataflow_of(session, stage, dataflow)
    with services.ledger.transaction(dataflow) as session:
        known = _versions_of(session, dataflow, stage)
        one, other = (only_named(each, known, f"code of stage {stage} of {dataflow}") for each in (old, new))
        if one == other:
            raise Misconfigured.of("recovery.versions_are_one", old=old, new=new, short=short(one))
        declared = EqualVersions(
            dataflow=dataflow, stage=stage, one=one, other=other, declared_at=services.now(), declared_by=who
        )
        if not {(one, other), (other, one)} & set(equal_versions(session, dataflow, stage)):
            columns = {name: getattr(declared, name) for name in EqualVersions.__dataclass_fields__}
            session.add(SameCodeRow(**columns))
            session.flush()
        changed = _count_as_both(session, dataflow, stage, {one, other})
        for run in {row.run for row in changed}:
            if session.get_one(RunRow, run).closed_at is None:
                found = run_by_id(session, run)
                reconcile(session, services, found, run_state(session, found))
    return declared, len(changed)


def with_versions_declared_equal(
    session: Session, begun: Begun, before: RunState, results: Sequence[NewResult]
) -> list[NewResult]:
    """Return a commit's results; where siblings are of other code, with the versions that a person declared equal."""
    found = []
    for result in results:
        new = result
        if not _agrees(before, result):
            same = equal_versions(session, begun.run.dataflow.name, result.partition.stage)
            new = replace(result, versions=tuple(sorted(with_equal(frozenset(result.versions), same))))
        found.append(new)
    return found


def _agrees(before: RunState, new: NewResult) -> bool:
    """Report whether one version makes a new result and all those of its stage in the run."""
    siblings = _siblings(before, new.partition)
    return not siblings or bool(agreed([frozenset(new.versions), *(each.versions for each in siblings)]))


def _siblings(before: RunState, partition: PartitionId) -> list[CurrentResult]:
    return [
        result
        for each, result in before.results.items()
        if each.is_of_own_run and each.stage == partition.stage and each.subtask != partition.subtask
    ]


def _count_as_both(session: Session, dataflow: str, stage: str, declared: set[str]) -> list[ResultRow]:
    """Add to the versions of current results all that equal one of them; return the results that have more now."""
    same = equal_versions(session, dataflow, stage)
    query = (
        select(ResultRow)
        .join(RunRow, RunRow.id == ResultRow.run)
        .where(RunRow.dataflow == dataflow, ResultRow.stage == stage, ResultRow.is_current, RunRow.is_pinned)
    )
    changed = []
    columns: dict[tuple[str, str], str] = {}
    for row in session.scalars(query):
        before = frozenset(row.versions)
        if before.isdisjoint(declared):
            continue
        schema = digest_schema(row.digest)
        if columns.setdefault((row.run, row.layout), schema) != schema:
            named = " and ".join(sorted(short(each) for each in declared))
            raise Misconfigured.of("recovery.versions_not_equal", named=named, run=row.run, stage=stage)
        after = with_equal(before, same)
        if after != before:
            row.versions = sorted(after)
            changed.append(row)
    return changed


def _dataflow_of(session: Session, stage: str, dataflow: str | None) -> str:
    """Return the dataflow that has results of a stage: the named one, or the only one."""
    if dataflow is not None:
        require_dataflow(session, dataflow)
    query = select(RunRow.dataflow, ResultRow.stage).join(ResultRow, ResultRow.run == RunRow.id).distinct()
    written = [(name, each) for name, each in session.execute(query) if dataflow in (None, name)]
    found = sorted(name for name, each in written if each == stage)
    if not found:
        known = sorted({each for _, each in written})
        raise unknown_stage(dataflow, stage, known)
    if len(found) > 1:
        raise Misconfigured.of("recovery.stage_ambiguous", found=found, stage=stage, first=found[0])
    return found[0]


def _versions_of(session: Session, dataflow: str, stage: str) -> set[str]:
    """Return the versions of the tasks that write a stage, also of those that have not committed."""
    writers = (
        select(AttemptRow.region)
        .join(ResultRow, ResultRow.attempt == AttemptRow.id)
        .join(RunRow, RunRow.id == AttemptRow.run)
        .where(RunRow.dataflow == dataflow, ResultRow.stage == stage)
    )
    query = (
        select(AttemptRow.code)
        .join(RunRow, RunRow.id == AttemptRow.run)
        .where(RunRow.dataflow == dataflow, AttemptRow.region.in_(writers), AttemptRow.code.is_not(None))
        .distinct()
    )
    return {each for each in session.scalars(query) if each is not None}


def only_named(name: str, known: Iterable[str], what: str) -> str:
    """Return the only known name that begins so. Raises Misconfigured."""
    names = sorted(known)
    found = [name] if name in names else [each for each in names if each.startswith(name)]
    if len(found) == 1:
        return found[0]
    if found:
        raise Misconfigured.of("recovery.name_ambiguous", name=name, names=len(found), what=what)
    raise Misconfigured.of("recovery.name_unknown", what=what, name=name)
