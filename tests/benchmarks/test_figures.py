"""The figures of the papers that Weir comes from, measured and drawn.

    pytest tests/benchmarks/test_figures.py --benchmark-only -s

measures both, keeps the results in docs/figures/*.json, draws docs/figures/*.svg and writes the tables into
docs/measurements.md. `-k snapshots` or `-k failures` is one of them; results of other sizes, means and seeds are kept.
`python tests/benchmarks/figures/figure_files.py` draws what is kept.
"""

from __future__ import annotations

import itertools
import os
import statistics
import xml.etree.ElementTree as ET
from datetime import UTC, datetime
from pathlib import Path

import pytest
from changing_epochs import Changing
from figure_files import FAILURES, FOLDER, PAGE, SNAPSHOTS, drawn, keep, load, redraw, with_tables
from flip1_stack import Flip1Stack, moments
from line_chart import Axis, Chart, Series, decades
from seed_figures import failure_charts, failure_tables

import weir
from weir.dataflow import Dataflow, Stage, blocking, keyed_state, sink, source

ROW_BYTES = 200
SHARE = 0.01
WARM_UP_KEYS = 10_000
"""Of a state whose epochs only make the JVM compile what the others run."""
ROUNDS = {"incremental": 3, "blind": 3, "full": 2}
ATTEMPTS = 4
"""At least so many of each parallelism."""
STEPS = ("plan", "write", "seal")


def changing(keys: int, mode: str, parallelism: int = 1) -> Dataflow:
    """A dataflow that sets 1 % of the keys of its state in each epoch, and all of them in the first."""
    state = keyed_state("state", key="id", schema="id BIGINT, value BINARY", incremental=mode != "full")
    reads = {"changes": blocking("changes", by="id")}
    return Dataflow(
        "changing",
        [
            source("changes", "changing_keys:values", parallelism=parallelism),
            Stage("update", "changing_keys:update", reads, parallelism=parallelism, state=state),
            sink("update", "done"),
        ],
        parameters={"keys": keys, "share": SHARE, "is_blind": mode == "blind"},
    )


