"""The second example's stage function against a plain computation."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import pytest
from tests.pipelines.test_flight_delays import context

from pipelines.flight_week import week

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

COLUMNS = "day DATE, kind STRING, name STRING, flights BIGINT, cancelled BIGINT, late BIGINT, departure_delay BIGINT"


def test_reports_of_some_days_become_a_row_for_each_name(session_of: Callable[[], SparkSession]) -> None:
    spark = session_of()
    first, second, third = (dt.date(2013, 1, day) for day in (1, 2, 3))
    rows = [
        (first, "carrier", "UA", 10, 1, 2, 300),
        (second, "carrier", "UA", 20, 0, 5, 300),
        (third, "carrier", "UA", 5, 5, 0, -7),
        (second, "route", "UA", 1, 0, 0, -3),
    ]
    found = week(context(spark, third), spark.createDataFrame(rows, COLUMNS)).collect()
    assert sorted(map(tuple, found)) == [
        ("carrier", "UA", third, 3, 35, 6, 7, 593, first),
        ("route", "UA", third, 1, 1, 0, 0, -3, second),
    ]
