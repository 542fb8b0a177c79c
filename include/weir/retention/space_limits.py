"""Limits of the bytes at rest: the disk of the store, and the quota of a dataflow.

Invariant: an attempt is refused only if not even the smallest estimate fits; space is reclaimed for the largest. A
wrong estimate may cost results that only policies keep, never a run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from weir.coordination.services import Services
from weir.errors import DiskFull, Message, QuotaExceeded
from weir.retention.sizes import RunningAttempt, SizeEstimate, bytes_at_rest, dataflows
from weir.store.files import FreeSpace
from weir.units import format_size

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
