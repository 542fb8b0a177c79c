"""What a person asks for is planned as it was shown, and carried out once, in the person's name."""

from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import select
from tests.messages.kinds import of_kind
from tests.weir.small_dataflow import World, apart

from weir.coordination.airflow import UserRights
from weir.dataflow import Dataflow
from weir.errors import Conflict, Misconfigured
from weir.ledger.database.tables import AttemptRow, FailoverRow, PendingClearRow, ResultRow, RunRow
from weir.recovery.rules.plan import Plan, Step, StepKind
from weir.recovery.run_plans import acts_of, reaching
from weir.requests.request import Request
from weir.requests.verbs import VERBS, Right, plan_request, refusal, require_same
from weir.topology.ids import RunRef
from weir.topology.regions import RegionId

PAGES = Path(__file__).parents[3] / "docs" / "pages.md"
DAY = "ladder@20130101T000000Z"


@pytest.fixture
def lost(done):
    """A run of which a result is lost, and the request to apply its plan."""
    done.lose("clean", 0)
    return done


def planned(world, verb="apply", **of):
    """A request as its page makes it, and its plan."""
    asked = Request(**{"verb": verb, "dag_id": "dag", "name": DAY, "hash": "unseen", "looked": verb == "apply", **of})
    found = plan_request(world.services, asked, reaching(world.airflow))
    return replace(asked, hash=found.hash), found


def test_an_applied_plan_heals_the_run_in_the_name_of_who_asked(lost):
    asked, plan = planned(lost)
    require_same(asked, plan)
    assert plan.dags == ("dag",)
    plan.carry_out(lost.airflow, "anna")
    lost.airflow.run_until_quiet()
    with lost.ledger.transaction() as session:
        assert session.scalars(select(FailoverRow)).one().cause.endswith("applied by anna")
        assert session.scalars(select(PendingClearRow)).one().reason.endswith("applied by anna")
    _, again = planned(lost)
    with pytest.raises(Conflict, check=of_kind("requests.plan_changed", name=DAY)):
        require_same(asked, again)
    with pytest.raises(Conflict, check=of_kind("requests.nothing_to_do")):
        require_same(replace(asked, hash=again.hash), again)


def test_what_airflow_does_not_take_now_is_told_to_be_pending(lost):
    _, plan = planned(lost)
    lost.airflow.reachable = False
    said = plan.carry_out(lost.airflow, "anna")
    assert "pending" in said
    with lost.ledger.transaction() as session:
        assert session.scalars(select(PendingClearRow)).one().settled_at is None


def test_a_cleared_task_runs_again_alone(done):
    asked, plan = planned(done, "clear", what="joined[1]")
    require_same(asked, plan)
    plan.carry_out(done.airflow, "anna")
    with pytest.raises(Conflict, check=of_kind("requests.not_cleared", region="joined[1]")):
        plan.carry_out(done.airflow, "ben")
    done.airflow.run_until_quiet()
    with done.ledger.transaction() as session:
        tries = session.scalars(select(AttemptRow).where(AttemptRow.try_number > 1)).all()
    assert {(row.region, row.subtask) for row in tries} == {("joined", 1)}


def test_a_repair_finds_what_no_plan_knows(done):
    with done.ledger.transaction() as session:
        row = session.scalars(select(ResultRow).where(ResultRow.stage == "clean", ResultRow.subtask == 0)).one()
    path = f"{row.folder}/part-0.bin"
    done.store.replace(path, bytes(len(done.store.read(path))))
    _, applied = planned(done)
    assert applied.nothing
    _, verified = planned(done, "verify")
    assert "1 lost" in verified.carry_out(done.airflow, "vera")
    with done.ledger.transaction() as session:
        assert session.scalars(select(PendingClearRow)).all() == []
    _, repaired = planned(done, "repair")
    repaired.carry_out(done.airflow, "anna")
    done.airflow.run_until_quiet()
    assert "1 lost" not in planned(done, "verify")[1].carry_out(done.airflow, "vera")


def test_the_hash_is_that_of_what_is_done_and_of_nothing_else(lost):
    asked, _ = planned(lost)
    with lost.ledger.transaction() as session:
        for row in session.scalars(select(AttemptRow)):  # what it costs
            row.ended_at = row.began_at
    assert planned(lost)[0].hash == asked.hash
    lost.lose("clean", 1)
    assert planned(lost)[0].hash != asked.hash


def test_each_dag_counts_that_a_plan_is_about(lost):
    with lost.ledger.transaction("ladder") as session:
        session.get_one(RunRow, DAY).dag_id = "renamed"
    with pytest.raises(Misconfigured, check=of_kind("requests.run_unknown", dag_id="dag")):
        planned(lost)
    assert planned(lost, dag_id="renamed")[1].dags == ("renamed",)


@pytest.mark.parametrize("name", ["ladder@2013-01-01", "scheduled__2013-01-01", "ladder@20990101T000000Z", "x"])
def test_a_run_has_one_name_and_a_wrong_one_tells_of_no_other_run(done, name):
    with pytest.raises(Misconfigured, check=of_kind("requests.run_unknown", run=name, dag_id="dag")) as refused:
        planned(done, name=name)
    assert DAY not in str(refused.value)


@pytest.mark.parametrize(
    ("verb", "of"),
    [
        ("verify", {"what": "x"}),
        ("verify", {"looked": True}),
        ("repair", {"what": "x"}),
        ("apply", {"what": "x"}),
        ("clear", {"what": "joined[1]", "looked": True}),
    ],
)
def test_the_same_cannot_be_asked_for_in_several_words(done, verb, of):
    with pytest.raises(Misconfigured, check=of_kind("requests.field_unused", verb=verb)):
        planned(done, verb, **of)


