"""Look-ups in a state without Spark and without HTTP: warm requests of a hundred keys, and the first one, cold.

    pytest tests/benchmarks/state/test_lookups.py --benchmark-only -s --state-keys 5000000

The state has one run with all keys and three of a hundredth each, in 128 key groups. One thread, files on a disk.
"""

from __future__ import annotations

import random
import time

from tests.weir.reading.map_state import opened

from weir.reading.lookups import Lookups, RowGroupCache
from weir.store.store import Store

KEYS, REQUESTS = 100, 300


def test_warm_requests_of_a_hundred_keys(tmp_path, benchmark, request) -> None:
    count, chance = request.config.getoption("--state-keys"), random.Random(1)
    store = Store.open(str(tmp_path / "store"))
    store.initialise()
    changed = [chance.sample(range(count), count // 100) for _ in range(3)]
    epochs = [
        {(f"customer-{i}", i): i for i in range(count)},
        *({(f"customer-{i}", i): -i for i in each} for each in changed),
    ]
    lookups = Lookups(opened(store, epochs, row_group_size=100_000, groups=128), RowGroupCache(8 << 30))
    del epochs

    def asked():
        numbers = [chance.randrange(count) for _ in range(KEYS)]
        began = time.perf_counter()
        found = lookups.get_many([(f"customer-{i}", i) for i in numbers])
        seconds = time.perf_counter() - began
        assert [abs(row["n"]) for row in found] == numbers
        return seconds

    cold = asked()
    for _ in range(REQUESTS):
        asked()
    seconds = sorted(asked() for _ in range(REQUESTS))
    median, slow = seconds[REQUESTS // 2], seconds[REQUESTS * 99 // 100]
    print(
        f"\n{count} keys, requests of {KEYS}: first {cold:.2f} s; warm: {KEYS * REQUESTS / sum(seconds):.0f} keys a "
        f"second, median {median * 1000:.1f} ms, 99 % below {slow * 1000:.1f} ms"
    )
    benchmark.extra_info.update({"cold": cold, "median": median, "p99": slow})
    benchmark.pedantic(asked, rounds=1)
