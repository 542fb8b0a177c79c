"""Ensure free space for an attempt before it computes: reclaim results that only retention policies keep.

Limits are the disk of the store, and the quota of a dataflow.

Invariant: a needed result is never deleted to reclaim space. Garbage goes first, then results that only policies keep,
of the run that was closed first, and no more than is needed. An attempt is refused only if not even the smallest
estimate fits; space is reclaimed for the largest: a wrong estimate may cost results that only policies keep, never a
run. A refusal says which results hold the space and why; each byte is counted for one reason.
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
from weir.errors import DiskFull, Message, Misconfigured, QuotaExceeded, WeirError
from weir.execution.failure_class import FailureCause
from weir.execution.run_state import AttemptState
from weir.formats.codec import from_json
from weir.formats.manifest import COPY_NAME, StageCopy
from weir.formats.paths import copies_folder
from weir.ledger.attempts import Origin, attempts_of
from weir.ledger.database.tables import AttemptRow
from weir.ledger.runs import Run, dataflow_of
from weir.ledger.sources import copied_bytes, copied_subtasks
from weir.retention.deletion_rules import ReleaseDecision
from weir.retention.release import Deleted, delete_released, release
from weir.retention.sizes import (
    RunningAttempt,
    SizeEstimate,
    archive_bytes,
    bytes_at_rest,
    dataflows,
    published_bytes,
    running_attempts,
    runs_by_age,
    shared_state,
    size_estimates,
    total_of,
)
from weir.store.errors import NotFound
from weir.store.files import FreeSpace
from weir.units import format_size

if TYPE_CHECKING:
    from weir.retention.sweep_report import SweepReport


SMALLEST_GUESS = 64 * 2**20
"""Bytes that an attempt without any estimate is assumed to need after it has filled the disk."""

SHOWN = 6
"""How many holders of space an error names."""

PUBLISHED = "published, and kept for good; keep_published lets old epochs go"

SHARED = (
    "state that later epochs and checkpoints share, and what it was compacted to; fewer retained_checkpoints need less"
)

CODE = "the code of its runs; expire_runs lets that of old runs go"

COPIED = 'what sources with keep="copy" have read; expire_runs lets that of old runs go'

_Step = tuple[str, Callable[[], bool]]
"""A dataflow, and an action that returns whether something was deleted."""


@dataclass(frozen=True, slots=True)
class Holder:
    """The bytes of results that stay for one reason: of these runs of a dataflow, or (none) of all closed runs."""

    dataflow: str
    reason: str
    bytes: int
    runs: frozenset[str]

    def __str__(self) -> str:
        whose = describe_runs(self.runs) if self.runs else self.dataflow
        return f"{format_size(self.bytes)} of {whose}: {self.reason}"


@dataclass(frozen=True, slots=True)
class StoreSpace:
    """The room of one store for the files of attempts (`weir.attempts.rooms.Files`)."""

    services: Services

    def make_room(self, registered: Registered, declared: Dataflow, reads: int) -> tuple[str, ...]:
        """Ensure that an attempt has space, reclaiming it if necessary; return lines about what was deleted.

        The quota is that of the present DAG file, so that a raised one helps at once. `reads` are the bytes that the
        attempt reads. Raises DiskFull, QuotaExceeded, and Retryable.
        """
        services = self.services
        quota, room = services.retention.of(declared).quota, services.store.free_space()
        if quota is None and room is None:
            return ()
        request = _space_request(services, registered, reads)
        limits = [] if quota is None else [quota_limit(services, request, quota)]
        limits += [] if room is None else [disk_limit(services, request)]
        return tuple(note for limit in limits for note in _kept_within(services, limit, registered.run))

    def make_room_when_full(self, dataflow: str) -> str:
        """Reclaim space after a write has found the store's disk full; return the outcome for the log.

        Without this a disk without a free byte would stay full: no try could even write the record of its run.
        """
        try:
            limit = disk_limit(self.services, SpaceRequest("", dataflow, SizeEstimate(), 0, ()))
            if limit.short_of(0) <= 0:
                return "there is free space again"
            reclaiming = _Reclaiming(services=self.services, limit=limit, dataflow=dataflow)
            reclaiming.run()
        except WeirError as error:
            return f"no space could be reclaimed: {error}"
        return reclaiming.freed()


def _kept_within(services: Services, limit: Limit, run: Run) -> Iterator[str]:
    """Reclaim space until the limit is kept. Raises the limit's refusal if it cannot be."""
    if limit.short_of(limit.most) <= 0:
        return
    reclaiming = _Reclaiming(services=services, limit=limit, dataflow=run.dataflow.name, own_run=run.id)
    reclaiming.run()
    if limit.short_of(limit.least) > 0:
        raise limit.refusal(reclaiming.freed(), reclaiming.held())
    if reclaiming.deleted or reclaiming.swept:
        yield reclaiming.freed()