def test_the_dag_of_a_later_run_counts_that_is_cleared_if_its_input_changes(done):
    other = done.run_days(2)[-1]
    at_once, later = RegionId("joined", 0), RegionId("totals", 0, RunRef("ladder@20130102T000000Z"))
    steps = [
        Step(kind=StepKind.RERUN, region=at_once, after_try=1, reason=""),
        Step(kind=StepKind.IF_CHANGED, region=later, after_try=1, reason=""),
    ]
    plan = Plan(failed=None, cause="", steps=tuple(steps))
    with done.ledger.transaction("ladder") as session:
        session.scalars(select(RunRow).where(RunRow.run_id == other)).one().dag_id = "later"
        assert acts_of(session, DAY, plan).dags == ("dag", "later")
        assert acts_of(session, DAY, replace(plan, impossible="gone")).dags == ()


@pytest.mark.parametrize(
    ("rights", "kind"),
    [
        ({"a": UserRights(reads=True, edits=True), "b": UserRights(reads=True, edits=True)}, None),
        ({"a": UserRights(reads=True, edits=True), "b": UserRights(reads=True)}, "requests.right_missing"),
        ({"a": UserRights(reads=True, edits=True), "b": UserRights(unknown="gone")}, "requests.user_unknown"),
    ],
)
def test_a_user_needs_the_right_in_each_dag(rights, kind):
    asked = Request(verb="apply", dag_id="a", name=DAY, hash="x")
    found = refusal(asked, "anna", rights, ())
    assert getattr(found, "kind", None) == kind
    reads = refusal(replace(asked, verb="verify"), "anna", rights, ())
    assert bool(reads) is (kind == "requests.user_unknown")


@pytest.mark.parametrize(
    "conf",
    [
        None,
        "apply",
        {},
        {"verb": "apply", "dag_id": "dag", "name": DAY},
        {"verb": "apply", "dag_id": "dag", "name": DAY, "hash": ""},
        {"verb": "apply", "dag_id": "dag", "name": [DAY], "hash": "x"},
        {"verb": "apply", "dag_id": "dag", "name": "x" * 1001, "hash": "x"},
        {"verb": "apply", "dag_id": "dag", "name": DAY, "hash": "x", "looked": "true"},
        {"verb": "apply", "dag_id": "dag", "name": DAY, "hash": "x", "user": "admin"},
        {"verb": "apply", "dag_id": "dag", "name": DAY, "hash": "x", 1: 2},
    ],
)
def test_what_is_no_request_is_refused(conf):
    with pytest.raises(Misconfigured):
        Request.of(conf)


def test_an_unknown_verb_is_answered_with_those_there_are(done):
    with pytest.raises(Misconfigured, check=of_kind("requests.verb_unknown", verb="drop", known=list(VERBS))):
        planned(done, "drop")


def test_a_request_is_the_same_one_where_it_asks_for_the_same():
    asked = Request.of({"verb": "apply", "dag_id": "dag", "name": DAY, "hash": "x"})
    assert asked.key == Request.of(asked.to_conf()).key
    others = [replace(asked, **{name: "y"}) for name in ("verb", "dag_id", "name", "hash", "what")]
    others.append(replace(asked, looked=True))
    assert len({asked.key, *(each.key for each in others)}) == 7
    hostile = replace(asked, name="../../x y\n<script>").key
    assert not set("/ \n<>@") & set(hostile)
    assert ".." not in hostile


def test_the_guide_has_each_verb_with_its_command():
    guide = PAGES.read_text()
    for verb in VERBS.values():
        command = verb.command.format(name="DATAFLOW" if verb.page == "state" else "RUN", what="NUMBER")
        assert command in guide or verb.page == "task"
    assert {verb.right for verb in VERBS.values()} >= {Right.READ, Right.EDIT}


@pytest.fixture
def reusing(tmp_path):
    """A day that takes, where nothing differs, what it has made itself before."""
    world = World(tmp_path, Dataflow.from_json({**apart().to_json(), "reuse": "equal", "keep": "30 days"}))
    world.deploy()
    world.run_days(1)
    return world


def test_a_run_whose_code_has_changed_runs_again_what_has_changed(reusing):
    reusing.deploy(report=1)
    asked, plan = planned(reusing, "reuse")
    reusing.airflow.engine.computed.clear()
    said = plan.carry_out(reusing.airflow, "anna")
    reusing.airflow.run_until_quiet()
    assert said.startswith(f"{len(reusing.airflow.states())} of ")
    assert set(reusing.airflow.states().values()) == {"success"}
    assert {"report", "delays"} <= set(reusing.airflow.engine.computed)
    assert "joined" not in reusing.airflow.engine.computed
    with reusing.ledger.transaction() as session:
        assert [row.cause.endswith(", applied by anna") for row in session.scalars(select(FailoverRow))] == [True]
    with pytest.raises(Conflict, check=of_kind("requests.plan_changed")):
        require_same(asked, planned(reusing, "reuse")[1])


def test_a_run_that_reuses_nothing_has_nothing_to_run_again_so(done):
    asked, plan = planned(done, "reuse")
    with pytest.raises(Conflict, check=of_kind("requests.nothing_to_do")):
        require_same(asked, plan)
    assert plan.nothing.kind == "cli.nothing_reused"
