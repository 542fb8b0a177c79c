"""Pages as a person sees them: a Chromium, and a world that has something to show, on Airflow's real API server."""

from __future__ import annotations

from contextlib import contextmanager

import httpx
import pytest
from tests.builders.ledgers import fast_folder
from tests.servers.chromium import running_chromium, why_no_chromium
from tests.weir_airflow.conftest import PASSWORDS
from tests.weir_airflow.pages.flights import HOSTILE, entered, four_days


@pytest.fixture(scope="session")
def chromium():
    """The one Chromium of these tests."""
    if reason := why_no_chromium():
        pytest.skip(reason)
    with running_chromium() as started:
        yield started


@pytest.fixture(scope="module")
def names():
    """What the world of `flights.py` is called."""
    return HOSTILE


@pytest.fixture(scope="module")
def flights(enter_dags, api_url, names):
    """The world of `flights.py`, which Airflow knows, too."""
    with fast_folder() as folder, pytest.MonkeyPatch.context() as patch:
        world = four_days(folder, names)
        patch.setenv("AIRFLOW__API__BASE_URL", api_url)
        patch.setenv("WEIR_STORE", str(folder / "store"))
        patch.setenv("WEIR_LEDGER", f"sqlite:///{folder}/ledger.db")
        with entered(enter_dags, world):
            yield world
        world.ledger.close()


@pytest.fixture(scope="session")
def tokens(api_url):
    """What the users' browsers send once they have logged in."""

    def token(user):
        login = {"username": user, "password": PASSWORDS[user]}
        return httpx.post(f"{api_url}/auth/token", json=login, timeout=30).json()["access_token"]

    return {user: token(user) for user in PASSWORDS}


@pytest.fixture(scope="session")
def browsing(chromium, api_url, tokens):
    """Open a page of a browser in which a user has logged in."""

    @contextmanager
    def browse(user="reader"):
        with chromium.page(cookies={"_token": tokens[user]}, of=api_url) as page:
            yield page

    return browse
