"""What reuse saves: days whose planes are those of the day before, a fix of the last stage, and a backfill of nothing.

    pytest tests/benchmarks/test_reuse.py --benchmark-only -s --reuse-days 4 --overhead-copies 1000

By hand all of a run is run again; the dataflow clears the same days with `--reuse`. All variants of a round compute the
same days in one stack, one after the other, and publish the same rows.
"""

from __future__ import annotations

from datetime import date, timedelta

import pytest
from overhead_stack import OverheadStack

VARIANTS = ("by_hand_connect", "flights_connect_1", "flights_reuse")
FIRST_DAY = date(2013, 1, 8)


@pytest.mark.e2e
@pytest.mark.timeout(7200)
def test_reuse_against_the_same_steps_by_hand(benchmark, tmp_path, pytestconfig) -> None:
    days = [FIRST_DAY + timedelta(days=number) for number in range(pytestconfig.getoption("reuse_days"))]
    copies = int(pytestconfig.getoption("overhead_copies") or 1000)
    found = []
    benchmark.pedantic(lambda: found.extend(_measured(tmp_path / "run", days, copies)), rounds=1)
    print(f"\n{len(days)} days, each flight {copies} times\n{table(found)}")


def _measured(folder, days, copies):
    """Measure all scenarios; yields their names and what each variant has used."""
    folder.mkdir()
    with OverheadStack(folder) as stack:
        idle = stack.prepare(VARIANTS)
        runs = {variant: {} for variant in VARIANTS}
        for day in [FIRST_DAY - timedelta(days=2), FIRST_DAY - timedelta(days=1), *days]:
            for variant in VARIANTS:
                one = stack.run(variant, day, copies)
                runs[variant][day] = one["run_id"]
                if day in days:  # the first ones warm up, and have other layouts
                    yield "a day", _told("a day", {**one, "idle": idle})
            _compare(stack, day)
        for scenario, word in (("a fix of the last stage", "fixed"), ("nothing has changed", "fixed")):
            stack.edit(word)
            for variant in VARIANTS:
                one = stack.again(variant, days, [runs[variant][day] for day in days])
                yield scenario, _told(scenario, {**one, "idle": idle})
            for day in days:
                _compare(stack, day)


def _compare(stack, day):
    expected = stack.rows(VARIANTS[0], day)
    for variant in VARIANTS[1:]:
        assert stack.rows(variant, day) == expected, f"{variant} differs on {day}"


def _cpu(one):
    return sum(one["cpu"].values()) - one["idle"] * one["window"]


def _told(scenario, one):
    print(f"{scenario}, {one['variant']}: {one['seconds']:.1f} s, {_cpu(one):.1f} CPU s, {one['left']}", flush=True)
    return one


def table(found):
    """Sums of each scenario and variant as Markdown, with their ratios to those by hand."""
    lines = ["| | | seconds | ratio | CPU seconds | ratio | MB stored |", "|---|---|---|---|---|---|---|"]
    for scenario in dict.fromkeys(name for name, _ in found):
        sums = {
            variant: [
                sum(value(one) for name, one in found if (name, one["variant"]) == (scenario, variant))
                for value in (lambda one: one["seconds"], _cpu, lambda one: one["left"]["bytes"] / 1e6)
            ]
            for variant in VARIANTS
        }
        of_hand = sums[VARIANTS[0]]
        lines += [
            f"| {scenario} | {variant} | {seconds:.1f} | {seconds / of_hand[0]:.2f} "
            f"| {cpu:.1f} | {cpu / of_hand[1]:.2f} | {stored:.1f} |"
            for variant, (seconds, cpu, stored) in sums.items()
        ]
    return "\n".join(lines)
