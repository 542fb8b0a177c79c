"""Upkeep does for all dataflows what tasks have left undone, and what fails for one hinders no other."""

import re
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import select

from weir.dataflow import Dataflow
from weir.dataflow.retention_settings import RetentionSettings
from weir.errors import Internal, Misconfigured, Retryable
from weir.formats.paths import MANIFEST
from weir.ledger.database.tables import LeaseRow, ResultRow, RunRow
from weir.ledger.housekeeping import is_due, note_done
from weir.ledger.leases import LEASE, take_leases
from weir.retention import release
from weir.retention.release import RELEASED_NOTE
from weir.store.store import Store
from weir.testing.fakes.airflow import FakeAirflow, Killed
from weir.testing.fakes.engine import FakeEngine
from weir.upkeep import RESULTS, scrub_everywhere, settle_everywhere, sweep_everywhere

DAY = timedelta(days=1)
ON_BOTH = pytest.mark.parametrize("database", ["sqlite", pytest.param("postgresql", marks=pytest.mark.soak)])


def with_data(world, dataflow):
    """The results of a dataflow whose data files are there, by run and stage."""
    with world.ledger.transaction() as session:
        rows = [row for row in session.scalars(select(ResultRow)) if row.run.startswith(f"{dataflow}@")]
    kept = {MANIFEST, RELEASED_NOTE}
    return {(row.run, row.stage) for row in rows if {name for name, _ in world.store.list(row.folder)} - kept}


def ran(world, flow, days):
    """Let some days of a dataflow run, under an Airflow of its own with the same clock."""
    airflow = FakeAirflow(world.services, FakeEngine(world.store, world.content), flow)
    airflow.time = world.airflow.time
    for day in days:
        airflow.dag_run(day)
        airflow.run_until_quiet()
    world.airflow.time = airflow.time
    return airflow


def named(flow, name, keep):
    return Dataflow(name, flow.stages, keep=keep)


@pytest.fixture
def two(world):
    """Two dataflows that keep their results for a day, and have had a run each."""
    for name in ("first", "second"):
        ran(world, named(world.airflow.flow, name, "1 day"), [1])
    world.airflow.reachable = False  # it would know neither's runs
    return world


@ON_BOTH
def test_what_a_policy_kept_goes_when_its_time_is_over_though_nothing_runs(two):
    before = with_data(two, "first") | with_data(two, "second")
    assert settle_everywhere(two.services, RESULTS).done == {
        "first": "nothing to delete",
        "second": "nothing to delete",
    }
    assert with_data(two, "first") | with_data(two, "second") == before
    two.airflow.time += DAY
    kept = settle_everywhere(two.services, RESULTS)
    assert all("8 result(s) deleted" in said for said in kept.done.values())
    assert kept.failed == {}
    kept.require_whole()
    for name in ("first", "second"):
        assert {stage for _, stage in with_data(two, name)} == {"delays"}


def test_a_run_that_cannot_be_released_hinders_no_other(two):
    ran(two, named(two.airflow.flow, "first", "1 day"), [2])
    with two.ledger.transaction("first") as session:
        session.get_one(RunRow, "first@20130101T000000Z").pinned = {"version": 999}
    two.airflow.time += DAY
    kept = settle_everywhere(two.services, RESULTS)
    assert list(kept.failed) == ["first@20130101T000000Z"]
    assert {run for run, stage in with_data(two, "first") if stage != "delays"} == {"first@20130101T000000Z"}
    assert {stage for _, stage in with_data(two, "second")} == {"delays"}
    assert [line.split(":")[0] for line in kept.lines()] == ["first", "second", "first@20130101T000000Z"]
    with pytest.raises(type(kept.failed["first@20130101T000000Z"]), match="first@20130101T000000Z"):
        kept.require_whole()


def test_without_its_store_each_dataflow_is_named_and_nothing_is_taken_for_deleted(two):
    two.airflow.time += DAY
    (two.folder / "store").rename(two.folder / "away")
    kept = settle_everywhere(two.services, RESULTS)
    assert set(kept.failed) == {"first", "second"}
    with pytest.raises(Retryable, match="2 place"):
        kept.require_whole()
    (two.folder / "away").rename(two.folder / "store")
    assert all("8 result(s) deleted" in said for said in settle_everywhere(two.services, RESULTS).done.values())


def test_leases_that_ended_long_ago_are_forgotten(two):
    with two.ledger.transaction("first") as session:
        result = session.scalar(select(ResultRow.id).where(ResultRow.stage == "totals").limit(1))
        take_leases(session, [result], "a notebook", two.airflow.time)
        lease = session.scalar(select(LeaseRow).where(LeaseRow.holder == "a notebook"))
        lease.expires_at -= 3 * LEASE
    settle_everywhere(two.services, RESULTS)
    with two.ledger.transaction() as session:
        assert session.scalar(select(LeaseRow).where(LeaseRow.holder == "a notebook")) is None


def test_once_a_day_every_folder_is_swept_else_those_of_recent_runs(two):
    def swept(after):
        two.airflow.time += after
        return sweep_everywhere(two.services, two.airflow).done["first"].split(" run(s)")[0]

    assert swept(10 * DAY) == "1"
    with two.ledger.transaction("first") as session:
        note_done(session, "full sweep", "first", two.airflow.time + 10 * DAY)
    assert [swept(10 * DAY), swept(DAY), swept(timedelta(hours=1))] == ["0", "1", "0"]


