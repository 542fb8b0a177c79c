"""Records of Kafka as columns, with values of declared types: each is what the text says, or the record is malformed.

Invariant: a value is never made another one to fit its column, and a malformed record is never a row of nulls.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final, TypedDict

import msgspec
import pyarrow as pa

from weir.dataflow.state_schema import Fields, Kind, declared_fields, spark_json
from weir.errors import Misconfigured
from weir.state.spark_schema import arrow_schema
from weir_spark.sources import kafka_avro

if TYPE_CHECKING:
    from weir.kafka.cluster import Record

_BITS: Final = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
_PLAIN: Final[Mapping[str, Any]] = {
    "string": str,
    "boolean": bool,
    "float": Annotated[float, msgspec.Meta(ge=-3.4028234663852886e38, le=3.4028234663852886e38)],
    "double": float,
    "date": date,
    "binary": bytes,
    "timestamp": Annotated[datetime, msgspec.Meta(tz=True)],
    "timestamp_ntz": Annotated[datetime, msgspec.Meta(tz=False)],
}
_TIMES: Final = ("timestamp", "timestamp_ntz")
_FINE: Final = re.compile(rb":\d\d\.\d{6}0*[1-9]")
"""A time with more than the six places that a column has, or a text like it."""

_SIX_PLACES: Final = Annotated[str, msgspec.Meta(pattern=r"^[^.]*(\.\d{1,6}0*([^\d].*)?)?$")]

_MALFORMED: Final = (msgspec.DecodeError, UnicodeDecodeError)
"""What a decoder raises for a value that is not as declared; msgspec's errors of types are DecodeErrors, too."""

_UNFIT: Final = (pa.ArrowInvalid, OverflowError, ValueError)
"""What Arrow raises for a value with more digits than its column."""

_HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_AT_ONCE: Final = 10_000


def tables_of(records: Iterator[Record], split: Mapping[str, Any], corrupt: str) -> Iterator[pa.Table]:
    """Yield records as columns, some at a time; first a table without rows.

    Values that are malformed are null, and kept in the column `corrupt`; where that is empty, they raise Misconfigured.
    """
    rows = _Rows(split, corrupt)
    yield rows.table([])
    while some := list(islice(records, _AT_ONCE)):
        yield rows.table(some)


class _Rows:
    """Makes columns of records."""

    def __init__(self, split: Mapping[str, Any], corrupt: str) -> None:
        self._topic, self._corrupt = str(split["topic"]), corrupt
        self._decode: Callable[[bytes], Any] | None = None
        self._type: pa.DataType = pa.binary()
        if split.get("schema"):
            fields, avro = declared_fields(split["schema"]), str(split.get("avro") or "")
            self._decode = kafka_avro.decoder_of(avro) if avro else decoder_of(fields)
            self._type = arrow_type(fields)
        self._has_maps = "map<" in str(self._type)

    def table(self, records: Sequence[Record]) -> pa.Table:
        """Return records as columns. Raises Misconfigured for a malformed value, with its position."""
        times = pa.array([_milliseconds(each) for each in records], pa.timestamp("ms", "UTC"))
        headers = [[{"key": key, "value": value} for key, value in each.headers() or ()] for each in records]
        values, corrupt = self._parsed(records)
        columns = {
            "key": pa.array([each.key() for each in records], pa.binary()),
            "value": values,
            "headers": pa.array(headers, _HEADERS),
            "partition": pa.array([each.partition() for each in records], pa.int32()),
            "offset": pa.array([each.offset() for each in records], pa.int64()),
            "timestamp": times.cast(pa.timestamp("us", "UTC")),
        }
        if self._corrupt:
            columns[self._corrupt] = pa.array(corrupt, pa.binary())
        return pa.table(columns)

    def _parsed(self, records: Sequence[Record]) -> tuple[pa.Array, list[bytes | None]]:
        found = [self._one(record.value()) for record in records]
        try:
            values = pa.array([value for value, _ in found], self._type)
        except _UNFIT:
            found = [self._fitting(*each) for each in found]
            values = pa.array([value for value, _ in found], self._type)
        corrupt: list[bytes | None] = []
        for record, (_, problem) in zip(records, found, strict=True):
            if problem is not None and not self._corrupt:
                raise Misconfigured.of(
                    "sources.kafka_malformed",
                    topic=self._topic,
                    partition=record.partition(),
                    offset=record.offset(),
                    problem=problem,
                )
            corrupt.append(None if problem is None else record.value())
        return values, corrupt

    def _one(self, text: bytes | None) -> tuple[Any, str | None]:
        """Return a value, and what is wrong with it; a tombstone has the value None."""
        if self._decode is None or text is None:
            return text, None
        try:
            value = self._decode(text)
        except _MALFORMED as error:
            return None, str(error)
        return (with_pairs(value, self._type) if self._has_maps else value), None

    def _fitting(self, value: Any, problem: str | None) -> tuple[Any, str | None]:
        try:
            pa.scalar(value, self._type)
        except _UNFIT as error:
            return None, str(error)
        return value, problem


def _milliseconds(record: Record) -> int | None:
    kind, milliseconds = record.timestamp()
    return milliseconds if kind else None


def decoder_of(fields: Fields) -> Callable[[bytes], Any]:
    """Return what makes a dictionary of a value: fields that it lacks are left out, those that nobody asks for, too."""
    kinds = {name: each.kind for name, each in fields.items()}
    decode = msgspec.json.Decoder(_object(kinds)).decode
    require_places = msgspec.json.Decoder(_object(kinds, times=_SIX_PLACES)).decode

    def decoded(text: bytes) -> Any:
        value = decode(text)
        if _FINE.search(text):  # msgspec would round it
            require_places(text)
        return value

    return decoded


def arrow_type(fields: Fields) -> pa.DataType:
    """Return the type of decoded values."""
    return pa.struct(list(arrow_schema(spark_json(fields))))


def with_pairs(value: Any, kind: pa.DataType) -> Any:
    """Return a decoded value as Arrow takes it: a map is a list of pairs."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {field.name: with_pairs(value.get(field.name), field.type) for field in kind}
    if pa.types.is_map(kind):
        return [(key, with_pairs(each, kind.item_type)) for key, each in value.items()]
    if pa.types.is_list(kind):
        return [with_pairs(each, kind.value_type) for each in value]
    return value


def _object(kinds: Mapping[str, Kind], times: Any = None) -> Any:
    return TypedDict("Value", {name: _python(kind, times) | None for name, kind in kinds.items()}, total=False)  # type: ignore[operator]


def _python(kind: Kind, times: Any) -> Any:
    parts, name = dict(kind.parts), kind.name
    if name == "struct":
        return _object(parts, times)
    if name == "array":
        return list[_python(parts["element"], times) | None]  # type: ignore[misc]  # types that are made here
    if name == "map":
        return dict[str, _python(parts["value"], times) | None]  # type: ignore[misc]
    if name in _BITS:
        most = 2 ** (_BITS[name] - 1)
        return Annotated[int, msgspec.Meta(ge=-most, le=most - 1)]
    if times is not None and name in _TIMES:
        return times
    return Decimal if name.startswith("decimal") else _PLAIN[name]
