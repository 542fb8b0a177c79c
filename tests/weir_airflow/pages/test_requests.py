"""Acting from a page: a button makes a DagRun, and a worker carries it out if it may, and if nothing has changed.

Served by Airflow's real API; the worker's part runs in this process, against that API and its database.
"""

from __future__ import annotations

import re
import sys
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from html import unescape
from types import SimpleNamespace
from uuid import uuid4

import httpx
import pytest
from airflow.sdk.exceptions import AirflowFailException
from sqlalchemy import select
from tests.builders.ledgers import fast_folder
from tests.weir.small_dataflow import World, ladder
from tests.weir_airflow.conftest import PASSWORDS

from weir.ledger.database.tables import FailoverRow, PendingClearRow, ResultRow
from weir.recovery.questions import Question
from weir.recovery.run_plans import plan_of, reaching
from weir.requests.request import LATELY, REQUESTS, Request
from weir.requests.verbs import VERBS

HOSTILE = '"><script>alert(1)</script>'
DAY = "scheduled__2013-01-02"
RUN = "ladder@20130102T000000Z"
UPKEEP = "from weir_airflow.upkeep.upkeep import dag, hourly_dag\n"
"""The file of a deployment that knows of no requests: their DAG needs no new one."""
LADDER = """
from datetime import datetime, UTC
from airflow.sdk import DAG, BaseOperator, CronDataIntervalTimetable

class Flow(BaseOperator):
    def __init__(self, *, arm=0, **kwargs):
        super().__init__(**kwargs)
        self.arm = arm

daily = CronDataIntervalTimetable("@daily", timezone="UTC")
with DAG("dag", schedule=daily, start_date=datetime(2013, 1, 1, tzinfo=UTC), is_paused_upon_creation=False):
    mapped = {each: Flow.partial(task_id=each).expand(arm=[0, 1]) for each in ("raw-clean", "joined", "totals")}
    weather, routes, report = (Flow(task_id=each) for each in ("weather", "routes", "report-delays"))
    [mapped["raw-clean"], weather] >> mapped["joined"] >> [mapped["totals"], routes] >> report
    report >> Flow(task_id="weir_close")
"""


@pytest.fixture(scope="module")
def dags(airflow_home, enter_dags):
    """The DAG of the dataflow with its two runs, and that of requests, in Airflow's database."""
    from airflow.api.common.delete_dag import delete_dag
    from airflow.models.dagbag import DBDagBag
    from airflow.utils.session import create_session
    from airflow.utils.state import DagRunState
    from airflow.utils.types import DagRunTriggeredByType, DagRunType

    sys.modules.pop("weir_airflow.upkeep.upkeep", None)  # a DAG that a file does not name is entered at its import
    (ladder_file, _), (upkeep_file, bag) = enter_dags("ladder.py", LADDER), enter_dags("weir_upkeep.py", UPKEEP)
    with create_session() as session:
        dag = DBDagBag().get_latest_version_of_dag("dag", session=session)
        for number in (1, 2):
            day = datetime(2013, 1, number, tzinfo=UTC)
            dag.create_dagrun(
                run_id=f"scheduled__2013-01-{number:02d}",
                logical_date=day,
                data_interval=(day, day + timedelta(days=1)),
                run_after=day + timedelta(days=1),
                run_type=DagRunType.SCHEDULED,
                triggered_by=DagRunTriggeredByType.TEST,
                state=DagRunState("success"),
                start_date=day,
                session=session,
            )
    yield bag.dags
    for file in (ladder_file, upkeep_file):
        file.unlink()
    for dag_id in ("dag", REQUESTS, "weir_upkeep", "weir_upkeep_hourly"):  # other tests look at all DAGs
        delete_dag(dag_id)


@contextmanager
def two_days():
    """Two days of a small dataflow, as Airflow has them, too; of the second, a result is lost."""
    with fast_folder() as folder:
        world = World(folder, ladder())
        world.run_days(1, 2)
        world.store.delete_folder(folder_of(world, "clean", 0))
        yield world
        world.ledger.close()


def folder_of(world, stage, subtask):
    with world.ledger.transaction() as session:
        of = select(ResultRow.folder).where(ResultRow.run == RUN, ResultRow.stage == stage, ResultRow.is_current)
        return session.scalars(of.where(ResultRow.subtask == subtask)).one()


@pytest.fixture(scope="module")
def kept():
    """What no test changes."""
    with two_days() as world:
        yield world