def _space_request(services: Services, registered: Registered, reads: int) -> SpaceRequest:
    attempt, run = registered.attempt, registered.run
    outputs = registered.topology.outputs(attempt.region)
    with services.ledger.transaction() as session:
        own = total_of(size_estimates(session, run.dataflow.name, outputs), outputs)
        failed = _times_out_of_room(attempts_of(session, run.id, attempt.region))
        others = tuple(running_attempts(session, attempt.id))
    if failed:
        own = SizeEstimate(own.least, max(own.most, reads, SMALLEST_GUESS) * 2**failed)
    return SpaceRequest(f"{attempt.region} of {run.id}", run.dataflow.name, own, _copies(services, registered), others)


def _times_out_of_room(attempts: Iterable[AttemptRow]) -> int:
    """Return how often a region has filled the store's disk since its last commit or clear by a person.

    Each time it is assumed to need twice as much.
    """
    times = 0
    for row in attempts:
        if row.origin == Origin.CLEARED_BY_PERSON.value or row.state == AttemptState.COMMITTED.value:
            times = 0
        times += row.failure_cause == FailureCause.STORE_FULL.value
    return times


def _copies(services: Services, registered: Registered) -> int:
    """Return the bytes of the newest output of the region's cached stages, in this run or its predecessor.

    Of its sources they are those of the copies that the predecessor has read, where this run has none.
    """
    run = registered.run
    epochs = (run.epoch,) if run.predecessor is None else (run.epoch, run.predecessor)
    found = 0
    for stage in registered.topology.copies_of(registered.attempt.region.name):
        subtask = registered.attempt.region.subtask
        folders = (copies_folder(run.dataflow.name, epoch, stage, subtask) for epoch in epochs)
        found += next((size for each in folders if (size := _newest_copy(services, each))), 0)
    return found + _source_copies(services, registered)


def _source_copies(services: Services, registered: Registered) -> int:
    run, region = registered.run, registered.attempt.region
    kept = [each.name for each in registered.topology.stages_of(region.name) if each.keeps_copy]
    before = run.predecessor_run
    if not kept or before is None:
        return 0
    with services.ledger.transaction() as session:
        return sum(
            copied_subtasks(session, before, each).get(region.subtask, 0)
            for each in kept
            if region.subtask not in copied_subtasks(session, run.id, each)
        )


def _newest_copy(services: Services, folder: str) -> int:
    try:
        attempts: list[str] = services.store.folders(folder)
        described = services.store.read(f"{folder}/{attempts[-1]}/{COPY_NAME}") if attempts else None
        return 0 if described is None else from_json(StageCopy, described).bytes
    except (NotFound, Misconfigured):
        return 0  # an estimate only: the reader of the copy reports what is wrong with it


