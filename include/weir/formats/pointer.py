"""The pointer to a published version of a data set.

Invariant: a version is published by the exclusive create of its pointer, and readers use the highest version. So a
delayed publisher can only add a lower version, which no reader uses, and no reader sees a partial version.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from weir.errors import Misconfigured
from weir.topology.ids import AttemptId, Digest, Epoch

FORMAT = 2
"""The format that is written; it and the earlier one are read."""


@dataclass(frozen=True, slots=True)
class PublishedPartition:
    """One partition of a published version: its folder in the store, its Parquet files there, and its digest."""

    subtask: int
    folder: str
    files: tuple[str, ...]
    rows: int
    digest: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Pointer:
    """One version of one epoch of a sink; `published_at` is in UTC, ISO 8601.

    `revision` is that of the dataflow in the ledger which its writer had last seen committed (0: not recorded).
    """

    dataflow: str
    sink: str
    epoch: Epoch
    version: int
    attempt: AttemptId
    spark_schema: str
    partitions: tuple[PublishedPartition, ...]
    published_at: str
    revision: int = 0

    def to_json(self) -> bytes:
        """Encode the pointer as it is stored."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1, sort_keys=True).encode()


def pointer_from_json(data: bytes) -> Pointer:
    """Read a stored pointer. Raises Misconfigured for a format of a newer Weir."""
    found: dict[str, Any] = json.loads(data)
    form = found.pop("format", None)
    if form not in range(1, FORMAT + 1):
        raise Misconfigured(
            f"a published pointer has format {form!r}, this Weir reads 1 to {FORMAT}: install the Weir that wrote it"
        )
    partitions = tuple(
        PublishedPartition(**{**each, "files": tuple(each["files"])}) for each in found.pop("partitions")
    )
    return Pointer(partitions=partitions, **found)


def newest(names: Iterable[str]) -> str | None:
    """Return the name of the pointer that readers use; None if none has been published."""
    return max((name for name in names if name.endswith(".json")), default=None)
