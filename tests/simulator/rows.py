"""Rows of keyed state, small enough that a file of them is as long as any other file of a simulation.

Invariant: a file tells of each key whether it was left alone, deleted, or given which value; and whether it is whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Final

from weir.formats.manifest import ContentDigest, UpdateDigest

KEYS: Final = (3, 24, 45, 66, 87, 108, 126)
"""There is one key in each of these key groups, which are spread over all 128 of them."""

BAD: Final = "bad"
"""The prefix of the content of bad rows, and of no other."""

LEFT_ALONE: Final = "." * 8
DELETED: Final = "-" * 8

Rows = Mapping[int, str]
"""By key, eight hexadecimal digits: the day of the last update, and six of the value."""
Changes = Mapping[int, str]
"""By key, a new row or DELETED."""


def packed(changes: Changes) -> str:
    """Write rows or changes as text of 64 characters, of which the last eight tell whether the others are whole."""
    text = "".join(changes.get(key, LEFT_ALONE) for key in KEYS)
    return text + _sum_of(text)


def unpacked(text: str) -> dict[int, str]:
    """Read what `packed` wrote. Raises ValueError, as Spark does where a page's checksum is another one."""
    body, found = text[:-8], text[-8:]
    if len(text) != 64 or found != _sum_of(body):
        raise ValueError("the checksum of a page is another one")
    rows = {key: body[8 * at : 8 * at + 8] for at, key in enumerate(KEYS)}
    return {key: row for key, row in rows.items() if row != LEFT_ALONE}


def _sum_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def within(rows: Rows, groups: tuple[int, int]) -> dict[int, str]:
    """Return the rows of an inclusive range of key groups."""
    return {key: row for key, row in rows.items() if groups[0] <= key <= groups[1]}


def applied(rows: Rows, changes: Changes) -> dict[int, str]:
    """Return the rows after changes."""
    found = {**rows, **changes}
    return {key: found[key] for key in sorted(found) if found[key] != DELETED}


def visible(rows: Rows, expired_until: int | None) -> dict[int, str]:
    """Return the rows that have not expired."""
    return {key: row for key, row in rows.items() if expired_until is None or updated_at(row) > expired_until}


def updated_at(row: str) -> int:
    """Return the time of a row's last update, in seconds since 1970."""
    return start_of(int(row[:2], 16))


def start_of(day: int) -> int:
    """Return the begin of a day of January 2013, in seconds since 1970."""
    return int(datetime(2013, 1, day, tzinfo=UTC).timestamp())


def changes_of(content: str, rows: Rows | None, groups: tuple[int, int], day: int) -> dict[int, str]:
    """Return the changes that a stage with `content` makes to its state: it leaves, updates, or deletes a key.

    Without `rows` the changes are blind: a key is deleted whether it is there or not.
    """
    found = {}
    for key in KEYS:
        digits = hashlib.sha256(f"{content} {key}".encode()).hexdigest()
        if not groups[0] <= key <= groups[1] or digits[0] in "01234567":
            continue
        if digits[0] in "89abcd":
            found[key] = f"{day:02x}{digits[1:7]}"
        elif rows is None or key in rows:
            found[key] = DELETED
    return found


def content_from(text: str, *, is_bad: bool = False) -> str:
    """Return the content for a text: 64 hexadecimal digits, of which the first shows whether rows are bad."""
    digits = hashlib.sha256(text.encode()).hexdigest()
    return f"{BAD if is_bad else 'a'}{digits}"[:64]


def is_bad(content: str) -> bool:
    """Report whether a content is that of bad rows."""
    return content.startswith(BAD)


def content_of_rows(rows: Rows, *, is_open: bool = False) -> str:
    """Return the content of a state as an input of its stage; it does not show whether rows of the state are bad.

    One that `is_open` shows the rows to its stage.
    """
    return packed(rows) if is_open else content_from(packed(rows))


def tallies_of(rows: Rows, *, has_end: bool) -> tuple[UpdateDigest, ...]:
    """Return the update digests of live rows, by last update if the rows expire."""
    groups: dict[int, list[int]] = {}
    for key, row in rows.items():
        groups.setdefault(updated_at(row) if has_end else 0, []).append(_hash_of(key, row))
    return tuple(
        UpdateDigest(updated, len(hashes), _xor(hashes), sum(each & 0xFFFF for each in hashes), 0)
        for updated, hashes in sorted(groups.items())
    )


def deleted_of(keys: Iterable[int]) -> tuple[UpdateDigest, ...]:
    """Return the update digests of deleted keys."""
    hashes = [_hash_of(key, DELETED) for key in keys]
    return (UpdateDigest(0, len(hashes), _xor(hashes), sum(each & 0xFFFF for each in hashes), 0),) if hashes else ()


def digest_of(tallies: Iterable[UpdateDigest]) -> ContentDigest:
    """Return the digest of all rows of some update digests."""
    listed = list(tallies)
    return ContentDigest(
        schema="state",
        rows=sum(each.rows for each in listed),
        xor=_xor(each.xor for each in listed),
        low_sum=sum(each.low_sum for each in listed),
        high_sum=sum(each.high_sum for each in listed),
    )


def _hash_of(key: int, row: str) -> int:
    return int(hashlib.sha256(f"{key} {row}".encode()).hexdigest()[:15], 16)


def _xor(hashes: Iterable[int]) -> int:
    found = 0
    for each in hashes:
        found ^= each
    return found
