"""The hash of a key without Spark. Invariant: it equals Spark's `hash(...)` of the key columns in canonical types.

Spark's `hash` is Murmur3_x86_32 with seed 42, chained over the columns; a null leaves the hash as it is. It differs
from the published Murmur3: each tail byte is mixed by itself, as a signed integer (`hashUnsafeBytes`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

from weir.dataflow.key_types import canonical_type
from weir.errors import Misconfigured

SEED = 42
_MASK = 0xFFFFFFFF

Key = tuple[str, Any]
"""A column's Spark type and its value: int, bool, date, datetime, bytes, str or None."""


def key_hash(values: Sequence[Key]) -> int:
    """Return what Spark's `hash` returns for these columns cast to their canonical types: a signed 32-bit integer."""
    hashed = SEED
    for spark_type, value in values:
        if value is not None:
            hashed = _HASHES[canonical_type(spark_type)](value, hashed)
    return hashed - (1 << 32) if hashed >> 31 else hashed


def key_group(values: Sequence[Key], max_parallelism: int) -> int:
    """Return the key group of a key: `pmod(hash, max_parallelism)`."""
    return key_hash(values) % max_parallelism


def _mix_word(hashed: int, word: int) -> int:
    word = (word * 0xCC9E2D51) & _MASK
    word = ((word << 15) | (word >> 17)) & _MASK
    hashed ^= (word * 0x1B873593) & _MASK
    hashed = ((hashed << 13) | (hashed >> 19)) & _MASK
    return (hashed * 5 + 0xE6546B64) & _MASK


def _finish(hashed: int, length: int) -> int:
    hashed ^= length
    hashed ^= hashed >> 16
    hashed = (hashed * 0x85EBCA6B) & _MASK
    hashed ^= hashed >> 13
    hashed = (hashed * 0xC2B2AE35) & _MASK
    return hashed ^ (hashed >> 16)


def _hash_int(value: int, seed: int) -> int:
    return _finish(_mix_word(seed, value & _MASK), 4)


def _hash_long(value: int, seed: int) -> int:
    return _finish(_mix_word(_mix_word(seed, value & _MASK), (value >> 32) & _MASK), 8)


def _hash_bytes(value: bytes, seed: int) -> int:
    hashed = seed
    aligned = len(value) - len(value) % 4
    for offset in range(0, aligned, 4):
        hashed = _mix_word(hashed, int.from_bytes(value[offset : offset + 4], "little"))
    for byte in value[aligned:]:
        hashed = _mix_word(hashed, (byte - 256 if byte > 127 else byte) & _MASK)
    return _finish(hashed, len(value))


def _hash_text(value: str, seed: int) -> int:
    return _hash_bytes(value.encode(), seed)


def _hash_date(value: date, seed: int) -> int:
    return _hash_int((value - date(1970, 1, 1)).days, seed)


def _hash_timestamp(value: datetime, seed: int) -> int:
    if value.tzinfo is None:
        raise Misconfigured.of("topology.timestamp_without_zone", value=value)
    return _hash_long((value - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1), seed)


def _hash_timestamp_ntz(value: datetime, seed: int) -> int:
    if value.tzinfo is not None:
        raise Misconfigured.of("topology.timestamp_with_zone", value=value)
    return _hash_timestamp(value.replace(tzinfo=UTC), seed)


_HASHES: dict[str, Callable[[Any, int], int]] = {
    "bigint": _hash_long,
    "boolean": _hash_int,
    "date": _hash_date,
    "timestamp": _hash_timestamp,
    "timestamp_ntz": _hash_timestamp_ntz,
    "binary": _hash_bytes,
    "string": _hash_text,
}
