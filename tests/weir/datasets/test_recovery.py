"""Recovery across dataflows: what is lost, changed or deleted in one, and what runs again in the other."""

import pytest
from tests.builders.ledgers import StoppingLedger, new_ledger
from tests.weir.datasets.neighbours import Neighbours, reader, trips

from weir.dataflow import dataset, last
from weir.integrity.verification import verify_runs
from weir.ledger.database.tables import PublicationRow, RunRow
from weir.recovery.adopt import adopt
from weir.recovery.datasets import tell_readers
from weir.views.datasets import dataset_details


@pytest.fixture
def read(town):
    """A town in which three days were published, and read."""
    town.add(trips())
    town.add(reader(zones=dataset("trips.zones")))
    town.run("trips", 1, 2, 3)
    town.run("report", 1, 2, 3)
    return town


def executed(town):
    return {
        (name, run, task): tries
        for name, airflow in town.airflows.items()
        for run in sorted({key.run_id for key in airflow.tasks})
        for task, tries in airflow.executed(run).items()
    }


def run_since(town, before):
    """What has run since: dataflow, day and task, and how often."""
    return {
        (name, int(run[-2:]), task): number - before.get((name, run, task), 0)
        for (name, run, task), number in executed(town).items()
        if number > before.get((name, run, task), 0)
    }


def test_a_lost_file_is_made_again_by_its_own_run_and_the_reader_goes_on(read):
    before = executed(read)
    read.lose("trips", "zones", day=3, subtask=1)
    read.airflows["report"].clear_by_hand("scheduled__2013-01-03", "read")
    read.go_on()
    ran = run_since(read, before)
    assert set(ran) == {
        ("trips", 3, "by_zone-zones[1]"),
        ("trips", 3, "weir_close[0]"),
        ("report", 3, "read[0]"),
    }
    assert len(read.versions("trips", day=3)) == 2
    assert read.airflows["report"].task("scheduled__2013-01-03", "read").try_number == 2


def test_a_lost_file_whose_inputs_are_lost_too_is_made_again_as_far_back_as_needed(read):
    before = executed(read)
    read.lose("trips", "zones", day=2)
    read.lose("trips", "raw", day=2)
    read.airflows["report"].clear_by_hand("scheduled__2013-01-02", "read")
    read.go_on()
    ran = run_since(read, before)
    assert {key for key in ran if key[0] == "trips"} == {
        ("trips", 2, "raw[0]"),
        ("trips", 2, "by_zone-zones[0]"),
        ("trips", 2, "weir_close[0]"),
    }
    assert read.airflows["report"].state_of("scheduled__2013-01-02") == "success"


def test_a_lost_file_of_an_equal_result_that_was_recomputed_since_is_published_again(read):
    """The version still names the files of the first attempt, and nothing of its run is to be computed."""
    flow, report = read.airflows["trips"], read.airflows["report"]
    flow.clear_run_by_hand("scheduled__2013-01-02")
    read.go_on()
    (version,) = read.versions("trips", day=2)
    before = executed(read)
    read.store.delete_folder(version.folders[1])
    report.clear_by_hand("scheduled__2013-01-02", "read")
    read.go_on()
    assert report.state_of("scheduled__2013-01-02") == "success"
    assert {key for key in run_since(read, before) if key[0] == "trips"} == {("trips", 2, "weir_close[0]")}
    assert len(read.versions("trips", day=2)) == 2


def test_equal_content_reruns_nobody(read):
    before = executed(read)
    read.airflows["trips"].clear_run_by_hand("scheduled__2013-01-02")
    read.go_on()
    assert {key[0] for key in run_since(read, before)} == {"trips"}


def test_other_content_reruns_exactly_what_was_made_of_it(read):
    before = executed(read)
    read.content["trips"]["raw"] = "other"
    read.airflows["trips"].clear_run_by_hand("scheduled__2013-01-02")
    read.go_on()
    ran = run_since(read, before)
    assert {key for key in ran if key[0] == "report"} == {
        ("report", 2, "read[0]"),
        ("report", 2, "made-out[0]"),
        ("report", 2, "weir_close[0]"),
    }
    assert len(read.versions("report", "out", day=2)) == 2


