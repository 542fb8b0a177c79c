"""What days come to if nothing goes back in time."""

import pytest
from tests.builders.ledgers import fast_folder
from tests.weir.behind.rewinding import undisturbed


@pytest.fixture(scope="session")
def one_day():
    with fast_folder() as folder:
        return undisturbed(folder, 1)


@pytest.fixture(scope="session")
def two_days():
    with fast_folder() as folder:
        return undisturbed(folder, 2)


@pytest.fixture(scope="session")
def three_days():
    with fast_folder() as folder:
        return undisturbed(folder, 3, retained_checkpoints=3, keep="60 days")
