"""The file that requests the driver of an attempt to stop, from any process and any machine.

Invariant: it is never deleted, so that a driver that starts late finds it, too.
"""

from __future__ import annotations

from weir.formats.region_job import STOP_NAME
from weir.store.errors import AlreadyExists, NotFound
from weir.store.store import Store


def request_stop(store: Store, folder: str) -> None:
    """Request the driver of the attempt with this folder to stop, whether it has not started, runs, or has ended."""
    try:
        store.create(f"{folder}/{STOP_NAME}", b"")
    except AlreadyExists:
        return


def is_stop_requested(store: Store, folder: str) -> bool:
    """Report whether the stop of an attempt's driver was requested. Raises Retryable."""
    try:
        store.size(f"{folder}/{STOP_NAME}")
    except NotFound:
        return False
    return True
