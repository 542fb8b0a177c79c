"""Chooses the code of a try, in the transaction of its begin.

Invariant: the archive that a try imports from is in the store, whole, before the transaction that names it; no
transaction is open while the store is asked. A begin that needs an archive's files leaves its transaction, reads them,
and begins again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from sqlalchemy.orm import Session

from weir.code.archive import Archive, archive_of
from weir.code.generation_rules import Cause, Choice, Code, Generation, RepairCode, TaskCode, choose, short
from weir.code.version import code_version, lacking_functions
from weir.coordination.services import Services
from weir.dataflow.graph import reachable
from weir.errors import Misconfigured, Retryable
from weir.execution.failure_class import FailureClass
from weir.formats.paths import archive_path
from weir.formats.region_job import CodeToRun
from weir.ledger.attempts import Origin
from weir.ledger.clears import is_cleared_for_newest
from weir.ledger.code import (
    TaskGeneration,
    archive_row,
    enter_archive,
    forget_archive,
    functions_of,
    generations_of,
    subtasks_done,
)
from weir.ledger.database.tables import AttemptRow, RunRow
from weir.ledger.runs import Run
from weir.store.errors import NotFound
from weir.topology.regions import RegionId, Topology

_OWN = (FailureClass.APPLICATION.value, FailureClass.FATAL.value)
"""The classes of failures that the function itself is to blame for."""


@dataclass(frozen=True, slots=True)
class ChosenCode:
    """The code of a try, the number of its generation, the deployed version, and what a person should know of it."""

    code: CodeToRun
    generation: int
    deployed: str
    note: str


class ArchiveNeeded(Exception):
    """An archive has to be stored or read, outside of the transaction."""

    def __init__(self, archives: Archives, fingerprint: str, path: str | None) -> None:
        self._archives, self.fingerprint, self.path = archives, fingerprint, path
        super().__init__(f"archive {fingerprint} is needed")

    def fetch(self) -> None:
        """Store or read it, where no transaction is open. Raises Misconfigured or Retryable."""
        self._archives.fetch(self)


class Archives:
    """The archives that a begin knows: the deployed one, and those that it has read from the store."""

    def __init__(self, services: Services, dataflow: str, deployed: Archive) -> None:
        self._services, self._dataflow = services, dataflow
        self.deployed = deployed
        self._known = {deployed.fingerprint: deployed}
        self._stored: dict[str, str] = {}
        self._versions: dict[tuple[str, tuple[str, ...]], str] = {}

    def fetch(self, needed: ArchiveNeeded) -> None:
        """Read an archive from the store, or store the deployed one. Raises Misconfigured or Retryable."""
        if needed.fingerprint in self._known:
            self._stored[needed.fingerprint] = self._store(needed.fingerprint)
        else:
            self._known[needed.fingerprint] = self._read(needed)

    def _store(self, fingerprint: str) -> str:
        path = archive_path(self._dataflow, fingerprint, self._services.new_uuid().hex[:8])
        self._services.store.create(path, self._known[fingerprint].data)
        return path

    def present(self, code: CodeToRun, deployed: str) -> CodeToRun:
        """Return code whose archive is in the store: as given, or the same version in a new file.

        `deployed` is the version of the task's code in the deployed archive. Raises Misconfigured where
        its file is gone and this process has another version, and Retryable.
        """
        try:
            self._services.store.size(code.path)
        except NotFound as error:
            self._services.store_id()  # on an unmounted disk everything seems missing
            archive = self.deployed.fingerprint if code.version == deployed else code.archive
            if archive in self._known:
                return replace(code, archive=archive, path=self._store(archive))
            raise _lost(code.archive, error) from error
        return code

    def enter(self, session: Session, fingerprint: str, path: str) -> str:
        """Record the file of an archive that is in the store, and return its path."""
        size, now = len(self._known[fingerprint].data), self._services.now()
        return enter_archive(session, self._dataflow, fingerprint, path, size, now).path

    def _read(self, needed: ArchiveNeeded) -> Archive:
        found: object = "the ledger names no file of it"
        if needed.path is not None:
            try:
                return archive_of(self._services.store.read(needed.path), needed.fingerprint)
            except (NotFound, ValueError) as error:
                self._services.store_id()  # on an unmounted disk everything seems missing
                found = error
        raise _lost(needed.fingerprint, found)

    def version(self, session: Session, fingerprint: str, functions: Sequence[str]) -> str:
        """Return the version of these functions in an archive. Raises ArchiveNeeded if it has to be read first."""
        if fingerprint not in self._known:
            row = archive_row(session, self._dataflow, fingerprint)
            raise ArchiveNeeded(self, fingerprint, None if row is None else row.path)
        key = (fingerprint, tuple(functions))
        if key not in self._versions:  # a begin may need several rounds
            self._versions[key] = code_version(self._known[fingerprint].files, functions)
        return self._versions[key]

    def path(self, session: Session, fingerprint: str) -> str | None:
        """Return where the archive is in the store; None for one that is gone.

        Raises ArchiveNeeded if it has to be stored first.
        """
        row = archive_row(session, self._dataflow, fingerprint)
        if row is not None and row.deleting_at is None:
            return row.path
        if fingerprint in self._stored:
            return self.enter(session, fingerprint, self._stored[fingerprint])
        if fingerprint in self._known:
            raise ArchiveNeeded(self, fingerprint, None)
        return None


def _lost(fingerprint: str, why: object) -> Misconfigured:
    return Misconfigured.of("attempts.code_lost", fingerprint=fingerprint[:16], why=why)


def pin_archive(session: Session, row: RunRow, archives: Archives) -> None:
    """Pin a run to the deployed archive, unless it is pinned to one; its record is due then. Raises ArchiveNeeded."""
    if row.archive is None:
        archives.path(session, archives.deployed.fingerprint)
        row.archive, row.is_record_due = archives.deployed.fingerprint, True


def require_archive(services: Services, dataflow: str, code: CodeToRun) -> None:
    """Check the archive of an attempt that has failed. Raises Retryable if it is lost: the next try stores it again."""
    try:
        archive_of(services.store.read(code.path), code.archive)
    except (NotFound, ValueError) as error:
        services.store_id()  # on an unmounted disk everything seems missing
        with services.ledger.transaction(dataflow) as session:
            forget_archive(session, dataflow, code.archive, code.path)
        raise Retryable.of("attempts.code_lost_meanwhile", code_path=code.path, error=error) from error


def choose_code(
    session: Session,
    archives: Archives,
    run: Run,
    topology: Topology,
    region: RegionId,
    origin: Origin,
    older: Sequence[AttemptRow],
    max_tries: int,
) -> ChosenCode:
    """Choose the code of a try of a region, whose run is pinned to an archive; `older` are its tries, oldest first.

    `max_tries` is that of its task instance, which Airflow raises where it clears one that is not running.

    Raises ArchiveNeeded, and Misconfigured where the code lacks a function of the pinned dataflow.
    """
    functions = functions_of(topology, region.name)
    deployed = Code(archives.version(session, archives.deployed.fingerprint, functions), archives.deployed.fingerprint)
    pinned = cast("str", session.get_one(RunRow, run.id).archive)
    known = generations_of(session, run.id, {region.name})
    cause, repair = _cause(origin, older, max_tries), run.dataflow.repair_code
    if origin is Origin.CLEARED_BY_WEIR and is_cleared_for_newest(session, run.id, region, older[-1].try_number):
        cause, repair = Cause.BY_PERSON, RepairCode.NEWEST
    task = TaskCode(
        opened=_newest(known),
        current=_newest([each for each in known if each.is_current]),
        repeated=_of_row(older[-1]) if origin is Origin.RETRY or cause is Cause.PERHAPS_BY_PERSON else None,
        inherited=deployed if known else _inherited(session, archives, run, topology, region.name, pinned, functions),
        done=subtasks_done(session, run.id, [stage.name for stage in topology.stages_of(region.name)])
        if cause is Cause.OWN_FAILURE or repair is RepairCode.AS_IT_WAS
        else 0,
        subtasks=topology.region(region.name).parallelism,
    )
    choice = choose(task, deployed, cause, repair)
    return _stored(session, archives, choice, deployed, functions, region)


def _stored(
    session: Session, archives: Archives, choice: Choice, deployed: Code, functions: Sequence[str], region: RegionId
) -> ChosenCode:
    code = choice.generation.code
    path = archives.path(session, code.archive)
    if path is None and code.version == deployed.version:
        code, path = deployed, archives.path(session, deployed.archive)
    if path is None:
        raise Misconfigured.of(
            "attempts.code_of_region_lost",
            region=region.name,
            short=short(code.version),
            archive=code.archive[:16],
            deployed=short(deployed.version),
        )
    if code.archive == deployed.archive:
        _require_functions(archives.deployed.files, functions, region)
    return ChosenCode(
        CodeToRun(version=code.version, archive=code.archive, path=path),
        choice.generation.number,
        deployed.version,
        choice.note,
    )


def _require_functions(files: Mapping[str, bytes], functions: Sequence[str], region: RegionId) -> None:
    missing = lacking_functions(files, functions)
    if missing:
        raise Misconfigured.of("attempts.function_missing", region=region.name, missing=missing)


def _inherited(
    session: Session,
    archives: Archives,
    run: Run,
    topology: Topology,
    region: str,
    pinned: str,
    functions: Sequence[str],
) -> Code:
    """Return the code of a task that has not begun: that of the run, or of the newest generation of one upstream."""
    upstream = reachable([region], lambda name: (each.name for each in topology.upstream(name))).keys() - {region}
    above = generations_of(session, run.id, upstream)
    present = {each.region: each for each in above if each.is_current}
    newer = [each for each in present.values() if each.generation.code.archive != pinned]
    newest = max(newer, key=lambda each: each.began_at, default=None)
    archive = pinned if newest is None else newest.generation.code.archive
    return Code(archives.version(session, archive, functions), archive)


def _cause(origin: Origin, older: Sequence[AttemptRow], max_tries: int) -> Cause:
    if origin is Origin.CLEARED_BY_PERSON:
        return Cause.PERHAPS_BY_PERSON if older[-1].max_tries == max_tries else Cause.BY_PERSON
    if origin in (Origin.RETRY, Origin.CLEARED_BY_WEIR):
        return Cause.OWN_FAILURE if older[-1].failure in _OWN else Cause.BY_WEIR
    return Cause.FIRST if origin is Origin.FIRST else Cause.BY_WEIR


def _newest(known: Sequence[TaskGeneration]) -> Generation | None:
    return known[-1].generation if known else None


def _of_row(row: AttemptRow) -> Generation | None:
    if row.generation is None or row.code is None or row.archive is None:
        return None
    return Generation(row.generation, Code(row.code, row.archive))