@pytest.mark.parametrize("is_other", [False, True])
def test_a_version_in_another_layout_is_compared_by_its_rows(read, is_other):
    flow, before = read.airflows["trips"], executed(read)
    flow.deploy(trips(by="k"))
    adopt(read.services, "trips@20130102T000000Z")
    if is_other:
        read.content["trips"]["raw"] = "other"
    flow.clear_run_by_hand("scheduled__2013-01-02")
    read.go_on()
    ran = {key for key in run_since(read, before) if key[0] == "report"}
    assert ran == {("report", 2, task) for task in ("read[0]", "made-out[0]", "weir_close[0]") if is_other}
    with read.ledger.transaction() as session:
        (found,) = dataset_details(session, "trips.zones", 3).epochs[1:2]
    assert [(each.run[-16:], each.is_valid) for each in found.readers] == [("20130102T000000Z", True)]


def test_what_is_not_published_yet_is_no_news_to_readers(read):
    """A sink's region has committed other rows: its run is followed by others, and its closing task is to come."""
    before = executed(read)
    flow, report = read.airflows["trips"], read.airflows["report"]
    read.content["trips"]["raw"] = "other"
    flow.clear_run_by_hand("scheduled__2013-01-02")
    while (ready := flow._ready()).key.task_id != "weir_close":
        flow.step(ready)
    report.deliver_clears("report")
    report.run_until_quiet()
    with read.ledger.transaction() as session:
        assert session.get_one(RunRow, "report@20130102T000000Z").closed_at is not None
    assert {key[0] for key in run_since(read, before)} == {"trips"}


def test_readers_of_several_days_run_again_for_each_day_that_has_read_it(town):
    town.add(trips())
    town.add(reader(zones=dataset("trips.zones", epoch=last(2))))
    town.run("trips", 1, 2, 3)
    town.run("report", 1, 2, 3)
    before = executed(town)
    town.content["trips"]["raw"] = "other"
    town.airflows["trips"].clear_run_by_hand("scheduled__2013-01-01")
    town.go_on()
    assert {key[1] for key in run_since(town, before) if key[0] == "report"} == {1, 2}


def test_a_chain_of_three_dataflows_follows(read):
    read.add(reader("summary", reports=dataset("report.out")))
    read.run("summary", 1, 2, 3)
    before = executed(read)
    read.content["trips"]["raw"] = "other"
    read.airflows["trips"].clear_run_by_hand("scheduled__2013-01-01")
    read.go_on()
    assert {key[:2] for key in run_since(read, before)} == {("trips", 1), ("report", 1), ("summary", 1)}


def test_a_changed_version_is_told_later_where_a_process_was_killed(read, monkeypatch):
    """The closing task dies after its commit; upkeep, or any later close, tells the readers."""
    before = executed(read)
    read.content["trips"]["raw"] = "other"
    monkeypatch.setattr("weir.settling.tell_readers", lambda *_: [])
    read.airflows["trips"].clear_run_by_hand("scheduled__2013-01-02")
    read.go_on()
    assert {key[0] for key in run_since(read, before)} == {"trips"}
    monkeypatch.undo()
    assert tell_readers(read.services, "trips") == ["report"]
    assert tell_readers(read.services, "trips") == []
    read.airflows["report"].deliver_clears("report")
    read.go_on()
    assert {key[:2] for key in run_since(read, before)} == {("trips", 2), ("report", 2)}


def test_a_version_that_is_published_while_readers_are_compared_is_told_as_well(tmp_path, monkeypatch):
    waiting = []

    def point(dataflow, is_open):
        if dataflow == "report" and not is_open and waiting:
            waiting.pop()()

    town = Neighbours(tmp_path, StoppingLedger(new_ledger(tmp_path / "ledger.db")._engine, point))
    flow = town.add(trips())
    town.add(reader(zones=dataset("trips.zones")))
    town.run("trips", 1)
    town.run("report", 1)

    def publish(what):
        town.content["trips"]["raw"] = what
        flow.clear_run_by_hand("scheduled__2013-01-01")
        flow.run_until_quiet()

    with monkeypatch.context() as killed:
        killed.setattr("weir.settling.tell_readers", lambda *_: [])
        publish("other")
        waiting.append(lambda: publish("newer"))
        assert tell_readers(town.services, "trips") == ["report"]
        assert len(town.versions("trips")) == 3
    assert tell_readers(town.services, "trips") == ["report"]
    assert tell_readers(town.services, "trips") == []


