"""The command line's hand in Airflow, on Airflow's real API over HTTP."""

from __future__ import annotations

import pytest
from tests.messages.kinds import of_kind

from weir.cli.airflow_api import airflow_api
from weir.coordination.airflow import ClearAnswer, ClearItem
from weir.coordination.clearing import EndpointClearer
from weir.errors import Misconfigured


def address(api_url, account):
    return {"WEIR_API": api_url.replace("http://", f"http://{account}@")}


@pytest.fixture
def hand(api_url):
    api = airflow_api(address(api_url, "worker:worker-secret"))
    yield EndpointClearer(api)
    api.close()


def test_it_looks_and_clears_what_has_the_expected_try(hand, new_run, look):
    run_id = new_run("success", spring=("success", 4))
    wanted = [ClearItem("river", run_id, "spring", -1, expected, note="by hand") for expected in (3, 4)]
    assert [answer.cleared for answer in hand.inspect(wanted)] == [False, True]
    assert look.task(run_id, "spring") == ("success", 4, None)
    assert hand.clear(wanted)[1] == ClearAnswer(wanted[1], "success", 4, cleared=True)
    assert look.task(run_id, "spring") == (None, 4, "by hand")
    assert look.run(run_id) == "running"


def test_it_starts_a_queued_run(hand, new_run, look):
    run_id = new_run("queued")
    assert hand.start("river", run_id) == "queued"
    assert look.run(run_id) == "running"


def test_an_account_without_permission_is_refused(api_url, new_run):
    api = airflow_api(address(api_url, "reader:reader-secret"))
    with pytest.raises(Misconfigured, check=of_kind("coordination.permission_missing")):
        EndpointClearer(api).clear([ClearItem("river", new_run("running"), "spring", -1, 1)])
    api.close()
