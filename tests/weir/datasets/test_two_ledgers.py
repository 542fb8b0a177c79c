"""Two ledgers with one store, and one dataflow in both: what is refused, and what `weir doctor` finds."""

import copy
import json

import pytest
from tests.messages.kinds import of_kind
from tests.weir.datasets.neighbours import Neighbours, reader, trips

import weir
from weir.dataflow import dataset
from weir.doctor.examination import Status, examine
from weir.doctor.ledger import LedgerExam
from weir.doctor.store import ledgers_check
from weir.errors import Misconfigured
from weir.formats.paths import pointer_path, record_path
from weir.ledger.ledger import Ledger
from weir.rebuild.rebuild import rebuild
from weir.upkeep import RESULTS, settle_everywhere

DAY = "20130101T000000Z"
RECORD = record_path("trips", DAY)


@pytest.fixture
def town(tmp_path):
    """One day was published."""
    found = Neighbours(tmp_path, ledger=Ledger.open(f"sqlite:///{tmp_path}/ledger.db"))
    found.add(trips())
    found.run("trips", 1)
    return found


@pytest.fixture
def other(town, tmp_path):
    """Another ledger with the same store, which knows nothing yet."""
    (tmp_path / "other").mkdir()
    return Neighbours(tmp_path / "other", Ledger.open(f"sqlite:///{tmp_path}/other/ledger.db"), town.store)


def of_other(town):
    return of_kind("ledger.of_other_ledger", dataflow="trips", other=town.ledger.id())


def found_in(folder, town):
    exam = LedgerExam(f"sqlite:///{folder}/ledger.db")
    return list(examine([[ledgers_check(town.store, exam.epochs)]]))


def named(town, path):
    return json.loads(town.store.read(path))["ledger"]


def publish_again(town, content):
    """Publish other content of the first day."""
    town.content["trips"]["raw"] = content
    town.airflows["trips"].clear_run_by_hand("scheduled__2013-01-01")
    town.go_on()


def test_pointer_and_record_name_the_ledger(town, other):
    assert (
        named(town, pointer_path("trips", "zones", DAY, 1))
        == named(town, RECORD)
        == town.ledger.id()
        != other.ledger.id()
    )


def test_a_data_set_of_another_ledger_is_not_waited_for(town, other):
    report = other.add(reader(zones=dataset("trips.zones")))
    (run,) = other.run("report", 1)
    assert (
        f"another ledger, {town.ledger.id()}; this one is {other.ledger.id()}"
        in report.task(run, "read").failed_because
    )


def test_a_data_set_of_another_ledger_is_not_opened(town, other):
    with pytest.raises(Misconfigured, check=of_other(town)):
        weir.open("trips", services=other.services)


def test_a_ledger_that_is_rebuilt_takes_over_and_the_one_before_is_told(town, other, tmp_path):
    report = town.add(reader(zones=dataset("trips.zones")))
    rebuild(other.services, "trips")
    assert named(town, RECORD) == other.ledger.id()
    assert [each.status for each in found_in(tmp_path / "other", other)] == [Status.OK]
    with pytest.raises(Misconfigured, check=of_other(other)):
        weir.open("trips", services=town.services)
    (run,) = town.run("report", 1)
    assert other.ledger.id() in report.task(run, "read").failed_because


def test_a_new_ledger_catches_up_with_what_a_lost_one_had(town, other):
    again, before = other.add(trips()), town.airflows["trips"]
    for what in ("tasks", "time", "clear_numbers"):
        setattr(again, what, copy.deepcopy(getattr(before, what)))
    again.clear_run_by_hand("scheduled__2013-01-01")
    other.go_on()
    assert [each.version for each in other.versions("trips")] == [1]
    settle_everywhere(other.services, RESULTS).require_whole()
    assert named(town, RECORD) == other.ledger.id()


@pytest.mark.parametrize("day", [2, 5])
def test_the_doctor_finds_a_dataflow_in_two_ledgers(town, other, tmp_path, day):
    assert [each.status for each in found_in(tmp_path, town)] == [Status.OK]
    other.add(trips())
    other.run("trips", day)
    both = town.ledger.id(), other.ledger.id()
    for folder, found in ((tmp_path, town), (tmp_path / "other", other)):
        (finding,) = found_in(folder, found)
        assert finding.status is Status.PROBLEM
        assert all(each in finding.found for each in ("trips", *both))
        assert "weir ledger rebuild trips" in finding.mend
