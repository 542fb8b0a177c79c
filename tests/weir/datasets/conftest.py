"""Two dataflows, of which one reads what the other publishes."""

import pytest
from tests.weir.datasets.neighbours import Neighbours


@pytest.fixture
def town(request, tmp_path, database):
    on_postgresql = request.getfixturevalue("empty_postgres_ledger")() if database == "postgresql" else None
    return Neighbours(tmp_path, on_postgresql)
