"""A file that hangs, as all files of a network mount do whose server is gone.

Invariant: the name is never free in between, and the file is back at the end as it was.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def hung_file(path: Path) -> Iterator[None]:
    """Put a named pipe in the file's place: opening it waits until the block ends, and then raises."""
    aside, pipe = path.with_name(f".{path.name}.aside"), path.with_name(f".{path.name}.pipe")
    aside.hardlink_to(path)
    os.mkfifo(pipe)
    pipe.replace(path)
    # Both ends at once never wait; that there was a writer wakes those who wait for one.
    waking = os.open(path, os.O_PATH)
    try:
        yield
    finally:
        aside.replace(path)
        os.close(os.open(f"/proc/self/fd/{waking}", os.O_RDWR | os.O_NONBLOCK))
        os.close(waking)
