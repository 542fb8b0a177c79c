"""An engine that remembers what each attempt has made of what, so that any result can be computed again.

Invariant: a stage's content follows from its own nature, from the world if it is a source, and from what it read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from tests.simulator.event_time.windows import (
    Place,
    changes_of_windows,
    content_with,
    events,
    late,
    marks,
    queries,
    standing,
    windowed,
)
from tests.simulator.listings import files_of
from tests.simulator.process import StageFailed
from tests.simulator.rows import (
    DELETED,
    Changes,
    Rows,
    applied,
    changes_of,
    content_from,
    content_of_rows,
    deleted_of,
    digest_of,
    is_bad,
    packed,
    tallies_of,
    unpacked,
    visible,
    within,
)

from weir.dataflow.state import Incremental, StateKind
from weir.errors import WeirError
from weir.formats.codec import from_json
from weir.formats.manifest import ContentDigest, DataFile, Segment, StageCopy, is_chain, parsed_digest
from weir.formats.region_job import (
    CompactionJob,
    CopyToWrite,
    InputToRead,
    MergeToWrite,
    OutputReport,
    OutputToWrite,
    RegionJob,
    RegionReport,
    ReplacedState,
    RestoredToCheck,
    SparkJob,
    StageToRun,
    StateFileToRead,
    StateReport,
    StateToRead,
)
from weir.state.chain_rules import chain, rows_after
from weir.store.errors import NotFound
from weir.store.store import Store
from weir.testing.fakes.engine import SCHEMA, TAIL, FakeEngine

EXPECTED: Final = "expect_column_values_to_not_be_null"
"""The type of the one expectation that bad rows violate."""

BLIND_RUNS: Final = 8
"""The sorted runs of the states that are upserted blindly: a setting that has nothing to do with what they hold."""

SIZE: Final = 64 + TAIL
"""Bytes of each data file."""


class Nature(Enum):
    """The way in which a stage's content depends on its inputs."""

    FINE = "fine"
    """Any change of an input changes the content."""
    COARSE = "coarse"
    """Half of all changes of an input leave the content as it is."""
    MOODY = "moody"
    """Each attempt writes other content: the stage is not deterministic."""
    EVENTS = "events"
    """It is a source of rows with a time."""
    MARKS = "marks"
    """It makes the watermark of such rows."""
    WINDOWS = "windows"
    """It aggregates them by windows."""
    LATE = "late"
    """It gives those that come too late for any window."""
    QUERIES = "queries"
    """It is a source of lines that change which rows are aggregated."""
    STANDING = "standing"
    """It keeps what these lines come to."""


OF_EVENT_TIME: Final = {
    Nature.EVENTS: events,
    Nature.MARKS: marks,
    Nature.WINDOWS: windowed,
    Nature.LATE: late,
    Nature.QUERIES: queries,
    Nature.STANDING: standing,
}
"""What stages over event time give."""


@dataclass(slots=True)
class Made:
    """The output of an attempt, by stage: its content, and the value that determined it besides the inputs.

    The content of keyed state is all of its rows, as text.
    """

    contents: dict[str, str] = field(default_factory=dict)
    own: dict[str, object] = field(default_factory=dict)
    splits: dict[str, list[str]] = field(default_factory=dict)
    """By source whose files are listed, the files that it was given to read."""
    edits: dict[str, int] = field(default_factory=dict)
    """By stage, the number of edits of the function that has run."""
    has_failed: bool = False
    """True if the function has raised."""


def meaning_of(edit: int) -> int:
    """Return what an edit comes to: every second one changes the code of a function, and not what it gives."""
    return edit // 2


def is_broken(edit: int) -> bool:
    """Report whether a function raises since an edit."""
    return edit % 4 == 3


