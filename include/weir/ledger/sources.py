"""Stores what the sources of a run read: their splits, and the positions at which sources that go on end.

Invariants:
- The splits of a source in a run are resolved once, and bind while one of its tasks runs, or when one has committed.
  A correction, as files have come late, is a new generation of them: one transaction enters it in the place of the one
  that was compared with what is there now, and clears the tasks that have read that.
- The ranges of a source that goes on follow each other without a gap: one begins at the position that the run of the
  epoch before is recorded to end at, in the transaction that records it. A range from which another one goes on, or
  whose rows were published or are in a state that had a checkpoint, is never forgotten nor moved; it may only be
  divided anew among subtasks. One that is forgotten is in the record of its run no more before another epoch's range is
  recorded: no record goes on from where the one before does not end.
- Splits with a copy bind once that is whole, and are never divided anew: later attempts read what the copy has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from sqlalchemy import bindparam, delete, null, select, update
from sqlalchemy.orm import Session, aliased

from weir.dataflow.stage import Stage
from weir.errors import Conflict, Misconfigured
from weir.execution.late_files import LateFiles
from weir.execution.run_state import AttemptState
from weir.formats.run_record import CorrectedSplits, RecordedRange
from weir.ledger.database.tables import (
    AttemptRow,
    CheckpointRow,
    PublicationRow,
    ResultRow,
    RunRow,
    SourceSplitRow,
)
from weir.ledger.runs import Run, run_by_id, run_key, topology_of
from weir.topology.ids import RunId
from weir.topology.regions import RegionId
from weir.typed_json import plain

COPY_ID: Final = "copy_id"
"""The field of a split that has the id of the copy of what is read by it."""

_SPLITS = select(SourceSplitRow.splits).where(
    SourceSplitRow.run == bindparam("run"), SourceSplitRow.stage == bindparam("stage")
)

_TRIES = select(AttemptRow.id).where(AttemptRow.run == bindparam("run"), AttemptRow.region == bindparam("region"))

_NEXT = aliased(SourceSplitRow)

_IS_BOUND = (
    select(_NEXT.run).where(_NEXT.base == SourceSplitRow.run).exists()
    | select(PublicationRow.run)
    .where(PublicationRow.run == SourceSplitRow.run, PublicationRow.published_at.is_not(None))
    .exists()
    | select(CheckpointRow.run)
    .where(CheckpointRow.run == SourceSplitRow.run, CheckpointRow.completed_at.is_not(None))
    .exists()
)

_MAY_BE_FORGOTTEN = SourceSplitRow.position.is_(None) | ~_IS_BOUND

_FORGET_UNREAD = (
    delete(SourceSplitRow)
    .where(
        SourceSplitRow.run == bindparam("run"),
        SourceSplitRow.stage.in_(bindparam("sources", expanding=True)),
        ~_TRIES.where(AttemptRow.id != bindparam("attempt"), AttemptRow.state == AttemptState.RUNNING.value).exists(),
        ~select(ResultRow.id).where(ResultRow.attempt.in_(_TRIES)).exists(),
        _MAY_BE_FORGOTTEN,
    )
    .returning(SourceSplitRow.position)
)

_OTHER_DUE = (
    select(RunRow.id)
    .where(RunRow.dataflow == bindparam("dataflow"), RunRow.is_record_due, RunRow.expired_at.is_(None))
    .where((RunRow.epoch > bindparam("epoch")) | (RunRow.id == bindparam("base")))
    .limit(1)
)
"""Runs of later epochs whose records may have a range that was forgotten, and that went on from an earlier end; and
that of the epoch before, whose record may not have the range that is gone on from.
"""

_EARLIER_RANGE = (
    select(SourceSplitRow)
    .join(RunRow, RunRow.id == SourceSplitRow.run)
    .where(
        RunRow.dataflow == bindparam("dataflow"),
        RunRow.epoch < bindparam("epoch"),
        SourceSplitRow.stage.in_(bindparam("names", expanding=True)),
        SourceSplitRow.position.is_not(None),
    )
    .order_by(RunRow.epoch.desc())
    .limit(1)
)


_SEALED_RANGE = _EARLIER_RANGE.where(RunRow.epoch > bindparam("after"), RunRow.sealed_at.is_not(None))
"""What sealed epochs were to read between the epoch before and this one."""


def splits_of(session: Session, run: str, stage: str) -> list[Any] | None:
    """Return the splits of a source, one per subtask; None if they are not resolved yet."""
    return session.scalar(_SPLITS, {"run": run, "stage": stage})


def all_splits_of(session: Session, run: str) -> dict[str, list[Any]]:
    """Return the splits of all sources that are resolved in a run, by source."""
    rows = session.scalars(select(SourceSplitRow).where(SourceSplitRow.run == run).order_by(SourceSplitRow.stage))
    return {row.stage: row.splits for row in rows}


def fix_splits(session: Session, run: str, stage: str, splits: list[Any], attempt: str, now: datetime) -> list[Any]:
    """Record `splits` unless another attempt already has, and return the recorded ones."""
    known = splits_of(session, run, stage)
    if known is not None:
        return known
    session.add(SourceSplitRow(run=run, stage=stage, splits=splits, attempt=attempt, resolved_at=now))
    session.flush()
    return splits


def forget_splits(session: Session, run: str) -> None:
    """Delete the splits of `run`, so that its sources are resolved again; a range that is bound stays."""
    session.execute(delete(SourceSplitRow).where(SourceSplitRow.run == run, _MAY_BE_FORGOTTEN))
    forget_copies(session, run)


def forget_unread_splits(session: Session, run: Run, region: RegionId, attempt: str, sources: Collection[str]) -> None:
    """Delete the splits of the sources in a task whose `attempt` begins, where no other one has committed or runs.

    What they name may have been corrected since: the attempt resolves them anew.
    """
    if sources:
        known = {"run": run.id, "region": region.name, "attempt": attempt, "sources": list(sources)}
        if any(position is not None for position in session.scalars(_FORGET_UNREAD, known).all()):
            _owe_record(session, run.id)


# Copies of what sources have read


def note_copies(session: Session, run: str, subtask: int, copies: Mapping[str, int]) -> None:
    """Record the bytes of the copies, by source, from which an attempt has read its splits."""
    for stage, size in copies.items():
        row = session.get(SourceSplitRow, (run, stage))
        if row is not None:
            row.copies = {**(row.copies or {}), str(subtask): size}


def is_copied(split: Any) -> bool:
    """Report whether a split has the id of a copy of what is read by it."""
    return isinstance(split, dict) and COPY_ID in split


def copied_subtasks(session: Session, run: str, stage: str) -> dict[int, int]:
    """Return the bytes of the copies that committed attempts have read, by subtask."""
    row = session.get(SourceSplitRow, (run, stage))
    return {} if row is None else {int(subtask): size for subtask, size in (row.copies or {}).items()}


@dataclass(frozen=True, slots=True)
class CopiedSplit:
    """A split of a source of which committed attempts have read the copy."""

    run: str
    stage: str
    subtask: int
    split: Any


def copied_splits(session: Session, runs: Collection[str]) -> list[CopiedSplit]:
    """Return the splits in some runs of which committed attempts have read copies, oldest run of a dataflow first."""
    query = select(SourceSplitRow).where(SourceSplitRow.run.in_(runs), SourceSplitRow.copies.is_not(None))
    return [
        CopiedSplit(row.run, row.stage, subtask, row.splits[subtask])
        for row in session.scalars(query.order_by(SourceSplitRow.run, SourceSplitRow.stage))
        for subtask in sorted(map(int, row.copies or {}))
    ]


def copy_ids(session: Session, run: str) -> frozenset[str]:
    """Return the ids of the copies of all splits of a run."""
    splits = (each for splits in all_splits_of(session, run).values() for each in splits)
    return frozenset(str(each[COPY_ID]) for each in splits if is_copied(each))


def forget_copies(session: Session, run: str) -> None:
    """Forget which copies a run has read: those that are gone by the time it is computed again are made anew."""
    session.execute(update(SourceSplitRow).where(SourceSplitRow.run == run).values(copies=null()))


def copied_bytes(session: Session, names: Collection[str] | None = None) -> dict[str, int]:
    """Return, by dataflow, the bytes of the copies of what sources have read: of these dataflows, or of all."""
    query = select(RunRow.dataflow, SourceSplitRow.copies).join(RunRow, RunRow.id == SourceSplitRow.run)
    query = query.where(SourceSplitRow.copies.is_not(None))
    rows = session.execute(query if names is None else query.where(RunRow.dataflow.in_(names)))
    found: Counter[str] = Counter()
    for dataflow, copies in rows:
        found[dataflow] += sum(copies.values())
    return found


# Sources that go on


@dataclass(frozen=True, slots=True)
class Before:
    """What a source that goes on follows: the run of a range that is recorded, or that is to be resolved first."""

    run: RunId
    range: RecordedRange | None
    """None: the run has not resolved the source yet."""
    stage: str
    """The name of the source there."""


def range_of(session: Session, run: str, stage: str) -> RecordedRange | None:
    """Return what a source that goes on reads in a run; None if that is not resolved yet."""
    row = session.get(SourceSplitRow, (run, stage))
    return None if row is None or row.position is None else _range(row)


def ranges_of(session: Session, run: str) -> dict[str, RecordedRange]:
    """Return what the sources that go on read in a run, by source."""
    query = select(SourceSplitRow).where(SourceSplitRow.run == run, SourceSplitRow.position.is_not(None))
    return {row.stage: _range(row) for row in session.scalars(query.order_by(SourceSplitRow.stage))}


def _range(row: SourceSplitRow) -> RecordedRange:
    return RecordedRange(
        splits=tuple(row.splits),
        position=dict(row.position or {}),
        base=row.base or "",
        pinned_to=row.pinned_to,
        resolved_at=row.resolved_at.isoformat(),
    )


def before(session: Session, run: Run, stage: Stage) -> Before | None:
    """Return what the source goes on from; None in its first epoch.

    An epoch that is not pinned yet is taken to have the source. Where an epoch does not have it, an earlier one counts:
    what was read once is not read again.
    """
    names = stage.names
    row = session.get_one(RunRow, run.id)
    between = {"dataflow": row.dataflow, "epoch": row.epoch, "after": row.predecessor or "", "names": list(names)}
    if (sealed := session.scalar(_SEALED_RANGE, between)) is not None:
        return Before(RunId(sealed.run), _range(sealed), sealed.stage)
    newest = None if row.predecessor is None else session.get(RunRow, run_key(row.dataflow, row.predecessor))
    if newest is None:
        return None
    if (present := _in_run(session, newest, names)) is not None:
        return present
    wanted = {"dataflow": row.dataflow, "epoch": newest.epoch, "names": list(names)}
    earlier = session.scalar(_EARLIER_RANGE, wanted)
    return None if earlier is None else Before(RunId(earlier.run), _range(earlier), earlier.stage)


def _in_run(session: Session, row: RunRow, names: Sequence[str]) -> Before | None:
    """Return the range of the source of one of these names in a run, or that it is to be resolved there."""
    for each in names:
        known = range_of(session, row.id, each)
        if known is not None:
            return Before(row.id, known, each)
    if row.pinned is None:
        return Before(row.id, None, names[0])
    going = (each for each in topology_of(row.pinned).dataflow.stages if each.goes_on)
    same = next((each for each in going if not {*each.names}.isdisjoint(names)), None)
    return None if same is None else Before(row.id, range_of(session, row.id, same.name), same.name)


def fix_range(
    session: Session, run: Run, stage: Stage, found: RecordedRange, seen: RecordedRange | None, attempt: str
) -> RecordedRange:
    """Record what a source reads in a run, and return it; another attempt may have been first, which counts.

    Raises Conflict where the epoch before does not end at the position that the resolver has `seen`, or where its
    record, or that of a later epoch, is to be written first.
    """
    row = session.get(SourceSplitRow, (run.id, stage.name))
    if row is not None and row.position is not None:
        if row.pinned_to != found.pinned_to and row.position == found.position:
            row.splits, row.pinned_to, row.attempt = list(found.splits), found.pinned_to, attempt
            _owe_record(session, run.id)
        return _range(row)
    last = before(session, run, stage)
    present = None if last is None else (last.run, None if last.range is None else last.range.position)
    wanted = (found.base, None if seen is None else seen.position) if found.base else None
    if present != wanted:
        raise Conflict.of("ledger.range_moved", stage=stage.name, run=run.id)
    if session.scalar(_OTHER_DUE, {"dataflow": run.dataflow.name, "epoch": run.epoch, "base": found.base}) is not None:
        raise Conflict.of("ledger.other_record_due", stage=stage.name, run=run.id)
    if row is not None:  # of before the source went on
        session.delete(row)
        session.flush()
    enter_range(session, run.id, stage.name, found, attempt)
    _owe_record(session, run.id)
    return found


def fix_ranges(session: Session, row: RunRow, now: datetime) -> None:
    """Record, for a run that is about to be sealed, that its sources that go on read nothing where that is not known.

    What is recorded stays, and later epochs go on after it. Raises Misconfigured where it is not known from where a
    source would have gone on.
    """
    going = () if row.pinned is None else (each for each in topology_of(row.pinned).dataflow.stages if each.goes_on)
    for stage in going:
        if range_of(session, row.id, stage.name) is None:
            last = before(session, run_by_id(session, row.id), stage)
            if last is None or last.range is None:
                of = "no epoch before it" if last is None else f"{last.run}, which has not read it yet"
                raise Misconfigured.of("ledger.range_of_sealed_unknown", run=row.id, stage=stage.name, of=of)
            found = replace(last.range, splits=(), base=last.run, pinned_to="", resolved_at=now.isoformat())
            enter_range(session, row.id, stage.name, found)


def enter_range(session: Session, run: str, stage: str, found: RecordedRange, attempt: str = "") -> None:
    """Enter a range in place of what is recorded, as a record or a savepoint tells it."""
    row = session.get(SourceSplitRow, (run, stage)) or SourceSplitRow(run=run, stage=stage)
    row.splits, row.position, row.attempt = list(found.splits), dict(found.position), attempt
    row.base, row.pinned_to = found.base or None, found.pinned_to
    row.resolved_at = datetime.fromisoformat(found.resolved_at)
    session.add(row)
    session.flush()


def enter_ranges(session: Session, run: str, found: Mapping[str, RecordedRange]) -> None:
    """Enter the ranges in the record of a run in the place of all that are recorded, also of one that is bound.

    Of a range that the record does not have nothing was read yet, or it was forgotten since.
    """
    for stage in ranges_of(session, run).keys() - found.keys():
        session.delete(session.get_one(SourceSplitRow, (run, stage)))
    session.flush()
    for stage, each in found.items():
        enter_range(session, run, stage, each)


def position_files(session: Session, dataflow: str) -> set[str]:
    """Return the files of large positions that a run may go on from, be forked from, or divide its range by.

    Those are the positions of runs that are not expired and of what these go on from, and the newest of each source.
    """
    query = select(SourceSplitRow, RunRow.expired_at).join(RunRow, RunRow.id == SourceSplitRow.run)
    found = session.execute(
        query.where(RunRow.dataflow == dataflow, SourceSplitRow.position.is_not(None)).order_by(RunRow.epoch)
    ).all()
    newest = {row.stage: row.run for row, _ in found}
    kept = {row.run for row, expired_at in found if expired_at is None} | {*newest.values()}
    kept |= {row.base for row, expired_at in found if expired_at is None and row.base}
    return {row.position["file"] for row, _ in found if row.run in kept and row.position and "file" in row.position}


# Sources whose files may come late


@dataclass(frozen=True, slots=True)
class ReadSource:
    """What a source has read of its interval in a run, and what is known to have become of the files since."""

    run: RunId
    stage: str
    splits: Sequence[Any]
    generation: int
    late: LateFiles | None


def newest_read(session: Session, dataflow: str, stage: str, epochs: int) -> list[ReadSource]:
    """Return what a source has read in the newest epochs of which it has read anything, the oldest of them first."""
    query = (
        select(SourceSplitRow)
        .join(RunRow, RunRow.id == SourceSplitRow.run)
        .where(RunRow.dataflow == dataflow, SourceSplitRow.stage == stage, SourceSplitRow.position.is_(None))
        .where(RunRow.is_pinned, RunRow.expired_at.is_(None))
        .order_by(RunRow.epoch.desc())
        .limit(epochs)
    )
    rows = reversed(session.scalars(query).all())
    return [
        ReadSource(
            RunId(row.run),
            row.stage,
            row.splits,
            row.generation,
            None if row.late is None else LateFiles.from_json(row.late),
        )
        for row in rows
    ]


def note_late(session: Session, read: ReadSource, late: LateFiles | None) -> bool:
    """Record what is late of what was read (None: nothing); report whether that is still what the run reads."""
    row = session.get(SourceSplitRow, (read.run, read.stage))
    if row is None or row.generation != read.generation:
        return False
    row.late = None if late is None else plain(late)
    return True


def correct_splits(session: Session, read: ReadSource, splits: Sequence[Any], now: datetime) -> None:
    """Enter a new generation of splits in the place of those that were read; nothing is late of it.

    Raises Conflict where another process has corrected or forgotten what was read.
    """
    row = session.get(SourceSplitRow, (read.run, read.stage))
    if row is None or row.generation != read.generation or row.splits != read.splits:
        raise Conflict.of("ledger.source_changed_meanwhile", stage=read.stage, run=read.run)
    row.splits, row.generation, row.resolved_at, row.late = list(splits), row.generation + 1, now, None
    _owe_record(session, read.run)


def corrections_of(session: Session, run: str) -> dict[str, CorrectedSplits]:
    """Return what the sources of a run read that were corrected, by source."""
    query = select(SourceSplitRow).where(SourceSplitRow.run == run, SourceSplitRow.generation > 1)
    return {
        row.stage: CorrectedSplits(
            splits=tuple(row.splits), generation=row.generation, resolved_at=row.resolved_at.isoformat()
        )
        for row in session.scalars(query.order_by(SourceSplitRow.stage))
    }


def enter_correction(session: Session, run: str, stage: str, found: CorrectedSplits) -> bool:
    """Enter what a record tells of a source that was corrected; report whether what was known is older."""
    row = session.get(SourceSplitRow, (run, stage)) or SourceSplitRow(run=run, stage=stage, attempt="", generation=1)
    if row.generation >= found.generation:
        return False
    row.splits, row.generation, row.late = list(found.splits), found.generation, None
    row.resolved_at = datetime.fromisoformat(found.resolved_at)
    session.add(row)
    session.flush()
    return True


def late_of(session: Session, run: str) -> dict[str, LateFiles]:
    """Return what is known to be late of the sources of a run, by source."""
    query = select(SourceSplitRow.stage, SourceSplitRow.late).where(SourceSplitRow.run == run)
    rows = session.execute(query.where(SourceSplitRow.late.is_not(None)).order_by(SourceSplitRow.stage))
    return {stage: LateFiles.from_json(late) for stage, late in rows if late is not None}


def late_counts(session: Session, dataflow: str | None = None) -> Counter[str]:
    """Return how many files are known to be late, by run, of a dataflow or of all."""
    query = select(SourceSplitRow.run, SourceSplitRow.late).join(RunRow, RunRow.id == SourceSplitRow.run)
    query = query.where(SourceSplitRow.late.is_not(None), RunRow.expired_at.is_(None))
    counts: Counter[str] = Counter()
    for run, late in session.execute(query if dataflow is None else query.where(RunRow.dataflow == dataflow)):
        counts[run] += 0 if late is None else LateFiles.from_json(late).count
    return counts


def _owe_record(session: Session, run: str) -> None:
    session.get_one(RunRow, run).is_record_due = True
