"""Enter and look up compactions: the files that replace those of a committed partition of keyed state.

Invariant: of a partition that an attempt has committed at most one compaction is entered, and it never changes. A
compaction is used only while all of its files exist; the files that were committed are right without it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from weir.coordination.services import Services
from weir.errors import Retryable
from weir.formats.codec import from_plain
from weir.formats.manifest import Manifest, StateFile
from weir.ledger.database.tables import CompactionRow
from weir.store.errors import NotFound
from weir.store.worker_threads import in_parallel
from weir.typed_json import plain

_OF_ATTEMPTS = select(CompactionRow).where(CompactionRow.of_attempt.in_(bindparam("attempts", expanding=True)))
_OF_RUN = select(CompactionRow).where(CompactionRow.run == bindparam("run"))


@dataclass(frozen=True, slots=True, order=True)
class Compacted:
    """The partition of keyed state that was compacted, by the attempt that committed it."""

    of_attempt: str
    state: str
    subtask: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NewCompaction:
    """A compaction to be entered: the `files` that a partition consists of now, and the bytes that `attempt` moved."""

    of: Compacted
    dataflow: str
    run: str
    attempt: str
    files: tuple[StateFile, ...]
    read_bytes: int
    written_bytes: int


Compactions = Mapping[Compacted, tuple[StateFile, ...]]
"""The files that replace those in a manifest, by the partition that was compacted."""


# Entering


def enter_compaction(session: Session, new: NewCompaction, now: datetime) -> bool:
    """Enter a compaction; return whether it counts, since another attempt's may have been entered before."""
    found = compaction_rows_of(session, [new.of.of_attempt])
    entered = [row for row in found if (row.state, row.subtask) == (new.of.state, new.of.subtask)]
    if entered:
        return entered[0].attempt == new.attempt
    session.add(
        CompactionRow(
            dataflow=new.dataflow,
            run=new.run,
            state=new.of.state,
            subtask=new.of.subtask,
            of_attempt=new.of.of_attempt,
            attempt=new.attempt,
            files=plain(new.files),
            read_bytes=new.read_bytes,
            written_bytes=new.written_bytes,
            made_at=now,
        )
    )
    session.flush()
    return True


# Looking up in the ledger


def compaction_rows_of(session: Session, attempts: Iterable[str]) -> list[CompactionRow]:
    """Return the compactions of partitions that these attempts committed."""
    ids = sorted(set(attempts))
    return list(session.scalars(_OF_ATTEMPTS, {"attempts": ids})) if ids else []


def compaction_rows(session: Session, run: str) -> list[CompactionRow]:
    """Return the compactions of a run's states, of results that are current and of others."""
    return list(session.scalars(_OF_RUN, {"run": run}))


def compactions_in(session: Session, runs: Collection[str]) -> dict[Compacted, CompactionRow]:
    """Return the compactions of the states of some runs, by the partition that was compacted."""
    rows = session.scalars(select(CompactionRow).where(CompactionRow.run.in_(runs)))
    return {Compacted(row.of_attempt, row.state, row.subtask): row for row in rows}


def compactions_of(session: Session, attempts: Iterable[str]) -> dict[Compacted, tuple[StateFile, ...]]:
    """Return the files that replace those in the manifests of these attempts, where they were compacted."""
    return {
        Compacted(row.of_attempt, row.state, row.subtask): from_plain("state files", tuple[StateFile, ...], row.files)
        for row in compaction_rows_of(session, attempts)
    }


# Using those whose files exist


def present_compactions(services: Services, attempts: Iterable[str]) -> Compactions:
    """Return the compactions of partitions that these attempts committed, where all of their files exist.

    Raises Retryable where the ledger or the store does not answer.
    """
    with services.ledger.transaction() as session:
        found = compactions_of(session, attempts)
    missing = missing_files(services, [each for files in found.values() for each in files])
    return {of: files for of, files in found.items() if not any(each.path in missing for each in files)}


def compacted_files(manifest: Manifest, compactions: Compactions) -> tuple[StateFile, ...]:
    """Return the files of a partition of keyed state: compacted ones where there are any."""
    if manifest.state is None:
        return ()
    of = Compacted(manifest.attempt, manifest.stage, manifest.subtask)
    return compactions.get(of, manifest.state.files)


def require_present(services: Services, files: Sequence[StateFile]) -> None:
    """Require that compacted files that were read still exist. Raises Retryable: the next try reads the others."""
    missing = missing_files(services, files)
    if missing:
        raise Retryable.of("state.compacted_file_gone", number=min(missing))


def missing_files(services: Services, files: Iterable[StateFile]) -> set[str]:
    """Return the paths of files that do not exist with their sizes, asked once."""
    sizes = {each.path: each.file.bytes for each in files}
    answers = in_parallel(lambda path: _is_there(services, path, sizes[path]), list(sizes), services.store.workers)
    return {path for path, answer in zip(sizes, answers, strict=True) if not answer}


def _is_there(services: Services, path: str, size: int) -> bool:
    try:
        return services.store.size(path) == size
    except NotFound:
        return False
