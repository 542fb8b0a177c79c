"""What the table of a state costs: the first rows, each epoch by the share that it changes, look-ups, sizes.

    pytest tests/benchmarks/state/test_tables.py --benchmark-only -s --state-keys 5000000

One checkpoint is retained, so that each epoch is applied and then folded into the rows below it. The server does not
wait for its disk, as in all tests.
"""

# ruff: noqa: S608

from __future__ import annotations

import random
import statistics
import time
from contextlib import closing
from itertools import pairwise

import psycopg2
import pyarrow as pa
from tests.weir.state_tables.versioned import OWN, table_in

from weir.state_tables.versions import Apply, At, Forget, TableVersion, next_step

SCHEMA = (
    '{"type": "struct", "fields": [{"name": "k", "type": "string", "nullable": true, "metadata": {}},'
    ' {"name": "n", "type": "long", "nullable": true, "metadata": {}}]}'
)
STORED = pa.schema([("k", pa.string()), ("n", pa.int64()), *OWN])
SHARES = (0.001, 0.01, 0.01, 0.01, 0.1)
AT_ONCE = 250_000


def rows(numbers, value):
    for begin in range(0, len(numbers), AT_ONCE):
        some = numbers[begin : begin + AT_ONCE]
        keys = pa.array([f"customer-{each}" for each in some])
        own = [pa.array([False] * len(some)), pa.nulls(len(some), pa.int64())]
        yield pa.table([keys, pa.array([each + value for each in some]), *own], schema=STORED)


def test_epochs_of_a_table(postgres, benchmark, request) -> None:
    count, chance = request.config.getoption("--state-keys"), random.Random(1)
    url = postgres.url("measured").replace("+psycopg2", "")
    table = table_in(url, "state")

    def apply(number, add):
        """Apply a checkpoint, forget the one before it, and fold; return the seconds of both."""
        at = At(f"2013{number:04}T000000Z", number)
        seconds, wanted = [time.perf_counter()], [at]
        while True:
            with table.open() as opened:
                found = opened.versions()
                versions = [version for version, _ in found.values()]
                step = next_step(wanted, versions, opened.used() if found else ())
                if isinstance(step, Apply):
                    is_new = opened.prepare(SCHEMA, ("k",))
                    opened.enter(TableVersion(at, add(opened, versions)), {}, ())
                    if is_new:
                        opened.index()
                    continue
                if isinstance(step, Forget):
                    seconds.append(time.perf_counter())
                if not opened.carry_out(step, versions):
                    break
        seconds.append(time.perf_counter())
        return [after - before for before, after in pairwise(seconds)]

    def ask(statement):
        with closing(psycopg2.connect(url)) as db, db.cursor() as cursor:
            db.autocommit = True
            began = time.perf_counter()
            cursor.execute(statement)
            found = cursor.fetchall() if cursor.description else []
            return found, time.perf_counter() - began

    def size():
        return ask("select pg_total_relation_size('state_rows')")[0][0][0] / 2**20

    everything = range(count)
    (first,) = apply(1, lambda opened, _: opened.add_all(SCHEMA, rows(everything, 0), None))
    print(f"\n{count} keys: all rows in {first:.1f} s, {size():.0f} MiB")
    for number, share in enumerate(SHARES, start=2):
        some = chance.sample(everything, int(count * share))
        applied, folded = apply(
            number, lambda opened, versions, some=some: opened.add_changes(SCHEMA, rows(some, 1), versions[0])
        )
        print(f"{share:.1%} changed: applied in {applied:.2f} s, folded in {folded:.2f} s, {size():.0f} MiB")
    _, vacuumed = ask("vacuum state_rows")
    _, counted = ask("select count(*) from state")
    print(f"vacuum {vacuumed:.1f} s, count through the view {counted:.2f} s")
    for keys in (1, 100):
        chosen = [", ".join(f"'customer-{chance.randrange(count)}'" for _ in range(keys)) for _ in range(200)]
        asked = [ask(f"select * from state where k in ({each})") for each in chosen]
        assert all(len(found) <= keys and found for found, _ in asked)
        middle = statistics.median(seconds for _, seconds in asked) * 1000
        slow = sorted(seconds for _, seconds in asked)[-3] * 1000
        print(f"look-ups of {keys}: median {middle:.1f} ms, 99 % below {slow:.1f} ms")
    different, _ = apply(99, lambda opened, versions: opened.add_all(SCHEMA, rows(everything, 2), versions[0]))
    print(f"all rows compared and replaced: {different:.1f} s")
    benchmark.pedantic(lambda: ask("select 1"), rounds=1)
