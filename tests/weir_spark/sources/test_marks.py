from __future__ import annotations

from pathlib import Path

import pytest
from tests.messages.kinds import of_kind

from weir.errors import Misconfigured, Retryable
from weir_spark.sources import file_mark, unchanged


@pytest.mark.parametrize("hashed_bytes", [1000, 2])
def test_a_file_that_stays_as_it_is_can_be_read_by_its_mark(tmp_path: Path, hashed_bytes) -> None:
    file = tmp_path / "flights.csv"
    file.write_text("EWR,UA")
    assert unchanged(file_mark(file, hashed_bytes)) == str(file)


def test_a_file_with_other_content_of_equal_length_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "flights.csv"
    file.write_text("EWR,UA")
    mark = file_mark(file)
    file.write_text("EWR,AA")
    with pytest.raises(Misconfigured, check=of_kind("sources.mark_changed")):
        unchanged(mark)


def test_a_file_that_is_away_may_come_back(tmp_path: Path) -> None:
    file = tmp_path / "flights.csv"
    file.write_text("EWR,UA")
    mark = file_mark(file)
    file.unlink()
    with pytest.raises(Retryable, check=of_kind("sources.mark_unreadable")):
        unchanged(mark)
