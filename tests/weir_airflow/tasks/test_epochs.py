"""The epoch of a DagRun, and the run before it, as a task describes them to the coordinator."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from tests.messages.kinds import of_kind

from weir.coordination.airflow import EarlierRun
from weir.errors import Misconfigured
from weir.execution.cadence import Cadence


def dag_run(day, kind="backfill", state="running", **more):
    """A DagRun as the task's API has it, with Airflow's own enums."""
    from airflow.sdk.api.datamodels._generated import DagRunState, DagRunType

    start = datetime(2013, 1, day, tzinfo=UTC)
    known = {
        "dag_id": "delays",
        "run_id": f"{kind}__{day}",
        "logical_date": start,
        "partition_key": None,
        "data_interval_start": start,
        "data_interval_end": start + timedelta(days=1),
        "run_type": DagRunType(kind),
        "state": DagRunState(state),
        "start_date": None if state == "queued" else start,
    }
    return SimpleNamespace(**{**known, **more})


def declared(cadence="0 0 * * *", zone="UTC", *, is_partitioned=False):
    from weir_airflow.dags.declaration import Declaration

    flow = SimpleNamespace(name="delays")
    return Declaration(flow, None, None, "", zone=zone, cadence=cadence, is_partitioned=is_partitioned)


def found_by(own, before):
    from weir_airflow.tasks.epochs import previous_run

    context = {"dag_run": own, "ti": SimpleNamespace(get_previous_dagrun=lambda: before)}
    return previous_run(declared(), context, (own.data_interval_start, own.data_interval_end), lambda: None)


@pytest.mark.parametrize(
    ("own", "before", "is_backwards"),
    [
        (("backfill", "running"), ("backfill", "queued"), True),
        (("backfill", "running"), ("backfill", "running"), False),
        (("backfill", "running"), ("backfill", "failed"), False),
        (("scheduled", "running"), ("scheduled", "queued"), False),
        (("backfill", "running"), ("scheduled", "queued"), False),
        (("manual", "running"), ("backfill", "queued"), False),
    ],
)
def test_a_backfill_runs_backwards_if_an_earlier_run_of_it_is_queued_while_a_later_one_runs(own, before, is_backwards):
    found = found_by(dag_run(2, *own), dag_run(1, *before))
    assert found.run_id == f"{before[0]}__1"
    assert found.is_queued is is_backwards


def test_an_earlier_run_that_has_started_once_and_was_cleared_is_not_queued():
    cleared = dag_run(1, state="queued", start_date=datetime(2026, 1, 1, tzinfo=UTC))
    assert found_by(dag_run(2), cleared).is_queued is False


def test_a_run_without_an_interval_is_no_earlier_epoch():
    assert found_by(dag_run(2), None) is None
    assert found_by(dag_run(2), dag_run(1, data_interval_start=None)) is None


@pytest.mark.parametrize("kind", ["backfill", "scheduled", "manual"])
def test_what_a_backfill_makes_is_no_fresh_result(kind):
    from weir_airflow.tasks.epochs import is_backfill

    assert is_backfill({"dag_run": dag_run(1, kind)}) is (kind == "backfill")


def of_event(key, **more):
    """A DagRun that an event with a partition key has started."""
    without = dict.fromkeys(("logical_date", "data_interval_start", "data_interval_end", "partition_date"))
    run_after = datetime(2013, 1, 5, 10, 17, tzinfo=UTC)
    return dag_run(1, "asset_triggered", **{**without, "partition_key": key, "run_after": run_after, **more})


def interval_of(of, run, pinned=None):
    from weir_airflow.tasks.epochs import data_interval

    return data_interval(of, {"dag_run": run}, lambda _epoch: pinned)


DAY = timedelta(days=1)
THIRD = datetime(2013, 1, 3, tzinfo=UTC)
BERLIN = {"zone": "Europe/Berlin", "is_partitioned": True}


@pytest.mark.parametrize(
    ("of", "key", "date", "start"),
    [
        (declared(is_partitioned=True), "20130103T000000Z", None, THIRD),
        (declared(is_partitioned=True), "2013-01-03", None, THIRD),
        (declared(is_partitioned=True), "2013-01-03T00:00:00+00:00", None, THIRD),
        (declared(**BERLIN), "20130102T230000Z", None, THIRD - timedelta(hours=1)),
        (declared(**BERLIN), "2013-01-03", None, THIRD - timedelta(hours=1)),
        # An epoch is an instant; what other keys mean, the mapper of the schedule knows.
        (declared(is_partitioned=True), "20130103T000000Z", THIRD + DAY, THIRD),
        (declared(is_partitioned=True), "2013-01-04", THIRD, THIRD),
        (declared("0 0 1 * *", is_partitioned=True), "2013-02", datetime(2013, 2, 1, tzinfo=UTC), None),
    ],
)
def test_the_epoch_of_a_run_with_a_partition_begins_at_its_key_and_ends_by_the_cadence(of, key, date, start):
    found = interval_of(of, of_event(key, partition_date=date))
    assert found == ((start, start + DAY) if start else (date, datetime(2013, 3, 1, tzinfo=UTC)))


def test_a_day_of_a_cadence_is_as_long_as_clocks_say():
    start = datetime(2013, 3, 30, 23, tzinfo=UTC)
    assert interval_of(declared(**BERLIN), of_event("20130330T230000Z")) == (start, start + timedelta(hours=23))
    hours = declared("PT7200S", is_partitioned=True)
    assert interval_of(hours, of_event("20130103T000000Z")) == (THIRD, THIRD + timedelta(hours=2))


def test_a_key_at_which_no_epoch_begins_is_refused_unless_the_run_has_begun_by_another_cadence():
    run = of_event("20130103T050000Z")
    at = {"next": THIRD + DAY, "key": "20130103T050000Z", "every": "0 0 * * *"}
    with pytest.raises(Misconfigured, check=of_kind("tasks.partition_off_cadence", **at)):
        interval_of(declared(is_partitioned=True), run)
    five = THIRD + timedelta(hours=5)
    assert interval_of(declared(is_partitioned=True), run, (five, five + timedelta(hours=1)))[0] == five


@pytest.mark.parametrize("key", ["all", "2013-Q1", "2013"])
def test_a_key_that_is_no_time_is_refused(key):
    with pytest.raises(Misconfigured, check=of_kind("tasks.partition_unreadable", key=key)):
        interval_of(declared(is_partitioned=True), of_event(key))


def test_a_run_without_a_key_is_refused_with_an_example_of_one():
    example = {"example": "20130106T000000Z"}
    now = datetime(2013, 1, 5, 10, 17, tzinfo=UTC)
    for run in (of_event(None), of_event(None, logical_date=now, data_interval_start=now, data_interval_end=now)):
        with pytest.raises(Misconfigured, check=of_kind("tasks.no_partition", **example)):
            interval_of(declared(is_partitioned=True), run)
    with pytest.raises(Misconfigured, check=of_kind("tasks.no_interval")):
        interval_of(declared(), of_event(None))


def test_a_logical_date_at_which_an_epoch_begins_is_one_as_dag_test_has_it():
    run = of_event(None, logical_date=THIRD, data_interval_start=THIRD, data_interval_end=THIRD)
    assert interval_of(declared(is_partitioned=True), run) == (THIRD, THIRD + DAY)
    with pytest.raises(Misconfigured, check=of_kind("tasks.no_partition")):
        interval_of(declared("PT86400S", is_partitioned=True), run)


def test_runs_keep_their_epochs_when_a_dataflow_gets_another_kind_of_schedule():
    assert interval_of(declared(is_partitioned=True), dag_run(3)) == (THIRD, THIRD + DAY)
    assert interval_of(declared(), of_event("20130103T000000Z")) == (THIRD, THIRD + DAY)
    assert interval_of(declared(None), of_event("20130103T000000Z"), (THIRD, THIRD + DAY)) == (THIRD, THIRD + DAY)


def test_the_run_before_one_with_a_partition_is_asked_of_the_plugin():
    from weir_airflow.tasks.epochs import previous_run

    asked = []

    class Api:
        def run_before(self, *question):
            asked.append(question)
            return EarlierRun("asset_triggered__2", (THIRD - DAY, THIRD))

    context = {"dag_run": of_event("2013-01-03", dag_id="delays")}
    found = previous_run(declared(is_partitioned=True), context, (THIRD, THIRD + DAY), Api)
    assert asked == [("delays", THIRD, "2013-01-03", Cadence("0 0 * * *", "UTC"))]
    assert (found.run_id, found.interval, found.is_queued) == ("asset_triggered__2", (THIRD - DAY, THIRD), False)
