"""How the versions of sinks lie in a stream of Kinesis, for those who read them: an example.

The rows of a version are followed by a marker that names them: a reader takes those of an epoch's newest marker and no
others, so that one record publishes. Invariant: a row that was put twice, or whose writer was killed, is no other row.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.flows.kinesis import records, shards_of

from weir.sinks import ROLLED_BACK

if TYPE_CHECKING:
    from weir.sinks import Version


@dataclass(frozen=True, slots=True)
class Marker:
    """A record that publishes those of a writer, so many, as a version of an epoch."""

    owner: str
    epoch: str
    number: int
    digest: str
    writer: str
    rows: int

    @property
    def rank(self) -> tuple[int, bool]:
        """The newest version counts, and of one version that it was taken out."""
        return self.number, self.digest == ROLLED_BACK


def published(client: Any, stream: str, owner: str, epoch: str) -> list[dict[str, Any]]:
    """Return the rows of an epoch as a reader of the stream finds them: its newest version, each row once."""
    contents = list(contents_of(client, stream))
    marker = markers(contents).get((owner, epoch))
    writer = "" if marker is None else marker.writer
    return list(
        {each["number"]: each["row"] for each in contents if "row" in each and each["writer"] == writer}.values()
    )


def markers(contents: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], Marker]:
    """Return the newest marker of each owner and epoch."""
    found: dict[tuple[str, str], Marker] = {}
    for each in (Marker(**each["marker"]) for each in contents if "marker" in each):
        known = found.get((each.owner, each.epoch))
        if known is None or each.rank > known.rank:
            found[each.owner, each.epoch] = each
    return found


def contents_of(client: Any, stream: str) -> Iterator[dict[str, Any]]:
    """Yield all that a stream holds of versions: rows and markers."""
    for shard in shards_of(client, stream):
        for each in records(client, stream, shard):
            yield json.loads(each["Data"])


def row_record(version: Version, writer: str, number: int, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record of a row."""
    return _record(version, {"writer": writer, "number": number, "row": row})


def marker_record(version: Version, digest: str, writer: str, rows: int) -> dict[str, Any]:
    """Return the record that publishes a writer's rows."""
    told = {"owner": version.owner, "epoch": str(version.epoch), "number": version.number, "digest": digest}
    return _record(version, {"marker": told | {"writer": writer, "rows": rows}})


def _record(version: Version, content: Mapping[str, Any]) -> dict[str, Any]:
    data = json.dumps(content, default=str).encode()
    return {"PartitionKey": f"{version.owner} {version.epoch}"[:256], "Data": data}
