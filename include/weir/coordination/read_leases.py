"""Takes read leases for readers that are not attempts: notebooks, the command line, upkeep.

Invariant 4: leased results are present in the transaction that takes the leases, and are retained until the leases are
dropped or their process has been gone for an hour. No lease is taken on a result whose bytes are gone.
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

from sqlalchemy.orm import Session

from weir.coordination.services import Services
from weir.errors import WeirError
from weir.execution.partition_state import PartitionState
from weir.ledger.leases import LEASE, drop_leases, hold_leases, stored, take_leases

RENEWAL = LEASE.total_seconds() / 12
"""Seconds between two heartbeats of a reader: a ledger may be unavailable for most of an hour."""

_LONGEST_NAME = 100
"""Characters; the ledger has room for 120."""

_SECONDS_TO_DROP = 10.0


class ReadLease:
    """A reader's lease on `results`, renewed by a thread until it is closed, collected, or the process ends."""

    def __init__(self, claim: ReadClaim) -> None:
        self._claim = claim
        self._forgotten = weakref.finalize(self, claim.ended.set)
        claim.start()

    @property
    def holder(self) -> str:
        """The reader's name in the ledger."""
        return self._claim.holder

    @property
    def results(self) -> frozenset[int]:
        """The numbers of the leased results."""
        return self._claim.results

    def renew(self) -> None:
        """Renew the lease now. Raises Retryable."""
        self._claim.renew()

    def outlive_its_object(self) -> None:
        """Hold the lease until it is closed or the process ends, since its later readers cannot be tracked."""
        self._forgotten.detach()

    def close(self) -> None:
        """Drop the lease; if the ledger does not answer it expires by itself. A second call does nothing."""
        self._claim.end()


def reader(what: str) -> str:
    """Return the name of a reader for people: the program, its user and its host."""
    return f"{what} of {user_name()} on {socket.gethostname()}"


def user_name() -> str:
    """Return the name of the user of this process, or the user's number."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return str(os.getuid())


@contextmanager
def leased_reading(services: Services, dataflow: str, results: Collection[int], holder: str) -> Iterator[ReadLease]:
    """Lease those of `results`, given by number, that are present now: `lease.results` has their numbers.

    `holder` names the reader for people; a unique suffix is appended. Raises Retryable.
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
) -> ReadClaim:
    """Lease those of `results` that are present, in a transaction of `dataflow`, for a ReadLease after its commit.

    `states` includes results in quarantine only for their inspection.
    """
    claim = ReadClaim(services, dataflow, holder, stored(session, results, states), states)
    take_leases(session, sorted(claim.results), claim.holder, services.now())
    return claim


class ReadClaim:
    """The part of a lease that the thread holds: not the ReadLease itself, so that an unused one can be collected.

    The thread drops the lease, too: the collector may run in the middle of another transaction of the same ledger.
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
        """Renew it from now on."""
        atexit.register(self.end)
        self._thread.start()

    def end(self) -> None:
        """Drop it."""
        if os.getpid() != self._process:
            return  # the lease belongs to the process that this process was forked from
        self.ended.set()
        if self._thread.is_alive():
            self._thread.join(_SECONDS_TO_DROP)

    def renew(self) -> None:
        """Renew it now. Raises Retryable."""
        with self._services.ledger.transaction(self._dataflow) as session:
            if not self.ended.is_set():  # else it may have been dropped already
                hold_leases(session, self.holder, self.results, self._states, self._services.now())

    def _work(self) -> None:
        while not self.ended.wait(RENEWAL):
            with suppress(WeirError):  # the next heartbeat is still in time
                self.renew()
        atexit.unregister(self.end)
        with suppress(WeirError), self._services.ledger.transaction(self._dataflow) as session:
            drop_leases(session, self.holder)
