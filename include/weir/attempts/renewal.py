"""The read leases of an attempt, while it computes. Invariant: they outlive it by less than one lease."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from weir.attempts.ports import Log
from weir.coordinator.coordinator import Coordinator
from weir.coordinator.values import Attempt
from weir.errors import WeirError

RENEWAL_SECONDS: Final = 600.0


@contextmanager
def renewed(
    coordinator: Coordinator, attempt: Attempt, log: Log, every_seconds: float = RENEWAL_SECONDS
) -> Iterator[None]:
    """Prolong the attempt's leases from time to time, in a thread, until the block ends."""
    is_over = threading.Event()

    def renew() -> None:
        while not is_over.wait(every_seconds):
            try:
                coordinator.renew(attempt)
            except WeirError as error:  # the next beat comes long before the lease ends
                log(f"The read leases of {attempt.id} were not prolonged and will be soon: {error}")

    thread = threading.Thread(target=renew, name="weir-renew", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
