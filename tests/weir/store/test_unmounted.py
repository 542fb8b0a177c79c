"""A store that goes away and comes back, at any of its requests: nothing is called lost, and what is lost is found."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.builders.partitions import parquet_bytes, write_partition

from weir.errors import Loss, Retryable
from weir.store.probe import probe, verify_segments
from weir.store.store import Store

NAMES = itertools.count()


class Away:
    """Files that seem not to be there, or do not answer, for a while: requests are counted."""

    workers = 1

    def __init__(self, files, gone, error):
        self._files, self._gone, self._error = files, gone, error
        self.asked = 0

    def __getattr__(self, name):
        found = getattr(self._files, name)
        return self._asked(found) if name in ("read", "size", "entries") else found

    def _asked(self, ask):
        def answer(path, *more):
            self.asked += 1
            if any(self.asked in each for each in self._gone):
                raise self._error(path)
            return ask(path, *more)

        return answer


def written():
    store = Store.open(f"memory://unmounted-{next(NAMES)}")
    return store, store.initialise(), *write_partition(store, "flow/attempt", {"part-0.parquet": parquet_bytes(50)})


@settings(deadline=None, max_examples=150)
@given(
    st.integers(1, 6), st.integers(1, 4), st.integers(1, 4), st.sampled_from([FileNotFoundError, TimeoutError, OSError])
)
def test_a_store_that_goes_away_has_lost_nothing(first, requests, later, error):
    """It is away for some requests, comes back, and goes away for good."""
    store, store_id, ref, manifest = written()
    gone = range(first, first + requests), range(first + requests + later, 1000)
    for ask in (
        lambda: [probe(store, store_id, [ref])[ref]],
        lambda: verify_segments(store, store_id, [(manifest, "flow/attempt", None)]),
    ):
        whole = store.files
        store.files = Away(whole, gone, error)
        try:
            assert not [each for each in ask() if isinstance(each, Loss)]
        except Retryable:
            pass
        finally:
            store.files = whole


@given(st.sampled_from(["manifest.json", "part-0.parquet"]))
def test_what_is_lost_is_found_while_the_store_answers(name):
    store, store_id, ref, manifest = written()
    store.delete(f"flow/attempt/{name}")
    assert isinstance(probe(store, store_id, [ref])[ref], Loss)
    assert bool(verify_segments(store, store_id, [(manifest, "flow/attempt", None)])) is (name != "manifest.json")


class Silent:
    """Files of which some raise an error that is not about their absence, whenever they are asked for."""

    workers = 1

    def __init__(self, files, names, error):
        self._files, self._names, self._error = files, names, error

    def __getattr__(self, name):
        found = getattr(self._files, name)

        def answer(path, *more):
            if path.rpartition("/")[2] in self._names:
                raise self._error(path)
            return found(path, *more)

        return answer if name in ("read", "size") else found


@given(
    st.sets(st.sampled_from(["manifest.json", "part-0.parquet"]), min_size=1),
    st.sampled_from([TimeoutError, PermissionError, ConnectionError, BlockingIOError, OSError]),
)
def test_a_file_that_gives_no_answer_is_not_lost(names, error):
    store, store_id, ref, manifest = written()
    store.files = Silent(store.files, names, error)
    with pytest.raises(Retryable):
        probe(store, store_id, [ref])
    if "part-0.parquet" in names:
        with pytest.raises(Retryable):
            verify_segments(store, store_id, [(manifest, "flow/attempt", None)])
