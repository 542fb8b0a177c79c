"""`weir state`, as a person types it."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
from tests.builders.ledgers import fast_folder
from tests.messages.kinds import of_kind
from tests.weir.command_line import invoked, use
from tests.weir.reading.parquet_world import ReaderWorld
from tests.weir.reading.state_world import epoch, history, keeps_state, run_days

from weir.cli.programs import _problem
from weir.dataflow.state import State, StateKind
from weir.errors import Misconfigured
from weir.formats.programs import StateQuery
from weir.formats.region_job import StateFileToRead, StateToRead
from weir.reading.availability import Unreadable
from weir.typed_json import message_from_json, message_to_json
from weir.views.documents import plain

LAST = epoch(3)


@pytest.fixture(scope="module")
def days():
    """Three days that have kept state, in a store and a ledger of their own."""
    with fast_folder() as folder:
        world = keeps_state(ReaderWorld(folder, history()))
        yield run_days(world, history(), 1, 2, 3)
        world.ledger.close()


@pytest.fixture(autouse=True)
def environment(days, monkeypatch):
    use(monkeypatch, days.folder)


def typed(*words, code=0):
    done = invoked("state", *words)
    assert done.exit_code == code, done.output
    return done.output


def test_the_row_of_a_key_is_shown(days):
    told = typed("get", "ladder", "history", "N1")
    assert told.splitlines() == [f"history at the end of ladder@{LAST}: 6 rows", "  tail: N1", "  n: 10"]


def test_an_earlier_epoch_has_its_own_row(days):
    told = json.loads(typed("get", "ladder", "history", "N1", "--epoch", "2013-01-01", "--json"))
    assert datetime.fromisoformat(told.pop("looked_at")).tzinfo is not None
    run = f"ladder@{epoch(1)}"
    assert told == {
        "version": 1,
        "state": "history",
        "run": run,
        "epoch": epoch(1),
        "checkpoint": None,
        "stale": False,
        "row": {"tail": "N1", "n": 1},
    }


def test_the_states_that_are_declared_are_listed(days):
    (told,) = json.loads(typed("list", "ladder", "--json"))["states"]
    assert told == {
        "name": "history",
        "stage": "aircraft",
        "keys": ["tail"],
        "schema": "tail STRING, n BIGINT",
        "is_queryable": False,
        "table": None,
    }
    assert "history" in typed("list", "ladder")


def test_a_key_without_a_row_is_told_by_the_exit_code(days):
    assert (
        typed("get", "ladder", "history", "N99", code=1) == f"history at the end of ladder@{LAST} has no row of N99\n"
    )
    assert json.loads(typed("get", "ladder", "history", "N99", "--json", code=1))["row"] is None


def test_null_is_a_key_where_a_word_is_chosen_for_it(days):
    assert "no row of -" in typed("get", "ladder", "history", "-", "--epoch", "2013-01-01", code=1)
    assert "  n: 6" in typed("get", "ladder", "history", "-", "--null", "-", "--epoch", "2013-01-01")


def test_all_rows_are_shown_or_as_many_as_are_asked_for(days):
    told = json.loads(typed("scan", "ladder", "history", "--json"))
    found = {row["tail"]: row["n"] for row in told["rows"]}
    assert found == {key: n for key, (n, _) in days.airflow.engine.rows_at(LAST)}
    assert len(json.loads(typed("scan", "ladder", "history", "--json", "--limit", "2"))["rows"]) == 2
    assert "4 more; --limit 0 shows all" in typed("scan", "ladder", "history", "--limit", "2")
    assert "more" not in typed("scan", "ladder", "history", "--limit", "0")


def test_only_the_columns_that_are_asked_for_are_shown(days):
    told = json.loads(typed("scan", "ladder", "history", "--columns", "n", "--json"))
    assert {tuple(row) for row in told["rows"]} == {("n",)}


def test_a_stale_answer_says_so_and_of_which_epoch_it_is_unless_a_fresh_one_is_asked_for(tmp_path, monkeypatch):
    (tmp_path / "store").mkdir()
    world = run_days(keeps_state(ReaderWorld(tmp_path, history())), history(), 1, 2, 3)
    monkeypatch.setenv("WEIR_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("WEIR_LEDGER", f"sqlite:///{tmp_path}/ledger.db")
    world.airflow.engine.plan[epoch(1)] = {"N1": 100}
    for subtask in (0, 1):
        world.airflow.clear_by_hand("scheduled__2013-01-01", "aircraft-known", subtask)
        world.airflow.step(world.airflow.task("scheduled__2013-01-01", "aircraft-known", subtask))
    told = json.loads(typed("get", "ladder", "history", "N1", "--json"))
    assert (told["stale"], told["epoch"], told["row"]) == (True, LAST, {"tail": "N1", "n": 10})
    told = typed("scan", "ladder", "history")
    assert told.startswith(f"history at the end of ladder@{LAST}, checkpoint 3 (stale: true, newer state is being")
    for verb in (["get", "ladder", "history", "N1"], ["scan", "ladder", "history"]):
        with pytest.raises(Unreadable, match="an input of its producer has changed since"):
            typed(*verb, "--fresh")
    world.ledger.close()


def test_what_is_not_there_is_refused_with_what_is(days):
    with pytest.raises(Misconfigured, check=of_kind("reading.state_unknown", known="history", name="other")):
        typed("get", "ladder", "other", "N1")
    with pytest.raises(Misconfigured, check=of_kind("ledger.run_unknown")):
        typed("get", "ladder", "history", "N1", "--epoch", "2014-01-01")
    with pytest.raises(
        Misconfigured,
        check=of_kind("reading.checkpoint_not_kept", dataflow="ladder", found="is not known", number="99"),
    ):
        typed("scan", "ladder", "history", "--checkpoint", "99")
    with pytest.raises(Misconfigured, check=of_kind("cli.query_names_no_state", dataflow="ladder", known="history")):
        typed("sql", "ladder", "select 1")
    with pytest.raises(Misconfigured, check=of_kind("cli.limit_malformed")):
        typed("scan", "ladder", "history", "--limit", "-1")


def test_values_are_told_as_json_has_them():
    at = datetime(2013, 1, 1, tzinfo=UTC)
    found = plain({"at": at, "day": date(2013, 1, 1), "d": Decimal("1.50"), "b": b"\x01", "m": [("a", [None])]})
    assert found == {
        "at": "2013-01-01T00:00:00+00:00",
        "day": "2013-01-01",
        "d": "1.50",
        "b": "01",
        "m": [["a", [None]]],
    }


def test_a_query_reads_back_as_it_was_written():
    state = State(name="history", kind=StateKind.KEYED, keys=("tail",), schema="tail STRING, n BIGINT")
    file = StateFileToRead("file:///store/a.parquet", LAST, (0, 63), 3, 1000)
    query = StateQuery(
        "select *",
        {"history": StateToRead(state=state, files=(file,), tallies=None, updated=0, expired_until=17, is_full=False)},
        20,
    )
    assert message_from_json(StateQuery, message_to_json(query)) == query
    with pytest.raises(Misconfigured, check=of_kind("typed_json.version_differs", found=7, version="1")):
        message_from_json(StateQuery, '{"version": 7}')


def test_of_all_that_spark_says_only_the_error_is_told():
    said = (
        "WARN Utils: your hostname\nquery_state: AnalysisException: [UNRESOLVED_COLUMN] no `altitude`; line 1\n"
        "'Project ['altitude]\n+- SubqueryAlias history\n\nJVM stacktrace:\norg.apache.spark.sql.AnalysisException: x\n"
    )
    assert _problem(said) == "AnalysisException: [UNRESOLVED_COLUMN] no `altitude`; line 1"
    assert _problem("Killed\n") == "Killed"
    assert _problem("") == "without a message"