class Snapshots:
    """A state of a size, over its epochs; gives measurements."""

    def __init__(self, url: str, folder: Path, keys: int) -> None:
        self.keys, self.number, self.bytes = keys, 0, 0
        self.epochs = Changing(url, folder, changing(keys, "first"), now=lambda: datetime.now(UTC))

    def by_mode(self):
        """The first epoch, then some of each mode."""
        yield self._measured("first", 1, rounds=1)
        for mode, rounds in ROUNDS.items():
            self.epochs.airflow.deploy(changing(self.keys, mode))
            yield self._measured(mode, 1, rounds)
        with weir.open("changing", state="state", services=self.epochs.airflow.services) as state:
            assert state.rows == self.keys, f"{state.rows} rows of {self.keys}: the epochs have done something else"

    def by_parallelism(self, parallelisms: list[int]):
        """Epochs of other parallelisms; the first one, which rescales the state, is not measured."""
        for parallelism in parallelisms:
            self.epochs.airflow.deploy(changing(self.keys, "parallel", parallelism))
            self._epoch()
            yield self._measured("parallel", parallelism, rounds=max(1, ATTEMPTS // parallelism))

    def _measured(self, mode, subtasks, rounds):
        epochs = [self._epoch() for _ in range(rounds)]
        attempts = [one for _, some in epochs for one in some]
        self.bytes = self.bytes or epochs[0][0].state
        return {
            "mode": mode,
            "keys": self.keys,
            "subtasks": subtasks,
            "bytes": self.bytes,
            "written": statistics.median(epoch.changed for epoch, _ in epochs),
            "seconds": [round(one.took, 3) for one in attempts],
            "waited": [round(one.waited, 4) for one in attempts],
            "steps": {step: round(statistics.median(one.steps.get(step, 0) for one in attempts), 3) for step in STEPS},
            **_circumstances(),
        }

    def _epoch(self):
        self.number += 1
        return self.epochs.epoch(self.number), self.epochs.attempts(self.number)


def _circumstances():
    return {"load": round(os.getloadavg()[0], 1), "date": f"{datetime.now(UTC):%Y-%m-%d}"}


def _list(config: pytest.Config, name: str, kind: type) -> list:
    return [kind(each) for each in config.getoption(f"figures_{name}").split(",") if each]


@pytest.mark.spark
@pytest.mark.timeout(4 * 3600)
def test_snapshots_and_waits(benchmark, new_server, tmp_path, pytestconfig) -> None:
    folder = pytestconfig.getoption("figures_folder") or FOLDER

    sizes, subtasks = _list(pytestconfig, "sizes", float), _list(pytestconfig, "subtasks", int)

    def measure():
        with new_server() as server:
            list(Snapshots(server.url, tmp_path / "warm-up", WARM_UP_KEYS).by_mode())
            for place, size in enumerate(sizes):
                snapshots = Snapshots(server.url, tmp_path / str(place), int(size * 1e9 / ROW_BYTES))
                for one in itertools.chain(
                    snapshots.by_mode(), snapshots.by_parallelism(subtasks if not place else [])
                ):
                    print(one, flush=True)
                    keep(folder, SNAPSHOTS, [one])

    benchmark.pedantic(measure, rounds=1)
    redraw(folder)


@pytest.mark.e2e
@pytest.mark.timeout(2 * 3600)
def test_failures_on_a_real_stack(benchmark, tmp_path, pytestconfig) -> None:
    folder, work = pytestconfig.getoption("figures_folder") or FOLDER, pytestconfig.getoption("figures_work")
    arms, patience = _list(pytestconfig, "arms", str), pytestconfig.getoption("figures_patience")
    runs = [
        (None, 0),
        *((m, s) for m in _list(pytestconfig, "means", float) for s in _list(pytestconfig, "seeds", int)),
    ]

    def measure():
        with Flip1Stack(tmp_path / "flip1") as stack:
            for arm in arms:
                stack.run(arm, 0.0)  # the first run of a JVM is that of no other
            for mean, seed in runs:
                for arm in arms:
                    found = stack.run(arm, work, mean, seed, patience) | _circumstances()
                    print(found, flush=True)
                    keep(folder, FAILURES, [found])

    benchmark.pedantic(measure, rounds=1)
    redraw(folder)


# Drawing


CHART = Chart(
    "Seconds & bytes",
    Axis("GB", 0.1, 10.0, decades(-1, 1), is_log=True),
    Axis("seconds", 0, 100, ((0.0, "0"), (100.0, "100"))),
    (Series("ours", ((0.1, 0.0), (1.0, 50.0), (10.0, None))), Series("theirs", ((1.0, 100.0),), is_dashed=True)),
)


def shapes(svg: str, kind: str) -> list[dict[str, str]]:
    """The attributes of all elements of a kind."""
    return [each.attrib for each in ET.fromstring(svg).iter(f"{{http://www.w3.org/2000/svg}}{kind}")]  # noqa: S314


def test_a_point_is_where_its_axes_say():
    low, middle, legend = shapes(CHART.svg(), "circle")
    assert float(low["cx"]) < float(middle["cx"]) < float(legend["cx"])
    assert float(middle["cx"]) - float(low["cx"]) == pytest.approx((760 - 70 - 250) / 2, abs=0.2)
    assert float(low["cy"]) - float(middle["cy"]) == pytest.approx((420 - 44 - 54) / 2, abs=0.2)


def test_a_point_that_was_given_up_is_an_arrow_and_not_part_of_the_line():
    svg = CHART.svg()
    assert [each["class"] for each in shapes(svg, "path")] == ["mark open"]
    assert len(shapes(svg, "polyline")[0]["points"].split()) == 2


def test_a_figure_can_be_read_in_the_light_and_in_the_dark_and_names_its_units():
    svg = CHART.svg()
    texts = [each.text for each in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]  # noqa: S314
    assert {"GB", "seconds", "Seconds & bytes", "0.1", "10", "ours", "theirs"} <= set(texts)
    assert "prefers-color-scheme:dark" in svg
    assert shapes(svg, "rect")[0]["class"] == "back"


def run_of(arm, mean, seconds, **more):
    fixed = {"work": 4.0, "seed": 1, "given_up_after": 100.0, "tasks": 7, "tries": 9, "kills": 2, "load": 0.1}
    return {"arm": arm, "mean": mean, "seconds": seconds, "date": "2026-01-01", **fixed, **more}


def test_a_run_that_was_given_up_is_told_and_drawn_at_the_edge():
    found = [run_of("region", None, 20.0), run_of("full", None, 20.0), run_of("full", 10.0, None)]
    assert "| 10 |  | given up (2, 2) |  |" in failure_tables(found)
    (chart,) = failure_charts(found).values()
    assert chart.series[1].points == ((0.0, 20.0), (1.0, None))


def test_of_several_sequences_of_failures_the_median_is_told():
    found = [run_of("region", 10.0, seconds, seed=seed) for seed, seconds in enumerate([30.0, None, 50.0])]
    assert "| 10 | 50 s, 1 of 3 given up (2, 2) |" in failure_tables(found)


def test_a_new_result_takes_the_place_of_an_earlier_one_of_the_same(tmp_path):
    keep(tmp_path, FAILURES, [run_of("region", 10.0, 30.0), run_of("full", 10.0, 60.0)])
    keep(tmp_path, FAILURES, [run_of("region", 10.0, 31.0), run_of("region", 20.0, 25.0)])
    assert [(one["arm"], one["seconds"]) for one in load(tmp_path, FAILURES)] == [
        *(("full", 60.0), ("region", 31.0), ("region", 25.0))
    ]


def test_all_arms_meet_the_same_failures():
    first, again, other = (moments(*each) for each in [(10.0, 1), (10.0, 1), (20.0, 1)])
    some = [next(first) for _ in range(3)]
    assert [next(again) for _ in range(3)] == some
    assert [next(other) for _ in range(3)] == [(pytest.approx(2 * at), choice) for at, choice in some]
    assert next(moments(None, 1))[0] == float("inf")


def test_the_documentation_shows_the_results_that_are_kept():
    """Draw anew after a change: `python tests/benchmarks/figures/figure_files.py`."""
    page, figures = PAGE.read_text(), drawn(FOLDER)
    assert {name: (FOLDER / name).read_text() for name in figures} == figures
    assert with_tables(page, FOLDER) == page
    assert [name for name in figures if f"](figures/{name})" not in page] == []
