"""Names that the ledger does not know: a few similar or new ones are named, and the command that lists all."""

from datetime import UTC, datetime, timedelta

import pytest
from tests.builders.ledgers import new_ledger
from tests.messages.kinds import of_kind

from weir.errors import Misconfigured
from weir.ledger.database.tables import DataflowRow, RunRow
from weir.ledger.names import MOST_PARTS, SHOWN, require_dataflow, similar, unknown_run
from weir.ledger.runs import named_run, runs_named

FIRST = datetime(2013, 1, 1, tzinfo=UTC)
DAYS = 400


@pytest.fixture
def ledger(tmp_path):
    opened = new_ledger(tmp_path / "ledger.db")
    yield opened
    opened.close()


@pytest.fixture
def known(ledger):
    """A session of a ledger with a year of days of one dataflow, and a day of another."""
    with ledger.transaction("flights") as session:
        session.add_all(DataflowRow(name=name, store_id="s") for name in ("flights", "weather"))
        session.flush()
        session.add_all(row("flights", day) for day in range(DAYS))
        session.add(row("weather", 0))
    with ledger.transaction() as session:
        yield session


def row(dataflow, day):
    start = FIRST + timedelta(days=day)
    epoch = f"{start:%Y%m%dT%H%M%SZ}"
    return RunRow(
        id=f"{dataflow}@{epoch}",
        dataflow=dataflow,
        epoch=epoch,
        interval_start=start,
        interval_end=start + timedelta(days=1),
        dag_id=dataflow,
        run_id=f"scheduled__{start.isoformat()}",
        task_prefix="",
        parameters={},
        created_at=start,
    )


def refused(session, name, **more):
    return str(unknown_run(session, name, **more))


def test_a_day_in_another_form_is_answered_with_its_run(known):
    for name in ("flights@2013-02-03", "2013-02-03", "flights@2013-02-03T00:00", "20130203"):
        assert "did you mean flights@20130203T000000Z (scheduled__2013-02-03T00:00:00+00:00)?" in refused(known, name)


@pytest.mark.parametrize("name", ["nothing", "flights@2019-01-01", "2013", "flights", "scheduled__2013-01-01"])
def test_however_many_runs_there_are_a_few_are_named_and_the_command_that_lists_all(known, name):
    said = refused(known, name)
    assert (
        said.count("scheduled__2") - said.startswith(f"the ledger knows no run {name}") * name.count("scheduled")
        <= SHOWN
    )
    assert "`weir runs` lists" in said or "which `weir runs` lists" in said
    assert len(said) < 400


def test_where_nothing_is_similar_the_newest_are_named(known):
    assert f"and {DAYS + 1 - SHOWN} more, which `weir runs` lists" in refused(known, "nothing")
    said = refused(known, "nothing", dataflow="flights")
    assert said.startswith("flights has no run nothing: it knows flights@20140202T000000Z")
    assert "flights@20140204T000000Z" in said
    assert "weather" not in said


def test_a_misspelt_dataflow_is_suggested_where_one_would_do(known):
    with pytest.raises(Misconfigured, check=of_kind("ledger.run_unknown", name="fligts")):
        runs_named(known, "fligts")
    with pytest.raises(Misconfigured, check=of_kind("ledger.dataflow_unknown", name="wether")):
        require_dataflow(known, "wether")
    with pytest.raises(
        Misconfigured, check=of_kind("ledger.dataflow_unknown", name="zzz", said="it knows flights, weather")
    ):
        require_dataflow(known, "zzz")


def test_a_run_id_of_several_dataflows_names_them(known):
    with pytest.raises(Misconfigured, check=of_kind("ledger.run_ambiguous")):
        named_run(known, "scheduled__2013-01-01T00:00:00+00:00")


def test_a_day_names_its_run(known):
    for name in ("flights@2013-02-03", "flights@20130203", "flights@2013-02-03T00:00"):
        assert named_run(known, name).id == "flights@20130203T000000Z"
        assert runs_named(known, name) == ["flights@20130203T000000Z"]
    for name in ("flights@2013", "2013-02-03", "flight@2013-02-03"):
        with pytest.raises(Misconfigured, check=of_kind("ledger.run_unknown", where="the ledger knows no run")):
            named_run(known, name)


def test_a_day_with_several_runs_is_refused_with_them(ledger):
    with ledger.transaction("flights") as session:
        session.add(DataflowRow(name="flights", store_id="s"))
        session.flush()
        session.add_all(row("flights", day) for day in (0, 0.25))
        with pytest.raises(Misconfigured, check=of_kind("ledger.run_ambiguous", what="several runs")):
            named_run(session, "flights@2013-01-01")


def test_an_empty_ledger_says_what_makes_the_first_run(ledger):
    with ledger.transaction() as session:
        for refuse in (lambda: named_run(session, "flights"), lambda: require_dataflow(session, "flights")):
            with pytest.raises(Misconfigured, match=r"no run has begun yet. Unpause .*`weir doctor`"):
                refuse()


def test_of_many_tasks_the_similar_ones_are_named_else_the_first():
    tasks = [f"task_{place}" for place in range(50)]
    assert similar("tsk_17", tasks).startswith("did you mean task_17")
    assert similar("zzz", tasks) == f"it has {', '.join(tasks[:MOST_PARTS])} and 40 more"
    assert similar("zzz", [], "writes") == "it writes none"
