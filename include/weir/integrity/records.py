"""Compare the records beside the data with the ledger: published pointers, and manifests of released results.

Invariant: nothing is changed. Readers of a sink see its newest version only; a defect of an older version is reported,
but does not harm readers that begin now.
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
from weir.formats.paths import manifest_path
from weir.formats.pointer import Pointer, pointer_from_json
from weir.integrity.verify import results_to_verify
from weir.ledger.database.tables import PublicationRow, ResultRow, RunRow
from weir.ledger.publications import READABLE
from weir.ledger.runs import newest_dataflow_settings
from weir.retention.deletion_rules import is_silent
from weir.store.errors import NotFound
from weir.store.probe import probe_twice
from weir.store.store import Store
from weir.store.worker_threads import in_parallel

A = TypeVar("A")
_ONLY_REBUILD = "Only a rebuild of the ledger needs it: the rebuilt ledger will not know that result"


@dataclass(frozen=True, slots=True)
class Inconsistency:
    """A file beside the data that differs from the ledger: its path, what differs, and the remedy (`mend`).

    `is_published` says that readers of the run's published version miss it, or are misled.
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


def published_inconsistencies(services: Services, runs: Collection[str]) -> tuple[Inconsistency, ...]:
    """Return what is wrong with the pointers of published versions and the results they name. Raises Retryable."""
    with services.ledger.transaction() as session:
        query = (
            select(PublicationRow, RunRow)
            .join(RunRow, RunRow.id == PublicationRow.run)
            .where(PublicationRow.run.in_(runs), READABLE)
            .order_by(PublicationRow.run, PublicationRow.sink, PublicationRow.version)
        )
        found = [(row, run.dataflow, run.epoch) for row, run in session.execute(query)]
        found = [each for each in found if not _is_going(session, services, each[0], each[1])]
        folders = {folder for row, *_ in found for folder in row.folders}
        results = {row.folder: row for row in session.scalars(select(ResultRow).where(ResultRow.run.in_(runs)))}
    newest = {(row.run, row.sink): row.version for row, *_ in found}
    versions = [_Version(*each, each[0].version == newest[each[0].run, each[0].sink]) for each in found]
    inconsistencies = confirmed(services, versions, partial(_of_pointer, services.store))
    states = {folder: results[folder].state for folder in folders if folder in results}
    return (
        *inconsistencies,
        *(inconsistency for each in versions if each.is_newest for inconsistency in _of_results(each, states)),
    )


def _is_going(session: Session, services: Services, row: PublicationRow, dataflow: str) -> bool:
    """Report whether a version is past its retention: its pointer is deleted before the ledger records it."""
    kept = newest_dataflow_settings(session, dataflow, services.retention).keep_published
    return row.published_at is not None and is_silent(row.published_at, kept, services.now())


def released_inconsistencies(services: Services, runs: Collection[str]) -> tuple[Inconsistency, ...]:
    """Return the missing manifests of released results; a rebuild of the ledger needs them. Raises Retryable."""
    with services.ledger.transaction() as session:
        query = select(RunRow.id).where(RunRow.id.in_(runs), RunRow.expired_at.is_(None))
        rows = results_to_verify(session, list(session.scalars(query)), [PartitionState.RELEASED])
    return confirmed(services, rows, partial(_of_manifest, services.store))


def confirmed(
    services: Services, items: Sequence[A], check: Callable[[A], Inconsistency | None]
) -> tuple[Inconsistency, ...]:
    """Check each item in the store, twice where it differs. Raises Retryable where the answer is not definite."""
    store = services.store

    def check_all(some: list[A]) -> list[Inconsistency | None]:
        return in_parallel(check, some, store.workers)

    answers = probe_twice(store, services.store_id(), list(items), check_all, lambda answer: answer is not None)
    return tuple(each for each in answers if each is not None)


def _of_pointer(store: Store, version: _Version) -> Inconsistency | None:
    row = version.row
    try:
        pointer = pointer_from_json(store.read(row.pointer))
    except NotFound:
        return _published(version, f"version {row.version} of {row.sink} was published here, found no such file")
    except Misconfigured as error:
        return Inconsistency(row.run, row.pointer, str(error), "Nothing was changed")
    except (ValueError, KeyError, TypeError) as error:
        return _published(version, f"it cannot be read as the pointer of version {row.version} of {row.sink}: {error}")
    differing = ", ".join(_differences(version, pointer))
    return _published(version, f"ledger and pointer differ: {differing}") if differing else None


def _differences(version: _Version, pointer: Pointer) -> list[str]:
    row = version.row
    values: dict[str, tuple[object, object]] = {
        "dataflow": (version.dataflow, pointer.dataflow),
        "sink": (row.sink, pointer.sink),
        "epoch": (version.epoch, pointer.epoch),
        "version": (row.version, pointer.version),
        "attempt": (row.attempt, pointer.attempt),
        "digest": (row.digest, "|".join(each.digest for each in pointer.partitions)),
        "folders": (row.folders, [each.folder for each in pointer.partitions]),
    }
    return [f"{what} {ledger} and {stored}" for what, (ledger, stored) in values.items() if ledger != stored]


def _of_results(version: _Version, states: Mapping[str, str]) -> Iterator[Inconsistency]:
    """Report results of a published version that are not finished: they must stay even if recomputed since."""
    for folder in version.row.folders:
        state = states.get(folder, "not known to the ledger")
        if state != PartitionState.FINISHED.value:
            yield _published(version, f"version {version.row.version} of {version.row.sink} names {folder}: {state}")


def _published(version: _Version, detail: str) -> Inconsistency:
    run = version.row.run
    if not version.is_newest:
        return Inconsistency(run, version.row.pointer, detail, "New readers do not read this version")
    mend = f"Clear {CLOSE.name} of {run} in Airflow, and it publishes again; `weir verify {run} --repair` does it"
    return Inconsistency(run, version.row.pointer, detail, mend, is_published=True)


def _of_manifest(store: Store, row: ResultRow) -> Inconsistency | None:
    path = manifest_path(row.folder)
    try:
        found = hashlib.sha256(store.read(path)).hexdigest()
    except NotFound:
        return Inconsistency(row.run, path, "the manifest of a released result, found no such file", _ONLY_REBUILD)
    if found == row.manifest_sha256:
        return None
    detail = f"the manifest of a released result: expected SHA-256 {row.manifest_sha256}, found {found}"
    return Inconsistency(row.run, path, detail, _ONLY_REBUILD)