@pytest.fixture
def use(api_url, dags, monkeypatch):
    """Let Airflow and its API server use a world; nothing was asked for, and nothing is cleared."""
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session

    with create_session() as session:
        session.query(DagRun).filter_by(dag_id=REQUESTS).delete()
        session.query(DagRun).filter_by(dag_id="dag").update({"state": "success"})
        session.query(TaskInstance).filter_by(dag_id="dag").update({"state": "success", "try_number": 1})
    login = f'"login": "worker", "password": "{PASSWORDS["worker"]}"'
    monkeypatch.setenv("AIRFLOW_CONN_WEIR_API", f'{{"conn_type": "http", "host": "{api_url}", {login}}}')
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", api_url)

    def use_world(world):
        monkeypatch.setenv("WEIR_STORE", str(world.folder / "store"))
        monkeypatch.setenv("WEIR_LEDGER", f"sqlite:///{world.folder}/ledger.db")
        return world

    return use_world


@pytest.fixture
def world(use, kept):
    return use(kept)


@pytest.fixture
def own(use):
    """A world that the test changes."""
    with two_days() as world:
        yield use(world)


@pytest.fixture
def get(api_url, tokens, use):
    def ask(name="run", user="worker", **asked):
        asked = asked or {"run_id": DAY, "look": "true"}
        return httpx.get(f"{api_url}/weir/dags/dag/{name}", params=asked, headers=cookie(tokens[user]), timeout=60)

    return ask


def cookie(token):
    return {"Cookie": f"_token={token}"}


@pytest.fixture
def press(api_url, tokens, use):
    """Send a form as a browser does that shows a page of this Airflow."""

    def send(form, user="worker", origin=None, dag_id="dag"):
        headers = {**(cookie(tokens[user]) if user else {}), "Origin": api_url if origin is None else origin}
        headers = {name: value for name, value in headers.items() if value}
        return httpx.post(f"{api_url}/weir/dags/{dag_id}/requests", data=form, headers=headers, timeout=60)

    return send


