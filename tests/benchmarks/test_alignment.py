"""How long the first input of a task with state waits for the last one, by parallelism and by number of shuffles.

    pytest tests/benchmarks/test_alignment.py --benchmark-only -s

Figure 9 (b, c) of "State Management in Apache Flink". Seconds are those that `weir checkpoints DATAFLOW --id NUMBER`
shows on a real stack. The results are kept in docs/figures/alignment.json, and drawn into docs/measurements.md;
`--alignment-shapes 4x2` measures one parallelism and number of shuffles.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime

import pytest
from alignment_stack import AlignmentStack, measured, name_of, together
from figure_files import ALIGNMENT, FOLDER, keep, redraw


@pytest.mark.e2e
@pytest.mark.timeout(3600)
def test_alignment_on_a_real_stack(benchmark, tmp_path, pytestconfig) -> None:
    folder = pytestconfig.getoption("figures_folder") or FOLDER
    asked = pytestconfig.getoption("alignment_shapes").split(",")
    shapes = [tuple(map(int, each.split("x"))) for each in asked]

    def measure():
        with AlignmentStack(tmp_path / "stack", shapes) as stack:
            stack.epoch(shapes[0])  # the first run of a JVM is that of no other
            for shape in shapes:
                epochs = [
                    measured(shape, stack.epoch(shape)) for _ in range(pytestconfig.getoption("alignment_rounds"))
                ]
                found = together(shape, epochs) | _circumstances()
                print(found, flush=True)
                keep(folder, ALIGNMENT, [found])

    benchmark.pedantic(measure, rounds=1)
    redraw(folder)


def _circumstances():
    return {"load": round(os.getloadavg()[0], 1), "date": f"{datetime.now(UTC):%Y-%m-%d}"}


def task(region, seconds, straggler="numbers[1]"):
    return {"region": region, "seconds": seconds, "computed": 2.0, "straggler": straggler}


def test_a_shuffle_takes_as_long_as_its_slowest_subtask_waits():
    tasks = [task("shuffle1[0]", 1.0), task("shuffle1[1]", 3.0), task("shuffle2-last[0]", 0.5, "shuffle1[0]")]
    tasks.append(task("shuffle2-last[1]", 0.5))
    found = measured((2, 2), tasks)
    assert (found["seconds"], found["stragglers"]) == ([3.0, 0.5], ["numbers[1]", "shuffle1[0]"])
    assert name_of((2, 2)) == "aligned_2_2"
