"""Typed JSON in a process of several threads, as a task is: it has one for its heartbeats."""

import subprocess
import sys

PROGRAM = """
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import make_dataclass

from weir.typed_json import typed

sys.setswitchinterval(1e-6)
THREADS = 8
start = threading.Barrier(THREADS)


def use(kind):
    start.wait()
    try:
        typed("x", kind, {})
    except ValueError:
        return kind


with ThreadPoolExecutor(THREADS) as pool:
    for number in range(200):
        inner = make_dataclass(f"Inner{number}", [(f"a{at}", int) for at in range(20)])
        middle = make_dataclass(f"Middle{number}", [(f"b{at}", list[inner]) for at in range(20)])
        outer = make_dataclass(f"Outer{number}", [(f"c{at}", dict[str, middle]) for at in range(20)])
        assert list(pool.map(use, [outer] * THREADS)) == [outer] * THREADS
print("done")
"""


def test_threads_may_use_a_type_for_the_first_time_at_once():
    """Without a lock the process ends by a signal: msgspec shows a type to other threads before it has examined it."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
