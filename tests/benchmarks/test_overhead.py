"""What Weir costs where nothing fails: the flights dataflow against the same steps by hand, and one application.

    pytest tests/benchmarks/test_overhead.py --benchmark-only -s --overhead-rounds 3 --overhead-copies 1,1000

All variants of a round compute the same day, one after the other in one stack, and publish the same rows. With
`--overhead-report FOLDER`, measurements are added to those of earlier calls, and the tables are of all of them.
"""

from __future__ import annotations

import json
from datetime import date, timedelta

import pytest
from overhead_stack import OverheadStack
from overhead_table import NAMES, tables

from weir_dev.demo.evidence import expected_rows, first_difference

WARM_UP_DAY = date(2013, 1, 1)
FIRST_DAY = date(2013, 1, 8)
"""A Tuesday, as the first days of all rounds are: about as many flights each."""


@pytest.mark.e2e
@pytest.mark.timeout(7200)
def test_weir_against_the_same_steps_by_hand(benchmark, tmp_path, pytestconfig) -> None:
    rounds, copies, variants, report = _asked(pytestconfig)
    file = (report or tmp_path) / "measurements.json"
    found = json.loads(file.read_text()) if file.exists() else []

    def measure():
        for measurements in _rounds(tmp_path / "run", variants, [each for _ in range(rounds) for each in copies]):
            number = len(found)
            found.extend({**one, "round": number} for one in measurements)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(found, indent=1))
            file.with_name("overhead.md").write_text(tables(found))

    benchmark.pedantic(measure, rounds=1)
    print(f"\n{tables(found)}\nin {file.parent}")


def _asked(config):
    def option(name, default):
        return config.getoption(f"overhead_{name}", default=None) or default

    copies = [int(each) for each in str(option("copies", "1")).split(",")]
    variants = option("variants", ",".join(NAMES)).split(",")
    return int(option("rounds", 3)), copies, variants, option("report", None)


def _rounds(folder, variants, copies):
    """Measure all variants once for each of `copies`; each round is given when its outcomes have been compared."""
    folder.mkdir()
    with OverheadStack(folder) as stack:
        idle = stack.prepare(variants)
        print(f"\nat rest: {idle:.2f} CPU seconds a second")
        for variant in variants:
            if "connect" in variant:
                stack.run(variant, WARM_UP_DAY, 1)
        for turn, count in enumerate(copies):
            day = FIRST_DAY + timedelta(weeks=turn)
            # Nobody is always the first one, nor always behind the same other one.
            order = variants[turn % len(variants) :] + variants[: turn % len(variants)]
            measurements = [_told({**stack.run(variant, day, count), "idle": idle}) for variant in order]
            _compare(stack, order, day, count)
            yield measurements


def _told(one):
    cpu = sum(one["cpu"].values())
    print(f"{one['day']} x{one['copies']} {one['variant']}: {one['seconds']:.1f} s, {cpu:.1f} CPU s", flush=True)
    return one


def _compare(stack, variants, day, copies):
    expected = expected_rows(day) if copies == 1 else stack.rows(variants[0], day)
    for variant in variants:
        assert first_difference(stack.rows(variant, day), expected) is None, f"{variant} differs on {day}"
