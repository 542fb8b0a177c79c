"""Data sets in a ledger that was lost, and rebuilt from the store."""

import pytest
from sqlalchemy import select
from tests.weir.datasets.neighbours import Neighbours, reader, trips

from weir.dataflow import dataset
from weir.ledger.database.tables import RunRow
from weir.ledger.reads import resolved_inputs
from weir.rebuild.rebuild import rebuild
from weir.upkeep import RESULTS, settle_everywhere

DAY = "scheduled__2013-01-02"


@pytest.fixture(params=[("report", ()), ("zones_report", ()), ("report", "k")])
def lost(request, tmp_path):
    """Two days were published, also by keys, and read by a dataflow that is rebuilt before the other one, or after."""
    name, by = request.param
    town = Neighbours(tmp_path)
    town.add(trips(by))
    town.add(reader(name, zones=dataset("trips.zones")))
    town.run("trips", 1, 2)
    town.run(name, 1, 2)
    return town


def rebuilt(before, folder):
    """The town with a ledger that was rebuilt, once upkeep was there."""
    (folder / "again").mkdir()
    town = Neighbours(folder / "again", store=before.store)
    for name, airflow in before.airflows.items():
        town.content[name] = before.content[name]
        again = town.add(airflow.flow)
        for what in ("tasks", "time", "clear_numbers"):
            setattr(again, what, getattr(airflow, what))
    rebuild(town.services)
    settle_everywhere(town.services, RESULTS)
    for name, airflow in town.airflows.items():
        airflow.deliver_clears(name)
    return town


def readers(town):
    """The DAG of the reader, and how often its tasks of the second day have run."""
    (name,) = town.airflows.keys() - {"trips"}
    return town.airflows[name], town.airflows[name].executed(DAY)


def test_what_was_read_is_known(lost, tmp_path):
    before = readers(lost)[1]
    town = rebuilt(lost, tmp_path)
    town.go_on()
    report, since = readers(town)
    assert since == before
    with town.ledger.transaction() as session:
        (found,) = resolved_inputs(session, f"{report.flow.name}@20130102T000000Z")
        assert found.runs == ("trips@20130102T000000Z",)
        assert all(row.closed_at for row in session.scalars(select(RunRow)))
    town.content["trips"]["raw"] = "other"
    town.airflows["trips"].clear_run_by_hand(DAY)
    town.go_on()
    assert readers(town)[1] == dict.fromkeys(before, 2)
    assert set(report.executed("scheduled__2013-01-01").values()) == {1}


def test_readers_of_which_the_lost_ledger_had_yet_to_tell_run_again(lost, tmp_path, monkeypatch):
    monkeypatch.setattr("weir.settling.tell_readers", lambda *_: [])
    lost.content["trips"]["raw"] = "other"
    lost.airflows["trips"].clear_run_by_hand(DAY)
    lost.go_on()
    before = readers(lost)[1]
    assert set(before.values()) == {1}
    monkeypatch.undo()
    town = rebuilt(lost, tmp_path)
    town.go_on()
    report, since = readers(town)
    assert since == dict.fromkeys(before, 2)
    assert set(report.executed("scheduled__2013-01-01").values()) == {1}


def test_a_version_of_which_a_manifest_is_gone_is_not_read_in_part(lost, tmp_path):
    (version,) = lost.versions("trips", day=2)
    lost.store.delete(f"{version.folders[1]}/manifest.json")
    town = rebuilt(lost, tmp_path)
    report, _ = readers(town)
    (of_report,) = town.versions(report.flow.name, "out", day=2)
    report.clear_by_hand(DAY, "read")
    town.go_on()
    assert report.state_of(DAY) == "success"
    assert len(town.versions("trips", day=2)) == 2
    # The rows are those that were read before: nothing of it is new.
    assert [each.digest for each in town.versions(report.flow.name, "out", day=2)] == [of_report.digest]


def test_a_version_whose_results_were_computed_again_and_are_equal_is_read_as_it_was_published(lost, tmp_path):
    lost.airflows["trips"].clear_run_by_hand(DAY)
    lost.go_on()
    town = rebuilt(lost, tmp_path)
    report, before = readers(town)
    of_trips = town.airflows["trips"].executed(DAY)
    report.clear_by_hand(DAY, "read")
    town.go_on()
    assert readers(town)[1]["read[0]"] == before["read[0]"] + 1
    assert town.airflows["trips"].executed(DAY) == of_trips
    assert len(town.versions("trips", day=2)) == 1
