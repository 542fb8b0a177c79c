"""A stream of Amazon Kinesis as a target of sinks: an example. Its marker is the record that publishes a version."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
from tests.flows.kinesis import client_of
from tests.flows.kinesis_versions import Marker, contents_of, marker_record, markers, row_record

from weir.errors import Misconfigured, Retryable
from weir.sinks import ROLLED_BACK, Outcome, SinkTarget, outcome_of

if TYPE_CHECKING:
    from weir.sinks import Held, Token, Version

_MOST_BYTES = 1_000_000
"""Of a record, with its key; Kinesis takes a little more."""
_MOST_RECORDS = 5
"""Of a request, which may have five megabytes."""


class KinesisTarget(SinkTarget):
    """Versions as records of the stream `options["stream"]`, reached by the connection `options["conn_id"]`."""

    def prepare(self, version: Version, held: Held | None) -> Token:
        """Check the stream and the size of each record."""
        del held
        client, stream = self._client(), self.options["stream"]
        status = client.describe_stream_summary(StreamName=stream)["StreamDescriptionSummary"]["StreamStatus"]
        if status not in {"ACTIVE", "UPDATING"}:
            raise Retryable(f"the stream {stream} is {status}")
        for number, row in enumerate(self._rows(version)):
            if len(row_record(version, "-" * 32, number, row)["Data"]) > _MOST_BYTES:
                raise Misconfigured(f"row {number} of {version.owner} is larger than a record of Kinesis may be")
        return {}

    def commit(self, version: Version, token: Token) -> Outcome:
        """Put the rows, which no reader takes yet, and then the marker."""
        client, writer, count = self._client(), uuid.uuid4().hex, 0
        found = self.recover(version, token)
        if found is not Outcome.ABSENT:
            return found
        rows = enumerate(self._rows(version))
        while batch := [row_record(version, writer, number, row) for number, row in islice(rows, _MOST_RECORDS)]:
            count += len(batch)
            self._put(client, batch)
        self._put(client, [marker_record(version, version.digest, writer, count)])
        return Outcome.COMMITTED

    def recover(self, version: Version, token: Token) -> Outcome:
        """Look for the newest marker of the epoch."""
        del token
        newest = self._newest(version)
        return Outcome.ABSENT if newest is None else outcome_of(version, newest.number, newest.digest)

    def rollback(self, version: Version, token: Token) -> bool:
        """Put a marker without rows."""
        del token
        newest = self._newest(version)
        if newest is None or not version.is_marked_by(newest.number, newest.digest):
            return False
        self._put(self._client(), [marker_record(version, ROLLED_BACK, "", 0)])
        return True

    def _newest(self, version: Version) -> Marker | None:
        found = markers(contents_of(self._client(), self.options["stream"]))
        return found.get((version.owner, str(version.epoch)))

    def _put(self, client: Any, records: Sequence[Mapping[str, Any]]) -> None:
        """Put records, some of them twice if an answer is lost: readers know them by writer and number."""
        answer = client.put_records(StreamName=self.options["stream"], Records=records)
        if answer["FailedRecordCount"]:
            raise Retryable(f"Kinesis took {answer['FailedRecordCount']} of {len(records)} records not")

    def _rows(self, version: Version) -> Iterator[Mapping[str, Any]]:
        for file in version.files:
            with self.reach.open(file) as content:
                for batch in pq.ParquetFile(content).iter_batches(1000):
                    yield from batch.to_pylist()

    def _client(self) -> Any:
        return client_of(self.reach.connection(self.options["conn_id"]))
