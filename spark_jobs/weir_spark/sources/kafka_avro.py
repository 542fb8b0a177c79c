"""Values of records of Kafka in Avro, by the schema that wrote them: each is what the bytes say, or is malformed.

Invariant: all bytes of a value are read, and each of them as the specification has it. Libraries are more generous:
an index below zero counts from the end of a union there, and a decimal with too many digits is rounded.

Source: Avro 1.12's specification, "Binary Encoding".
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from decimal import Context, Decimal
from typing import Any, Final

import msgspec

from weir.dataflow.record_values import NULL, UNION, AvroType, avro_type

Reader = Callable[[bytes, int], tuple[Any, int]]
"""Reads a value at a place; returns it, and the place after it."""

_CONFLUENT: Final = b"\0"
_EXACT: Final = Context(prec=60)
_TIMES: Final = {
    "timestamp-millis": 1000,
    "local-timestamp-millis": 1000,
    "timestamp-micros": 1,
    "local-timestamp-micros": 1,
}
"""The microseconds of a unit."""


def decoder_of(schema: str) -> Callable[[bytes], Any]:
    """Return what makes a dictionary of a value. It raises msgspec.DecodeError for a malformed one."""
    read = _reader(avro_type(schema))

    def decoded(data: bytes) -> Any:
        try:
            value, end = read(data, 0)
            _require_end(data, end)
        except (ValueError, IndexError, struct.error) as error:
            registry = ", or begins with the id of a schema in a registry" if data[:1] == _CONFLUENT else ""
            raise msgspec.DecodeError(f"it is not in Avro by this schema ({error}){registry}") from error
        return value

    return decoded


def _require_end(data: bytes, at: int) -> None:
    if at != len(data):
        raise ValueError(f"{len(data) - at} bytes are left")


def _reader(kind: AvroType) -> Reader:
    if kind.name in _TIMES:
        return _scaled(_TIMES[kind.name])
    if kind.name in _LEAVES:
        return _LEAVES[kind.name]
    return _MADE[kind.name](kind)


def _integer(bits: int) -> Reader:
    def read(data: bytes, at: int) -> tuple[int, int]:
        found = shift = 0
        while True:
            byte = data[at]
            at += 1
            found |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        if found >> bits:
            raise ValueError(f"a number has more than {bits} bits")
        return (found >> 1) ^ -(found & 1), at

    return read


_int, _long = _integer(32), _integer(64)


def _boolean(data: bytes, at: int) -> tuple[bool, int]:
    if data[at] > 1:
        raise ValueError(f"a boolean is {data[at]}")
    return data[at] == 1, at + 1


def _null(_data: bytes, at: int) -> tuple[None, int]:
    return None, at


def _unpacked(form: str) -> Reader:
    size = struct.calcsize(form)
    return lambda data, at: (struct.unpack_from(form, data, at)[0], at + size)


def _bytes(data: bytes, at: int) -> tuple[bytes, int]:
    length, at = _long(data, at)
    return _piece(data, at, length)


def _piece(data: bytes, at: int, length: int) -> tuple[bytes, int]:
    if not 0 <= length <= len(data) - at:
        raise ValueError(f"{length} bytes at {at}")
    return data[at : at + length], at + length


def _string(data: bytes, at: int) -> tuple[str, int]:
    found, at = _bytes(data, at)
    return found.decode(), at


def _scaled(unit: int) -> Reader:
    def read(data: bytes, at: int) -> tuple[int, int]:
        found, at = _long(data, at)
        return found * unit, at

    return read


def _enum(kind: AvroType) -> Reader:
    def read(data: bytes, at: int) -> tuple[str, int]:
        index, at = _int(data, at)
        return kind.symbols[_in_range(index, len(kind.symbols))], at

    return read


def _in_range(index: int, length: int) -> int:
    if not 0 <= index < length:
        raise ValueError(f"index {index} of {length}")
    return index


def _fixed(kind: AvroType) -> Reader:
    return lambda data, at: _piece(data, at, kind.size)


def _decimal(kind: AvroType) -> Reader:
    read_bytes, most = _fixed(kind) if kind.size else _bytes, 10**kind.digits

    def read(data: bytes, at: int) -> tuple[Decimal, int]:
        found, at = read_bytes(data, at)
        unscaled = int.from_bytes(found, "big", signed=True)
        if abs(unscaled) >= most:
            raise ValueError(f"a decimal has more than {kind.digits} digits")
        return Decimal(unscaled).scaleb(-kind.scale, _EXACT), at

    return read


def _union(kind: AvroType) -> Reader:
    readers = [_reader(part) for _, part in kind.parts]

    def read(data: bytes, at: int) -> tuple[Any, int]:
        index, at = _long(data, at)
        return readers[_in_range(index, len(readers))](data, at)

    return read


def _record(kind: AvroType) -> Reader:
    readers = [(name, _reader(part)) for name, part in kind.parts]

    def read(data: bytes, at: int) -> tuple[dict[str, Any], int]:
        found = {}
        for name, reader in readers:
            found[name], at = reader(data, at)
        return found, at

    return read


def _items(item: Reader) -> Reader:
    """Read blocks of items, of which each takes a byte at least, so that no count makes it run on."""

    def read(data: bytes, at: int) -> tuple[list[Any], int]:
        found: list[Any] = []
        while True:
            count, at = _long(data, at)
            if count == 0:
                return found, at
            if count < 0:  # then the length of the block in bytes follows, for readers that pass over it
                count, (_, at) = -count, _long(data, at)
            for _ in range(count):
                value, at = item(data, at)
                found.append(value)

    return read


def _array(kind: AvroType) -> Reader:
    return _items(_reader(kind.parts[0][1]))


def _map(kind: AvroType) -> Reader:
    read_value = _reader(kind.parts[0][1])

    def entry(data: bytes, at: int) -> tuple[tuple[str, Any], int]:
        key, at = _string(data, at)
        value, at = read_value(data, at)
        return (key, value), at

    read_entries = _items(entry)

    def read(data: bytes, at: int) -> tuple[dict[str, Any], int]:
        found, at = read_entries(data, at)
        return dict(found), at

    return read


_LEAVES: Final[dict[str, Reader]] = {
    NULL: _null,
    "boolean": _boolean,
    "int": _int,
    "long": _long,
    "float": _unpacked("<f"),
    "double": _unpacked("<d"),
    "bytes": _bytes,
    "string": _string,
    "uuid": _string,
    "date": _int,
}
_MADE: Final[dict[str, Callable[[AvroType], Reader]]] = {
    "enum": _enum,
    "fixed": _fixed,
    "decimal": _decimal,
    UNION: _union,
    "array": _array,
    "map": _map,
    "record": _record,
}
