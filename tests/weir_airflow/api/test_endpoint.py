"""The endpoint, served by Airflow's real API over HTTP."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

PASSWORDS = {"worker": "worker-secret", "reader": "reader-secret"}


@pytest.fixture(scope="session")
def token(api_url):
    def ask(user):
        answer = httpx.post(f"{api_url}/auth/token", json={"username": user, "password": PASSWORDS[user]}, timeout=30)
        return {"Authorization": f"Bearer {answer.json()['access_token']}"}

    return ask


@pytest.fixture
def post(api_url, token):
    def send(verb, body, user="worker", dag_id="river"):
        headers = token(user) if user else {}
        return httpx.post(f"{api_url}/weir/dags/{dag_id}/{verb}", json=body, headers=headers, timeout=60)

    return send


def body_for(run_id, **item):
    return {"run_id": run_id, "items": [{"task_id": "spring", "expected_try": 1, "note": "lost", **item}]}


@pytest.mark.parametrize(("user", "code"), [(None, 401), ("reader", 403), ("worker", 200)])
def test_clearing_needs_the_permission_that_airflows_own_clear_needs(new_run, post, look, user, code):
    run_id = new_run("running")
    assert post("clear", body_for(run_id), user).status_code == code
    assert (look.task(run_id, "spring")[0] is None) == (code == 200)


@pytest.mark.parametrize(("user", "code"), [(None, 401), ("reader", 403), ("worker", 200)])
def test_starting_a_run_needs_a_permission_too(new_run, post, look, user, code):
    run_id = new_run("queued")
    assert post("start", {"run_id": run_id}, user).status_code == code
    assert look.run(run_id) == ("running" if code == 200 else "queued")


@pytest.mark.parametrize(("verb", "entity"), [("clear", "TASK_INSTANCE"), ("start", "RUN")])
def test_each_verb_needs_the_permission_to_edit_what_it_changes(new_run, post, monkeypatch, verb, entity):
    """Airflow's simple accounts may edit all or nothing: an account of another manager may edit one kind of thing."""
    from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
    from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

    allowed = set()
    monkeypatch.setattr(
        SimpleAuthManager,
        "is_authorized_dag",
        lambda _self, *, method, user, access_entity=None, details=None: (method, access_entity, details.id) in allowed,
    )
    run_id = new_run("queued")
    body = {"run_id": run_id} if verb == "start" else body_for(run_id)
    everything_else = [each for each in DagAccessEntity if each.name != entity]
    allowed.update((method, each, "river") for method in ("GET", "POST", "PUT") for each in everything_else)
    assert post(verb, body).status_code == 403
    allowed.clear()
    allowed.add(("PUT", DagAccessEntity[entity], "river"))
    assert post(verb, body).status_code == 200


@pytest.mark.parametrize(("user", "code"), [(None, 401), ("reader", 200)])
def test_looking_for_the_run_before_needs_the_permission_to_read_runs(river, post, user, code):
    body = {"start": "1999-01-01T00:00:00Z", "key": "19990101T000000Z", "every": "0 0 * * *", "zone": "UTC"}
    found = post("before", body, user)
    assert found.status_code == code
    assert user is None or found.json() == {"run_id": None, "start": None, "end": None}


def test_a_forged_token_is_refused(api_url, new_run):
    forged = {"Authorization": "Bearer a.b.c"}
    answer = httpx.post(
        f"{api_url}/weir/dags/river/clear", json=body_for(new_run("running")), headers=forged, timeout=30
    )
    assert answer.status_code in {401, 403}


def test_it_answers_state_and_try_found_and_whether_it_cleared(new_run, post, look):
    run_id = new_run("success", spring=("success", 4))
    refused = post("clear", body_for(run_id, expected_try=3)).json()["items"]
    cleared = post("clear", body_for(run_id, expected_try=4)).json()["items"]
    (ti_id,) = {each.pop("ti_id") for each in (*refused, *cleared)}
    assert ti_id
    seen = {"run_id": run_id, "task_id": "spring", "map_index": -1, "state": "success", "try_number": 4}
    assert (refused, cleared) == ([seen | {"cleared": False}], [seen | {"cleared": True}])
    assert look.task(run_id, "spring") == (None, 4, "lost")
    assert look.run(run_id) == "running"


def test_of_four_racing_requests_one_clears_and_none_fails(new_run, post):
    run_id = new_run("running")
    with ThreadPoolExecutor(4) as racers:
        answers = list(racers.map(lambda _: post("clear", body_for(run_id)), range(4)))
    assert [answer.status_code for answer in answers] == [200] * 4
    assert sum(answer.json()["items"][0]["cleared"] for answer in answers) == 1


def test_entering_assets_needs_the_permission_to_clear(post):
    body = {"dataflow": "mouth", "sinks": ["silt"]}
    assert post("assets", body, "reader").status_code == 403
    assert post("assets", body).json() == {"sinks": ["silt"]}


def test_emitting_events_needs_the_permission_to_clear(new_run, post):
    body = {"run_id": new_run("running"), "task_id": "spring", "dataflow": "river", "events": {"shore": {}}}
    assert [post("events", body, user).status_code for user in (None, "reader", "worker")] == [401, 403, 200]


def test_a_dry_run_changes_nothing(new_run, post, look):
    run_id = new_run("running")
    assert post("clear", body_for(run_id) | {"dry_run": True}).json()["items"][0]["cleared"]
    assert look.task(run_id, "spring") == ("success", 1, None)


def test_an_item_that_names_no_run_is_refused_and_says_so(post):
    answer = post("clear", {"items": [{"task_id": "spring"}]})
    assert answer.status_code == 422
    assert "names no run" in answer.text


def test_an_unknown_field_is_refused(new_run, post):
    assert post("clear", body_for(new_run("running"), expect_try=1)).status_code == 422


def test_starting_answers_the_state_found(new_run, post):
    queued, done = new_run("queued"), new_run("success")
    answers = [post("start", {"run_id": run_id}).json() for run_id in (queued, done, "no such run")]
    assert [(answer["state"], answer["started"]) for answer in answers] == [
        ("queued", True),
        ("success", False),
        ("missing", False),
    ]


def test_starting_says_when_a_run_stays_queued_behind_earlier_ones(new_run, post, look):
    for _ in range(16):  # Airflow's default of max_active_runs
        new_run("running")
    run_id = new_run("queued")
    assert post("start", {"run_id": run_id}).json() == {"run_id": run_id, "state": "queued", "started": False}
    assert look.run(run_id) == "queued"
