"""Stores the code of runs and tries: archives in the store, generations of tasks, what was declared of versions.

Invariant: a row names an archive only after its file was written whole. An archive's file is deleted only if its row
says so since before; a row never names that file again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass
from datetime import datetime

from sqlalchemy import bindparam, func, select, update
from sqlalchemy.orm import Session

from weir.code.archive import archived
from weir.code.generation_rules import Code, Generation
from weir.execution.run_state import AttemptState
from weir.ledger.database.code_tables import ArchiveRow, KeptCodeRow, SameCodeRow
from weir.ledger.database.columns import taken
from weir.ledger.database.tables import AttemptRow, ResultRow, RunRow
from weir.topology.ids import Epoch, RunId
from weir.topology.regions import Topology

_ATTEMPT = AttemptRow.__table__.c
_TRIES = (
    select(
        _ATTEMPT.region,
        _ATTEMPT.generation,
        _ATTEMPT.code,
        _ATTEMPT.archive,
        func.min(_ATTEMPT.began_at).label("began_at"),
        func.max((_ATTEMPT.state == AttemptState.COMMITTED.value).cast(_ATTEMPT.subtask.type)).label("has_committed"),
    )
    .where(
        _ATTEMPT.run == bindparam("run"),
        _ATTEMPT.region.in_(bindparam("regions", expanding=True)),
        _ATTEMPT.generation.is_not(None),
        AttemptRow.is_of_dag_run,
    )
    .group_by(_ATTEMPT.region, _ATTEMPT.generation, _ATTEMPT.code, _ATTEMPT.archive)
)
"""Built once: each task runs this query when it begins."""

_ARCHIVE = select(ArchiveRow).where(
    ArchiveRow.dataflow == bindparam("dataflow"), ArchiveRow.fingerprint == bindparam("fingerprint")
)


def functions_of(topology: Topology, region: str) -> tuple[str, ...]:
    """Return the pipeline's functions ("module:function") that the tasks of a region call, and its stages' files.

    Weir's own, of sources such as files_source, are in no archive.
    """
    return archived(stage.function for stage in topology.stages_of(region))


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskGeneration:
    """A generation of a task in a run: when its first try began, and whether one has committed."""

    region: str
    generation: Generation
    began_at: datetime
    is_current: bool


def generations_of(session: Session, run: str, regions: Collection[str]) -> list[TaskGeneration]:
    """Return the generations of tasks in a run, by the names of their regions; oldest number first."""
    if not regions:
        return []
    session.flush()
    rows = session.connection().execute(_TRIES, {"run": run, "regions": sorted(regions)})
    found = [
        TaskGeneration(
            region=row.region,
            generation=Generation(row.generation, Code(row.code, row.archive)),
            began_at=row.began_at,
            is_current=bool(row.has_committed),
        )
        for row in rows
    ]
    return sorted(found, key=lambda each: (each.generation.number, each.began_at))


def forget_generations(session: Session, run: str, before: int | None = None) -> None:
    """Count the generations of a run's tasks from 1 again: it is pinned anew, or was restored.

    With `before`, only those of attempts of earlier lineages are forgotten.
    """
    query = update(AttemptRow).where(AttemptRow.run == run)
    session.execute((query if before is None else query.where(AttemptRow.lineage < before)).values(generation=None))


def subtasks_done(session: Session, run: str, stages: Iterable[str]) -> int:
    """Return of how many subtasks stages have current results."""
    query = select(func.count(func.distinct(ResultRow.subtask))).where(
        ResultRow.run == run, ResultRow.stage.in_(sorted(stages)), ResultRow.is_current
    )
    return session.scalar(query) or 0


def archive_row(session: Session, dataflow: str, fingerprint: str) -> ArchiveRow | None:
    """Return the row of an archive; None where it is not stored."""
    return session.scalar(_ARCHIVE, {"dataflow": dataflow, "fingerprint": fingerprint})


def enter_archive(session: Session, dataflow: str, fingerprint: str, path: str, size: int, now: datetime) -> ArchiveRow:
    """Record the file of an archive, which is whole, in place of one that is gone or about to be deleted."""
    row = archive_row(session, dataflow, fingerprint)
    if row is None:
        row = ArchiveRow(dataflow=dataflow, fingerprint=fingerprint)
        session.add(row)
    row.path, row.bytes, row.stored_at, row.deleting_at = path, size, now, None
    session.flush()
    return row


def archives_of(session: Session, dataflow: str) -> list[ArchiveRow]:
    """Return the rows of all archives of a dataflow, by fingerprint."""
    query = select(ArchiveRow).where(ArchiveRow.dataflow == dataflow).order_by(ArchiveRow.fingerprint)
    return list(session.scalars(query))


def archives_in_use(session: Session, dataflow: str) -> dict[str, set[RunId]]:
    """Return the fingerprints of the archives that runs, or attempts of them, name, with these runs.

    A run that is expired computes all of it again, with the code that is deployed then. No run expires whose results
    are needed, or whose checkpoint is retained; a savepoint has all of its content.
    """
    unexpired = (RunRow.dataflow == dataflow) & RunRow.expired_at.is_(None)
    of_runs = select(RunRow.archive, RunRow.id).where(unexpired)
    of_attempts = select(AttemptRow.archive, RunRow.id).join(RunRow, RunRow.id == AttemptRow.run).where(unexpired)
    found: dict[str, set[RunId]] = {}
    for query in (of_runs, of_attempts.distinct()):
        for archive, run in session.execute(query).tuples():
            if archive is not None:
                found.setdefault(archive, set()).add(run)
    return found


def unused_archives(session: Session, dataflow: str, before: datetime) -> list[ArchiveRow]:
    """Return the archives stored before a time that no run needs, and those whose deletion has begun."""
    in_use = archives_in_use(session, dataflow)
    return [
        row
        for row in archives_of(session, dataflow)
        if row.deleting_at is not None or (row.fingerprint not in in_use and row.stored_at <= before)
    ]


def forget_archive(session: Session, dataflow: str, fingerprint: str, path: str) -> None:
    """Delete the row of an archive whose file is gone or damaged, unless it names another by now."""
    row = archive_row(session, dataflow, fingerprint)
    if row is not None and row.path == path:
        session.delete(row)
        session.flush()


def equal_versions(session: Session, dataflow: str, stage: str) -> list[tuple[str, str]]:
    """Return the pairs of versions of a stage's code that a person has declared equal."""
    query = select(SameCodeRow.one, SameCodeRow.other).where(
        SameCodeRow.dataflow == dataflow, SameCodeRow.stage == stage
    )
    return [(one, other) for one, other in session.execute(query)]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptCode:
    """Results of a task by a version, from the first to the last epoch, that a person lets stay as they are.

    They do so while `current` is the version of its code.
    """

    dataflow: str
    task: str
    version: str
    current: str
    first: Epoch
    last: Epoch
    kept_at: datetime
    kept_by: str


def kept_code(session: Session, dataflow: str | None = None) -> list[KeptCode]:
    """Return the results of a dataflow, or of all, that persons let stay, oldest declaration first."""
    query = select(KeptCodeRow).order_by(KeptCodeRow.id)
    return [taken(KeptCode, row) for row in session.scalars(query) if dataflow in (None, row.dataflow)]


def enter_kept(session: Session, kept: Iterable[KeptCode]) -> None:
    """Record that results stay as they are."""
    session.add_all(KeptCodeRow(**asdict(each)) for each in kept)
    session.flush()
