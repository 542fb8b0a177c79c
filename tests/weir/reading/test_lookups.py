"""Look-ups in an open state: what a key, several keys and a page of a prefix give, and what they read."""

import json
import random
from datetime import UTC, date, datetime

import pyarrow as pa
import pytest
from tests.messages.kinds import of_kind
from tests.weir.reading.map_state import opened
from tests.weir.reading.state_world import epoch, history, keeps_state, run_days

import weir
from weir.errors import Misconfigured
from weir.reading.availability import Unreadable
from weir.reading.lookups import CachedRows, Lookups, RowGroupCache
from weir.reading.opened_state import typed_value
from weir.store.store import Store
from weir.topology.partitions import KEY_GROUP_COLUMN
from weir.views.documents import plain


@pytest.fixture
def days(world):
    return run_days(keeps_state(world), history(), 1, 2, 3)


def test_each_key_of_each_epoch_has_the_row_that_replaying_all_days_gives(days):
    cache = RowGroupCache()
    for day in (1, 2, 3):
        with weir.open("ladder", epoch(day), state="history") as state:
            asked = ["N1", "N2", "N3", "N4", "N5", "N7", None, "N99"]
            rows = {k: n for k, (n, _) in days.airflow.engine.rows_at(epoch(day))}
            expected = [{"tail": k, "n": rows[k]} if k in rows else None for k in asked]
            assert Lookups(state, cache).get_many([[k] for k in asked]) == expected


def test_a_key_that_was_read_once_is_found_when_its_file_is_gone(days):
    with weir.open("ladder", state="history") as state:
        lookups = Lookups(state, RowGroupCache())
        assert lookups.get(["N2"]) == {"tail": "N2", "n": 2}
        for part in state.partitions:
            for file in part.files:
                days.store.delete(file.path)
        assert lookups.get(["N2"]) == {"tail": "N2", "n": 2}
        with pytest.raises(Unreadable, match="found no such file"):
            Lookups(state, RowGroupCache()).get(["N2"])
        with pytest.raises(Unreadable, match="found no such file"):
            _twice(Lookups(state, RowGroupCache(most_bytes=0)))


def _twice(lookups):
    return [lookups.get(["N2"]), lookups.get(["N2"])]


def test_bytes_that_are_not_as_they_were_written_are_never_looked_up(days):
    with weir.open("ladder", state="history") as state:
        for part in state.partitions:
            for file in part.files:
                data = bytearray(days.store.read(file.path))
                data[10] ^= 1
                days.store.replace(file.path, bytes(data))
        with pytest.raises(Unreadable, match="expected SHA-256"):
            Lookups(state, RowGroupCache()).get_many([["N1"], ["N2"], ["N3"], ["N4"], ["N5"]])


def test_a_prefix_gives_its_rows_and_is_refused_where_it_cannot_be_one(days):
    with weir.open("ladder", state="history") as state:
        lookups = Lookups(state, RowGroupCache())
        page = lookups.scan(["N1"], 5)
        assert (page.rows, page.next_after) == ([{"tail": "N1", "n": 10}], None)
        assert lookups.scan(["N1"], 5, after=["N1"]).rows == []
        assert lookups.scan([None], 5).rows == []
        with pytest.raises(Misconfigured, check=of_kind("reading.prefix_too_short", name="history")):
            lookups.scan([], 5)
        with pytest.raises(Misconfigured, check=of_kind("reading.page_limit_malformed", limit="0")):
            lookups.scan(["N1"], 0)


def test_a_row_that_has_expired_is_none_and_hides_older_ones(world):
    days = keeps_state(world)
    days.airflow.engine.plan = {epoch(1): {"N1": 1, "N2": 2}, epoch(2): {"N1": 10}, epoch(3): {}, epoch(4): {"N9": 9}}
    run_days(days, history(ttl="2 days"), 1, 2, 3, 4)
    cache, found = RowGroupCache(), {}
    for day in (1, 2, 3, 4):
        with weir.open("ladder", epoch(day), state="history") as state:
            rows = Lookups(state, cache).get_many([["N1"], ["N2"]])
            found[day] = [row and row["n"] for row in rows]
    assert found == {1: [1, 2], 2: [10, 2], 3: [10, None], 4: [None, None]}


UTC_TIME = pa.timestamp("us", tz="UTC")


