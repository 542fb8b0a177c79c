"""Rows of a version as records of Kafka, and their keys in a temporary database on disk.

Invariant: what JSON cannot tell exactly is refused here by the name of the column; equal keys have equal bytes, and a
key is known by 16 bytes of its BLAKE2 digest. Memory does not grow with the number of keys.
"""

from __future__ import annotations

import json
import math
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from weir.errors import Misconfigured
from weir.kafka.cluster import Record
from weir.sinks.protocol import Version
from weir.sinks.rows import jsonable

EPOCH: Final = "weir.epoch"
NUMBER: Final = "weir.version"
OWNER: Final = "weir.sink"
"""The headers of each record."""

OVERHEAD: Final = 160
"""Bytes of a batch with one record besides its key, value and headers, at most."""

Markers = dict[tuple[str, str], dict[str, Any]]
"""The markers of a topic, by sink and epoch."""

_TYPES: Final = frozenset(
    {
        *("byte", "short", "integer", "long", "float", "double", "string", "boolean", "date", "binary"),
        *("timestamp", "timestamp_ntz"),
    }
)
_INEXACT_KEYS: Final = frozenset({"float", "double"})
_NOT_FINITE: Final = {math.inf: "Infinity", -math.inf: "-Infinity"}

_encode = msgspec.json.Encoder().encode


class Records:
    """Makes records of rows, which have these columns in the key and in the value. Raises Misconfigured."""

    def __init__(self, topic: str, spark_schema: str, key: Sequence[str], value: Sequence[str]) -> None:
        self._topic = topic
        kinds = {each["name"]: each["type"] for each in json.loads(spark_schema)["fields"]}
        self._key, self._value = list(key), list(value) or list(kinds)
        missing = [name for name in (*self._key, *self._value) if name not in kinds]
        if missing:
            raise Misconfigured.of("sinks.kafka_column_missing", topic=topic, missing=missing, names=list(kinds))
        for name in dict.fromkeys([*self._key, *self._value]):
            _require_kind(topic, name, kinds[name])
        for name in self._key:
            if kinds[name] in _INEXACT_KEYS or not _is_plain(kinds[name]):
                raise Misconfigured.of("sinks.kafka_key_type", topic=topic, name=name, kind=kinds[name])
        self._is_raw = len(self._key) == 1 and _base(kinds[self._key[0]]) in ("string", "binary")

    @property
    def columns(self) -> list[str]:
        """The columns that are read."""
        return list(dict.fromkeys([*self._key, *self._value]))

    def of(self, batch: pa.RecordBatch) -> Iterator[tuple[bytes | None, bytes]]:
        """Yield the keys and values of rows; a key is None where the sink has none, or the row has none."""
        try:
            columns = {name: _values(batch.column(name)) for name in self.columns}
        except (ValueError, OverflowError, pa.ArrowInvalid) as error:
            raise Misconfigured.of("sinks.kafka_value_unfit", topic=self._topic, error=error) from error
        keys = self._keys(columns, len(batch))
        names = self._value
        for key, values in zip(keys, zip(*(columns[name] for name in names), strict=True), strict=True):
            yield key, _encode(dict(zip(names, values, strict=True)))

    def _keys(self, columns: dict[str, list[Any]], rows: int) -> Iterator[bytes | None]:
        if not self._key:
            yield from (None for _ in range(rows))
        elif self._is_raw:
            for found in columns[self._key[0]]:
                yield found.encode() if isinstance(found, str) else found
        else:
            for values in zip(*(columns[name] for name in self._key), strict=True):
                is_empty = all(each is None for each in values)
                yield None if is_empty else _encode(dict(zip(self._key, values, strict=True)))

    def has_null_key(self, batch: pa.RecordBatch) -> str | None:
        """Return the column of the key that has a null, if one has."""
        return next((name for name in self._key if batch.column(name).null_count), None)


def headers_of(version: Version) -> list[tuple[str, bytes]]:
    """Return the headers of each record of a version."""
    number = str(version.number).encode()
    return [(EPOCH, version.epoch.encode()), (NUMBER, number), (OWNER, version.owner.encode())]


def written(records: Iterable[Record], owner: str) -> Iterator[tuple[bytes, str | None, int]]:
    """Yield key and partition of records, and the epoch of those of a sink that are no tombstones."""
    for record in records:
        key, found = record.key(), dict(record.headers() or ())
        epoch = found.get(EPOCH)
        is_ours = epoch is not None and found.get(OWNER) == owner.encode() and record.value() is not None
        if key is not None:
            yield key, epoch.decode() if is_ours and epoch is not None else None, record.partition()


