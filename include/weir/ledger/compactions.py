"""What compactions have made of partitions of keyed state.

Invariant: of a partition that an attempt has committed one compaction at most is entered, and it never changes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from weir.ledger.state_models import CompactionRow
from weir.results.codec import state_files_from_plain, state_files_to_plain
from weir.results.manifest import StateFile

_OF_ATTEMPTS = select(CompactionRow).where(CompactionRow.of_attempt.in_(bindparam("attempts", expanding=True)))
_OF_RUN = select(CompactionRow).where(CompactionRow.run == bindparam("run"))


@dataclass(frozen=True, slots=True, order=True)
class Compacted:
    """A partition of keyed state, by the attempt that has committed it."""

    of_attempt: str
    state: str
    subtask: int


@dataclass(frozen=True, slots=True)
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