def test_a_version_of_which_only_the_number_is_assigned_is_not_read(town):
    """As a closing task leaves it that is killed before it has written the pointer."""
    town.add(trips())
    report = town.add(reader(zones=dataset("trips.zones")))
    town.run("trips", 1)
    with town.ledger.transaction("trips") as session:
        session.query(PublicationRow).one().published_at = None
    report.dag_run(1)
    town.go_on()
    task = report.task("scheduled__2013-01-01", "read")
    assert (task.state, task.waits_on.kind) == ("up_for_reschedule", "recovery.dataset_awaited")


def test_a_published_file_that_was_found_damaged_is_made_again_though_it_is_there(read):
    (version,) = read.versions("trips", day=2)
    file = f"{version.folders[0]}/part-0.bin"
    first, *others = read.store.read(file)
    read.store.replace(file, bytes([first ^ 1, *others]))
    assert verify_runs(read.services, "trips@20130102T000000Z", "a test").bad
    before = executed(read)
    read.airflows["report"].clear_by_hand("scheduled__2013-01-02", "read")
    read.go_on()
    assert ("trips", 2, "by_zone-zones[0]") in run_since(read, before)
    assert len(read.versions("trips", day=2)) == 2
    assert read.airflows["report"].state_of("scheduled__2013-01-02") == "success"


def test_what_a_deleted_dag_run_has_published_can_be_read(town):
    flow = town.add(trips())
    report = town.add(reader(zones=dataset("trips.zones")))
    (run,) = town.run("trips", 1)
    flow.delete(run)
    (reading,) = town.run("report", 1)
    assert report.state_of(reading) == "success"


def test_a_lost_file_of_a_deleted_dag_run_needs_a_person_and_is_not_waited_for(read):
    flow, report = read.airflows["trips"], read.airflows["report"]
    flow.delete("scheduled__2013-01-02")
    read.lose("trips", "zones", day=2)
    report.clear_by_hand("scheduled__2013-01-02", "read")
    read.go_on()
    task = report.task("scheduled__2013-01-02", "read")
    assert task.state == "failed"
    assert "was deleted" in task.failed_because
    flow.dag_run(2)
    read.go_on()
    report.clear_by_hand("scheduled__2013-01-02", "read")
    read.go_on()
    assert report.state_of("scheduled__2013-01-02") == "success"


def test_who_may_not_clear_the_producer_waits_and_says_so(read):
    report = read.airflows["report"]
    report.forbidden.add("trips")
    read.lose("trips", "zones", day=1)
    report.clear_by_hand("scheduled__2013-01-01", "read")
    read.go_on()
    task = report.task("scheduled__2013-01-01", "read")
    assert task.state == "up_for_reschedule"
    assert task.waits_on.kind == "recovery.dataset_not_cleared"
    assert task.try_number == 2
    # The producer's own tasks and upkeep may.
    read.airflows["trips"].deliver_clears("trips")
    read.go_on()
    assert report.state_of("scheduled__2013-01-01") == "success"


def test_a_version_that_comes_while_the_reader_computes_makes_it_begin_again(read):
    flow, report = read.airflows["trips"], read.airflows["report"]
    done = []

    def publish(key):
        if key.task_id == "read" and not done:
            done.append(key)
            read.content["trips"]["raw"] = "other"
            flow.clear_run_by_hand("scheduled__2013-01-03")
            flow.run_until_quiet()

    report.during = publish
    report.clear_by_hand("scheduled__2013-01-03", "read")
    read.go_on()
    assert report.state_of("scheduled__2013-01-03") == "success"
    assert report.task("scheduled__2013-01-03", "read").try_number >= 3
    assert len(read.versions("report", "out", day=3)) == 2


def test_a_file_that_is_lost_while_it_is_read_is_made_again(read):
    flow, report = read.airflows["trips"], read.airflows["report"]
    before, done = executed(read), []

    def lose(key):
        if key.task_id == "read" and not done:
            done.append(key)
            read.lose("trips", "zones", day=3)
            raise ValueError("a file is not there")

    report.during = lose
    report.clear_by_hand("scheduled__2013-01-03", "read")
    read.go_on()
    assert report.state_of("scheduled__2013-01-03") == "success"
    assert ("trips", 3, "by_zone-zones[0]") in run_since(read, before)
    assert flow.state_of("scheduled__2013-01-03") == "success"


def test_a_reader_has_the_ledger_of_the_producer_catch_up(town):
    town.add(trips())
    report = town.add(reader(zones=dataset("trips.zones")))
    town.run("trips", 1)
    town.ledger.behind("trips", "a replica was promoted")
    (run,) = town.run("report", 1)
    assert report.state_of(run) == "success"
    assert report.task(run, "read").try_number == 1
