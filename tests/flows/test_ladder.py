"""The dataflow that other tests break must itself be right when nothing is broken."""

from __future__ import annotations

import datetime as dt
import importlib.util
import json
import threading
import time
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from weir_spark.region.context import StageContext

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

_spec = importlib.util.spec_from_file_location("ladder", Path(__file__).with_name("ladder.py"))
assert _spec is not None
assert _spec.loader is not None
ladder = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(ladder)

NEW_YEAR = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)


@pytest.fixture(scope="module")
def spark(session_of: Callable[[], SparkSession]) -> SparkSession:
    """A session for a few hundred rows: Spark's 200 partitions a shuffle would take ten times as long."""
    session = session_of()
    session.conf.set("spark.sql.shuffle.partitions", "4")
    return session


@pytest.mark.parametrize("parallelism", [1, 3, 4])
@pytest.mark.parametrize("settings", [{}, {"count": 7, "add": 1000}, {"count": 0}], ids=str)
def test_totals_are_what_they_should_be(
    spark: SparkSession, tmp_path: Path, settings: dict[str, int], parallelism: int
) -> None:
    contexts = [_context(spark, tmp_path, settings, subtask, parallelism) for subtask in range(parallelism)]
    numbers = reduce(lambda left, right: left.unionAll(right), [ladder.numbers(ctx) for ctx in contexts])
    totals = ladder.totals(contexts[0], ladder.doubled(contexts[0], numbers))
    assert totals.orderBy("bucket").toArrow().to_pylist() == ladder.expected_totals(settings)


def test_an_epoch_may_have_settings_of_its_own(spark: SparkSession, tmp_path: Path) -> None:
    settings = {"count": 5, "epochs": {"20240101T000000Z": {"add": 40}, "20240102T000000Z": {"add": 7}}}
    ctx = _context(spark, tmp_path, settings)
    totals = ladder.totals(ctx, ladder.doubled(ctx, ladder.numbers(ctx)))
    found = totals.orderBy("bucket").toArrow().to_pylist()
    assert found == ladder.expected_totals(settings, ctx.epoch) == ladder.expected_totals({"count": 5, "add": 40})


def test_running_totals_are_those_of_all_epochs_since_the_last_that_forgot(spark: SparkSession, tmp_path: Path) -> None:
    epochs = ["20240101T000000Z", "20240102T000000Z", "20240103T000000Z"]
    settings = {"count": 15, "epochs": {epochs[0]: {"add": 3}, epochs[1]: {"forget": True}, epochs[2]: {"add": 8}}}
    before = spark.createDataFrame([], "bucket BIGINT, numbers BIGINT, total BIGINT")
    for number, epoch in enumerate(epochs, 1):
        ctx = replace(_context(spark, tmp_path, settings), epoch=epoch)
        sums = ladder.running_totals(ctx, ladder.doubled(ctx, ladder.numbers(ctx)), before)
        found = sums.orderBy("bucket").toArrow().to_pylist()
        assert found == ladder.expected_running_totals(settings, epochs[:number])
        before = spark.createDataFrame(found, "bucket BIGINT, numbers BIGINT, total BIGINT")


def test_spark_dwells_on_each_row_if_asked_to_and_changes_none(spark: SparkSession, tmp_path: Path) -> None:
    ctx = _context(spark, tmp_path, {"count": 20, "milliseconds_a_row": 50})
    began = time.monotonic()
    rows = ladder.doubled(ctx, ladder.numbers(ctx).coalesce(1)).count()
    assert rows == 20
    assert time.monotonic() - began >= 20 * 0.05


def test_a_hold_keeps_a_stage_until_it_is_deleted(spark: SparkSession, tmp_path: Path) -> None:
    ctx = _context(spark, tmp_path, {}, subtask=1, parallelism=2)
    hold = tmp_path / "hold-numbers"
    hold.touch()
    stage = threading.Thread(target=ladder.numbers, args=(ctx,))
    stage.start()
    _wait_for(tmp_path / "reached-numbers-1")
    assert stage.is_alive()
    hold.unlink()
    stage.join(timeout=60)
    assert not stage.is_alive()


def test_a_stage_fails_if_asked_to(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "fail-numbers").touch()
    with pytest.raises(ValueError, match=r"numbers\[0\] fails on purpose"):
        ladder.numbers(_context(spark, tmp_path, {}))


def _context(
    spark: SparkSession, folder: Path, settings: dict[str, Any], subtask: int = 0, parallelism: int = 1
) -> StageContext:
    control = folder / "ladder.json"
    control.write_text(json.dumps(settings))
    interval = (NEW_YEAR, NEW_YEAR + dt.timedelta(days=1))
    return StageContext(
        epoch="20240101T000000Z",
        interval=interval,
        subtask=subtask,
        parallelism=parallelism,
        parameters={"control": str(control)},
        spark=spark,
    )


def _wait_for(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.01)
