"""Read leases of those who are no attempt: a person's notebook, the command line, upkeep.

Invariant 4: what is claimed was there in the transaction that claims it, and stays until the claim is dropped or its
process is gone for an hour. Nobody claims what is not there any more.
"""

from __future__ import annotations

import atexit
import getpass
import os
import socket
import threading
import weakref
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress

from sqlalchemy import select
from sqlalchemy.orm import Session

from weir.coordination.services import Services
from weir.errors import WeirError
from weir.execution.partition_state import PartitionState
from weir.ledger.database.tables import ResultRow
from weir.ledger.leases import LEASE, drop_leases, renew_leases, take_leases

RENEWAL = LEASE.total_seconds() / 12
"""Seconds between two signs of life of a reader: a ledger may be away for most of an hour."""

_LONGEST_NAME = 100
"""Characters; the ledger has room for 120."""

_AT_ONCE = 500
"""How many results one query asks for: databases bind only so many values."""

_SECONDS_TO_DROP = 10.0


class ReadLease:
    """A reader's claim on `results`, renewed by a thread until it is closed, forgotten, or the process ends."""

    def __init__(self, claim: _Claim) -> None:
        self._claim = claim
        self._forgotten = weakref.finalize(self, claim.ended.set)
        claim.start()

    @property
    def holder(self) -> str:
        """The name under which the ledger knows it."""
        return self._claim.holder

    @property
    def results(self) -> frozenset[int]:
        """The numbers of the results that were there, and are claimed."""
        return self._claim.results

    def renew(self) -> None:
        """Claim for longer, now. Raises Retryable."""
        self._claim.renew()

    def outlive_its_object(self) -> None:
        """Last until it is closed or the process ends: what reads under it later cannot be followed."""
        self._forgotten.detach()

    def close(self) -> None:
        """Drop the claim; one that the ledger does not hear of ends by itself. A second time does nothing."""
        self._claim.end()


def reader(what: str) -> str:
    """Name a reader so that a person finds it: what reads, as whom, and where."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = str(os.getuid())
    return f"{what} of {user} on {socket.gethostname()}"


@contextmanager
def leased_reading(services: Services, dataflow: str, results: Collection[int], holder: str) -> Iterator[ReadLease]:
    """Claim those of `results`, by their numbers, that are there now: `lease.results` says which these are.

    `holder` says who reads, to a person; a part that nobody else has is put behind it. Raises Retryable.
    """
    with services.ledger.transaction(dataflow) as session:
        claim = claimed(session, services, dataflow, results, holder)
    lease = ReadLease(claim)
    try:
        yield lease
    finally:
        lease.close()


def claimed(
    session: Session,
    services: Services,
    dataflow: str,
    results: Collection[int],
    holder: str,
    states: Collection[PartitionState] = (PartitionState.FINISHED,),
) -> _Claim:
    """Claim those of `results` that are there, in a transaction of `dataflow`: a ReadLease begins behind its commit.

    Only who inspects them asks for those in quarantine, by `states`.
    """
    claim = _Claim(services, dataflow, holder, _stored(session, results, states), states)
    take_leases(session, sorted(claim.results), claim.holder, services.now())
    return claim


def _stored(session: Session, results: Collection[int], states: Collection[PartitionState]) -> frozenset[int]:
    numbers, found = sorted(results), set[int]()
    for begin in range(0, len(numbers), _AT_ONCE):
        query = select(ResultRow.id).where(
            ResultRow.id.in_(numbers[begin : begin + _AT_ONCE]), ResultRow.state.in_([each.value for each in states])
        )
        found.update(session.scalars(query))
    return frozenset(found)


class _Claim:
    """What the thread knows of a lease: not the lease itself, so that one that was forgotten can be collected.

    The thread drops it, too: a collector may come by in the middle of another transaction of the same ledger.
    """

    def __init__(
        self,
        services: Services,
        dataflow: str,
        holder: str,
        results: frozenset[int],
        states: Collection[PartitionState],
    ) -> None:
        self._services, self._dataflow, self._states = services, dataflow, states
        self.holder, self.results = f"{holder[:_LONGEST_NAME]} ({services.new_uuid().hex[:12]})", results
        self.ended = threading.Event()
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._work, name=f"weir: {self.holder}", daemon=True)

    def start(self) -> None:
        atexit.register(self.end)
        self._thread.start()

    def end(self) -> None:
        if os.getpid() != self._process:
            return  # the lease is that of the process that this one was forked from
        self.ended.set()
        if self._thread.is_alive():
            self._thread.join(_SECONDS_TO_DROP)

    def renew(self) -> None:
        with self._services.ledger.transaction(self._dataflow) as session:
            now = self._services.now()
            if self.ended.is_set():
                return  # it may have been dropped already
            if renew_leases(session, self.holder, now) < len(self.results):
                # The process has slept, and was taken for dead: what is still there is claimed again.
                drop_leases(session, self.holder)
                take_leases(session, sorted(_stored(session, self.results, self._states)), self.holder, now)

    def _work(self) -> None:
        while not self.ended.wait(RENEWAL):
            with suppress(WeirError):  # the next sign of life comes in time
                self.renew()
        atexit.unregister(self.end)
        with suppress(WeirError), self._services.ledger.transaction(self._dataflow) as session:
            drop_leases(session, self.holder)
