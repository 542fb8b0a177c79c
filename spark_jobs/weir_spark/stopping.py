"""How a driver of its own is told to end: by a file in its attempt's folder, from any process and any machine.

Invariant: a driver that was told to end never reports a result of an attempt that began after it was told.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from weir.errors import Fenced, WeirError
from weir.results.region_job import STOP_NAME, RegionJob
from weir.store.stop_file import is_told_to_stop
from weir.store.store import Store

POLL_SECONDS = 2.0


@contextmanager
def stopped_by_file(
    store: Store, job: RegionJob, end: Callable[[Fenced], None], poll_seconds: float = POLL_SECONDS
) -> Iterator[None]:
    """Call `end`, in a thread, once somebody tells this job to stop. Raises Fenced if somebody has already."""
    fenced = Fenced(f"region {job.region}: attempt {job.attempt} was told to stop, by {STOP_NAME} in its folder")
    if is_told_to_stop(store, job.folder):
        raise fenced
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(poll_seconds):
            try:
                is_told = is_told_to_stop(store, job.folder)
            except WeirError:
                continue  # a store that does not answer has told nothing
            if is_told and not is_over.is_set():
                end(fenced)
                return

    thread = threading.Thread(target=watch, name="weir-stop-file", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