def content_of(stage: str, place: Place, nature: Nature, own: object, read: Sequence[str], edit: int = 0) -> str:
    """Return the content of a stage, whose inputs have the contents `read`, and whose function was edited so often."""
    if nature in OF_EVENT_TIME:
        return content_with(OF_EVENT_TIME[nature](stage, own, read, place), own, read, meaning_of(edit))
    content = sorted(read)
    if nature is Nature.COARSE and read:
        content = [str(sum(int(each[3:5], 16) for each in read) % 2)]
    has_bad = isinstance(own, int) and own < 0
    if nature is not Nature.COARSE:  # which leaves bad rows out
        has_bad |= any(is_bad(each) for each in read)
    code = [meaning_of(edit)] if meaning_of(edit) else []
    return content_from(json.dumps([stage, place.subtask, own, content, *code]), is_bad=has_bad)


class WrongTallies(Exception):
    """The tallies of a state that a job is given are not those of the rows that it finds."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """The part of a keyed state from which a region continues."""

    rows: dict[int, str]
    groups: tuple[int, int]
    state: StateToRead


def _is_less(read: StateToRead, changes: Rows, rows: Rows) -> bool:
    """Report whether all rows are written instead of the changes: an estimate by rows, files are too small."""
    is_open = read.state.incremental is Incremental.AUTO and bool(read.files)
    return is_open and 0 < len(rows) <= 2 * len(changes)


class SimulatedEngine:
    """Computes regions, several at once. `world` has the present content of sources: bad rows where it is negative."""

    def __init__(self, store: Store, world: Mapping[str, int], natures: Mapping[str, Nature]) -> None:
        self.natures = natures
        self.upserts_blindly = True
        """Whether states with BLIND_RUNS sorted runs are upserted without a look at their rows."""
        self.made: dict[str, Made] = {}
        self._store, self._world = store, world

    def run(self, job: SparkJob, during: Callable[[], None] = lambda: None) -> RegionReport:
        """Read all inputs, call `during`, then write all outputs. Raises StageFailed."""
        made = self.made[job.attempt] = Made()
        try:
            return _Computation(self._store, self._world, self, job.attempt).run(job, during)
        except (WeirError, OSError, ValueError) as error:
            made.has_failed = True
            raise StageFailed(f"cannot read or write: {error}") from error
        except StageFailed:
            made.has_failed = True
            raise


class _Computation(FakeEngine):
    """One attempt's."""

    def __init__(self, store: Store, world: Mapping[str, int], engine: SimulatedEngine, attempt: str) -> None:
        super().__init__(store, world)
        self._engine, self._attempt, self._made = engine, attempt, engine.made[attempt]
        self._kept: dict[str, _Kept] = {}
        self._changes: dict[str, Changes] = {}
        """By state with windows, its changes."""
        self._day = 0

    def _region(self, job: RegionJob, during: Callable[[], None]) -> RegionReport:
        self._day = int(job.epoch[6:8])
        return super()._region(job, during)

    def _content(self, stage: StageToRun, contents: Mapping[str, str]) -> str:
        read = [contents[name] for name in stage.pipelined.values()]
        nature = self._engine.natures.get(stage.name, Nature.FINE)
        place = Place(self._day, stage.subtask, stage.parallelism)
        for each in stage.inputs:
            if each.state is not None and each.state.state.kind is StateKind.KEYED:
                read.append(self._read_state(each, each.state, nature))
                place = place._replace(groups=self._kept[each.argument].groups)
            else:
                read += [self._read(file) for part in each.partitions for file in part.files]
        if isinstance(stage.split, list | dict):
            read += (files := files_of(stage.split))
            self._made.splits[stage.name] = files
        own = self._world.get(stage.name, 0) if stage.is_source else None
        self._made.own[stage.name] = self._attempt if nature is Nature.MOODY else own
        is_of_weir = stage.copy is not None and stage.copy.binding != ""
        self._made.edits[stage.name] = edit = 0 if is_of_weir else self._edits.get(stage.name, 0)
        if is_broken(edit):
            raise StageFailed("the stage's function raises since its last edit")
        if stage.function == "":
            (content,) = read
        else:
            content = content_of(stage.name, place, nature, self._made.own[stage.name], read, edit)
        if nature is Nature.WINDOWS:
            self._changes[next(iter(self._kept))] = changes_of_windows(read, place)
        self._note(stage, content)
        return content

    def _note(self, stage: StageToRun, content: str) -> None:
        self._made.contents[stage.name] = content
        self.violated[stage.name] = (EXPECTED,) if is_bad(content) else ()

    def _resumed(self, stage: StageToRun) -> str:
        content = super()._resumed(stage)
        if stage.resume is not None:
            self._is_made_as(stage.resume.attempt)
        self._note(stage, content)
        return content

    def _taken(self, job: RegionJob, code: str) -> RegionReport | None:
        report = super()._taken(job, code)
        if report is not None and job.take is not None:
            self._is_made_as(job.take.attempt)
            for name, content in self._engine.made[job.take.attempt].contents.items():
                self._made.contents[name] = content
        return report

    def _copy(self, job: RegionJob, stage: StageToRun, copy: CopyToWrite, content: str) -> str:
        found = super()._copy(job, stage, copy, content)
        if copy.binding and found != content:
            self._is_made_as(from_json(StageCopy, self._store.read(copy.binding)).attempt)
            self._note(stage, found)
        return found

    def _is_made_as(self, attempt: str) -> None:
        """Note that whatever an attempt had made a copy of, its rows are made of now."""
        before = self._engine.made[attempt]
        self._made.own |= before.own
        self._made.splits |= before.splits
        self._made.edits |= before.edits

    def _read_state(self, read: InputToRead, state: StateToRead, nature: Nature) -> str:
        """Return the content of an input, which is all visible rows, and keep them for the changes of the epoch."""
        groups = read.key_groups or (0, 0)
        seen = visible(self._rows_of(state.files), state.expired_until)
        if state.tallies is not None and state.tallies != tallies_of(seen, has_end=state.expired_until is not None):
            raise WrongTallies(f"{read.argument} has {seen}, and is said to have {state.tallies}")
        if state.rows is not None and not state.rows.least <= len(seen) <= state.rows.most:
            raise WrongTallies(f"{read.argument} has {len(seen)} rows, and is said to have {state.rows}")
        self._kept[read.argument] = _Kept(seen, groups, state)
        return content_of_rows(seen, is_open=nature is Nature.WINDOWS)

    def _unlike_record(self, restored: RestoredToCheck) -> Iterator[str]:
        """Find what is not as recorded, of keyed state by its rows."""
        state = restored.state
        if state is None:
            yield from super()._unlike_record(restored)
        elif not is_chain(restored.digest):
            rows = visible(self._rows_of(state.files), state.expired_until)
            if str(digest_of(tallies_of(rows, has_end=state.expired_until is not None))) != restored.digest:
                yield "weir_digest_as_recorded"

    def _rows_of(self, files: Sequence[StateFileToRead]) -> dict[int, str]:
        rows: dict[int, str] = {}
        for file in files:
            changes = unpacked(self._store.read(self._path(file.path))[:-TAIL].decode())
            rows = applied(rows, within(changes, file.key_groups))
        return rows

    def _state(
        self, job: RegionJob, stage: StageToRun, output: OutputToWrite, contents: Mapping[str, str]
    ) -> OutputReport:
        """Write the changes to one file, or to none if there are none; write all rows if the state is full."""
        kept = self._kept[stage.name]
        read, day = kept.state, int(job.epoch[6:8])
        is_incremental = read.state.incremental is not Incremental.NEVER
        blindly = self._engine.upserts_blindly and is_incremental and read.state.runs == BLIND_RUNS
        is_blind = blindly and read.digest is not None and bool(read.files)
        changes = self._changes.get(stage.name)
        if changes is None:
            changes = changes_of(contents[stage.name], None if is_blind else kept.rows, kept.groups, day)
        rows = applied(kept.rows, changes)
        self._made.contents[stage.name] = packed(rows)
        tallies = tallies_of(rows, has_end=read.expired_until is not None)
        is_full = read.is_full or (not is_blind and _is_less(read, changes, rows))
        written = rows if is_full else changes
        files = (self._file(output.folder, packed(written), len(written)),) if written else ()
        report, found = StateReport(tallies, len(changes), is_full), digest_of(tallies)
        if is_blind and read.digest is not None and read.rows is not None:
            more = {key: row for key, row in changes.items() if row != DELETED}
            gone = {key: row for key, row in changes.items() if row == DELETED}
            found = chain(
                found.schema,
                read.digest,
                (job.epoch, read.expired_until),
                tallies_of(more, has_end=False),
                deleted_of(gone),
            )
            bounds = rows_after(read.rows, len(more), len(gone), expires=read.expired_until is not None)
            report = StateReport(None, len(changes), rows=bounds)
        return OutputReport(
            stage=stage.name,
            layout=output.layout,
            folder=output.folder,
            spark_schema=SCHEMA,
            digest=self._compared(found, read.replaced, rows),
            files=files,
            state=report,
        )

    def _compared(self, found: ContentDigest, old: ReplacedState | None, rows: Rows) -> ContentDigest:
        """Return the digest that the rows had before they were computed again, if the two are only chains of them.

        Rows that cannot be read any more count as others, as in Spark.
        """
        if old is None or old.digest == str(found) or not (is_chain(old.digest) or is_chain(str(found))):
            return found
        try:
            before = visible(self._rows_of(old.files), old.expired_until)
        except (NotFound, ValueError):
            return found
        return parsed_digest(old.digest) if before == rows else found

    def _merged(self, job: CompactionJob, during: Callable[[], None]) -> RegionReport:
        """Merge files: the latest row of a key is kept, and a deletion where an older row may exist."""
        merged = [self._merge(each) for each in job.merges]
        during()
        outputs = tuple(
            OutputReport(
                stage=each.stage,
                layout=each.layout,
                folder=each.folder,
                spark_schema=SCHEMA,
                digest=digest_of(tallies_of(rows, has_end=False)),
                files=(self._file(each.folder, packed(rows), len(rows)),) if rows else (),
            )
            for each, rows in zip(job.merges, merged, strict=True)
        )
        return RegionReport(attempt=job.attempt, outputs=outputs, code=self.code, session={}, metrics={})

    def _merge(self, merge: MergeToWrite) -> dict[int, str]:
        found: dict[int, str] = {}
        for file in merge.state.files:
            found |= within(unpacked(self._store.read(self._path(file.path))[:-TAIL].decode()), file.key_groups)
        return visible(applied(found, {}), merge.state.expired_until) if merge.is_bottom else found

    def _of_stage(self, job: RegionJob, stage: StageToRun, contents: Mapping[str, str]) -> tuple[str, bytes]:
        """Return the content of a stage, and no further bytes: a list state has that of the stage that keeps it."""
        del job
        return contents[stage.name], b""

    def _file(self, folder: str, text: str, rows: int = 1) -> DataFile:
        data = text.encode() + b"\0" * TAIL
        self._store.create(f"{folder}/part-0.bin", data)
        segments = tuple(
            Segment(start, len(part), hashlib.sha256(part).hexdigest(), is_tail=start > 0)
            for start, part in ((0, data[:-TAIL]), (len(data) - TAIL, data[-TAIL:]))
        )
        return DataFile("part-0.bin", rows, len(data), hashlib.sha256(data).hexdigest(), segments)

    def _read(self, spark_path: str) -> str:
        content = super()._read(spark_path)
        if len(content) < 64:
            raise ValueError(f"{spark_path} has no footer")
        int(content, 16)
        return content
