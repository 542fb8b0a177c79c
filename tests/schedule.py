"""Which tests run in which process, when there are several: `./weir test` without a path.

The tests of a module run in one process. Modules that share what takes long to start (a stack, Airflow's database, a
Spark server) form a lane: a process that has begun a lane stays in it until it is empty. There is one process more than
cores, and at each time one lane that waits much, beside those that compute: the cores always have work, and no process
is left alone with a long one.

Each process compiles a share of the modules before it collects all of them: else all processes of a new checkout
compile all modules at the same time. pytest has no public function for that.
"""

from __future__ import annotations

import os
from pathlib import Path

import psutil
from _pytest.assertion import rewrite
from xdist.scheduler import LoadScopeScheduling

ROOT = Path(__file__).parents[1]
GIB = 2**30
MEMORY_OF_A_PROCESS = 3 * GIB
"""The memory that a process of tests takes with its stack or its Spark server."""

STACKS = "tests/e2e"
QUIET = f"{STACKS}/test_running_stack.py"
"""It wants a stack on which nothing else goes on: that of the others, behind them."""

OWN_STACKS = tuple(f"{STACKS}/test_{name}.py" for name in ("deployment", "full_disk", "stack", "chaos"))
"""Modules that start stacks of their own, longest first."""

ONE_BY_ONE = "tests that have a stack to themselves, one by one"
AT_ONCE = "tests of many DAGs of one stack at once"
LANES = {
    AT_ONCE: (STACKS, QUIET),
    "Airflow": ("tests/weir_airflow",),
    "Spark": ("tests/corpus", "tests/weir_spark", "tests/pipelines"),
    "stacks of their own": OWN_STACKS,
    "the rest": ("tests/simulation", "tests/weir/store/test_s3.py", "tests/weir/attempts", "tests"),
    ONE_BY_ONE: tuple(f"{STACKS}/test_{name}.py" for name in ("ladder_faults", "ladder_braid")),
}
"""The prefixes of paths by lane, both in the order in which they begin. The longest prefix of a path counts."""

WHOLE = {AT_ONCE, ONE_BY_ONE}
"""Lanes of one process, since all of their modules share a stack."""

WITH_DRIVERS = frozenset(
    f"tests/weir_spark/region/test_{name}.py" for name in ("failing_stage", "names", "run_region", "sql")
)
"""Modules that run in one process, since they share a process of drivers (`weir_spark/drivers.py`)."""

WITH_HDFS = frozenset(
    ["tests/weir/doctor/test_hdfs.py"]
    + [f"tests/weir/store/test_{name}.py" for name in ("hdfs", "probe", "seal", "store", "walk")]
)
"""Likewise, since they share an HDFS (`servers/hadoop.py`)."""


def processes(config) -> int:
    """Return how many processes run the tests: none but this one for chosen tests, else one more than cores.

    One of them waits for stacks most of the time. A second one more would cost what each takes to start.
    """
    option = config.option
    are_chosen = config.args_source is config.ArgsSource.ARGS or option.keyword or option.collectonly
    if are_chosen or config.getoption("benchmark_only", default=False):
        return 0
    of_memory = psutil.virtual_memory().available // MEMORY_OF_A_PROCESS
    return max(1, min(len(os.sched_getaffinity(0)) + 1, of_memory))


def place(nodeid: str) -> tuple[int, int]:
    """Return where a test comes among all: the number of its lane, and that of its prefix in the lane."""
    path = nodeid.partition("::")[0]
    prefixes = {prefix: (at, own) for at, lane in enumerate(LANES.values()) for own, prefix in enumerate(lane)}
    return prefixes[max((prefix for prefix in prefixes if f"{path}/".startswith(f"{prefix}/")), key=len)]


def lane_of(nodeid: str) -> str:
    """Return the lane of a test."""
    return list(LANES)[place(nodeid)[0]]


def compile_share(config) -> None:
    """Compile this process's share of the modules of tests."""
    number, of = int(config.workerinput["workerid"].removeprefix("gw")), config.workerinput["workercount"]
    names = ("conftest.py", *config.getini("python_files"))
    for file in sorted(file for name in names for file in (ROOT / "tests").rglob(name))[number::of]:
        compiled = rewrite.get_cache_dir(file) / f"{file.stem}{rewrite.PYC_TAIL}"
        if rewrite._read_pyc(file, compiled) is None and rewrite.try_makedirs(compiled.parent):
            digest, code = rewrite._rewrite_test(file, config)
            rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, digest, compiled)


class ByLane(LoadScopeScheduling):
    """Hands out modules lane by lane."""

    def __init__(self, config, log):
        super().__init__(config, log)
        self._lane_of = {}

    def _split_scope(self, nodeid):
        lane, module = lane_of(nodeid), nodeid.partition("::")[0]
        if lane in WHOLE:
            return lane
        return next((min(sharing) for sharing in (WITH_DRIVERS, WITH_HDFS) if module in sharing), module)

    def _assign_work_unit(self, node):
        self.workqueue.move_to_end(self._next_of(node), last=False)
        super()._assign_work_unit(node)

    def _next_of(self, node):
        """Return the next module of the lane that the process is in, or of the lane with the fewest processes."""
        waiting = {}
        for scope, unit in self.workqueue.items():
            waiting.setdefault(lane_of(next(iter(unit))), scope)
        if self._lane_of.get(node) not in waiting:
            others = [self._lane_of.get(other) for other in self.assigned_work if other is not node]
            self._lane_of[node] = min(waiting, key=others.count)
        return waiting[self._lane_of[node]]
