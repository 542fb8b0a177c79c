"""The digest of a keyed state whose old rows are not looked for, and the bounds of its number of rows.

Invariant: equal chains of a partition mean equal content. A chain is a hash of the digest that the epoch has read, of
the epoch and of what has expired in it, and of the sums of what was set and deleted. Unequal chains say nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence

from weir.formats.manifest import OF_CHAIN, ContentDigest, RowRange, StateFile, UpdateDigest, parsed_digest
from weir.state.file_rules import overlap
from weir.topology.ids import Digest, Epoch

_HALF = 64


def chain(
    schema: str,
    read: Digest,
    epoch: tuple[Epoch, int | None],
    more: Sequence[UpdateDigest],
    gone: Sequence[UpdateDigest],
) -> ContentDigest:
    """Return the digest of a partition that went on from `read`: `more` are the rows it set, `gone` the deleted keys.

    The epoch is given with the newest update that has expired in it (None: nothing expires).

    Its `rows` follow from the chain before alone, so that they are the same whenever the epoch is computed.
    """
    sums = [[[each.updated, each.rows, each.xor, each.low_sum, each.high_sum] for each in of] for of in (more, gone)]
    text = json.dumps([schema, read, epoch, sums])
    number = int.from_bytes(hashlib.sha256(text.encode()).digest())
    halves = [number >> shift & (2**_HALF - 1) for shift in (0, _HALF, 2 * _HALF)]
    rows = parsed_digest(read).rows + sum(each.rows for each in more)
    return ContentDigest(
        schema=schema, rows=rows, xor=halves[0], low_sum=halves[1], high_sum=halves[2], version=OF_CHAIN
    )


def rows_after(before: RowRange, upserted: int, deleted: int, *, expires: bool) -> RowRange:
    """Return how many rows there can be after changes of distinct keys; others may have expired, where they do."""
    kept = 0 if expires else before.least - deleted
    return RowRange(max(upserted, kept), before.most + upserted)


def rows_known(
    tallies: Iterable[UpdateDigest] | None, recorded: RowRange | None, files: Iterable[StateFile], *, expires: bool
) -> RowRange | None:
    """Return how many rows a partition can have: as they were recorded, or as its files have them.

    Files that share no key group are the oldest ones alone, which have no deleted rows: after a compaction of all of
    them the rows are counted again. None where nothing is known.
    """
    if tallies is not None:
        counted = sum(each.rows for each in tallies)
        return RowRange(counted, counted)
    if recorded is None:
        return None
    found = list(files)
    most = min(recorded.most, sum(each.file.rows for each in found))
    is_counted = not expires and all(map(_is_whole, found)) and not _overlap(found)
    return RowRange(most if is_counted else min(recorded.least, most), most)


def _is_whole(file: StateFile) -> bool:
    """Report whether all rows of a file are in use."""
    known = [each.key_groups for each in file.file.segments if each.key_groups is not None]
    first, last = file.key_groups
    return bool(known) and all(first <= low and high <= last for low, high in known)


def _overlap(files: Sequence[StateFile]) -> bool:
    return any(overlap(one.key_groups, other.key_groups) for at, one in enumerate(files) for other in files[at + 1 :])
