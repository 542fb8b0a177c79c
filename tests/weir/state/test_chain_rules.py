"""The chain of a blind epoch, and the bounds of the number of rows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from weir.formats.manifest import (
    DataFile,
    RowRange,
    Segment,
    StateFile,
    UpdateDigest,
    digest_schema,
    is_chain,
    parsed_digest,
)
from weir.state.chain_rules import chain, rows_after, rows_known

READ, DAY = "5f1c:3:0000000000000007:8:9", ("20130102T000000Z", None)
MORE, GONE = (UpdateDigest(0, 2, 5, 6, 7),), (UpdateDigest(0, 1, 8, 9, 10),)


def test_a_chain_is_the_same_for_the_same_and_another_for_anything_else():
    made = chain("5f1c", READ, DAY, MORE, GONE)
    assert str(made) == str(chain("5f1c", READ, DAY, MORE, GONE)) == str(parsed_digest(str(made)))
    assert (is_chain(str(made)), is_chain(READ), digest_schema(str(made)), made.rows) == (True, False, "5f1c", 5)
    others = [
        chain("5f1d", READ, DAY, MORE, GONE),
        chain("5f1c", str(made), DAY, MORE, GONE),
        chain("5f1c", READ, ("20130103T000000Z", None), MORE, GONE),
        chain("5f1c", READ, (DAY[0], 7), MORE, GONE),
        chain("5f1c", READ, DAY, (replace(MORE[0], xor=6),), GONE),
        chain("5f1c", READ, DAY, MORE, (replace(GONE[0], low_sum=6),)),
        chain("5f1c", READ, DAY, (*MORE, *GONE), ()),
    ]
    assert len({str(each) for each in (made, *others)}) == 1 + len(others)


@pytest.mark.parametrize(
    ("before", "upserted", "deleted", "expires", "after"),
    [
        (RowRange(10, 10), 3, 2, False, RowRange(8, 13)),
        (RowRange(1, 10), 3, 2, False, RowRange(3, 13)),
        (RowRange(10, 10), 3, 2, True, RowRange(3, 13)),
        (RowRange(0, 0), 0, 5, False, RowRange(0, 0)),
    ],
)
def test_bounds_after_changes_of_distinct_keys(before, upserted, deleted, expires, after):
    assert rows_after(before, upserted, deleted, expires=expires) == after


def file(rows, key_groups, of=None):
    segments = (Segment(0, 9, "ab", key_groups=of or key_groups), Segment(9, 9, "cd", is_tail=True))
    return StateFile("f", DataFile("p", rows, 18, "ef", segments), "20130101T000000Z", key_groups)


def test_rows_are_counted_again_once_that_no_file_is_above_another():
    bounds, base = RowRange(2, 20), (file(4, (0, 63)), file(5, (64, 127)))
    assert rows_known((UpdateDigest(0, 7, 0, 0, 0),), bounds, base, expires=False) == RowRange(7, 7)
    assert rows_known(None, None, base, expires=False) is None
    assert rows_known(None, bounds, base, expires=False) == RowRange(9, 9)
    assert rows_known(None, bounds, base, expires=True) == RowRange(2, 9)
    assert rows_known(None, bounds, (*base, file(3, (0, 127))), expires=False) == RowRange(2, 12)
    assert rows_known(None, bounds, (file(4, (0, 63), (0, 127)),), expires=False) == RowRange(2, 4)