def marker_key(owner: str, epoch: str) -> bytes:
    """Return the key of a marker."""
    return json.dumps({"sink": owner, "epoch": epoch}).encode()


def markers_in(records: Iterable[Record]) -> Markers:
    """Return the markers that records are: the last of each key."""
    found: Markers = {}
    for record in records:
        key, value = record.key(), record.value()
        if key is not None and value is not None:
            named = json.loads(key)
            found[named["sink"], named["epoch"]] = json.loads(value)
    return found


def _base(kind: Any) -> Any:
    """Return a type without the length or collation of a text."""
    return "string" if isinstance(kind, str) and kind.startswith(("char(", "varchar(", "string ")) else kind


def _is_plain(kind: Any) -> bool:
    found = _base(kind)
    return isinstance(found, str) and (found in _TYPES or found.startswith("decimal("))


def _require_kind(topic: str, column: str, kind: Any) -> None:
    if _is_plain(kind):
        return
    inner = {"array": ("elementType",), "map": ("keyType", "valueType")}
    if isinstance(kind, dict) and kind.get("type") in inner:
        for part in inner[kind["type"]]:
            _require_kind(topic, column, kind[part])
        return
    if isinstance(kind, dict) and kind.get("type") == "struct":
        for field in kind["fields"]:
            _require_kind(topic, column, field["type"])
        return
    raise Misconfigured.of("sinks.kafka_type_missing", topic=topic, column=column, kind=kind)


def _values(values: pa.Array) -> list[Any]:
    """Return values as msgspec encodes them."""
    kind = values.type
    if pa.types.is_floating(kind):
        if pc.all(pc.is_finite(values)).as_py() is not False:
            return list(values.to_pylist())
    elif not pa.types.is_nested(kind) and not pa.types.is_binary(kind) and not pa.types.is_large_binary(kind):
        return list(values.to_pylist())
    return [jsonable(each, kind, _leaf) for each in values.to_pylist()]


def _leaf(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return _NOT_FINITE.get(value, "NaN")
    return value


_AT_ONCE: Final = 10_000


class Keys:
    """Keys that are there, each with the epoch that has written it last, and the partition in which it is."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        database.execute(
            "create table keys (digest blob primary key, epoch text, key blob, partition int) without rowid"
        )

    def first_twice(self, keys: Iterable[bytes]) -> bytes | None:
        """Return the first of these keys that comes a second time, if one does."""
        left = iter(keys)
        while chunk := list(islice(left, _AT_ONCE)):
            for key in chunk:
                try:
                    self._database.execute("insert into keys (digest) values (?)", (_digest(key),))
                except sqlite3.IntegrityError:
                    return key
        return None

    def note(self, found: Iterable[tuple[bytes, str | None, int]]) -> None:
        """Take over the last epoch of each key, in the order of a topic; None for a key that nobody has any more."""
        for key, epoch, partition in found:
            if epoch is None:
                self._database.execute("delete from keys where digest = ?", (_digest(key),))
            else:
                row = (_digest(key), epoch, key, partition)
                self._database.execute("insert or replace into keys values (?, ?, ?, ?)", row)

    def take(self, key: bytes) -> str | None:
        """Return the epoch that has written a key last, None if none has, and forget the key."""
        digest = _digest(key)
        found = self._database.execute("select epoch from keys where digest = ?", (digest,)).fetchone()
        self._database.execute("delete from keys where digest = ?", (digest,))
        return None if found is None else str(found[0])

    def left_of(self, epoch: str) -> Iterator[tuple[bytes, int]]:
        """Yield the keys that an epoch has written last and that were not taken, each with its partition."""
        yield from self._database.execute("select key, partition from keys where epoch = ?", (epoch,))


@contextmanager
def open_keys() -> Iterator[Keys]:
    """Make an empty database, in a temporary folder that goes at the end."""
    with (
        tempfile.TemporaryDirectory(prefix="weir-keys-") as folder,
        closing(sqlite3.connect(Path(folder) / "keys", isolation_level=None)) as database,
    ):
        database.execute("pragma journal_mode = off")
        database.execute("pragma synchronous = off")
        database.execute("begin")
        yield Keys(database)


def _digest(key: bytes) -> bytes:
    return blake2b(key, digest_size=16).digest()