@pytest.mark.parametrize("has_nulls", [False, True])
@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int8(), [-5, 0, 7]),
        (pa.int16(), [-300, 0, 300]),
        (pa.int32(), [-70000, 3, 70000]),
        (pa.int64(), [-(2**40), -1, 2**40]),
        (pa.string(), ["", "a", "ab", "é", "z", "\U0001f600"]),
        (pa.binary(), [b"", b"\x00", b"\xff"]),
        (pa.bool_(), [False, True]),
        (pa.date32(), [date(1969, 1, 1), date(2013, 1, 1)]),
        (UTC_TIME, [datetime(1969, 1, 1, tzinfo=UTC), datetime(2013, 1, 1, 0, 0, 0, 1, tzinfo=UTC)]),
    ],
)
def test_a_key_of_any_type_is_found_among_the_rows_of_its_group(kind, values, has_nulls):
    chance = random.Random(5)
    known = [*values, *([None] if has_nulls else [])]
    rows = [(group, a, b) for group in (1, 4) for a in known for b in known if chance.random() < 0.8]
    chance.shuffle(rows)
    groups, a, b = zip(*rows, strict=True)
    columns = {KEY_GROUP_COLUMN: pa.array(groups, pa.int32()), "a": pa.array(a, kind), "b": pa.array(b, kind)}
    found = CachedRows(pa.table(columns), ["a", "b"])
    for group in (0, 1, 4, 5):
        for one in known:
            begin, end = found.rows_of(group, [one])
            own = sorted((row for row in rows if row[:2] == (group, one)), key=repr)
            assert sorted((tuple(found.row(at).values()) for at in range(begin, end)), key=repr) == own
            for other in known:
                begin, end = found.rows_of(group, [one, other])
                assert end - begin == ((group, one, other) in rows)
                assert all(tuple(found.row(at).values()) == (group, one, other) for at in range(begin, end))


def test_a_closed_state_is_not_looked_up(days):
    with weir.open("ladder", state="history") as state:
        lookups = Lookups(state, RowGroupCache())
        lookups.get(["N2"])
    with pytest.raises(Misconfigured, check=of_kind("reading.lease_ended")):
        lookups.get(["N2"])


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("limit", [1, 2, 7])
def test_the_pages_of_a_prefix_are_what_a_dictionary_has_by_key(tmp_path, seed, limit):
    chance = random.Random(seed)
    carts, products = [None, "a", "b", "é", "z"], [None, -1, *range(12)]
    epochs = [
        {
            (chance.choice(carts), chance.choice(products)): chance.choice([1, 2, None, "deleted", "deleted"])
            for _ in range(chance.randrange(40))
        }
        for _ in range(4)
    ]
    model = {key: n for changes in epochs for key, n in changes.items()}
    known = {key: n for key, n in model.items() if n != "deleted"}
    (tmp_path / "store").mkdir()
    store = Store.open(str(tmp_path / "store"))
    lookups = Lookups(opened(store, epochs), RowGroupCache())
    for cart in carts:
        own = sorted((p for c, p in known if c == cart), key=lambda p: (p is not None, p or 0))
        found, after = [], None
        while True:
            page = lookups.scan([cart], limit, after)
            assert len(page.rows) <= limit
            found += page.rows
            after = page.next_after
            if after is None:
                break
        assert found == [{"c": cart, "p": p, "n": known[cart, p]} for p in own]
        for product in products:
            expected = [{"c": cart, "p": product, "n": known[cart, product]}] if (cart, product) in known else []
            assert lookups.scan([cart, product], limit).rows == expected
            assert [row for row in [lookups.get([cart, product])] if row] == expected


def test_pages_of_any_map_key_are_gone_through_with_what_the_page_before_says(tmp_path):
    store = Store.open(str(tmp_path / "store"))
    store.initialise()
    state = opened(store, [{("a", p): 1 for p in (None, -1, 5, 7)}])
    found, after = [], None
    while True:
        page = Lookups(state, RowGroupCache()).scan(["a"], 1, after)
        found += [row["p"] for row in page.rows]
        if page.next_after is None:
            break
        after = json.loads(json.dumps(plain(page.next_after)))
    assert found == [None, -1, 5, 7]


def test_bytes_of_a_key_are_given_as_hex(tmp_path):
    store = Store.open(str(tmp_path / "store"))
    store.initialise()
    state = opened(store, [{("a", 1): 1}])
    assert state.typed_key(["a", "1"]) == {"c": "a", "p": 1}
    assert typed_value("b", "00ff", pa.binary()) == b"\x00\xff"
    with pytest.raises(Misconfigured, check=of_kind("reading.key_value_of_other_type", name="b")):
        typed_value("b", "x", pa.binary())
    with pytest.raises(Misconfigured, check=of_kind("reading.key_value_of_other_type", name="c")):
        state.typed_key(["\ud800", 1])


def test_a_date_beyond_the_years_of_python_is_a_number():
    columns = {KEY_GROUP_COLUMN: pa.array([0], pa.int32()), "a": pa.array([3_000_000], pa.int32()).cast(pa.date32())}
    assert CachedRows(pa.table(columns), ["a"]).row(0)["a"] == 3_000_000