@dataclass(slots=True, kw_only=True)
class _Reclaiming:
    """Releases and deletes results until a limit is kept, or nothing more can be released.

    `decisions` are those about the results of each run. `errors` are those of other dataflows, which must not fail this
    one.
    """

    services: Services
    limit: Limit
    dataflow: str
    own_run: str = ""
    deleted: list[Deleted] = field(default_factory=list)
    swept: list[SweepReport] = field(default_factory=list)
    decisions: dict[str, tuple[ReleaseDecision, ...]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)

    def run(self) -> None:
        """Delete garbage first, then results that only policies keep, of the run that was closed first."""
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
            yield from (
                (name, partial(self._release, name, run, is_reclaiming=False)) for name, run in self._runs(names)
            )
        for name, run in self._runs(names):
            yield name, partial(self._release, name, run, is_reclaiming=True)

    def _take(self, name: str, step: Callable[[], bool]) -> bool:
        try:
            return step()
        except WeirError as error:
            if name == self.dataflow and not isinstance(error, DiskFull):
                raise
            self.errors.setdefault(name, str(error))
            return False

    def _runs(self, names: list[str]) -> list[tuple[str, str]]:
        with self.services.ledger.transaction() as session:
            runs = runs_by_age(session, names)
        return sorted(runs, key=lambda each: each[1] == self.own_run)  # its own last

    def _delete(self, name: str, run: str | None = None) -> bool:
        deleted = delete_released(self.services, name, None if run is None else [run])
        self.deleted += deleted
        return bool(deleted)

    def _release(self, name: str, run: str, *, is_reclaiming: bool) -> bool:
        self.decisions[run] = release(self.services, name, [run], is_reclaiming=is_reclaiming)
        return any(each.is_released for each in self.decisions[run]) and self._delete(name, run)

    def _sweep(self, name: str) -> bool:
        from weir.retention.sweep import sweep  # noqa: PLC0415  most tasks have space, and never need it

        self.swept.append(sweep(self.services, name))
        return bool(self.swept[-1].deleted)

    def freed(self) -> str:
        """Describe what was deleted, as a part of a sentence."""
        results = sum(each.bytes for each in self.deleted)
        swept = sum(each.deleted_bytes for each in self.swept)
        runs = {each.run for each in self.deleted}
        parts = [f"{format_size(results)} in {len(self.deleted)} result(s) of {describe_runs(runs)}"] if runs else []
        parts += [f"{format_size(swept)} of garbage"] if swept else []
        return f"{' and '.join(parts)} were deleted to free space" if parts else "nothing can be released"

    def held(self) -> str:
        """Describe which results hold the space and why, the most bytes first, a line for each holder."""
        names = self.limit.dataflows()
        with self.services.ledger.transaction() as session:
            of_dataflows = {
                PUBLISHED: published_bytes(session, names, self.decisions),
                SHARED: shared_state(session, names),
                CODE: archive_bytes(session, names),
                COPIED: copied_bytes(session, names),
            }
        holders = held_by(self.decisions.values(), of_dataflows)
        lines = [str(each) for each in holders[:SHOWN]]
        if len(holders) > SHOWN:
            lines.append(f"{format_size(sum(each.bytes for each in holders[SHOWN:]))}: for other reasons")
        lines += [f"of {name} nothing could be released: {why}" for name, why in sorted(self.errors.items())]
        return "\n".join(["Stored results that have to stay:", *(f"  {line}" for line in lines)]) if lines else ""


def held_by(
    decisions: Iterable[Iterable[ReleaseDecision]], of_dataflows: Mapping[str, Mapping[str, int]]
) -> list[Holder]:
    """Group what is kept by dataflow and reason, the most bytes first.

    `of_dataflows` are bytes that are of no one run, by reason and dataflow.
    """
    sizes: dict[tuple[str, str], int] = defaultdict(int)
    runs: dict[tuple[str, str], set[str]] = defaultdict(set)
    for each in (each for of_run in decisions for each in of_run if not each.is_released):
        key = (dataflow_of(each.stored.run), each.reason)
        sizes[key] += each.stored.bytes
        runs[key].add(each.stored.run)
    holders = [Holder(*key, size, frozenset(runs[key])) for key, size in sizes.items()]
    for reason, by_dataflow in of_dataflows.items():
        holders += [Holder(name, reason, size, frozenset()) for name, size in by_dataflow.items() if size]
    return sorted(holders, key=lambda each: (-each.bytes, each.dataflow, each.reason))


def describe_runs(runs: Collection[str]) -> str:
    """Name a single run; several by their number and dataflows."""
    if len(runs) == 1:
        return next(iter(runs))
    names = sorted({dataflow_of(run) for run in runs})
    return f"{len(runs)} runs of {', '.join(names)}"


