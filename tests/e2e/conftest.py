"""Airflow's API and Weir's ledger and store, as end-to-end tests use them."""

from __future__ import annotations

import time

import pytest

from weir.cli.airflow_api import AirflowApi
from weir.cli.credentials import PERSON, SERVICE
from weir.ledger.ledger import Ledger
from weir.store.store import Store


@pytest.fixture(scope="session")
def api(stack):
    """The API as the person who may do everything."""
    session = AirflowApi(stack.url, PERSON, stack.credentials.person_password)
    yield session
    session.close()


@pytest.fixture(scope="session")
def service_api(stack):
    """The API as the account of the connection `weir_api`."""
    session = AirflowApi(stack.url, SERVICE, stack.credentials.service_password)
    yield session
    session.close()


@pytest.fixture
def ledger(stack):
    """The ledger of the shared stack."""
    opened = Ledger.open(stack.ledger_url)
    yield opened
    opened.close()


@pytest.fixture
def store(stack):
    """The store of the shared stack."""
    return Store.open(stack.store_url)


@pytest.fixture
def eventually():
    """Ask until the answer is true; the last answer is shown when time is up."""

    def ask(question, seconds=120):
        deadline = time.monotonic() + seconds
        while not (answer := question()) and time.monotonic() < deadline:
            time.sleep(0.2)
        assert answer, f"still {answer!r} after {seconds} s"
        return answer

    return ask
