"""Room for what an attempt is about to write: looked for, and made, before anything is computed (DESIGN 7).

Invariant: what somebody needs is never deleted to make room. What policies keep for convenience goes, garbage first,
then runs in the order in which they would have gone anyway, and no more than is needed.

Who holds the bytes that lie about, for a person who needs room. Invariant: each byte is held by one of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from weir.coordination.registered import Registered
from weir.coordination.services import Services
from weir.dataflow import Dataflow
from weir.errors import DiskFull, Misconfigured, WeirError
from weir.execution.failure_class import FailureCause
from weir.execution.run_state import AttemptState
from weir.formats.codec import stage_copy_from_json
from weir.formats.manifest import COPY_NAME
from weir.formats.paths import copies_folder
from weir.ledger.attempts import Origin, attempts_of
from weir.ledger.database.tables import AttemptRow
from weir.ledger.runs import Run, dataflow_of
from weir.retention.release import Deleted, ResultLife, delete_released, release
from weir.retention.sizes import Likely, at_work, kept_for_good, likely_sizes, runs_by_age, shared_state, total_of
from weir.retention.space_limits import Demand, DiskLimit, Limit, QuotaLimit
from weir.store.errors import NotFound
from weir.units import format_size

if TYPE_CHECKING:
    from weir.retention.sweep_report import SweepReport


SMALLEST_GUESS = 64 * 2**20
"""Bytes: what an attempt is taken to need that has run out of room and of which nothing is known."""

SHOWN = 6
"""How many of those that hold bytes an error names."""


def make_room(services: Services, registered: Registered, declared: Dataflow, reads: int) -> tuple[str, ...]:
    """Make sure that the attempt has room, releasing what may go if it has to be; says what was deleted for it.

    The quota is that of the dataflow as its DAG file says it now, so that a raised one helps at once. `reads` are the
    bytes that the attempt reads. Raises DiskFull, QuotaExceeded, and Retryable.
    """
    quota, room = services.retention.of(declared).quota, services.store.free_space()
    if quota is None and room is None:
        return ()
    demand = _demand(services, registered, reads)
    limits: list[Limit] = [] if quota is None else [QuotaLimit(services, demand, quota)]
    limits += [] if room is None else [DiskLimit(services, demand)]
    return tuple(note for limit in limits for note in _kept_within(services, limit, registered.run))


def make_room_again(services: Services, dataflow: str) -> str:
    """Behind a write that found the store's disk full: release what may go; says what came of it.

    Without this a disk with no byte free stays so: no try could even write the record with which its run begins.
    """
    try:
        limit = DiskLimit(services, Demand("", dataflow, Likely(), 0, ()))
        if limit.short_of(0) <= 0:
            return "there is room again"
        press = _Press(services=services, limit=limit, dataflow=dataflow)
        press.run()
    except WeirError as error:
        return f"no room could be made: {error}"
    return press.freed()


def _kept_within(services: Services, limit: Limit, run: Run) -> Iterator[str]:
    """Release until the limit is kept. Raises its refusal if it cannot be."""
    if limit.short_of(limit.most) <= 0:
        return
    press = _Press(services=services, limit=limit, dataflow=run.dataflow.name, own_run=run.id)
    press.run()
    if limit.short_of(limit.least) > 0:
        raise limit.refusal(press.freed(), press.held())
    if press.deleted or press.swept:
        yield press.freed()


# What an attempt needs


def _demand(services: Services, registered: Registered, reads: int) -> Demand:
    attempt, run = registered.attempt, registered.run
    outputs = registered.topology.outputs(attempt.region)
    with services.ledger.transaction() as session:
        own = total_of(likely_sizes(session, run.dataflow.name, outputs), outputs)
        failed = _times_out_of_room(attempts_of(session, run.id, attempt.region))
        others = tuple(at_work(session, attempt.id))
    if failed:
        own = Likely(own.least, max(own.most, reads, SMALLEST_GUESS) * 2**failed)
    return Demand(f"{attempt.region} of {run.id}", run.dataflow.name, own, _copies(services, registered), others)


def _times_out_of_room(attempts: Iterable[AttemptRow]) -> int:
    """How often a region has filled up the store's disk since it last committed or a person cleared it.

    Whatever it had written before, it then needs more: each time it is taken to need twice as much.
    """
    times = 0
    for row in attempts:
        if row.origin == Origin.CLEARED_BY_PERSON.value or row.state == AttemptState.COMMITTED.value:
            times = 0
        times += row.failure_cause == FailureCause.STORE_FULL.value
    return times


def _copies(services: Services, registered: Registered) -> int:
    """The bytes of the newest copies of the region's cached stages, in this run or the one before it."""
    run = registered.run
    epochs = (run.epoch,) if run.predecessor is None else (run.epoch, run.predecessor)
    found = 0
    for stage in registered.topology.copies_of(registered.attempt.region.name):
        subtask = registered.attempt.region.subtask
        folders = (copies_folder(run.dataflow.name, epoch, stage, subtask) for epoch in epochs)
        found += next((size for each in folders if (size := _newest_copy(services, each))), 0)
    return found


def _newest_copy(services: Services, folder: str) -> int:
    try:
        attempts: list[str] = services.store.folders(folder)
        described = services.store.read(f"{folder}/{attempts[-1]}/{COPY_NAME}") if attempts else None
        return 0 if described is None else stage_copy_from_json(described).bytes
    except (NotFound, Misconfigured):
        return 0  # a guess only: whoever reads the copy says what is wrong with it


# Making room


_Step = tuple[str, Callable[[], bool]]
"""A dataflow, and something to do about it that answers whether something was deleted."""


