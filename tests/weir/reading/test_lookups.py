"""Look-ups in an open state: what a key, several keys and a page of a prefix give, and what they read."""

import random

import pytest
from tests.messages.kinds import of_kind
from tests.weir.reading.map_state import opened
from tests.weir.reading.state_world import epoch, history, keeps_state, run_days

import weir
from weir.errors import Misconfigured
from weir.reading.availability import Unreadable
from weir.reading.lookups import Lookups, RowGroupCache
from weir.store.store import Store


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
