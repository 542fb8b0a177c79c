"""The pointer to a published version of a data set.

Invariant: a version is published by the exclusive create of its pointer, and readers use the highest version. So a
delayed publisher can only add a lower version, which no reader uses, and no reader sees a partial version.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Final

from weir.errors import Misconfigured
from weir.topology.ids import AttemptId, Digest, Epoch
from weir.typed_json import typed

FORMAT: Final = 1
"""The version of the format of pointers."""


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

    `ledger` is the id of the one by which it was published, and `revision` that of the dataflow there which its writer
    had last seen committed (0: none). `deliveries` are how the version is committed into the targets of its sink, in
    their order: each is JSON of weir.sinks.protocol.Delivery, by which a rebuilt ledger goes on with it.
    """

    dataflow: str
    sink: str
    epoch: Epoch
    version: int
    attempt: AttemptId
    spark_schema: str
    partitions: tuple[PublishedPartition, ...]
    published_at: str
    ledger: str
    revision: int = 0
    deliveries: tuple[dict[str, Any], ...] = ()
    lacks: str = ""
    """Of provisional rows: what their run had yet to do when they were published."""

    def to_json(self) -> bytes:
        """Encode the pointer as it is stored."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1, sort_keys=True).encode()


def pointer_from_json(data: bytes) -> Pointer:
    """Read a stored pointer. Raises Misconfigured for another format, and ValueError for what is no pointer."""
    found: dict[str, Any] = json.loads(data)
    form = found.pop("format", None)
    if form != FORMAT:
        raise Misconfigured.of("formats.pointer_of_other_format", form=form, format=FORMAT)
    return typed("pointer", Pointer, found)


def newest(names: Iterable[str]) -> str | None:
    """Return the name of the pointer that readers use; None if none has been published."""
    return max((name for name in names if name.endswith(".json")), default=None)
