"""Targets of sinks: where a data set is published besides its pointer. Data only: nothing is imported or reached here.

Invariant: a target that was made has options that are JSON values and no secrets; accounts are Airflow connections.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from weir.dataflow.arguments import (
    answers,
    column_names,
    require,
    require_connection,
    require_delta_path,
    shown,
)
from weir.errors import Misconfigured
from weir.secrecy import secrets_in
from weir.typed_json import AsJson

MODES = ("replace_epoch", "upsert", "append")
KAFKA_MODES = ("append", "upsert")

MARKER_TOPIC = "weir-published-"
"""How the name of the topic begins that has the markers of another one, whose name follows."""

LONGEST_NAME = 63
"""The bytes of a name that PostgreSQL keeps: longer ones are cut, so that two may become one."""

COPIED = ("files", "delta", "iceberg")
"""The kinds of which readers get the store's own files, with all columns that these have."""

_TAKING_BACK = ("files", "files_on_s3", "postgres", "delta", "iceberg")

_LONGEST_NAMES = {"files": 255 - len("..versions")}
"""In bytes, where they are less than the 255 of file systems: the folder of versions has a longer name."""

_SLASHES = re.compile("/+")
_TOPIC = re.compile(rf"(?!\.{{1,2}}\Z)[\w.-]{{1,{249 - len(MARKER_TOPIC)}}}", re.ASCII)
_S3 = re.compile(r"s3://[a-z0-9.-]+(/[\w.=+-]+)+/?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Target(AsJson):
    """A target by its kind ("files", "postgres", "kafka", or a user's "module:Class", for example), and its options."""

    kind: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        try:
            options = json.loads(json.dumps(dict(self.options), allow_nan=False))
        except (TypeError, ValueError) as error:
            raise Misconfigured.of("dataflow.target_options_not_json", kind=self.kind, error=error) from error
        secret = next(secrets_in("its options", options), None)
        if secret is not None:
            raise Misconfigured.of("dataflow.target_options_have_secret", kind=self.kind, secret=secret)
        object.__setattr__(self, "options", options)

    @property
    def only_appends(self) -> bool:
        """Report whether it refuses other content of an epoch that it has; one of a user by this option, too."""
        return self.options.get("mode") == "append"

    @property
    def takes_back(self) -> bool:
        """Report whether an epoch's rows can be taken out again, and those before put back."""
        return self.kind in _TAKING_BACK and self.options.get("mode", "replace_epoch") == "replace_epoch"

    def __str__(self) -> str:
        """Name it for people, such as `postgres reports.delays`."""
        place = next((self.options[each] for each in ("table", "path", "topic") if each in self.options), "")
        return f"{self.kind} {place}".strip()


@answers()
def files(path: str, *, partition: str = "epoch", conn_id: str = "") -> Target:
    """Publish as Parquet files in folders `<partition>=<epoch>`, one an epoch; no column may be named `partition`.

    `path` is an absolute path of a local folder, on a disk that all workers share, or "s3://bucket/folder"; `conn_id`
    is that of `delta`. DuckDB, pandas and plain Spark read it by its path. The epoch is its day where epochs begin at
    midnight in UTC, else its time. An epoch is replaced at once: a local folder by a rename, on S3 its one object.
    """
    is_local = _require_path("files", path, conn_id)
    if not isinstance(partition, str) or not partition.isidentifier():
        raise Misconfigured.of("dataflow.files_partition_malformed", path=path, partition=partition)
    options = {"path": _plain(path), "partition": partition}
    return Target("files", options) if is_local else Target("files_on_s3", {**options, "conn_id": conn_id})


@answers({"keys": "key", "by": "key", "on": "key", "conn": "conn_id", "connection": "conn_id"})
def postgres(
    conn_id: str,
    table: str,
    *,
    mode: str = "replace_epoch",
    key: str | Sequence[str] = (),
    create: str = "never",
) -> Target:
    """Publish into a table of PostgreSQL, by COPY and a marker in one transaction.

    `conn_id` is an Airflow connection of type postgres, `table` a name such as "reports.delays", as it is: capitals are
    kept, and there are no quotes. Every row gets its epoch in the column `_epoch`.
    `mode="replace_epoch"` replaces the epoch's rows. `mode="append"` only adds rows: an epoch that is published again
    with other content is refused. `mode="upsert"` replaces rows of equal `key`: the last epoch wins, and a row whose
    key vanished from the data set STAYS in the table. A row that was there before with such a key is taken over. The
    table needs a unique index on `key`, and no key is null.
    `create="if_missing"` creates the table and adds columns that are missing; "never" requires them.
    """
    keys = column_names(f"postgres({table!r})", "key", key)
    require_connection(f"postgres({shown(table)})", conn_id, "postgres")
    _require_name("postgres", "table", table)
    if mode not in MODES:
        raise Misconfigured.of("dataflow.postgres_mode_unknown", table=table, mode=mode, modes=MODES)
    if (mode == "upsert") != bool(keys):
        raise Misconfigured.of("dataflow.upsert_needs_key", table=table)
    if create not in ("never", "if_missing"):
        raise Misconfigured.of("dataflow.postgres_create_unknown", table=table, create=create)
    if table.count(".") > 1 or not all(table.split(".")):
        raise Misconfigured.of("dataflow.postgres_table_malformed", table=table)
    for name in (*table.split("."), *keys):
        if len(name.encode()) > LONGEST_NAME or "\0" in name or (name not in keys and '"' in name):
            raise Misconfigured.of("dataflow.postgres_name_too_long", table=table, name=name, longest_name=LONGEST_NAME)
    options = {"conn_id": conn_id, "table": table, "mode": mode, "key": list(keys), "create": create}
    return Target("postgres", options)


@answers()
def delta(path: str, *, conn_id: str = "", partition: str = "_epoch", create: str = "never") -> Target:
    """Publish into a Delta Lake table, by adding the version's Parquet files to its log. Needs `weir[delta]`.

    `path` is the table's root: an absolute path of a local folder, on a disk that all workers share, or
    "s3://bucket/folder". `conn_id` is an Airflow connection of type aws; without it, S3 is asked with what the
    environment of Airflow's tasks gives (AWS_ACCESS_KEY_ID and its like). The table is partitioned by the text column
    `partition`, which holds the epoch; all rows of an epoch are replaced in one commit.
    `create="if_missing"` creates the table, adds columns and widens them; "never" requires them.
    """
    _require_path("delta", path, conn_id)
    require_delta_path("delta", path)
    if not isinstance(partition, str) or not partition.isidentifier() or not partition.isascii():
        raise Misconfigured.of("dataflow.delta_partition_malformed", path=path, partition=partition)
    if create not in ("never", "if_missing"):
        raise Misconfigured.of("dataflow.delta_create_unknown", path=path, create=create)
    options = {"path": _plain(path), "conn_id": conn_id, "partition": partition, "create": create}
    return Target("delta", options)


@answers()
def iceberg(table: str, *, create: str = "never") -> Target:
    """Publish into a table of Apache Iceberg: one snapshot takes an epoch's files out and puts the new ones in.

    `table` is "connection.namespace.table": the id of an Airflow connection of type iceberg, then the table's name in
    that catalog, whose namespace may have several parts. Rows of others stay. Needs `weir[iceberg]`.
    `create="if_missing"` creates namespace and table, and adds columns and widens their types; "never" requires them.
    """
    _require_name("iceberg", "table", table)
    conn_id, _, name = table.partition(".")
    if not conn_id or name.count(".") < 1 or not all(name.split(".")):
        raise Misconfigured.of("dataflow.iceberg_target_malformed", table=table)
    if create not in ("never", "if_missing"):
        raise Misconfigured.of("dataflow.iceberg_create_unknown", table=table, create=create)
    return Target("iceberg", {"conn_id": conn_id, "table": name, "create": create})


@answers({"keys": "key", "by": "key", "values": "value", "columns": "value", "conn": "conn_id"})
def kafka(
    conn_id: str,
    *,
    topic: str,
    key: str | Sequence[str] = (),
    value: str | Sequence[str] = (),
    mode: str = "append",
) -> Target:
    """Publish into a topic of Kafka: the records of an epoch and its marker are one transaction. Needs `weir[kafka]`.

    `conn_id` is an Airflow connection of type kafka. Readers with isolation.level=read_committed see each epoch once,
    whole. A record's value is a JSON object of the columns `value`, by default all; its key has the columns `key`.
    `mode="append"` only adds records: an epoch that is published again with other content is refused. `mode="upsert"`
    is for a compacted topic: a record replaces that of its key, unless a later epoch has written it, and a key that has
    vanished from the epoch gets a tombstone. The topic has to be there; it belongs to one sink, and others may write
    into it.
    """
    where = f"kafka(topic={shown(topic)})"
    keys, values = column_names(where, "key", key), column_names(where, "value", value)
    require_connection(where, conn_id, "kafka")
    _require_name("kafka", "topic", topic)
    if not _TOPIC.fullmatch(topic):
        raise Misconfigured.of("dataflow.kafka_topic_malformed", topic=topic, longest=249 - len(MARKER_TOPIC))
    if mode not in KAFKA_MODES:
        raise Misconfigured.of("dataflow.kafka_mode_unknown", topic=topic, mode=mode, modes=KAFKA_MODES)
    if mode == "upsert" and not keys:
        raise Misconfigured.of("dataflow.kafka_upsert_needs_key", topic=topic)
    options = {"conn_id": conn_id, "topic": topic, "key": list(keys), "value": list(values), "mode": mode}
    return Target("kafka", options)


def target(reference: str, **options: Any) -> Target:
    """Publish into a target of one's own: `reference` is "module:Class", a subclass of weir.sinks.SinkTarget.

    The class is imported by the closing task only, and gets the options, which are JSON values.
    """
    require("target", "reference", reference, str, '"module:Class", the name of a class that extends SinkTarget')
    module, _, name = reference.partition(":")
    if not module or not name.isidentifier():
        raise Misconfigured.of("dataflow.target_reference_malformed", reference=reference)
    return Target(reference, options)


def shared(sinks: Iterable[tuple[str, Target]]) -> Iterator[tuple[str, Target, str, Target]]:
    """Yield the pairs of sinks, each with its target, that publish into one table or folder, or one below the other.

    What options mean to a user's own target is not known.
    """
    seen: list[tuple[str, Target]] = []
    for name, target in sinks:
        if ":" in target.kind:
            continue
        for other_name, other in seen:
            if _is_shared(target, other):
                yield other_name, other, name, target
        seen.append((name, target))


def _is_shared(one: Target, other: Target) -> bool:
    if (one.options.get("conn_id") or "") != (other.options.get("conn_id") or ""):
        return False
    if "path" in one.options and "path" in other.options:
        first, second = (f"{each.options['path']}/" for each in (one, other))
        return first.startswith(second) or second.startswith(first)
    if one.kind == other.kind == "postgres":
        # Without its schema, a table may be that of any: the server knows, when versions are prepared.
        names = [str(each.options["table"]).split(".") for each in (one, other)]
        return names[0][-1] == names[1][-1] and (len(names[0]) != len(names[1]) or names[0] == names[1])
    return str(one) == str(other)


def _require_path(kind: str, path: str, conn_id: str) -> bool:
    """Require a local folder or one of S3; report whether it is local. Raises Misconfigured."""
    is_local = isinstance(path, str) and path.startswith("/") and bool(path.strip("/"))
    if not (is_local or (isinstance(path, str) and _S3.fullmatch(path))) or {".", ".."} & set(path.split("/")):
        raise Misconfigured.of("dataflow.target_path_malformed", kind=kind, path=path)
    longest = max(path.split("/"), key=lambda part: len(part.encode()))
    if is_local and len(longest.encode()) > _LONGEST_NAMES.get(kind, 255):
        raise Misconfigured.of("dataflow.target_path_too_long", kind=kind, longest=shown(longest))
    if not isinstance(conn_id, str) or (conn_id and is_local):
        raise Misconfigured.of("dataflow.target_conn_id_malformed", kind=kind, path=path, conn_id=conn_id)
    return is_local


def _plain(path: str) -> str:
    """Return the one spelling of a folder: without slashes at the end, or several in a row."""
    scheme, separator, rest = path.rpartition("://")
    return f"{scheme}{separator}{_SLASHES.sub('/', rest).rstrip('/')}"


def _require_name(kind: str, what: str, value: object) -> None:
    if not isinstance(value, str) or not value:
        raise Misconfigured.of("dataflow.text_empty", where=kind, what=what, value=value)
