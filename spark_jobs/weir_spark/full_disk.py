"""Telling a full disk from what Spark says. Invariant: it needs nothing but pyspark itself.

Java's message is "No space left on device", or "Disk quota exceeded", and mostly several causes deep: a write fails as
TASK_WRITE_FAILED, and only the server's stack trace says why.
"""

from __future__ import annotations

from weir.errors import DiskFull, StoreFull

_SAID = ("No space left on device", "Disk quota exceeded", "There is not enough space on the disk")
_CAUSE = "Caused by: "
_FILE_SYSTEMS = "org.apache.hadoop.fs."
"""What writes to a store; Spark's own files it writes without Hadoop."""


def disk_full(error: Exception, region: str) -> DiskFull | None:
    """The error to raise in the place of `error` if a disk was full, with what to do about which; else None."""
    trace = _trace(error)
    said = next((text for text in _SAID if text in trace), None)
    if said is None:
        return None
    cause = next(part for part in reversed(trace.split(_CAUSE)) if said in part)
    if _FILE_SYSTEMS in cause:
        return StoreFull(
            f"region {region}: the store's disk is full ({said}). Make room there, and the task goes on by itself; "
            "nothing is marked lost"
        )
    return DiskFull(
        f"region {region}: a disk of Spark's is full ({said}), most likely that of its local folder, where it shuffles "
        "and spills. Make room there, or let spark.local.dir of the server and its workers name a larger disk: the "
        "task goes on by itself"
    )


def _trace(error: Exception) -> str:
    """All that is known of an error: pyspark keeps Java's stack trace apart from the message."""
    of_server = getattr(error, "getStackTrace", None)
    trace = of_server() if callable(of_server) else getattr(error, "_stackTrace", None)  # that of a classic session
    return f"{error}\n{trace or ''}"