@dataclass(slots=True, kw_only=True)
class _Press:
    """Releases and deletes until a limit is kept, or nothing more may go.

    `lives` are what became of the results of each run that was looked at. `troubles` are other dataflows' own, which
    must not stand in the way of this one.
    """

    services: Services
    limit: Limit
    dataflow: str
    own_run: str = ""
    deleted: list[Deleted] = field(default_factory=list)
    swept: list[SweepReport] = field(default_factory=list)
    lives: dict[str, tuple[ResultLife, ...]] = field(default_factory=dict)
    troubles: dict[str, str] = field(default_factory=dict)

    def run(self) -> None:
        """First what nobody keeps, then what only policies keep: of the run that was closed first, first."""
        names = self.limit.dataflows()
        for name, step in self._steps(names):
            if self._take(name, step) and self.limit.short_of(self.limit.most) <= 0:
                return

    def _steps(self, names: list[str]) -> Iterator[_Step]:
        for name in names:
            yield name, partial(self._delete, name)
        if self.limit.counts_files:  # a sweep releases, too
            yield from ((name, partial(self._sweep, name)) for name in names)
        else:
            yield from ((name, partial(self._release, name, run, is_pressed=False)) for name, run in self._runs(names))
        for name, run in self._runs(names):
            yield name, partial(self._release, name, run, is_pressed=True)

    def _take(self, name: str, step: Callable[[], bool]) -> bool:
        try:
            return step()
        except WeirError as error:
            if name == self.dataflow and not isinstance(error, DiskFull):
                raise
            self.troubles.setdefault(name, str(error))
            return False

    def _runs(self, names: list[str]) -> list[tuple[str, str]]:
        with self.services.ledger.transaction() as session:
            runs = runs_by_age(session, names)
        return sorted(runs, key=lambda each: each[1] == self.own_run)  # its own last

    def _delete(self, name: str, run: str | None = None) -> bool:
        deleted = delete_released(self.services, name, None if run is None else [run])
        self.deleted += deleted
        return bool(deleted)

    def _release(self, name: str, run: str, *, is_pressed: bool) -> bool:
        self.lives[run] = release(self.services, name, [run], is_pressed=is_pressed)
        return any(each.is_released for each in self.lives[run]) and self._delete(name, run)

    def _sweep(self, name: str) -> bool:
        from weir.retention.sweep import sweep  # noqa: PLC0415  most tasks have room, and never need it

        self.swept.append(sweep(self.services, name))
        return bool(self.swept[-1].deleted)

    def freed(self) -> str:
        """What has gone to make room; as a part of a sentence."""
        results = sum(each.bytes for each in self.deleted)
        swept = sum(each.deleted_bytes for each in self.swept)
        runs = {each.run for each in self.deleted}
        said = [f"{format_size(results)} in {len(self.deleted)} result(s) of {told_runs(runs)}"] if runs else []
        said += [f"{format_size(swept)} that nobody kept"] if swept else []
        return f"{' and '.join(said)} were deleted to make room" if said else "nothing that is there may go"

    def held(self) -> str:
        """Who holds the bytes that are left, and why; the most first, a line each."""
        names = self.limit.dataflows()
        with self.services.ledger.transaction() as session:
            published, shared = kept_for_good(session, names), shared_state(session, names)
        holders = held_by(self.lives.values(), published, shared)
        lines = [str(each) for each in holders[:SHOWN]]
        if len(holders) > SHOWN:
            lines.append(f"{format_size(sum(each.bytes for each in holders[SHOWN:]))}: for other reasons")
        lines += [f"of {name} nothing could be released: {why}" for name, why in sorted(self.troubles.items())]
        return "\n".join(["What is there has to stay:", *(f"  {line}" for line in lines)]) if lines else ""


PUBLISHED = "published, and kept for good; keep_published lets old epochs go"
SHARED = (
    "state that later epochs and checkpoints share, and what it was compacted to; fewer retained_checkpoints need less"
)


@dataclass(frozen=True, slots=True)
class Holder:
    """Results that stay for one reason: of these runs of a dataflow, or (none) of all those that are through."""

    dataflow: str
    reason: str
    bytes: int
    runs: frozenset[str]

    def __str__(self) -> str:
        whose = told_runs(self.runs) if self.runs else self.dataflow
        return f"{format_size(self.bytes)} of {whose}: {self.reason}"


def held_by(
    lives: Iterable[Iterable[ResultLife]], published: Mapping[str, int], shared: Mapping[str, int]
) -> list[Holder]:
    """Group what is kept of each run by dataflow and reason, the most bytes first.

    What is `published`, and the `shared` files of state whose runs have released it, is by dataflow.
    """
    sizes: dict[tuple[str, str], int] = defaultdict(int)
    runs: dict[tuple[str, str], set[str]] = defaultdict(set)
    for each in (life for of_run in lives for life in of_run if not life.is_released):
        key = (dataflow_of(each.run), each.reason)
        sizes[key] += each.bytes
        runs[key].add(each.run)
    holders = [Holder(*key, size, frozenset(runs[key])) for key, size in sizes.items()]
    for reason, by_dataflow in ((PUBLISHED, published), (SHARED, shared)):
        holders += [Holder(name, reason, size, frozenset()) for name, size in by_dataflow.items() if size]
    return sorted(holders, key=lambda each: (-each.bytes, each.dataflow, each.reason))


def told_runs(runs: Collection[str]) -> str:
    """One run by its name, several by their dataflows and their number."""
    if len(runs) == 1:
        return next(iter(runs))
    names = sorted({dataflow_of(run) for run in runs})
    return f"{len(runs)} runs of {', '.join(names)}"
