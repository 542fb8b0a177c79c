"""Marks the files that sources read. Invariant: all attempts of a run read the same content, or fail."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from weir.errors import Misconfigured, Retryable

HASHED_BYTES = 64 * 2**20
"""Files up to this size are marked by their content, larger ones by size and modification time."""


WHERE_CHANGED = (
    "Bring the old content back; or have the run read the new one: clear the task where no task of this source "
    "has succeeded, else `weir run adopt RUN`, then clear the run in Airflow"
)
"""What to do where a file is not as it was when its run listed it."""


def file_mark(path: str | Path, hashed_bytes: int = HASHED_BYTES) -> dict[str, Any]:
    """Describe a local file so that a change shows later: path, size, and SHA-256 or (above 64 MiB) modification time.

    Put marks into the splits of a resolver, and call `unchanged` in the source. Raises FileNotFoundError.
    """
    file = Path(path).absolute()
    size = file.stat().st_size
    if size > hashed_bytes:
        return {"path": str(file), "size": size, "modified_ns": file.stat().st_mtime_ns}
    return {"path": str(file), "size": size, "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}


def unchanged(mark: Mapping[str, Any]) -> str:
    """Return the path of a marked file if its content is as it was when the run resolved it.

    Raises Misconfigured if its content is another, Retryable if it is not there.
    """
    path = mark["path"]
    try:
        found = file_mark(path, mark["size"] if "sha256" in mark else -1)
    except OSError as error:
        raise Retryable.of("sources.mark_unreadable", path=path, error=error) from error
    if found == dict(mark):
        return str(path)
    raise Misconfigured.of(
        "sources.mark_changed", path=path, expected=_mark(mark), found=_mark(found), where_changed=WHERE_CHANGED
    )


def _mark(mark: Mapping[str, Any]) -> str:
    kind = "sha256" if "sha256" in mark else "modified_ns"
    return f"{mark['size']} bytes, {kind} {str(mark.get(kind))[:16]}"
