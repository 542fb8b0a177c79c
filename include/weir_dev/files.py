"""Small files and folders of the local stack. Invariant: a reader sees a whole file or none."""

from __future__ import annotations

import os
import uuid
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def make_private(folder: Path) -> None:
    """Make a folder, and close it to other users of this machine, also if it was there."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)


def write_atomically(path: Path, text: str, *, mode: int = 0o600) -> None:
    """Write `text` beside `path` with the given mode from the start, then put it in its place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        temporary.chmod(mode)  # whatever the umask is
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def tail(path: Path, lines: int = 25) -> str:
    """The last lines of a log; empty if there is none."""
    if not path.exists():
        return ""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 16_384))
        text = file.read().decode(errors="replace")
    return "\n".join(text.splitlines()[-lines:])