def test_what_nobody_knows_is_told_once_a_day(two):
    two.store.create("elsewhere/20130101T000000Z/notes.txt", b"mine")
    first, second = (sweep_everywhere(two.services, two.airflow) for _ in range(2))
    assert "elsewhere, 4 bytes: the ledger knows no dataflow elsewhere" in first.done["the store"]
    assert set(second.done) == {"first", "second"}


def test_a_sweep_that_fails_is_full_again(two):
    (two.folder / "store").rename(two.folder / "away")
    assert set(sweep_everywhere(two.services, two.airflow).failed) == {"first", "second"}
    with two.ledger.transaction() as session:
        assert is_due(session, "full sweep", "first", DAY, two.airflow.time)


class Watched(Store):
    """A store that says what was listed and deleted, and whose process is killed before `dies` lists or deletes."""

    def __init__(self, store, dies):
        super().__init__(store.files)
        self.listed, self.deleted, self.dies = set(), [], dies

    def entries(self, path):
        self._perhaps_die(path)
        self.listed.add(path)
        return super().entries(path)

    def delete(self, path):
        self._perhaps_die(path)
        self.deleted.append(path)
        super().delete(path)

    def _perhaps_die(self, path):
        if self.dies(self, path):
            raise Killed

    def epochs(self, dataflow):
        """The epochs of a dataflow of which folders were listed."""
        return {each.split("/")[1] for each in self.listed if re.match(rf"{dataflow}/\d", each)}


def watched(world, dies=lambda _store, _path: False):
    return replace(world.services, store=Watched(world.store, dies))


def test_a_daily_sweep_that_was_killed_goes_on_with_the_run_at_which_it_was(two):
    ran(two, named(two.airflow.flow, "first", "1 day"), [2, 3])
    epochs = [f"2013010{day}T000000Z" for day in (1, 2, 3)]
    services = watched(two, lambda _store, path: path.startswith(f"first/{epochs[2]}"))
    with pytest.raises(Killed):
        sweep_everywhere(services, two.airflow)
    assert services.store.epochs("first") == set(epochs[:2])
    services = watched(two)
    assert f"went on after epoch {epochs[1]}" in sweep_everywhere(services, two.airflow).done["first"]
    assert services.store.epochs("first") == {epochs[2]}
    two.airflow.time += DAY
    services = watched(two)
    said = sweep_everywhere(services, two.airflow).done["first"]
    assert "3 run(s) swept" in said
    assert "went on" not in said
    assert services.store.epochs("first") == set(epochs)


@ON_BOTH
def test_released_results_are_deleted_page_by_page(two, monkeypatch):
    monkeypatch.setattr(release, "AT_ONCE", 3)
    two.airflow.time += DAY
    with pytest.raises(Killed):
        settle_everywhere(watched(two, lambda store, _path: len(store.deleted) >= 3), RESULTS)
    said = settle_everywhere(two.services, RESULTS).done
    assert "5 result(s) deleted" in said["first"]  # the first page of eight was recorded
    assert "8 result(s) deleted" in said["second"]
    for name in ("first", "second"):
        assert {stage for _, stage in with_data(two, name)} == {"delays"}


def test_a_scrub_has_made_again_what_is_bad_and_somebody_needs(world):
    world.airflow.flow = named(world.airflow.flow, "ladder", "2 runs")
    run = world.run_first(1)
    with world.ledger.transaction() as session:
        published = session.scalar(select(ResultRow).where(ResultRow.stage == "delays"))
    world.store.delete(f"{published.folder}/part-0.bin")
    services = replace(world.services, retention=RetentionSettings(scrub_share=1.0))
    kept = scrub_everywhere(services, world.airflow)
    assert "1 bad" in kept.done["ladder"]
    world.airflow.run_until_quiet()
    assert world.airflow.executed(run)["report-delays[0]"] == 2
    world.airflow.time += DAY
    assert "0 bad" in scrub_everywhere(services, world.airflow).done["ladder"]


def test_failures_of_several_kinds_are_for_whoever_reads_them_all():
    from weir.coordination.settled import Settled

    def kind_of(*errors):
        with pytest.raises(Exception) as raised:  # noqa: PT011 - its very type is asked for
            Settled(failed={str(number): error for number, error in enumerate(errors)}).require_whole()
        return raised.type

    assert kind_of(Retryable("a"), Retryable("b")) is Retryable
    assert kind_of(Misconfigured("a")) is Misconfigured
    assert kind_of(Retryable("a"), Misconfigured("b")) is Internal
    assert kind_of(KeyError("a")) is Internal


@ON_BOTH
def test_a_job_is_due_when_it_was_never_done_or_long_ago(world):
    def due(after):
        with world.ledger.transaction() as session:
            return is_due(session, "sweep", "ladder", DAY, world.airflow.time + after)

    assert due(timedelta())
    for _ in range(2):
        with world.ledger.transaction("ladder") as session:
            note_done(session, "sweep", "ladder", world.airflow.time)
        assert not due(DAY - timedelta(seconds=1))
        assert due(DAY)
