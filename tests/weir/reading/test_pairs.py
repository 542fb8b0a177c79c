"""What `weir compare` compares: results by name, published versions, and what is said of those that are gone."""

import pytest
from sqlalchemy import select
from tests.messages.kinds import of_kind
from tests.weir.restoring import aircraft, run_days, second_airflow
from tests.weir.small_dataflow import World

from weir.dataflow import Dataflow, Stage, blocking, sink, source
from weir.errors import Misconfigured
from weir.ledger.database.tables import LeaseRow, PublicationRow, ResultRow
from weir.reading.availability import Unreadable
from weir.reading.pairs import WantedComparison, opened_pairs
from weir.retention.release import delete_released, release
from weir.views.comparison import Outcome, result_comparison

FIRST, SECOND = "ladder@20130101T000000Z", "ladder@20130102T000000Z"
WRITTEN = ["clean", "weather", "joined", "totals", "routes", "delays"]


@pytest.fixture
def days(done):
    """Two days, of which the second has other totals, and so another report."""
    done.content["totals"] = "of the second day"
    done.run(2)
    return done


def pairs(world, a=FIRST, b=SECOND, **wanted):
    with opened_pairs(world.services, WantedComparison(a=a, b=b, **wanted)) as found:
        leased = leases(world)
    assert leases(world) == set()
    return found, leased


def leases(world):
    with world.ledger.transaction() as session:
        query = select(ResultRow.run, ResultRow.stage).join(LeaseRow, LeaseRow.result == ResultRow.id)
        return {tuple(row) for row in session.execute(query)}


def press(world):
    release(world.services, "ladder", is_reclaiming=True)
    return {each.stage for each in delete_released(world.services, "ladder")}


def test_all_results_of_two_runs_are_paired_and_only_those_that_may_differ_are_opened(days):
    found, leased = pairs(days)
    assert [each.a.stage for each in found.pairs] == [each.b.stage for each in found.pairs] == WRITTEN
    assert {each.a.stage: each.is_equal for each in found.pairs} == {
        **dict.fromkeys(["clean", "weather", "joined", "routes"], True),
        **dict.fromkeys(["totals", "delays"]),
    }
    assert leased == {(run, stage) for run in (FIRST, SECOND) for stage in ("totals", "delays")}
    asked = {each.a.stage: each.asked for each in found.pairs if each.asked is not None}
    assert asked.keys() == {"totals", "delays"}
    assert all(each.columns is not None and each.columns.is_none for each in found.pairs if each.asked is not None)
    assert (asked["totals"].a.columns, asked["totals"].keys) == (("k", "content", "at"), (("k",),))
    assert len(asked["totals"].a.files) == len(asked["totals"].b.files) == 2
    assert asked["delays"].keys == ()


def test_a_run_equals_itself(days):
    found, leased = pairs(days, b="scheduled__2013-01-01")
    assert {result_comparison(each, None).outcome for each in found.pairs} == {Outcome.EQUAL}
    assert [(each.a.rows, each.b.rows) for each in found.pairs][:3] == [(4, 4), (2, 2), (4, 4)]
    assert leased == set()


def test_one_result_is_named_by_stage_or_key(days):
    found, _ = pairs(days, stage="totals", key=("K", "at"), shown=3)
    [pair] = found.pairs
    assert (pair.asked.keys, pair.asked.is_key_named, pair.asked.shown) == ((("k", "at"),), True, 3)
    assert (found.only_in_a, found.only_in_b) == ((), ())
    with pytest.raises(Misconfigured, check=of_kind("reading.key_not_in_common")):
        pairs(days, stage="totals", key=("zone",))
    with pytest.raises(Misconfigured, check=of_kind("reading.stage_unknown")):
        pairs(days, stage="total")
    with pytest.raises(Misconfigured, check=of_kind("reading.stage_never_written")):
        pairs(days, stage="raw")


def test_versions_of_an_epoch_are_told_apart_by_their_numbers(days):
    days.content["routes"] = "as they are known by now"
    days.airflow.clear_by_hand("scheduled__2013-01-02", "routes")
    days.airflow.run_until_quiet()
    found, _ = pairs(days, "ladder.delays@2013-01-02#1", "ladder.delays@20130102T000000Z")
    [pair] = found.pairs
    assert [(each.run, each.stage, each.version) for each in (pair.a, pair.b)] == [
        (SECOND, "delays", 1),
        (SECOND, "delays", 2),
    ]
    assert pair.asked.a.files != pair.asked.b.files
    same, _ = pairs(days, "ladder.delays@2013-01-02#2", SECOND)
    assert [(each.a.version, each.b.version, each.is_equal) for each in same.pairs] == [(2, 2, True)]
    with pytest.raises(Misconfigured, check=of_kind("reading.version_unknown")) as refused:
        pairs(days, "ladder.delays@2013-01-02#3", SECOND)
    assert "it has 1, 2" in str(refused.value)


