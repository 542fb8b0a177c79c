"""What is published stays for readers in other dataflows: while they read it, and until they have."""

from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import select
from tests.weir.datasets.neighbours import reader, trips

from weir.dataflow import dataset
from weir.ledger.database.tables import LeaseRow, ResultRow, RunRow
from weir.retention.release import delete_released, release
from weir.retention.versions import expire_versions

MONTH = timedelta(days=31)


@pytest.fixture
def aged(town):
    """Two days were published a month ago, of which a reader has read the first."""
    town.add(trips(keep_published="7 days", keep="on_consumed"))
    town.add(reader(zones=dataset("trips.zones")))
    town.run("trips", 1, 2)
    town.run("report", 1)
    for airflow in town.airflows.values():
        airflow.time += MONTH
    return town


def expired(town):
    return sorted(each.path.split("/")[3] for each in expire_versions(town.services, "trips"))


def test_a_version_stays_until_its_reader_has_come_to_it_and_then_goes(aged):
    assert expired(aged) == ["20130101T000000Z"]
    run = aged.airflows["report"].dag_run(2)
    aged.go_on()
    assert aged.airflows["report"].state_of(run) == "success"
    assert expired(aged) == ["20130102T000000Z"]


def test_a_version_stays_for_a_run_that_is_open(aged):
    report = aged.airflows["report"]
    report.clear_by_hand("scheduled__2013-01-01", "made-out")
    aged.content["report"]["made"] = "other"
    report.step(report.task("scheduled__2013-01-01", "made-out"))
    with aged.ledger.transaction() as session:
        assert session.scalar(select(RunRow.closed_at).where(RunRow.id == "report@20130101T000000Z")) is None
    assert expired(aged) == []


def test_it_does_not_stay_for_a_reader_that_airflow_has_no_more(aged):
    with aged.ledger.transaction("report") as session:
        for row in session.scalars(select(RunRow).where(RunRow.dataflow == "report")):
            row.deleted_at = aged.now()
    assert len(expired(aged)) == 2


def test_what_is_being_read_is_leased_and_is_not_deleted(aged):
    seen = []

    def expire(key):
        if key.task_id == "read":
            with aged.ledger.transaction() as session:
                leased = select(LeaseRow.result).join(ResultRow, ResultRow.id == LeaseRow.result)
                seen.append(len(session.scalars(leased.where(ResultRow.run == "trips@20130102T000000Z")).all()))
            with aged.ledger.transaction("report") as session:  # else the version stays anyway
                for row in session.scalars(select(RunRow).where(RunRow.dataflow == "report")):
                    row.deleted_at = aged.now()
            assert "20130102T000000Z" in expired(aged)
            release(aged.services, "trips")
            assert [each for each in delete_released(aged.services, "trips") if "0102" in each.folder] == []

    report = aged.airflows["report"]
    report.during = expire
    report.dag_run(2)
    report.run_until_quiet()
    assert seen == [2]


def test_a_version_that_is_gone_is_said_to_be(aged):
    expired(aged)
    report = aged.airflows["report"]
    report.clear_by_hand("scheduled__2013-01-01", "read")
    report.run_until_quiet()
    assert "was deleted" in report.task("scheduled__2013-01-01", "read").failed_because
    # Its run publishes it again, and the reader goes on.
    aged.airflows["trips"].flow = replace(aged.airflows["trips"].flow, keep_published=None)
    aged.airflows["trips"].clear_run_by_hand("scheduled__2013-01-01")
    aged.go_on()
    report.clear_by_hand("scheduled__2013-01-01", "read")
    aged.go_on()
    assert report.task("scheduled__2013-01-01", "read").state == "success"
