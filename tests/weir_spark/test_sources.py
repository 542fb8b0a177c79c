from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from weir.errors import Misconfigured, Retryable
from weir_spark import sources
from weir_spark.context import ResolveContext
from weir_spark.sources import file_mark, resolve, unchanged

CONTEXT = ResolveContext(
    "20130101T000000Z", (datetime(2013, 1, 1, tzinfo=UTC), datetime(2013, 1, 2, tzinfo=UTC)), 3, {"airports": "all"}
)


def test_a_resolver_says_what_each_subtask_reads(pipeline) -> None:
    module = pipeline(
        "def flights_of(ctx):\n"
        "    return [{'day': ctx.interval[0].day, 'subtask': i, **ctx.parameters} for i in range(ctx.parallelism)]\n"
    )
    assert resolve(f"{module}:flights_of", "flights", CONTEXT) == tuple(
        {"day": 1, "subtask": subtask, "airports": "all"} for subtask in range(3)
    )


@pytest.mark.parametrize("answer", ["[1, 2]", "None", "'abc'", "[1, None, 3]"])
def test_a_resolver_answers_one_value_a_subtask(pipeline, answer) -> None:
    module = pipeline(f"def flights_of(ctx):\n    return {answer}\n")
    with pytest.raises(Misconfigured, match=f"resolve of stage flights: {module}:flights_of must return a list of 3"):
        resolve(f"{module}:flights_of", "flights", CONTEXT)


@pytest.mark.parametrize("value", ["object()", "float('nan')"])
def test_a_resolver_answers_json(pipeline, value) -> None:
    module = pipeline(f"def flights_of(ctx):\n    return [{value}] * 3\n")
    with pytest.raises(Misconfigured, match="must return JSON values"):
        resolve(f"{module}:flights_of", "flights", CONTEXT)


@pytest.mark.parametrize("hashed_bytes", [1000, 2])
def test_a_file_that_stays_as_it_is_can_be_read_by_its_mark(tmp_path: Path, monkeypatch, hashed_bytes) -> None:
    monkeypatch.setattr(sources, "_HASHED_BYTES", hashed_bytes)
    file = tmp_path / "flights.csv"
    file.write_text("EWR,UA")
    assert unchanged(file_mark(file)) == str(file)


def test_a_file_with_other_content_of_equal_length_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "flights.csv"
    file.write_text("EWR,UA")
    mark = file_mark(file)
    file.write_text("EWR,AA")
    with pytest.raises(Misconfigured, match=r"flights.csv has changed since this run resolved its sources"):
        unchanged(mark)


def test_a_file_that_is_away_may_come_back(tmp_path: Path) -> None:
    file = tmp_path / "flights.csv"
    file.write_text("EWR,UA")
    mark = file_mark(file)
    file.unlink()
    with pytest.raises(Retryable, match="cannot be read"):
        unchanged(mark)