# Limits


_ONE_FILE = 1
"""Bytes that are short if no file can be added: at least some."""


@dataclass(frozen=True, slots=True)
class SpaceRequest:
    """The space that an attempt (`name`) will need: its results, its cached output, and other running attempts'."""

    name: str
    dataflow: str
    own: SizeEstimate
    copies: int
    others: tuple[RunningAttempt, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A limit of bytes. Space is reclaimed for `most` bytes; with less than `least` an attempt is refused.

    `short_of` tells how many bytes must be deleted until so many fit; 0 or less if they fit now. `refusal` makes the
    error of what was deleted, and what holds the rest. `dataflows` are those that share it. If it `counts_files`, all
    files count, not only results in the ledger.
    """

    least: int
    most: int
    counts_files: bool
    dataflows: Callable[[], list[str]]
    short_of: Callable[[int], int]
    refusal: Callable[[str, str], DiskFull]


def disk_limit(services: Services, request: SpaceRequest) -> Limit:
    """Return the limit of the store's disk, of which `least_free` stays free; all dataflows of the ledger share it.

    The results of other running attempts may be written already.
    """
    spare = services.retention.least_free

    def room() -> FreeSpace:
        return services.store.free_space() or FreeSpace(2**63, 2**63)

    def names() -> list[str]:
        with services.ledger.transaction() as session:
            return dataflows(session)

    def short_of(needed: int) -> int:
        now = room()
        return max(needed + spare - now.free_bytes, _ONE_FILE if now.free_files == 0 else 0)

    def refusal(freed: str, held: str) -> DiskFull:
        now = room()
        with services.ledger.transaction() as session:
            other = max(0, now.total_bytes - now.free_bytes - bytes_at_rest(session))
        others = (
            f"  {format_size(other)} of that disk are no results: files of other programs, partial files of running "
            "attempts, copies, and files of dead attempts (`weir gc --dry-run` lists those of the store)"
        )
        files = ", and no file can be added" if now.free_files == 0 else ""
        message = Message(
            "retention.disk_too_small",
            store_url=services.store.url,
            request=request.name,
            described=f"{format_size(now.free_bytes)} of {format_size(now.total_bytes)} are free{files}",
            wanted=_wanted(request.own),
            limit=format_size(spare),
            freed=freed,
            held=held,
            others=others,
        )
        return DiskFull(message)

    most = request.own.most + request.copies + sum(each.estimate.most for each in request.others)
    return Limit(
        least=request.own.least, most=most, counts_files=True, dataflows=names, short_of=short_of, refusal=refusal
    )


def quota_limit(services: Services, request: SpaceRequest, quota: int) -> Limit:
    """Return the limit of the bytes that the results of a dataflow may have at rest.

    Those of running attempts that began before come first.
    """
    others = [each for each in request.others if each.dataflow == request.dataflow]
    earlier = sum(each.estimate.least for each in others if each.is_earlier)

    def at_rest() -> int:
        with services.ledger.transaction() as session:
            return bytes_at_rest(session, request.dataflow)

    def refusal(freed: str, held: str) -> DiskFull:
        message = Message(
            "retention.quota_too_small",
            dataflow=request.dataflow,
            quota=format_size(quota),
            request=request.name,
            wanted=_wanted(request.own),
            others=f"running attempts that began before are to write {format_size(earlier)}, " if earlier else "",
            at_rest=format_size(at_rest()),
            freed=freed,
            held=held,
        )
        return QuotaExceeded(message)

    return Limit(
        least=request.own.least + earlier,
        most=request.own.most + sum(each.estimate.most for each in others),
        counts_files=False,
        dataflows=lambda: [request.dataflow],
        short_of=lambda needed: at_rest() + needed - quota,
        refusal=refusal,
    )


def _wanted(own: SizeEstimate) -> str:
    if not own.most:
        return ""
    sizes = format_size(own.least) if own.least == own.most else f"{format_size(own.least)} to {format_size(own.most)}"
    return f"it is to write about {sizes}, "
