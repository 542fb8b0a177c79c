"""How long the steps of a job take. Invariant: what fails is measured, too."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def measured(seconds: dict[str, float], step: str) -> Iterator[None]:
    """Enter how many seconds a step takes."""
    start = time.monotonic()
    try:
        yield
    finally:
        seconds[step] = round(time.monotonic() - start, 3)