def forms_of(page):
    """What the buttons of a page would send, by verb."""
    forms = re.findall(r"<form.*?</form>", page, re.S)
    fields = [dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', form)) for form in forms]
    return {each["verb"]: each for each in fields}


@pytest.fixture
def form(get, world):
    """The form of the page of the run, for which the store was looked at."""
    return forms_of(get().text)["apply"]


def made():
    """The requests in Airflow's database, oldest first."""
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session

    with create_session() as session:
        rows = session.query(DagRun).filter_by(dag_id=REQUESTS).order_by(DagRun.id).all()
        return [SimpleNamespace(**{name: getattr(row, name) for name in NAMES}, note=row.note) for row in rows]


USERS = "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS"
NAMES = ("run_id", "conf", "state", "run_type", "run_after", "triggering_user_name")


def carried_out(of=None, *, try_number=1, **changed):
    """Carry out the newest request, as its task does; return its note and whether it was done."""
    from weir_airflow.tasks.requests import carry_out_request

    run = SimpleNamespace(**{**vars(of or made()[-1]), **changed})
    context = {"dag_run": run, "run_id": run.run_id, "ti": SimpleNamespace(try_number=try_number)}
    try:
        carry_out_request(context, lambda _line: None)
    except AirflowFailException:
        return made()[-1].note, False
    return made()[-1].note, True


def cleared():
    """The task instances of the DAG that Airflow runs again, with their notes."""
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session

    with create_session() as session:
        rows = session.query(TaskInstance).filter_by(dag_id="dag", run_id=DAY, state=None).all()
        return {f"{row.task_id}[{row.map_index}]": row.note for row in rows}


def test_the_hash_of_a_button_is_that_of_the_plan_that_the_command_prints(world, form):
    planned = plan_of(world.services, Question(RUN), reaching(world.airflow))
    assert (form["hash"], form["name"]) == (planned.acts.hash, RUN)
    assert planned.acts.clears == 1
    assert planned.fields()["acts"] == planned.acts


def test_a_button_makes_one_request_in_the_name_of_its_user_and_the_page_follows_it(get, press, form):
    first, second = press(form), press(form)
    assert [each.status_code for each in (first, second)] == [303, 303]
    assert first.headers["location"] == f"/weir/dags/dag/run?run_id={DAY}&dataflow=ladder"
    (request,) = made()
    assert request.conf == {**form, "dag_id": "dag", "looked": True}
    assert (request.triggering_user_name, str(request.state)) == ("worker", "queued")
    page = get(run_id=DAY).text
    assert "waits for a worker" in page
    assert '<main data-follow="2">' in page


def test_a_worker_does_what_was_shown_and_says_who_asked_for_it(own, get, press):
    press(forms_of(get().text)["apply"])
    note, is_done = carried_out()
    assert is_done
    assert note.startswith("Done for worker.")
    again = cleared()
    assert set(again) == {"raw-clean[0]"}
    assert "applied by worker" in again["raw-clean[0]"]
    with own.ledger.transaction() as session:
        (failover,) = session.scalars(select(FailoverRow))
        (clear,) = session.scalars(select(PendingClearRow))
    assert failover.cause.endswith("applied by worker")
    assert clear.settled_at is not None
    assert "applied by worker" in get("recovery", dag_id="dag").text


def test_the_same_is_asked_for_again_once_it_is_over_also_where_old_runs_are_deleted(get, press, world):
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session

    form = forms_of(get(run_id=DAY).text)["verify"]
    for _ in range(3):
        assert press(form).status_code == 303
        with create_session() as session:
            rows = session.query(DagRun).filter_by(dag_id=REQUESTS).order_by(DagRun.id).all()
            rows[-1].state = "success"
            for row in rows[:-1]:
                session.delete(row)
    assert [run.run_id.rpartition("-")[2] for run in made()] == ["3"]


def test_who_may_only_read_makes_no_more_than_one_request_of_a_run(get, press, world):
    form = forms_of(get(run_id=DAY).text)["verify"]
    others = [{"what": "x"}, {"looked": "true"}, {"name": DAY}, {"name": "ladder@2013-01-02"}]
    codes = [press({**form, **changed}, user="reader").status_code for changed in ({}, *others)]
    assert codes == [303, *[404] * len(others)]
    assert len(made()) == 1


def test_the_requests_of_one_user_do_not_keep_those_of_others_waiting(get, press, form):
    from airflow.api.common.trigger_dag import trigger_dag
    from airflow.utils.types import DagRunTriggeredByType

    from weir_airflow.pages.requests import MOST_OPEN

    verify = forms_of(get(run_id=DAY).text)["verify"]
    press(verify, user="reader")
    for _ in range(MOST_OPEN - 1):
        trigger_dag(REQUESTS, triggered_by=DagRunTriggeredByType.UI, triggering_user_name="reader", run_id=uuid4().hex)
    assert press(verify, user="reader").status_code == 303  # it is there already
    earlier = forms_of(get(run_id="scheduled__2013-01-01").text)["verify"]
    assert press(earlier, user="reader").status_code == 409
    assert len(made()) == MOST_OPEN
    assert press(form).status_code == 303


def test_what_has_failed_without_a_word_is_not_called_undone(get, press, form):
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session

    press(form)
    with create_session() as session:
        session.query(DagRun).filter_by(dag_id=REQUESTS).update({"state": "failed"})
    text = get(run_id=DAY).text
    assert "not done" not in text
    assert "has failed" in text


def test_a_large_form_is_not_read(press, form):
    assert press({**form, "what": "x" * 100_000}).status_code == 413
    assert made() == []


@pytest.mark.parametrize("origin", ["", "null", "http://airflow.example", "https://127.0.0.1", "{}.evil.example"])
def test_what_no_page_of_this_airflow_has_sent_is_refused(api_url, press, form, origin):
    assert press(form, origin=origin.format(api_url) or False).status_code == 403
    assert made() == []


def test_nothing_is_done_by_looking(api_url, tokens, form):
    headers = {**cookie(tokens["worker"]), "Origin": api_url}
    answer = httpx.get(f"{api_url}/weir/dags/dag/requests", params=form, headers=headers)
    assert answer.status_code == 405
    assert made() == []


def test_who_may_not_edit_has_no_button_and_is_refused(get, press, form):
    text = get(user="reader").text
    assert set(forms_of(text)) == {"verify"}
    assert "reader may not edit" in text
    assert press(form, user="reader").status_code == 403
    assert press(form, user=None).status_code == 401
    assert made() == []


@pytest.mark.parametrize(
    ("changed", "status"),
    [
        ({"verb": "drop"}, 400),
        ({"verb": HOSTILE}, 400),
        ({"hash": ""}, 400),
        ({"color": "red"}, 400),
        ({"name": "x" * 2000}, 400),
        ({"name": "a\0b"}, 400),
        ({"name": "ladder@20990101T000000Z"}, 404),
        ({"name": HOSTILE}, 404),
        ({"hash": "0" * 16}, 409),
        ({"looked": "false"}, 409),
    ],
)
def test_what_cannot_be_asked_for_is_refused_and_told(press, form, changed, status):
    answer = press({**form, **changed})
    assert answer.status_code == status
    assert HOSTILE not in answer.text
    assert made() == []
    if "verb" in changed:
        assert all(verb in answer.text for verb in VERBS)


def test_a_run_is_acted_upon_below_its_own_dag_only(press, form):
    assert press(form, dag_id="other").status_code == 404
    assert made() == []


def test_nothing_is_done_once_the_plan_has_changed(own, get, press):
    press(forms_of(get().text)["apply"])
    own.store.delete_folder(folder_of(own, "clean", 1))
    note, is_done = carried_out()
    assert not is_done
    assert note.startswith("Not done.")
    assert cleared() == {}


@pytest.mark.parametrize("now", ["anna:viewer", "ben:user"])
def test_a_right_that_was_withdrawn_meanwhile_is_missing(press, form, monkeypatch, now):
    others = "worker:user,reader:viewer"
    monkeypatch.setenv(USERS, f"{others},anna:user")
    press(form)
    monkeypatch.setenv(USERS, f"{others},{now}")
    note, is_done = carried_out(triggering_user_name="anna")
    assert (is_done, cleared()) == (False, {})
    assert "anna" in note


@pytest.mark.parametrize(
    "changed",
    [
        {"try_number": 2},
        {"run_after": datetime.now(UTC) - 2 * LATELY},
        {"run_type": "operator_triggered"},
        {"triggering_user_name": None},
        {"conf": None},
        {"conf": {"verb": "drop", "dag_id": "dag", "name": RUN, "hash": "x"}},
    ],
)
def test_only_a_person_has_a_request_carried_out_and_once(press, form, changed):
    press(form)
    note, is_done = carried_out(**changed)
    assert (is_done, cleared()) == (False, {})
    assert note.startswith("Not done.")


def test_a_request_that_somebody_has_triggered_by_hand_has_that_persons_rights(own, get, press):
    form = forms_of(get().text)["apply"]
    press(form)
    by_hand = {**Request.of({**form, "dag_id": "dag", "looked": True}).to_conf()}
    assert carried_out(conf=by_hand, triggering_user_name="reader")[1] is False
    assert carried_out(conf=by_hand, triggering_user_name="worker")[1] is True


def test_the_dag_of_requests_carries_one_out_in_airflows_own_task(own, get, dags, monkeypatch):
    monkeypatch.setenv(USERS, "worker:user,reader:viewer,dag_test:user")  # the name that `dag.test()` gives
    form = forms_of(get().text)["apply"]
    run = dags[REQUESTS].test(run_conf={**form, "dag_id": "dag", "looked": True})
    assert str(run.state) == "success"
    assert made()[-1].note.startswith("Done for dag_test.")
    assert set(cleared()) == {"raw-clean[0]"}


def test_a_task_is_cleared_alone_as_its_page_says(own, get, press):
    asked = {"run_id": DAY, "task_id": "joined", "map_index": 1}
    form = forms_of(get("task", **asked).text)["clear"]
    assert form["what"] == "joined[1]"
    answer = press(form)
    assert answer.headers["location"] == f"/weir/dags/dag/task?run_id={DAY}&task_id=joined&map_index=1"
    assert "waits for a worker" in get("task", **asked).text
    assert press({**form, "what": "joined[7]"}).status_code == 404
    assert carried_out()[1]
    ((task, note),) = cleared().items()
    assert task == "joined[1]"
    assert "worker" in note
    assert press(form).status_code == 303  # what Airflow runs again by now is not cleared
    assert not carried_out()[1]


def test_a_page_about_several_tasks_clears_none(get, world):
    assert forms_of(get("task", run_id=DAY, task_id="joined", map_index="{MAP_INDEX}").text) == {}


def test_who_may_read_has_every_byte_read_and_what_is_found_is_repaired_by_who_may_edit(own, get, press):
    forms = forms_of(get(user="reader", run_id=DAY).text)
    assert set(forms) == {"verify"}
    assert press(forms["verify"], user="reader").status_code == 303
    note, is_done = carried_out()
    assert (is_done, cleared()) == (True, {})
    assert "1 lost" in note
    repair = forms_of(get(run_id=DAY).text)["repair"]
    assert press(repair, user="reader").status_code == 403
    press(repair)
    note, is_done = carried_out()
    assert (is_done, set(cleared())) == (True, {"raw-clean[0]"})
    with own.ledger.transaction() as session:
        assert session.scalars(select(FailoverRow)).one().cause.endswith("applied by worker")


def test_what_somebody_has_triggered_by_hand_is_shown_as_text(get, world):
    from airflow.api.common.trigger_dag import trigger_dag
    from airflow.utils.types import DagRunTriggeredByType

    hostile = {"verb": HOSTILE, "dag_id": "dag", "name": RUN, "hash": "x", "what": HOSTILE}
    for conf in (hostile, {"x": 1}, None):
        trigger_dag(REQUESTS, triggered_by=DagRunTriggeredByType.UI, triggering_user_name=HOSTILE, conf=conf)
    text = get(run_id=DAY).text
    assert HOSTILE not in text
    assert unescape(text).count(HOSTILE) == 3  # the verb, what, and by whom: the others are about no run


@pytest.mark.parametrize("missing", ["paused", "stale", "broken", "base_url", "address"])
def test_where_no_request_can_be_made_the_page_says_why(get, form, press, monkeypatch, missing):
    from airflow.models.dag import DagModel
    from airflow.utils.session import create_session

    names = {"paused": "is_paused", "stale": "is_stale", "broken": "has_import_errors"}
    if missing == "base_url":
        monkeypatch.delenv("AIRFLOW__API__BASE_URL")
    if missing == "address":
        monkeypatch.setenv("AIRFLOW__API__BASE_URL", "http://airflow.example:port")
    with create_session() as session:
        for name in filter(None, [names.get(missing)]):
            setattr(session.get(DagModel, REQUESTS), name, True)
    try:
        text = get().text
        assert forms_of(text) == {}
        assert f"weir plan {RUN} --apply" in text
        assert press(form).status_code == 403
        assert made() == []
    finally:
        with create_session() as session:
            for name in filter(None, [names.get(missing)]):
                setattr(session.get(DagModel, REQUESTS), name, False)


def test_a_user_whom_airflow_cannot_look_up_by_name_may_nothing():
    from weir_airflow.api.users import rights_named

    found = rights_named(SimpleNamespace(), "anna", "dag")
    assert (found.reads, found.edits) == (False, False)
    assert "SimpleNamespace" in found.unknown


@pytest.mark.parametrize("around", ["", f"/dags/dag/runs/{DAY}/plugin/weir-run"], ids=["alone", "in Airflow's frame"])
def test_a_person_presses_the_button_and_sees_what_becomes_of_it_without_a_reload(own, api_url, browsing, around):
    in_frame = "document.querySelector('iframe').contentDocument" if around else "document"
    of_apply = f"[...{in_frame}.forms].find(form => form.elements.verb.value === 'apply')"
    with browsing("worker") as page:
        page.looks()
        page.open(f"{api_url}{around or f'/weir/dags/dag/run?run_id={DAY}'}", "document.querySelector('iframe, main')")
        page.click(f"[...{in_frame}.links].find(link => link.search.includes('look=true'))")
        page.wait_for(of_apply)
        planned = plan_of(own.services, Question(RUN, looks=True), reaching(own.airflow)).fields()["steps"]
        tasks = f"[...{in_frame}.querySelectorAll('main table')][0].querySelectorAll('tbody th')"
        shown = page.tell(f"[...{tasks}].map(each => each.innerText)")
        assert shown == [step["region"] for step in planned if step["kind"] != "spared"]
        page.click(f"{of_apply}.querySelector('button:enabled')")
        page.wait_for(f"{in_frame}.body.innerText.includes('waits for a worker')")
        assert carried_out()[1]
        page.wait_for(f"/by worker/.test({in_frame}.body.innerText) && {of_apply} === undefined")
        assert set(cleared()) == {"raw-clean[0]"}
        assert page.problems == []


def test_a_person_who_may_not_edit_finds_no_button_to_press(world, api_url, browsing):
    with browsing("reader") as page:
        page.open(f"{api_url}/weir/dags/dag/run?run_id={DAY}&look=true")
        assert page.tell("[...document.forms].map(form => form.elements.verb.value)") == ["verify"]
        assert f"weir plan {RUN} --apply" in page.tell("document.body.innerText")
