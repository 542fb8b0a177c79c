"""The records of a topic of Kafka as a source that goes on: each epoch begins where the one before has ended.

Invariants: the ranges of all epochs follow each other, without gap or overlap, whatever the times of records are. What
is read is committed. A repair reads the same offsets, and where the broker has dropped some, it is an error.

The client library reads a range into Parquet files in the store, in the process that has the account; Spark reads
these. They are deleted when the attempt ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from weir.dataflow.resolving import NotReady, Resolved
from weir.dataflow.state_schema import declared_fields
from weir.errors import Misconfigured
from weir.extras import needed_for
from weir.units import time_from_text
from weir_spark.files.paths import WHOLE
from weir_spark.sources.loading import load_tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from weir.connections import Connection
    from weir.dataflow.resolving import ResolveContext
    from weir.kafka.cluster import Cluster, Record, Topic
    from weir_spark.region.context import StageContext

CORRUPT: Final = "_corrupt_record"
"""The column that keeps the values of malformed records."""

Ends = dict[int, int]
"""An offset for each partition: a range ends before it."""


def resolve(ctx: ResolveContext) -> Resolved | NotReady:
    """Return the offsets of the epoch, divided among the subtasks. Raises Misconfigured or Retryable."""
    with _cluster(ctx.connection(str(ctx.options["conn_id"]))) as cluster:
        return _resolved(ctx, cluster, _topic(cluster, str(ctx.options["topic"])))


def _resolved(ctx: ResolveContext, cluster: Cluster, topic: Topic) -> Resolved | NotReady:
    if ctx.recorded is not None:
        return Resolved(_splits(ctx, ctx.recorded.position), ctx.recorded.position)
    before = None if ctx.previous is None else ctx.previous.position
    if before is not None and before["topic_id"] != topic.id:
        raise Misconfigured.of("sources.kafka_topic_made_again", topic=topic.name)
    begins = _begins(ctx, cluster, topic, before)
    ends = _ends(ctx, cluster, topic)
    if isinstance(ends, NotReady):
        return ends
    ends = {number: max(end, begins[number]) for number, end in ends.items()}  # the time may have come before
    position = {"topic_id": topic.id, "begins": _numbered(begins), "ends": _numbered(ends)}
    return Resolved(_splits(ctx, position), position)


def read(ctx: StageContext, split: dict[str, Any]) -> DataFrame:
    """Load the records into Parquet files and have Spark read these. Raises Misconfigured or Retryable."""
    paths = load(ctx.connection(split["conn_id"]), split, ctx.create_file)
    return ctx.spark.read.schema(_columns(split)).options(**WHOLE).parquet(*paths)


def load(connection: Connection, split: Mapping[str, Any], create_file: Callable[[str, bytes], str]) -> list[str]:
    """Write the records of a split into Parquet files, and return their paths."""
    with _cluster(connection) as cluster:
        from weir_spark.sources.kafka_values import tables_of  # noqa: PLC0415  only such a source needs msgspec and Arrow

        corrupt = CORRUPT if split.get("on_malformed") else ""
        return load_tables(tables_of(_records(cluster, split), split, corrupt), create_file)


def _records(cluster: Cluster, split: Mapping[str, Any]) -> Iterator[Record]:
    topic = _topic(cluster, split["topic"])
    if topic.id != split["topic_id"]:
        raise Misconfigured.of("sources.kafka_topic_made_again", topic=topic.name)
    ranges = {partition: (begin, end) for partition, begin, end in split["ranges"] if begin < end}
    first = cluster.beginnings(topic.name, topic.partitions)
    _require_kept(cluster, topic, {partition: begin for partition, (begin, _) in ranges.items()}, first)
    for partition, (begin, end) in ranges.items():
        yield from cluster.read(topic.name, partition, begin, end)


def _cluster(connection: Connection) -> Cluster:
    with needed_for(f"the source of connection {connection.id}", "it is read: the task, or the driver in a cluster"):
        from weir.kafka.cluster import Cluster  # noqa: PLC0415  only such a source needs it
    return Cluster(connection)


def _topic(cluster: Cluster, name: str) -> Topic:
    found = cluster.topic(name)
    if found is None:
        raise Misconfigured.of("sources.kafka_topic_missing", topic=name, conn_id=cluster.conn_id)
    return found


def _begins(ctx: ResolveContext, cluster: Cluster, topic: Topic, before: Mapping[str, Any] | None) -> Ends:
    """Return where the epoch begins: at the recorded ends; in new partitions, and at first, at what is there.

    With bounds="epoch" the first epoch begins at the first record whose time is in its interval.
    """
    if before is None and ctx.options["bounds"] == "epoch":
        stable = cluster.ends(topic.name, topic.partitions)
        at = cluster.at_time(topic.name, topic.partitions, ctx.interval[0])
        return {number: end if (found := at[number]) is None else min(found, end) for number, end in stable.items()}
    first = cluster.beginnings(topic.name, topic.partitions)
    known = {} if before is None else _ends_in(before, "ends")
    gone = sorted(known.keys() - first.keys())
    if gone:
        raise Misconfigured.of("sources.kafka_topic_made_again", topic=topic.name)
    _require_kept(cluster, topic, known, first)
    return {number: known.get(number, first[number]) for number in first}


def _ends(ctx: ResolveContext, cluster: Cluster, topic: Topic) -> Ends | NotReady:
    """Return where the epoch ends, never above the last stable offset."""
    stable = cluster.ends(topic.name, topic.partitions)
    if ctx.options["bounds"] == "offsets":
        return stable
    at = cluster.at_time(topic.name, topic.partitions, ctx.interval[1])
    idle = time_from_text("idle", str(ctx.options["idle"])) or timedelta.max
    late = [number for number, found in at.items() if found is None or found > stable[number]]
    if late and ctx.waited < idle:
        reason = f"topic {topic.name} has no committed record of {ctx.interval[1].isoformat()} or later in partition"
        return NotReady(f"{reason} {', '.join(map(str, late))}: it is waited for it for {ctx.options['idle']}")
    return {number: stable[number] if found is None else min(found, stable[number]) for number, found in at.items()}


def _require_kept(cluster: Cluster, topic: Topic, begins: Mapping[int, int], first: Ends) -> None:
    """Require that the broker, whose first offsets these are, has what begins at others. Raises Misconfigured."""
    last = cluster.ends(topic.name, topic.partitions, is_committed=False)
    for number, begin in sorted(begins.items()):
        if last[number] < begin:
            raise Misconfigured.of("sources.kafka_offsets_went_back", topic=topic.name, partition=number, begin=begin)
        if first[number] > begin:
            raise Misconfigured.of(
                "sources.kafka_offsets_dropped",
                topic=topic.name,
                partition=number,
                begin=begin,
                first=first[number],
                retention=topic.settings.get("retention.ms", "unknown"),
                size=topic.settings.get("retention.bytes", "unknown"),
            )


def _splits(ctx: ResolveContext, position: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Divide the offsets of an epoch's position among the subtasks, about equally many to each."""
    options, begins, ends = ctx.options, _ends_in(position, "begins"), _ends_in(position, "ends")
    more = {name: options[name] for name in ("conn_id", "topic", "schema", "avro", "on_malformed") if options.get(name)}
    return [
        {**more, "reads": _told(options["topic"], ranges), "topic_id": position["topic_id"], "ranges": ranges}
        for ranges in divided({number: (begins[number], end) for number, end in ends.items()}, ctx.parallelism)
    ]


