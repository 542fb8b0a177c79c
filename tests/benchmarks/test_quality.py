"""What checks add to a region: on the rows that it has just written, read back from its files.

    pytest tests/benchmarks/test_quality.py --benchmark-only -s --quality-rows 4000000,24000000

Each size is one region, whose checks are measured apart: rows that are sorted by key and written. The plain suite has
sixteen expectations that are one aggregation, two uniquenesses among them; the second one six that are violated, so
that examples are looked for; the last one two that only Great Expectations answers, which is imported for the first.
"""

from __future__ import annotations

import sys

import pytest
from tests.builders.jobs import Jobs

from weir.dataflow.quality import Policy
from weir.formats.checks import CheckReason, CheckToRun
from weir.formats.suite import Expectation, Suite
from weir.topology.partitions import Layout
from weir_spark.region import region

MODULE = "quality_bench_stages"
STAGES = """
def flights(ctx):
    rows = ctx.spark.range(0, ctx.parameters["rows"], 1, 4)
    return rows.selectExpr(
        "id",
        "concat('N', id % 100003) tailnum",
        "element_at(array('AA', 'B6', 'DL', 'EV', 'UA', 'US'), int(id % 6) + 1) carrier",
        "int(xxhash64(id) % 60) delay",
        "if(id % 97 = 0, null, (xxhash64(id, 1) % 4000) / 2.0D) distance",
        "date('2013-01-01') + int(id % 365) day",
        "substring(sha2(string(id), 256), 1, 12) text",
    )
"""
LIMIT, LONG = 25.0, 60.0


def of(kind, **kwargs):
    return Expectation(f"expect_column_{kind}", kwargs)


PLAIN = (
    *(of("values_to_not_be_null", column=each) for each in ("id", "tailnum", "carrier", "delay", "day")),
    of("values_to_not_be_null", column="distance", mostly=0.95),
    of("values_to_be_in_set", column="carrier", value_set=["AA", "B6", "DL", "EV", "UA", "US"]),
    of("values_to_match_regex", column="tailnum", regex="^N[0-9]+$"),
    of("value_lengths_to_equal", column="text", value=12),
    of("values_to_be_between", column="delay", min_value=-60, max_value=60),
    of("values_to_be_between", column="day", min_value="2013-01-01", max_value="2013-12-31"),
    of("mean_to_be_between", column="delay", min_value=-5, max_value=5),
    of("max_to_be_between", column="distance", max_value=2000),
    Expectation("expect_table_row_count_to_be_between", {"min_value": 1}),
    of("values_to_be_unique", column="id"),
    Expectation("expect_compound_columns_to_be_unique", {"column_list": ["tailnum", "id", "day"]}),
)
VIOLATED = (
    of("values_to_be_in_set", column="carrier", value_set=["AA"]),
    of("values_to_not_be_in_set", column="carrier", value_set=["UA"]),
    of("values_to_not_be_null", column="distance"),
    of("values_to_be_between", column="delay", min_value=0),
    of("values_to_match_regex", column="text", regex="^0"),
    of("values_to_be_unique", column="tailnum"),
)
FOR_GX = (
    of("distinct_values_to_be_in_set", column="carrier", value_set=["AA", "B6", "DL", "EV", "UA", "US"]),
    of(
        "values_to_be_between",
        column="delay",
        max_value=60,
        row_condition="day > '2013-06-01'",
        condition_parser="spark",
    ),
)
SUITES = {"plain": PLAIN, "violated": VIOLATED, "Great Expectations": FOR_GX}


@pytest.mark.spark
@pytest.mark.timeout(3600)
def test_checks_add_little_to_a_region(spark, store, tmp_path, benchmark, request, monkeypatch) -> None:
    (tmp_path / f"{MODULE}.py").write_text(STAGES)
    monkeypatch.syspath_prepend(str(tmp_path))
    sizes = [int(each) for each in request.config.getoption("--quality-rows").split(",")]
    asked = request.config.getoption("--quality-suites") or ",".join(SUITES)
    ran(spark, store, 1000, PLAIN)
    print("\n| rows | region without checks, s | suite | expectations | added, s | share |\n|---|---|---|---|---|---|")
    found = {}
    for rows in sizes:
        for name in asked.split(","):
            suite = SUITES[name]
            is_first = name == "Great Expectations" and "great_expectations" not in sys.modules
            all_of_it, added = ran(spark, store, rows, suite)
            said, without = f"{name}, imported" if is_first else name, all_of_it - added
            print(
                f"| {rows} | {without:.1f} | {said} | {len(suite)} | {added:.1f} | {added / without:.2f} |", flush=True
            )
            found[rows, said] = (without, added)
    benchmark.extra_info.update({f"{rows} {name}": each for (rows, name), each in found.items()})
    benchmark.pedantic(lambda: ran(spark, store, 1000, PLAIN), rounds=1)
    assert all(added <= (without / 2 if without >= LONG else LIMIT) for without, added in found.values())


def ran(spark, store, rows, suite):
    """How long a region has taken, and how much of that were its checks."""
    jobs = Jobs(store)
    checks = (CheckToRun(Suite("bench", "f", suite), Policy.WARN, CheckReason.FRESH),)
    output = jobs.output("flights", Layout(("tailnum",), 128))
    job = jobs.region(
        jobs.stage("flights", f"{MODULE}:flights", output, is_source=True, checks=checks), parameters={"rows": rows}
    )
    report = region.run(job, spark, store, lambda line: None)
    assert report.outputs[0].digest.rows == rows
    assert all(not each.error for check in report.checks for each in check.results)
    return sum(report.metrics.values()), report.metrics["check flights"]
