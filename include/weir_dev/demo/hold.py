"""The results of a day, held by a read lease and verified, before the demo deletes one of them.

Invariant: no result is chosen for deletion unless every result of its day is current, available, held by the lease, and
has the bytes that were recorded when it was committed.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from weir.coordination.read_leases import leased_reading, reader
from weir.errors import Misconfigured
from weir.execution.partition_state import PartitionState
from weir.integrity.verify import VerifyOutcome, results_by_number, verify_results
from weir.ledger.snapshot import run_state
from weir_dev.demo.evidence import epoch_key, run_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import date

    from weir.coordination.services import Services
    from weir.execution.run_state import CurrentResult, RunState
    from weir.integrity.verify import VerifiedResult


READER = "weir demo"


@dataclass(frozen=True, slots=True)
class HeldDay:
    """The run of a day, and the numbers of those of its results that are held: they are not released."""

    day: date
    state: RunState
    held: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class LostPartition:
    """A result partition to delete: its folder in the store, its size, and the regions that read it.

    `held_results` counts the results of its day that the lease holds, itself among them.
    """

    name: str
    folder: str
    rows: int
    bytes: int
    consumers: tuple[str, ...]
    held_results: int


@contextmanager
def held_day(services: Services, dataflow: str, day: date) -> Iterator[HeldDay]:
    """Hold all current results of a day that are available, until the block ends.

    The lease is the one that `weir.open` takes: retention releases nothing that a reader holds, however long the demo
    takes and whatever `keep` says. Raises Misconfigured if the ledger knows no run of that day, and Retryable.
    """
    with services.ledger.transaction() as session:
        state = run_state(session, run_of(session, dataflow, day))
    numbers = [result.result for result in state.results.values()]
    with leased_reading(services, dataflow, numbers, reader(READER)) as lease:
        yield HeldDay(day, state, lease.results)


def verified_day(services: Services, held: HeldDay) -> list[VerifiedResult]:
    """Compare every byte of the held results with what was recorded, as `weir verify` does. Raises Retryable."""
    with services.ledger.transaction() as session:
        rows = [row for _, row in sorted(results_by_number(session, held.held).items())]
    return list(verify_results(services, rows, READER))


def partition_to_lose(held: HeldDay, verified: Sequence[VerifiedResult], name: str, reader: str) -> LostPartition:
    """Choose the result of the subtask `name`, "join[0]" say, in the layout that the region `reader` reads.

    Raises Misconfigured, naming the results, unless it and all other results of the day are as the invariant says.
    """
    problems = sorted(f"{_named(held, result)} {why}" for result in _current(held) if (why := _problem(held, result)))
    problems += sorted(
        f"{each.stage}[{each.subtask}] ({each.layout}) is {each.outcome.value}: {each.detail}"
        for each in verified
        if each.outcome is not VerifyOutcome.WHOLE
    )
    unread = held.held - {each.result for each in verified}
    if unread:
        problems.append(f"{len(unread)} results were not verified")
    if problems:
        raise Misconfigured.of("dev.results_not_whole", day=held.day, problems=problems)
    for result in _current(held):
        consumers = held.state.topology.consumers(result.partition)
        is_named = f"{result.partition.stage}[{result.partition.subtask}]" == name
        if is_named and any(region.name == reader for region in consumers):
            label = _named(held, result)
            return LostPartition(
                name=label,
                folder=result.folder,
                rows=result.rows,
                bytes=result.bytes,
                consumers=tuple(str(region) for region in consumers),
                held_results=len(held.held),
            )
    raise Misconfigured.of("dev.result_unknown", name=name, reader=reader, day=held.day, epoch_key=epoch_key(held.day))


def _current(held: HeldDay) -> list[CurrentResult]:
    return list(held.state.results.values())


def _problem(held: HeldDay, result: CurrentResult) -> str | None:
    if result.state is not PartitionState.FINISHED:
        return f"is {result.state.value}"
    if not held.state.is_valid(result.partition):
        return "is stale"
    return None if result.result in held.held else "was released before it could be held"


def _keys(held: HeldDay, result: CurrentResult) -> tuple[str, ...]:
    return tuple(held.state.topology.layout(result.partition.layout).keys)


def _named(held: HeldDay, result: CurrentResult) -> str:
    keys = ", ".join(_keys(held, result))
    return f"{result.partition.stage}[{result.partition.subtask}]{f' by {keys}' if keys else ''}"
