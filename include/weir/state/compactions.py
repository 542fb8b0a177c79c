"""What compactions have made of partitions of keyed state.

Invariant: of a partition that an attempt has committed one compaction at most is entered, and it never changes.

What stands for a partition of keyed state by now.

Invariant: a compaction is used only while all of its files are there; what was committed is right without it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from weir.coordination.services import Services
from weir.errors import Retryable
from weir.formats.codec import state_files_from_plain, state_files_to_plain
from weir.formats.manifest import Manifest, StateFile
from weir.ledger.database.tables import CompactionRow
from weir.store.errors import NotFound
from weir.store.worker_threads import in_parallel

_OF_ATTEMPTS = select(CompactionRow).where(CompactionRow.of_attempt.in_(bindparam("attempts", expanding=True)))
_OF_RUN = select(CompactionRow).where(CompactionRow.run == bindparam("run"))


@dataclass(frozen=True, slots=True, order=True)
class Compacted:
    """A partition of keyed state, by the attempt that has committed it."""

    of_attempt: str
    state: str
    subtask: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NewCompaction:
    """What a partition consists of now; `attempt` has read and written so many bytes for it."""

    of: Compacted
    dataflow: str
    run: str
    attempt: str
    files: tuple[StateFile, ...]
    read_bytes: int
    written_bytes: int


def enter_compaction(session: Session, new: NewCompaction, now: datetime) -> bool:
    """Write down a compaction; answers whether it counts: another one may have been entered before."""
    found = compaction_rows_of(session, [new.of.of_attempt])
    mine = [row for row in found if (row.state, row.subtask) == (new.of.state, new.of.subtask)]
    if mine:
        return mine[0].attempt == new.attempt
    session.add(
        CompactionRow(
            dataflow=new.dataflow,
            run=new.run,
            state=new.of.state,
            subtask=new.of.subtask,
            of_attempt=new.of.of_attempt,
            attempt=new.attempt,
            files=state_files_to_plain(new.files),
            read_bytes=new.read_bytes,
            written_bytes=new.written_bytes,
            made_at=now,
        )
    )
    session.flush()
    return True


def compactions_of(session: Session, attempts: Iterable[str]) -> dict[Compacted, tuple[StateFile, ...]]:
    """The files that stand for those of the manifests of these attempts, where they have been compacted."""
    return {
        Compacted(row.of_attempt, row.state, row.subtask): state_files_from_plain(row.files)
        for row in compaction_rows_of(session, attempts)
    }


def compaction_rows_of(session: Session, attempts: Iterable[str]) -> list[CompactionRow]:
    """The compactions of what these attempts have committed."""
    asked = sorted(set(attempts))
    return list(session.scalars(_OF_ATTEMPTS, {"attempts": asked})) if asked else []


def compactions_in(session: Session, runs: Collection[str]) -> dict[Compacted, CompactionRow]:
    """The compactions of the states of some runs, by what was compacted."""
    rows = session.scalars(select(CompactionRow).where(CompactionRow.run.in_(runs)))
    return {Compacted(row.of_attempt, row.state, row.subtask): row for row in rows}


def compaction_rows(session: Session, run: str) -> list[CompactionRow]:
    """The compactions of a run's states, of results that are current and of others."""
    return list(session.scalars(_OF_RUN, {"run": run}))


Compactions = Mapping[Compacted, tuple[StateFile, ...]]
"""The files that stand for those in a manifest, by whose they are."""


def present_compactions(services: Services, attempts: Iterable[str]) -> Compactions:
    """The compactions of what these attempts have committed, as far as their files are there.

    Raises Retryable where the ledger or the store does not answer.
    """
    with services.ledger.transaction() as session:
        found = compactions_of(session, attempts)
    missing = missing_files(services, [each for files in found.values() for each in files])
    return {of: files for of, files in found.items() if not any(each.path in missing for each in files)}


def require_present(services: Services, files: Sequence[StateFile]) -> None:
    """Make sure that files are there which an attempt has read. Raises Retryable: the next goes on without them."""
    missing = missing_files(services, files)
    if missing:
        raise Retryable(
            f"{min(missing)} is gone, to which state had been compacted: the next try goes on from what was committed"
        )


def missing_files(services: Services, files: Iterable[StateFile]) -> set[str]:
    """The paths of those that are not there with their sizes, at one look."""
    sizes = {each.path: each.file.bytes for each in files}
    answers = in_parallel(lambda path: _is_there(services, path, sizes[path]), list(sizes), services.store.workers)
    return {path for path, answer in zip(sizes, answers, strict=True) if not answer}


def _is_there(services: Services, path: str, size: int) -> bool:
    try:
        return services.store.size(path) == size
    except NotFound:
        return False


def compacted_files(manifest: Manifest, compactions: Compactions) -> tuple[StateFile, ...]:
    """The files of a partition of keyed state, compacted if they have been."""
    if manifest.state is None:
        return ()
    of = Compacted(manifest.attempt, manifest.stage, manifest.subtask)
    return compactions.get(of, manifest.state.files)