def test_a_version_that_was_removed_says_so(days):
    with days.ledger.transaction("ladder") as session:
        row = session.scalar(select(PublicationRow).where(PublicationRow.run == SECOND))
        row.expiring_at = row.expired_at = days.airflow.time
    with pytest.raises(Misconfigured, check=of_kind("reading.version_removed")):
        pairs(days, "ladder.delays@2013-01-01", "ladder.delays@2013-01-02")
    [pair] = pairs(days, "ladder.delays@2013-01-02", "ladder.delays@2013-01-02")[0].pairs
    assert pair.is_equal


def test_a_sink_is_compared_with_a_stage_or_a_sink_of_another_name(days):
    [pair] = pairs(days, "ladder.delays@2013-01-01", SECOND, stage="joined")[0].pairs
    assert (pair.a.stage, pair.b.stage) == ("delays", "joined")
    with pytest.raises(Misconfigured, check=of_kind("reading.stage_beside_sinks")):
        pairs(days, "ladder.delays@2013-01-01", "ladder.delays@2013-01-02", stage="joined")
    with pytest.raises(Misconfigured, check=of_kind("reading.stage_is_no_sink")):
        pairs(days, "ladder.joined@2013-01-01", SECOND)


def test_runs_of_two_dataflows_are_compared_whatever_their_parallelism(days):
    fork = Dataflow(
        "fork",
        [
            source("weather", "pipelines.ladder:weather"),
            Stage("other", "pipelines.ladder:other", [blocking("weather", by="k")], parallelism=3),
            sink("other", "reports"),
        ],
    )
    airflow = second_airflow(days, fork)
    airflow.dag_run(1)
    airflow.run_until_quiet()
    found, _ = pairs(days, FIRST, "fork@2013-01-01")
    assert [(each.a.stage, each.is_equal) for each in found.pairs] == [("weather", True)]
    assert found.only_in_a == ("clean", "joined", "totals", "routes", "delays")
    assert found.only_in_b == ("reports",)
    [pair] = pairs(days, "ladder.delays@2013-01-01", "fork.reports@2013-01-01")[0].pairs
    assert (pair.a.stage, pair.b.stage, pair.is_equal) == ("delays", "reports", False)  # 2 rows and 6


def test_dataflows_without_a_result_of_the_same_name_are_refused(days):
    airflow = second_airflow(days, Dataflow("fork", [source("a", "pipelines.ladder:a"), sink("a", "b")]))
    airflow.dag_run(1)
    airflow.run_until_quiet()
    with pytest.raises(Misconfigured, check=of_kind("reading.nothing_in_common")) as refused:
        pairs(days, FIRST, "fork@2013-01-01")
    assert "fork@20130101T000000Z has b" in str(refused.value)


def test_what_was_released_is_equal_by_its_digest_or_says_why_it_cannot_be_read(days):
    assert {"joined", "totals"} <= press(days)
    found, leased = pairs(days)
    of = {each.a.stage: each for each in found.pairs}
    assert of["joined"].is_equal
    assert of["totals"].asked is None
    assert "released on 2026-01-01" in of["totals"].problem
    assert result_comparison(of["totals"], None).outcome is Outcome.NOT_COMPARED
    assert "totals" not in {stage for _, stage in leased}
    with pytest.raises(Unreadable, match="--apply` recomputes it"):
        pairs(days, stage="totals")


def test_what_a_run_has_not_computed_or_not_published_is_said_of_that_alone(done):
    name = done.airflow.dag_run(2)
    for subtask in (0, 1):
        done.airflow.step(done.airflow.task(name, "raw-clean", subtask))
    found, _ = pairs(done)
    assert {each.a.stage for each in found.pairs if each.is_equal} == {"clean"}
    problems = {each.a.stage: each.problem for each in found.pairs if not each.is_equal}
    assert "never committed" in problems["joined"]
    assert f"run {SECOND} has not published delays" in problems["delays"]
    with pytest.raises(Misconfigured, check=of_kind("reading.not_published")):
        pairs(done, stage="delays")


def test_states_are_compared_as_their_epochs_have_left_them_by_their_key(tmp_path):
    world = World(tmp_path, aircraft())
    run_days(world.airflow, 1, 2)
    found, leased = pairs(world, stage="history")
    [pair] = found.pairs
    assert pair.is_equal is None
    assert (pair.asked.keys, pair.asked.is_key_named) == ((("k",),), False)
    assert (pair.asked.a.files, len(pair.asked.a.state.files), len(pair.asked.b.state.files)) == ((), 2, 4)
    assert leased == {(FIRST, "history"), (SECOND, "history")}
    assert pairs(world, b=FIRST, stage="history")[0].pairs[0].is_equal


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ladder", "ledger.run_unknown"),
        ("ladder.delays", "ledger.run_unknown"),
        ("ladder@2014-01-01", "ledger.run_unknown"),
        ("lader.delays@2013-01-01", "ledger.run_unknown"),
        ("ladder.delay@2013-01-01", "reading.stage_unknown"),
    ],
)
def test_names_that_fit_nothing_are_refused(days, name, kind):
    for a, b in ((name, FIRST), (FIRST, name)):
        with pytest.raises(Misconfigured, check=of_kind(kind)):
            pairs(days, a, b)
