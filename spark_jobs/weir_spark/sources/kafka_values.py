"""Values of records of Kafka in JSON, by declared columns: each is what the text says, or the record is malformed.

Invariant: a value is never made another one to fit its column, and a malformed record is never a row of nulls.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any, Final, TypedDict

import msgspec
import pyarrow as pa

from weir.dataflow.state_schema import Fields, Kind, spark_json
from weir.state.spark_schema import arrow_schema

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

MALFORMED: Final = (msgspec.DecodeError, UnicodeDecodeError)
"""What a decoder raises for a value that is not as declared; msgspec's errors of types are DecodeErrors, too."""


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
