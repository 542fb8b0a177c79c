"""The file that tells the driver of an attempt to end, from any process and any machine.

Invariant: it stays, so that a driver that begins late is told as well.
"""

from __future__ import annotations

from weir.formats.region_job import STOP_NAME
from weir.store.errors import AlreadyExists, NotFound
from weir.store.store import Store


def request_stop(store: Store, folder: str) -> None:
    """Tell the driver of the attempt with this folder to end, whether it has begun, runs, or has long ended."""
    try:
        store.create(f"{folder}/{STOP_NAME}", b"")
    except AlreadyExists:
        return


def is_stop_requested(store: Store, folder: str) -> bool:
    """Ask the store. Raises Retryable if it does not answer."""
    try:
        store.size(f"{folder}/{STOP_NAME}")
    except NotFound:
        return False
    return True
