"""The versions of code that runs have used, which of them are declared equal, and how their sources differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from weir.code.archive import Archive, archive_of
from weir.code.differences import unified
from weir.code.generation_rules import agreed
from weir.coordination.services import Services
from weir.errors import Misconfigured
from weir.execution.run_state import CLOSE
from weir.ledger.database.code_tables import ArchiveRow, SameCodeRow
from weir.ledger.database.columns import taken
from weir.ledger.database.tables import AttemptRow, ResultRow, RunRow
from weir.ledger.names import require_dataflow
from weir.recovery.versions import EqualVersions, only_named
from weir.store.errors import NotFound

RESTORED: Final = "restored"
"""Stands for the version where no code has run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionOfTask:
    """A version of a task's code in a run: what is it imported from, since when, how many subtasks' results are by it.

    `version` is RESTORED for results that a restore has brought: no task of the run has made them.
    """

    dataflow: str
    epoch: str
    run: str
    region: str
    version: str
    archive: str | None
    generation: int | None
    subtasks: int
    since: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeOfStage:
    """The code of a stage in a run: one version that has made, or would have made, all its current results.

    `opened_by` is the attempt that opened its generation; None, as are archive and generation, where no attempt of the
    run has run the version. `by_subtask` has versions by subtask where no one version makes all results: then the stage
    is not valid, and `version` is that of the newest.
    """

    stage: str
    version: str
    archive: str | None
    generation: int | None
    opened_by: str | None
    by_subtask: Mapping[int, str]


def versions_of_tasks(session: Session, dataflow: str | None = None) -> list[VersionOfTask]:
    """Return the versions that runs of a dataflow, or of all, have used, by epoch and region; oldest epoch first.

    Raises Misconfigured for a dataflow that is not known.
    """
    if dataflow is not None:
        require_dataflow(session, dataflow)
    of_task = (AttemptRow.region, AttemptRow.generation, AttemptRow.code, AttemptRow.archive)
    of_run = (RunRow.dataflow, RunRow.epoch, RunRow.id.label("run"))
    made = func.count(func.distinct(ResultRow.subtask))
    query = (
        select(*of_run, *of_task, func.min(AttemptRow.began_at).label("since"), made.label("subtasks"))
        .join(AttemptRow, AttemptRow.run == RunRow.id)
        .join(ResultRow, (ResultRow.attempt == AttemptRow.id) & ResultRow.is_current, isouter=True)
        .where(AttemptRow.region != CLOSE.name, AttemptRow.is_of_dag_run | ResultRow.id.is_not(None))
        .where(*([] if dataflow is None else [RunRow.dataflow == dataflow]))
        .group_by(RunRow.dataflow, RunRow.epoch, RunRow.id, *of_task)
        .having(AttemptRow.code.is_not(None) | (made > 0))
    )
    found = [taken(VersionOfTask, row, version=row.code or RESTORED) for row in session.execute(query)]
    return sorted(found, key=lambda each: (each.dataflow, each.epoch, each.region, each.generation or 0, each.since))


def code_of_task(session: Session, run: str, region: str) -> list[CodeOfStage]:
    """Return the code of each stage that a task has results of, by the name of its region."""
    tries = (
        select(AttemptRow)
        .where(AttemptRow.run == run, AttemptRow.region == region, AttemptRow.is_of_dag_run)
        .order_by(AttemptRow.generation, AttemptRow.began_at)
    )
    opened: dict[int, AttemptRow] = {}
    for row in session.scalars(tries.where(AttemptRow.generation.is_not(None))):
        opened.setdefault(row.generation or 0, row)
    query = (
        select(ResultRow, AttemptRow)
        .join(AttemptRow, AttemptRow.id == ResultRow.attempt)
        .where(ResultRow.run == run, AttemptRow.region == region, ResultRow.is_current)
        .order_by(ResultRow.stage, ResultRow.subtask)
    )
    results: dict[str, list[tuple[ResultRow, AttemptRow]]] = {}
    for result, attempt in session.execute(query):
        results.setdefault(result.stage, []).append((result, attempt))
    return [_code_of_stage(stage, found, opened) for stage, found in results.items()]


def _code_of_stage(
    stage: str, results: Sequence[tuple[ResultRow, AttemptRow]], opened: Mapping[int, AttemptRow]
) -> CodeOfStage:
    sets = {row.subtask: frozenset(row.versions) for row, _ in results}
    newest = max(results, key=lambda each: (each[1].generation or 0, each[0].id))
    common = agreed(sets.values()) or sets[newest[0].subtask]
    number = max((each for each, row in opened.items() if row.code in common), default=None)
    opener = None if number is None else opened[number]
    made = {row.subtask: attempt.code or min(sets[row.subtask]) for row, attempt in results}
    return CodeOfStage(
        stage=stage,
        version=min(common) if opener is None else str(opener.code),
        archive=None if opener is None else opener.archive,
        generation=number,
        opened_by=None if opener is None else opener.id,
        by_subtask={} if agreed(sets.values()) else made,
    )


def declared_equal(session: Session, dataflow: str | None = None) -> list[EqualVersions]:
    """Return the versions that persons have declared equal, oldest declaration first."""
    query = select(SameCodeRow).order_by(SameCodeRow.id)
    return [taken(EqualVersions, row) for row in session.scalars(query) if dataflow in (None, row.dataflow)]


def difference(services: Services, old: str, new: str) -> list[str]:
    """Return the lines of a unified diff of the files of two archives, each named by its beginning or a version's.

    Raises Misconfigured for a name that is none's, or several ones', and for an archive that is deleted.
    """
    before, after = (archive_named(services, name).files for name in (old, new))
    names = sorted(before.keys() | after.keys())
    return [line for name in names if before.get(name) != after.get(name) for line in unified(name, before, after)]


def archive_named(services: Services, name: str) -> Archive:
    """Return the archive that is named by its beginning, or by that of a version. Raises Misconfigured as above."""
    with services.ledger.transaction() as session:
        fingerprint, path = _path_of(session, name)
    return _read(services, path, fingerprint)


def _path_of(session: Session, name: str) -> tuple[str, str | None]:
    """Return the fingerprint of an archive, and where it is: of a version, the one that was stored last."""
    stored = {row.fingerprint: row for row in session.scalars(select(ArchiveRow).order_by(ArchiveRow.stored_at))}
    query = select(AttemptRow.code, AttemptRow.archive).where(AttemptRow.archive.is_not(None)).distinct()
    archives: dict[str, set[str]] = {each: {each} for each in stored}
    for version, archive in session.execute(query):
        archives.setdefault(str(archive), {str(archive)})
        archives.setdefault(str(version), set()).add(str(archive))
    named = archives[only_named(name, archives, "code or archive")]
    present = [each for each in stored if each in named and stored[each].deleting_at is None]
    return (present[-1], stored[present[-1]].path) if present else (min(named), None)


def _read(services: Services, path: str | None, fingerprint: str) -> Archive:
    try:
        if path is not None:
            return archive_of(services.store.read(path), fingerprint)
        found: object = "no run needs it, and its file is deleted"
    except (NotFound, ValueError) as error:
        found = error
    raise Misconfigured.of("views.archive_unreadable", fingerprint=fingerprint[:16], found=found)
