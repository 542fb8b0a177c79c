"""What tests of engines share."""

import pytest

from weir_spark.transport import progress


@pytest.fixture
def seen_at_work(monkeypatch):
    """Progress is logged soon: for tests that wait until Spark computes."""
    monkeypatch.setattr(progress, "INTERVAL_SECONDS", 2.0)
