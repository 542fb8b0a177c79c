"""Whether what is written beside the data says what the ledger says: published pointers, and manifests of what is gone.

Invariant: it changes nothing. What a reader sees of a sink is its newest version; what an older one misses is told, and
harms nobody who comes now.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from sqlalchemy import select
from sqlalchemy.orm import Session

from weir.coordination.services import Services
from weir.errors import Misconfigured
from weir.execution.partition_state import PartitionState
from weir.execution.run_state import CLOSE
from weir.formats.paths import MANIFEST
from weir.formats.pointer import Pointer, pointer_from_json
from weir.integrity.ledger import results_to_verify
from weir.ledger.database.tables import PublicationRow, ResultRow, RunRow
from weir.ledger.runs import newest_dataflow_settings
from weir.store.errors import NotFound
from weir.store.probe import probe_twice
from weir.store.store import Store
from weir.store.worker_threads import in_parallel

A = TypeVar("A")
_ONLY_REBUILD = "Only a ledger that is built again will miss it: it will not know that result any more"


@dataclass(frozen=True, slots=True)
class Misfit:
    """Something beside the data that is not as the ledger says: where, what, and what mends it.

    `is_published` says that readers of what the run has published miss it, or are misled.
    """

    run: str
    path: str
    detail: str
    mend: str
    is_published: bool = False

    def __str__(self) -> str:
        """A sentence."""
        return f"{self.path}: {self.detail}. {self.mend}"


@dataclass(frozen=True, slots=True)
class _Version:
    row: PublicationRow
    dataflow: str
    epoch: str
    is_newest: bool


def published_misfits(services: Services, runs: Collection[str]) -> tuple[Misfit, ...]:
    """What is wrong with the pointers of published versions, and with the results that they name. Raises Retryable."""
    with services.ledger.transaction() as session:
        query = (
            select(PublicationRow, RunRow)
            .join(RunRow, RunRow.id == PublicationRow.run)
            .where(
                PublicationRow.run.in_(runs),
                PublicationRow.published_at.is_not(None),
                PublicationRow.expired_at.is_(None),
            )
            .order_by(PublicationRow.run, PublicationRow.sink, PublicationRow.version)
        )
        found = [(row, run.dataflow, run.epoch) for row, run in session.execute(query)]
        found = [each for each in found if not _is_going(session, services, each[0], each[1])]
        folders = {folder for row, *_ in found for folder in row.folders or ()}
        results = {row.folder: row for row in session.scalars(select(ResultRow).where(ResultRow.run.in_(runs)))}
    newest = {(row.run, row.sink): row.version for row, *_ in found}
    versions = [_Version(*each, each[0].version == newest[each[0].run, each[0].sink]) for each in found]
    misfits = asked(services, versions, partial(_of_pointer, services.store))
    states = {folder: results[folder].state for folder in folders if folder in results}
    return (*misfits, *(misfit for each in versions if each.is_newest for misfit in _of_results(each, states)))


def _is_going(session: Session, services: Services, row: PublicationRow, dataflow: str) -> bool:
    """Whether a version is no longer kept: its pointer is deleted before the ledger knows it."""
    kept = newest_dataflow_settings(session, dataflow, services.retention).keep_published
    return kept is not None and row.published_at is not None and row.published_at + kept <= services.now()


def released_misfits(services: Services, runs: Collection[str]) -> tuple[Misfit, ...]:
    """Manifests that are gone of results whose data was released; a ledger is built again with them.

    Raises Retryable.
    """
    with services.ledger.transaction() as session:
        query = select(RunRow.id).where(RunRow.id.in_(runs), RunRow.expired_at.is_(None))
        rows = results_to_verify(session, list(session.scalars(query)), [PartitionState.RELEASED])
    return asked(services, rows, partial(_of_manifest, services.store))


def asked(services: Services, questions: Sequence[A], ask: Callable[[A], Misfit | None]) -> tuple[Misfit, ...]:
    """Ask the store, and again where something is wrong. Raises Retryable where it does not answer definitely."""
    store = services.store

    def ask_all(some: list[A]) -> list[Misfit | None]:
        return in_parallel(ask, some, store.workers)

    answers = probe_twice(store, services.store_id(), list(questions), ask_all, lambda answer: answer is not None)
    return tuple(each for each in answers if each is not None)


def _of_pointer(store: Store, version: _Version) -> Misfit | None:
    row = version.row
    try:
        pointer = pointer_from_json(store.read(row.pointer))
    except NotFound:
        return _published(version, f"version {row.version} of {row.sink} was published here, found no such file")
    except Misconfigured as error:
        return Misfit(row.run, row.pointer, str(error), "Nothing was changed")
    except (ValueError, KeyError, TypeError) as error:
        return _published(version, f"it cannot be read as the pointer of version {row.version} of {row.sink}: {error}")
    differing = ", ".join(_differences(version, pointer))
    return _published(version, f"ledger and pointer say different things: {differing}") if differing else None


def _differences(version: _Version, pointer: Pointer) -> list[str]:
    row = version.row
    said: dict[str, tuple[object, object]] = {
        "dataflow": (version.dataflow, pointer.dataflow),
        "sink": (row.sink, pointer.sink),
        "epoch": (version.epoch, pointer.epoch),
        "version": (row.version, pointer.version),
        "attempt": (row.attempt, pointer.attempt),
        "digest": (row.digest, "|".join(each.digest for each in pointer.partitions)),
    }
    if row.folders is not None:
        said["folders"] = (row.folders, [each.folder for each in pointer.partitions])
    return [f"{what} {ledger} and {stored}" for what, (ledger, stored) in said.items() if ledger != stored]


def _of_results(version: _Version, states: Mapping[str, str]) -> Iterator[Misfit]:
    """What is published may have been made again since; its own attempt's results must be there all the same."""
    for folder in version.row.folders or ():
        state = states.get(folder, "not known to the ledger")
        if state != PartitionState.FINISHED.value:
            yield _published(version, f"version {version.row.version} of {version.row.sink} names {folder}: {state}")


def _published(version: _Version, detail: str) -> Misfit:
    run = version.row.run
    if not version.is_newest:
        return Misfit(run, version.row.pointer, detail, "Nobody reads this version who comes now")
    mend = f"Clear {CLOSE.name} of {run} in Airflow, and it publishes again; `weir verify {run} --repair` does it"
    return Misfit(run, version.row.pointer, detail, mend, is_published=True)


def _of_manifest(store: Store, row: ResultRow) -> Misfit | None:
    path = f"{row.folder}/{MANIFEST}"
    try:
        found = hashlib.sha256(store.read(path)).hexdigest()
    except NotFound:
        return Misfit(row.run, path, "the manifest of a released result, found no such file", _ONLY_REBUILD)
    if found == row.manifest_sha256:
        return None
    detail = f"the manifest of a released result: expected SHA-256 {row.manifest_sha256}, found {found}"
    return Misfit(row.run, path, detail, _ONLY_REBUILD)
