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

from weir.cli.demo_evidence import expected_rows, first_difference

WARM_UP_DAY = date(2013, 1, 1)
FIRST_DAY = date(2013, 1, 8)
"""A Tuesday, as the first days of all rounds are: about as many flights each."""


@pytest.mark.e2e
@pytest.mark.timeout(7200)
def test_weir_against_the_same_steps_by_hand(benchmark, tmp_path, pytestconfig) -> None:
    rounds, copies, variants, report = _asked(pytestconfig)
    folder = tmp_path if report is None else report
    file = folder / "measurements.json"
    earlier = json.loads(file.read_text()) if file.exists() else []
    found = benchmark.pedantic(_measured, args=(tmp_path / "run", variants, rounds, copies, len(earlier)), rounds=1)
    folder.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps([*earlier, *found], indent=1))
    text = tables([*earlier, *found])
    (folder / "overhead.md").write_text(text)
    print(f"\n{text}\nin {folder}")


def _asked(config):
    def option(name, default):
        return config.getoption(f"overhead_{name}", default=None) or default

    copies = [int(each) for each in str(option("copies", "1")).split(",")]
    variants = option("variants", ",".join(NAMES)).split(",")
    return int(option("rounds", 3)), copies, variants, option("report", None)


def _measured(folder, variants, rounds, copies, number):
    folder.mkdir()
    found = []
    with OverheadStack(folder) as stack:
        idle = stack.prepare(variants)
        print(f"\nat rest: {idle:.2f} CPU seconds a second")
        for variant in variants:
            if "submit" not in variant:
                stack.run(variant, WARM_UP_DAY, 1)
        jobs = [(count, each) for each in range(rounds) for count in copies]
        for turn, (count, _) in enumerate(jobs):
            day = FIRST_DAY + timedelta(weeks=turn)
            # Nobody is always the first one, nor always behind the same other one.
            order = variants[turn % len(variants) :] + variants[: turn % len(variants)]
            for variant in order:
                one = stack.run(variant, day, count)
                found.append({**one, "idle": idle, "round": f"{number}/{turn}"})
                print(
                    f"{day} x{count} {variant}: {one['seconds']:.1f} s, {sum(one['cpu'].values()):.1f} CPU s",
                    flush=True,
                )
            _compare(stack, order, day, count)
    return found


def _compare(stack, variants, day, copies):
    expected = expected_rows(day) if copies == 1 else stack.rows(variants[0], day)
    for variant in variants:
        assert first_difference(stack.rows(variant, day), expected) is None, f"{variant} differs on {day}"
