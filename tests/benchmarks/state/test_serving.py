"""`weir state serve` over HTTP: requests of a hundred keys and of one, warm, and the first one, cold.

    pytest tests/benchmarks/state/test_serving.py --benchmark-only -s --state-keys 5000000

The state has one run with all keys and three of a hundredth each, in 128 key groups, on a disk. One client asks one
request after the other over one connection; it has the other core.
"""

from __future__ import annotations

import json
import random
import re
import signal
import subprocess
import sys
import time
from http.client import HTTPConnection

from tests.weir.command_line import use
from tests.weir.reading.parquet_world import ReaderWorld
from tests.weir.reading.state_world import epoch, history, keeps_state, run_days
from tests.weir.small_dataflow import ladder

KEYS, REQUESTS = 100, 300
ROWS = "/v1/dataflows/ladder/states/history/rows"
HEADERS = {"Authorization": "Bearer a token", "Content-Type": "application/json"}


def written(folder, count: int, chance: random.Random) -> None:
    world = keeps_state(ReaderWorld(folder, ladder()))
    engine = world.airflow.engine
    engine.row_group = 100_000
    changed = [chance.sample(range(count), count // 100) for _ in range(3)]
    engine.plan = {epoch(1): {f"customer-{i}": i for i in range(count)}}
    engine.plan |= {epoch(day): {f"customer-{i}": -i for i in each} for day, each in enumerate(changed, 2)}
    run_days(world, history(parallelism=1), 1, 2, 3, 4)


def timed(call, rounds: int) -> list[float]:
    seconds = []
    for _ in range(rounds):
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    return sorted(seconds)


def test_requests_over_http(tmp_path, monkeypatch, benchmark, request) -> None:
    count, chance = request.config.getoption("--state-keys"), random.Random(1)
    use(monkeypatch, tmp_path)
    written(tmp_path, count, chance)
    tokens = tmp_path / "tokens"
    tokens.touch(0o600)
    tokens.write_text("a token\n")
    words = ("state", "serve", "ladder.history", "--tokens", str(tokens), "--port", "0", "--cache", "8192")
    command = [sys.executable, "-m", "weir.cli.main", *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        said = next(line for line in process.stderr if "running on" in line)
        http = HTTPConnection("127.0.0.1", int(re.search(r"127\.0\.0\.1:(\d+)", said)[1]))

        def answer(*asked):
            http.request(*asked, HEADERS)
            found = http.getresponse()
            body = found.read()
            assert found.status == 200, body
            return json.loads(body)["rows"]

        def many():
            numbers = [chance.randrange(count) for _ in range(KEYS)]
            found = answer("POST", f"{ROWS}:get", json.dumps({"keys": [[f"customer-{i}"] for i in numbers]}))
            assert [abs(row["n"]) for row in found] == numbers

        def one():
            number = chance.randrange(count)
            assert [abs(row["n"]) for row in answer("GET", f"{ROWS}?key=customer-{number}", None)] == [number]

        (cold,) = timed(many, 1)
        timed(many, REQUESTS)
        for what, call, keys in (("of a hundred keys", many, KEYS), ("of one key", one, 1)):
            seconds = timed(call, REQUESTS)
            median, slow = seconds[REQUESTS // 2], seconds[REQUESTS * 99 // 100]
            print(
                f"\n{count} keys, requests {what}: {keys * REQUESTS / sum(seconds):.0f} keys a second, median "
                f"{median * 1000:.1f} ms, 99 % below {slow * 1000:.1f} ms; the first, cold, {cold:.2f} s"
            )
        benchmark.extra_info.update({"cold": cold})
        benchmark.pedantic(many, rounds=1)
        process.send_signal(signal.SIGINT)
