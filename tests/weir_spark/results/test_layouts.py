"""Each layout of a result has the same rows and the same digest, and gives each subtask the same rows."""

from __future__ import annotations

import dataclasses

import pytest
from pyspark.sql import functions as F  # noqa: N812

from weir.formats.manifest import OF_RESULT, OF_STORED_ROWS
from weir.formats.region_job import OutputReport
from weir.topology.key_groups import key_group_range
from weir.topology.partitions import PLAIN, KeyFilter, Layout
from weir_spark.results import writer
from weir_spark.results.digest import digest_of
from weir_spark.results.reader import read_input

pytestmark = pytest.mark.spark

BY_NUMBER = Layout(("number",), 5)
BY_TWO = Layout(("text", "number"), 32)
BY_FLAG = Layout(("flag",), 3)
LAYOUTS = (PLAIN, BY_NUMBER, BY_TWO, BY_FLAG)


@pytest.fixture
def rows(spark):
    return spark.range(0, 60, 1, 3).select(
        F.expr("if(id % 7 = 0, null, int(id % 11))").alias("number"),
        F.expr("if(id % 5 = 0, null, concat('é', id % 4))").alias("text"),
        F.expr("if(id % 3 = 0, null, id % 2 = 0)").alias("flag"),
        F.expr("if(id % 2 = 0, -0.0D, if(id % 9 = 0, double('NaN'), id / 3.0D))").alias("share"),
        F.expr("cast(if(id % 4 = 0, null, id / 7) as decimal(20, 6))").alias("price"),
        F.expr("array(id, null)").alias("several"),
    )


@pytest.fixture
def reports(store, jobs, rows) -> dict[Layout, OutputReport]:
    """The rows as one result, in two partitions of each layout."""

    def write(layout: Layout, version: int = OF_RESULT) -> OutputReport:
        output = dataclasses.replace(jobs.output("rows", layout), digest_version=version)
        return writer.report(writer.write(rows, "rows", output), "rows", output, store)

    return {layout: write(layout) for layout in LAYOUTS}


def test_every_layout_has_the_same_digest_which_has_a_version(store, jobs, rows, reports) -> None:
    assert len({report.digest for report in reports.values()}) == 1
    assert str(reports[BY_NUMBER].digest) == f"v2:{digest_of(rows)}"
    old = dataclasses.replace(jobs.output("rows", BY_NUMBER), digest_version=OF_STORED_ROWS)
    stored = writer.write(rows, "rows", old).digest
    assert (stored.version, stored == digest_of(rows)) == (1, False)


@pytest.mark.parametrize("declared", [BY_NUMBER, BY_TWO, BY_FLAG], ids=lambda layout: layout.id)
def test_every_layout_gives_a_subtask_the_same_rows(spark, jobs, rows, reports, declared) -> None:
    parallelism = 3
    ranges = [key_group_range(declared.max_parallelism, parallelism, subtask) for subtask in range(parallelism)]
    own = [digest_of(read_input(spark, jobs.read("rows", reports[declared], key_groups=each))) for each in ranges]
    assert sum(each.rows for each in own) == rows.count()
    for layout in LAYOUTS:
        if layout != declared:
            read = jobs.read("rows", reports[layout])
            kept = [dataclasses.replace(read, filter=KeyFilter(declared, each)) for each in ranges]
            assert [digest_of(read_input(spark, each)) for each in kept] == own, layout.id


def test_a_filtered_input_has_the_columns_of_the_stage(spark, jobs, rows, reports) -> None:
    read = dataclasses.replace(jobs.read("rows", reports[BY_FLAG]), filter=KeyFilter(BY_TWO, (0, 15)))
    assert read_input(spark, read).columns == rows.columns