def divided(ranges: Mapping[int, tuple[int, int]], parallelism: int) -> list[list[list[int]]]:
    """Cut ranges of offsets into `parallelism` shares of about equal length, in the order of partitions."""
    total = sum(end - begin for begin, end in ranges.values())
    cuts = [total * each // parallelism for each in range(parallelism + 1)]
    found: list[list[list[int]]] = [[] for _ in range(parallelism)]
    before = 0
    for number, (begin, end) in sorted(ranges.items()):
        for share in range(parallelism):
            low, high = max(cuts[share] - before, 0), min(cuts[share + 1] - before, end - begin)
            if low < high:
                found[share].append([number, begin + low, begin + high])
        before += end - begin
    return found


def _told(topic: str, ranges: Sequence[Sequence[int]]) -> str:
    listed = ", ".join(f"{number}: {begin} to {end}" for number, begin, end in ranges)
    return f"topic {topic}, offsets of partitions {listed}" if listed else f"nothing of topic {topic}"


def _numbered(offsets: Ends) -> dict[str, int]:
    return {str(number): offset for number, offset in offsets.items()}


def _ends_in(position: Mapping[str, Any], name: str) -> Ends:
    return {int(number): int(offset) for number, offset in position[name].items()}


def _columns(split: Mapping[str, Any]) -> str:
    value = f"struct<{_ddl(split['schema'])}>" if split.get("schema") else "binary"
    corrupt = f", {CORRUPT} binary" if split.get("on_malformed") else ""
    return (
        f"key binary, value {value}, headers array<struct<key: string, value: binary>>, partition int, `offset` bigint,"
        f" timestamp timestamp{corrupt}"
    )


def _ddl(schema: str) -> str:
    fields = declared_fields(schema)
    return ", ".join(f"`{name.replace('`', '``')}`: {each.kind}" for name, each in fields.items())
