"""A stream of Amazon Kinesis as a source that goes on: an example. Invariant: what is recorded is read, or it fails.

The position of a shard is the sequence number of the last record that was read. `kinesis_target` is the other side.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import botocore.loaders
import botocore.session

from weir.dataflow import Resolved, Stage, source
from weir.errors import Misconfigured

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from weir.connections import Connection
    from weir.dataflow import ResolveContext
    from weir_spark.region.context import StageContext

SCHEMA = "shard STRING, sequence STRING, key STRING, arrived TIMESTAMP, data BINARY"
_LOADER = botocore.loaders.create_loader()
"""Has read what botocore knows of Kinesis once: a client may be made for each call."""


def client_of(connection: Connection) -> Any:
    """Make a client of Kinesis by a connection of type aws; what it lacks is looked for as Amazon's tools do."""
    session = botocore.session.get_session()
    session.register_component("data_loader", _LOADER)
    return session.create_client(
        "kinesis",
        region_name=connection.extra.get("region_name"),
        endpoint_url=connection.extra.get("endpoint_url"),
        aws_access_key_id=connection.login or None,
        aws_secret_access_key=connection.password or None,
    )


def kinesis_source(name: str, conn_id: str, stream: str, parallelism: int = 1) -> Stage:
    """Declare a source whose epochs go on through a stream; shards are divided among subtasks."""
    options = {"conn_id": conn_id, "stream": stream}
    functions = f"{__name__}:read", f"{__name__}:resolve"
    return source(name, functions[0], resolve=functions[1], goes_on=True, options=options, parallelism=parallelism)


def resolve(ctx: ResolveContext) -> Resolved:
    """Fix the range of each shard: from where the epoch before ended to the first record of a later interval."""
    conn_id, stream = ctx.options["conn_id"], ctx.options["stream"]
    if ctx.recorded is not None:  # these very ranges, for another number of subtasks
        ranges = [each for split in ctx.recorded.splits for each in split["ranges"]]
        return Resolved(_divided(ranges, conn_id, stream, ctx.parallelism), ctx.recorded.position)
    client = client_of(ctx.connection(conn_id))
    created = str(
        client.describe_stream_summary(StreamName=stream)["StreamDescriptionSummary"]["StreamCreationTimestamp"]
    )
    before = {"created": created, "ends": {}} if ctx.previous is None else ctx.previous.position
    if before["created"] != created:
        raise Misconfigured(f"stream {stream} was created again at {created}: give the source another name")
    found = [
        _range(client, stream, shard, before["ends"].get(shard), ctx.interval[1]) for shard in shards_of(client, stream)
    ]
    ranges = [each for each in found if each["records"]]
    ends = before["ends"] | {each["shard"]: each["until"] for each in ranges}
    return Resolved(_divided(ranges, conn_id, stream, ctx.parallelism), {"created": created, "ends": ends})


def read(ctx: StageContext, split: dict[str, Any]) -> DataFrame:
    """Read the records of a split, the same ones each time, as rows of `SCHEMA`."""
    client = client_of(ctx.connection(split["conn_id"]))
    rows = [row for each in split["ranges"] for row in rows_of(client, split["stream"], each)]
    return ctx.spark.createDataFrame(rows, SCHEMA)


def rows_of(client: Any, stream: str, recorded: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """Return the rows of a range. Raises Misconfigured if the stream has dropped some of them since."""
    shard, after, until = recorded["shard"], recorded["after"], recorded["until"]
    of_range = takewhile(lambda each: int(each["SequenceNumber"]) <= int(until), records(client, stream, shard, after))
    found = [
        (shard, each["SequenceNumber"], each["PartitionKey"], each["ApproximateArrivalTimestamp"], each["Data"])
        for each in of_range
    ]
    if len(found) != recorded["records"]:
        raise Misconfigured(
            f"{stream}, {shard}: {len(found)} of {recorded['records']} records to {until} are there: the others are "
            "older than the stream's retention, which has to outlast the latest repair"
        )
    return found


def _divided(ranges: Sequence[Any], conn_id: str, stream: str, parallelism: int) -> list[Any]:
    total = sum(each["records"] for each in ranges)
    split = {"conn_id": conn_id, "stream": stream, "reads": f"{total} records of {len(ranges)} shards of {stream}"}
    return [split | {"ranges": ranges[number::parallelism]} for number in range(parallelism)]


def shards_of(client: Any, stream: str) -> list[str]:
    """Return the shards that a stream has, and those that it had and has not forgotten."""
    pages = client.get_paginator("list_shards").paginate(StreamName=stream)
    return [each["ShardId"] for page in pages for each in page["Shards"]]


def _range(client: Any, stream: str, shard: str, after: str | None, end: datetime) -> dict[str, Any]:
    until, count = after, 0
    for each in records(client, stream, shard, after):
        if each["ApproximateArrivalTimestamp"] >= end:
            break
        until, count = each["SequenceNumber"], count + 1
    return {"shard": shard, "after": after, "until": until, "records": count}


def records(client: Any, stream: str, shard: str, after: str | None = None) -> Iterator[Mapping[str, Any]]:
    """Yield what a shard holds now after a sequence number. Raises Misconfigured if that has been dropped."""
    begin = {"ShardIteratorType": "TRIM_HORIZON"}
    if after is not None:
        begin = {"ShardIteratorType": "AT_SEQUENCE_NUMBER", "StartingSequenceNumber": after}
    iterator, is_first = client.get_shard_iterator(StreamName=stream, ShardId=shard, **begin)["ShardIterator"], True
    while iterator:
        answer = client.get_records(ShardIterator=iterator)
        for each in answer["Records"]:
            if after is None or not is_first:
                yield each
            elif each["SequenceNumber"] != after:
                raise Misconfigured(f"{stream}, {shard}: record {after} has been dropped, and maybe later ones")
            is_first = False
        iterator = answer.get("NextShardIterator") if answer["MillisBehindLatest"] or answer["Records"] else None
