"""Simulations commit by the thousand: their folders are in memory."""

import pytest
from tests.builders.ledgers import fast_folder


@pytest.fixture
def tmp_path():
    with fast_folder() as folder:
        yield folder
