"""Lists the versions of code that runs have used, finds their sources, and declares versions equal.

Invariant: versions are declared equal in one transaction with the versions of all current results that this concerns,
so that a result's validity depends on its own row alone.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from weir.code.archive import Archive, archive_of
from weir.code.generation_rules import UNRECORDED, agreed, short, with_equal
from weir.coordination.services import Services
from weir.errors import Misconfigured
from weir.execution.run_state import CLOSE
from weir.formats.manifest import digest_schema
from weir.ledger.code import equal_versions
from weir.ledger.database.tables import ArchiveRow, AttemptRow, ResultRow, RunRow, SameCodeRow
from weir.ledger.names import require_dataflow, similar
from weir.ledger.runs import run_by_id
from weir.recovery.consequences import note_whether_closed
from weir.store.errors import NotFound


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionOfTask:
    """A version of a task's code in a run: what is it imported from, since when, how many subtasks' results are by it.

    `version` is "unrecorded" for results from before versions were recorded.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class EqualVersions:
    """Two versions of a stage's code that a person has declared equal."""

    dataflow: str
    stage: str
    one: str
    other: str
    declared_at: datetime
    declared_by: str


def versions_of_tasks(session: Session, dataflow: str | None = None) -> list[VersionOfTask]:
    """Return the versions that runs of a dataflow, or of all, have used, by epoch and region; oldest epoch first.

    Raises Misconfigured for a dataflow that is not known.
    """
    if dataflow is not None:
        require_dataflow(session, dataflow)
    of_task = (AttemptRow.region, AttemptRow.generation, AttemptRow.code, AttemptRow.archive)
    made = func.count(func.distinct(ResultRow.subtask))
    query = (
        select(RunRow.dataflow, RunRow.epoch, RunRow.id, *of_task, func.min(AttemptRow.began_at).label("since"), made)
        .join(AttemptRow, AttemptRow.run == RunRow.id)
        .join(ResultRow, (ResultRow.attempt == AttemptRow.id) & ResultRow.is_current, isouter=True)
        .where(AttemptRow.region != CLOSE.name, AttemptRow.is_of_dag_run | ResultRow.id.is_not(None))
        .where(*([] if dataflow is None else [RunRow.dataflow == dataflow]))
        .group_by(RunRow.dataflow, RunRow.epoch, RunRow.id, *of_task)
        .having(AttemptRow.code.is_not(None) | (made > 0))
    )
    (unrecorded,) = UNRECORDED
    found = [
        VersionOfTask(
            dataflow=name,
            epoch=epoch,
            run=run,
            region=region,
            version=code or unrecorded,
            archive=archive,
            generation=generation,
            subtasks=subtasks,
            since=since,
        )
        for name, epoch, run, region, generation, code, archive, since, subtasks in session.execute(query)
    ]
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
    sets = {row.subtask: frozenset(row.versions) if row.versions else UNRECORDED for row, _ in results}
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
    return [
        EqualVersions(
            dataflow=row.dataflow,
            stage=row.stage,
            one=row.one,
            other=row.other,
            declared_at=row.declared_at,
            declared_by=row.declared_by,
        )
        for row in session.scalars(query)
        if dataflow in (None, row.dataflow)
    ]


def difference(services: Services, old: str, new: str) -> list[str]:
    """Return the lines of a unified diff of the files of two archives, each named by its beginning or a version's.

    Raises Misconfigured for a name that is none's, or several ones', and for an archive that is deleted.
    """
    with services.ledger.transaction() as session:
        paths = [_path_of(session, name) for name in (old, new)]
    before, after = (_read(services, path, fingerprint).files for fingerprint, path in paths)
    names = sorted(before.keys() | after.keys())
    return [line for name in names if before.get(name) != after.get(name) for line in _diff(name, before, after)]


def _path_of(session: Session, name: str) -> tuple[str, str | None]:
    """Return the fingerprint of an archive, and where it is: of a version, the one that was stored last."""
    stored = {row.fingerprint: row for row in session.scalars(select(ArchiveRow).order_by(ArchiveRow.stored_at))}
    query = select(AttemptRow.code, AttemptRow.archive).where(AttemptRow.archive.is_not(None)).distinct()
    archives: dict[str, set[str]] = {each: {each} for each in stored}
    for version, archive in session.execute(query):
        archives.setdefault(str(archive), {str(archive)})
        archives.setdefault(str(version), set()).add(str(archive))
    named = archives[_named(name, archives, "code or archive")]
    present = [each for each in stored if each in named and stored[each].deleting_at is None]
    return (present[-1], stored[present[-1]].path) if present else (min(named), None)


def _read(services: Services, path: str | None, fingerprint: str) -> Archive:
    try:
        if path is not None:
            return archive_of(services.store.read(path), fingerprint)
        found: object = "no run needs it, and its file is deleted"
    except (NotFound, ValueError) as error:
        found = error
    raise Misconfigured(f"archive {fingerprint[:16]} cannot be read: {found}")


def _diff(name: str, before: Mapping[str, bytes], after: Mapping[str, bytes]) -> Iterator[str]:
    try:
        old, new = (files.get(name, b"").decode().splitlines() for files in (before, after))
    except UnicodeDecodeError:
        yield f"{name} differs, and is no text"
        return
    was, is_now = (
        f"{side}/{name}" if name in files else "/dev/null" for side, files in (("old", before), ("new", after))
    )
    yield from difflib.unified_diff(old, new, was, is_now, lineterm="")


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
        one, other = (_named(each, known, f"code of stage {stage} of {dataflow}") for each in (old, new))
        if one == other:
            raise Misconfigured(f"{old} and {new} are one version: {short(one)}")
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
                note_whether_closed(session, services, found, found.topology)
    return declared, len(changed)


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
        before = frozenset(row.versions) if row.versions else UNRECORDED
        if before.isdisjoint(declared):
            continue
        schema = digest_schema(row.digest)
        if columns.setdefault((row.run, row.layout), schema) != schema:
            named = " and ".join(sorted(short(each) for each in declared))
            raise Misconfigured(
                f"{named} are not equal: in run {row.run} they have made results of stage {stage} with other columns "
                "or types"
            )
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
        raise Misconfigured(
            f"no run of {dataflow or 'any dataflow'} writes a stage {stage}: {similar(stage, known, 'writes')}"
        )
    if len(found) > 1:
        raise Misconfigured(f"{', '.join(found)} have a stage {stage}: say which, `--dataflow {found[0]}`")
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
    return {*session.scalars(query), *UNRECORDED}


def _named(name: str, known: Iterable[str], what: str) -> str:
    """Return the only known name that begins so. Raises Misconfigured."""
    names = sorted(known)
    found = [name] if name in names else [each for each in names if each.startswith(name)]
    if len(found) == 1:
        return found[0]
    if found:
        raise Misconfigured(f"{name} is the beginning of {len(found)} names of {what}: type more of it")
    raise Misconfigured(f"no {what} is named {name}: `weir code` lists the versions and archives")
