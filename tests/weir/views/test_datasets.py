"""Data sets as a person asks about them: who publishes and reads them, what waits, and what a run has read."""

import pytest
from tests.messages.kinds import of_kind
from tests.weir.command_line import invoked, typed, use
from tests.weir.counting import counting
from tests.weir.datasets.neighbours import HOURLY, Neighbours, reader, trips

from weir.dataflow import Dataflow, dataset, last, sink
from weir.errors import Misconfigured
from weir.ledger.database.tables import AttemptRow, PublicationRow, RunRow
from weir.recovery.dataset_plans import plans_if_changed
from weir.views.datasets import dataset_details, dataset_views, inputs_of_run
from weir.views.lineage import lineage_of


@pytest.fixture
def town(tmp_path):
    return Neighbours(tmp_path)


@pytest.fixture
def read(town):
    """A day that was published and read, and one that is waited for."""
    town.add(trips())
    town.add(reader(zones=dataset("trips.zones")))
    town.run("trips", 1)
    town.run("report", 1)
    town.airflows["report"].dag_run(2)
    town.go_on()
    return town


def day(number):
    return f"201301{number:02d}T000000Z"


def seen(town):
    with town.ledger.transaction() as session:
        return {each.name: each for each in dataset_views(session)}


def details(town, name="trips.zones", **more):
    with town.ledger.transaction() as session:
        return dataset_details(session, name, **more)


def inputs(town, run, *dataset):
    with town.ledger.transaction() as session:
        return inputs_of_run(session, run, *dataset).inputs


def validity(town, number=1):
    """Of each run that reads a day, whether what it has made of it is valid."""
    (epoch,) = [each for each in details(town).epochs if each.epoch == day(number)]
    return {each.run: each.is_valid for each in epoch.readers}


def test_all_that_is_declared_published_or_read_is_a_data_set(read):
    found = seen(read)
    assert [(each.name, each.is_declared, each.epochs) for each in found.values()] == [
        ("report.out", True, 1),
        ("trips.zones", True, 1),
    ]
    newest = found["trips.zones"].newest
    assert (newest.epoch, newest.version, newest.rows) == (day(1), 1, 2)
    assert found["trips.zones"].dag_ids == ("trips",)


def test_what_nobody_declares_any_more_still_has_its_epochs_and_readers(read):
    read.add(Dataflow("trips", [*trips().stages[:-1], sink("by_zone", "districts")]))
    read.run("trips", 3)
    found = seen(read)["trips.zones"]
    assert (found.is_declared, found.epochs) == (False, 1)
    assert [each.dataflow for each in found.readers] == ["report"]


def test_readers_are_those_that_the_newest_runs_declare(read):
    (found,) = seen(read)["trips.zones"].readers
    assert (found.dataflow, found.stage, found.argument, found.epoch, found.missing) == (
        *("report", "read", "zones", "same", "wait"),
    )
    read.add(reader(other=dataset("trips.zones", epoch=last(2), missing="skip", schema="k BIGINT")))
    read.run("report", 4)
    assert [(each.argument, each.epoch, each.missing) for each in seen(read)["trips.zones"].readers] == [
        ("other", "last(2)", "skip")
    ]


def test_a_task_that_waits_is_told_since_when_and_for_which_epoch(read):
    (task,) = seen(read)["trips.zones"].waiting
    assert (task.run, str(task.region)) == (f"report@{day(2)}", "read[0]")
    with read.ledger.transaction() as session:
        (since,) = session.query(AttemptRow.began_at).filter_by(state="waiting").one()
    assert task.since == since
    assert f"trips@{day(2)} (no task of it has begun)" in task.reason
    looked = task.looked_at
    read.go_on()
    (task,) = seen(read)["trips.zones"].waiting
    assert task.since == since < looked < task.looked_at
    read.run("trips", 2)
    read.go_on()
    assert not seen(read)["trips.zones"].waiting


def test_a_task_that_waits_says_what_has_failed_for_good_of_what_it_waits_for(read):
    def refuse(_key):
        raise Misconfigured("no such file")

    producer = read.airflows["trips"]
    producer.during = refuse
    assert producer.task(producer.dag_run(2), "raw").state is None
    read.go_on()
    (task,) = seen(read)["trips.zones"].waiting
    assert f"trips@{day(2)} (raw[0] of it has failed for good: `weir plan trips@{day(2)}`)" in task.reason


def test_no_task_of_a_deleted_dag_run_waits(read):
    with read.ledger.transaction("report") as session:
        session.get_one(RunRow, f"report@{day(2)}").deleted_at = read.now()
    assert not seen(read)["trips.zones"].waiting


def test_a_task_waits_for_what_is_missing_only_and_for_what_was_lost(town):
    town.add(trips())
    town.add(reader("weather", zones=dataset("trips.zones")))
    report = town.add(reader(zones=dataset("trips.zones"), rain=dataset("weather.out")))
    town.run("trips", 1)
    run = report.dag_run(1)
    town.go_on()
    assert not seen(town)["trips.zones"].waiting
    assert len(seen(town)["weather.out"].waiting) == 1
    town.run("weather", 1)
    town.go_on()
    report.forbidden.add("trips")
    town.lose("trips", "zones")
    report.clear_by_hand(run, "read")
    town.go_on()
    (task,) = seen(town)["trips.zones"].waiting
    assert f"trips@{day(1)}" in task.reason
    assert not seen(town)["weather.out"].waiting


def test_what_was_made_of_an_older_version_is_not_valid(read, monkeypatch):
    assert validity(read) == {f"report@{day(1)}": True}
    monkeypatch.setattr("weir.settling.tell_readers", lambda *_: [])
    read.content["trips"]["raw"] = "other"
    read.airflows["trips"].clear_run_by_hand("scheduled__2013-01-01")
    read.go_on()
    assert validity(read) == {f"report@{day(1)}": False}
    (found,) = inputs(read, f"report@{day(1)}")
    assert [(each.run, each.version, each.is_valid) for each in found.epochs] == [(f"trips@{day(1)}", 2, False)]


def test_equal_content_leaves_it_valid(read):
    read.airflows["trips"].clear_run_by_hand("scheduled__2013-01-01")
    read.go_on()
    assert validity(read) == {f"report@{day(1)}": True}


def test_what_was_made_of_a_version_that_is_deleted_stays_valid(read):
    with read.ledger.transaction("trips") as session:
        (row,) = session.query(PublicationRow).filter_by(sink="zones")
        row.expiring_at = read.now()
    (epoch,) = details(read).epochs
    assert epoch.published is None
    assert validity(read) == {f"report@{day(1)}": True}
    assert seen(read)["trips.zones"].epochs == 0


def test_a_run_that_has_committed_nothing_of_an_epoch_is_told_apart(read):
    read.airflows["report"].during = lambda key: key.run_id.endswith("02") and done.append(validity(read, 2))
    done = []
    read.run("trips", 2)
    read.go_on()
    assert done[0] == {f"report@{day(2)}": None}
    assert validity(read, 2) == {f"report@{day(2)}": True}


def test_the_newest_epochs_are_listed_and_the_others_counted(read):
    read.run("trips", 2, 3)
    found = details(read, newest=2)
    assert ([each.epoch for each in found.epochs], found.older) == ([day(2), day(3)], 1)


def test_an_input_tells_what_it_was_resolved_to_and_what_was_left_out(town):
    hourly = town.add(trips(), HOURLY)
    town.add(reader(zones=dataset("trips.zones", epoch="within", missing="skip", schema="k BIGINT")))
    for hour in (0, 1, 3):
        hourly.hour_run(1, hour)
        hourly.run_until_quiet()
    town.run("report", 1)
    (found,) = inputs(town, f"report@{day(1)}")
    assert [each.run[-7:-5] for each in found.epochs] == ["00", "01", "03"]
    assert [each[9:11] for each in found.left_out] == [f"{hour:02d}" for hour in range(24) if hour not in (0, 1, 3)]
    assert found.resolved_at is not None
    assert {each.is_valid for each in found.epochs} == {True}


def test_an_input_that_waits_has_no_epochs_yet(read):
    (found,) = inputs(read, f"report@{day(2)}")
    assert (found.epochs, found.resolved_at, len(found.waiting)) == ((), None, 1)


def test_names_that_are_not_known_are_refused_with_those_that_are(read):
    with pytest.raises(Misconfigured, check=of_kind("views.dataset_unknown", name="trips.zone")):
        details(read, "trips.zone")
    with pytest.raises(Misconfigured, check=of_kind("views.dataset_unknown", name="report.out")):
        inputs(read, f"report@{day(1)}", "report.out")
    with pytest.raises(Misconfigured, check=of_kind("ledger.run_unknown", name="report@20140101")):
        inputs(read, "report@20140101")


def test_who_publishes_nothing_is_told_why(read, tmp_path, monkeypatch):
    use(monkeypatch, tmp_path)
    read.add(reader("late", a=dataset("weather.out"), b=dataset("trips.district")))
    read.airflows["late"].dag_run(1)
    read.go_on()
    said = typed("datasets")
    assert "nobody: no task of weather has begun" in said
    assert "nobody: trips declares no such sink" in said
    with pytest.raises(Misconfigured, check=of_kind("views.dataset_unknown")) as error:
        invoked("datasets", "weather.on")
    assert "weather.out" not in str(error.value)
    with pytest.raises(Misconfigured, check=of_kind("cli.drawing_of_lineage")):
        invoked("datasets", "--svg", str(tmp_path / "drawn.svg"))


def test_the_statements_grow_with_nothing(town):
    def statements():
        counts = []
        for ask in (seen, details, lambda town: inputs(town, f"report@{day(1)}")):
            with counting() as asked:
                ask(town)
            counts.append(asked.statements.total())
        return counts

    town.add(trips())
    town.add(reader(zones=dataset("trips.zones", epoch=last(3))))
    town.run("trips", 1)
    town.run("report", 1)
    few = statements()
    for name in ("one", "two"):
        town.add(reader(name, zones=dataset("trips.zones", epoch=last(3))))
    town.run("trips", 2, 3, 4)
    for name in ("report", "one", "two"):
        town.run(name, 2, 3, 4)
    assert statements() == few


def test_the_command_names_data_sets_epochs_readers_and_waits(read, tmp_path, monkeypatch):
    use(monkeypatch, tmp_path)
    for words in ("datasets", "datasets trips.zones", f"datasets --run report@{day(2)}"):
        said = typed(*words.split())
        assert "trips.zones" in said
        assert f"trips@{day(2)}" in said
    assert f"report@{day(1)}" in typed("datasets", "trips.zones")
    assert f"trips@{day(1)} v1" in typed("datasets", "--run", f"report@{day(1)}")


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_the_databases_answer_alike(request, tmp_path, database):
    on_postgresql = request.getfixturevalue("empty_postgres_ledger")() if database == "postgresql" else None
    town = Neighbours(tmp_path, on_postgresql)
    town.add(trips())
    town.add(reader(zones=dataset("trips.zones")))
    town.run("trips", 1)
    town.run("report", 1)
    town.airflows["report"].dag_run(2)
    town.go_on()
    assert {name: (each.epochs, len(each.readers), len(each.waiting)) for name, each in seen(town).items()} == {
        "report.out": (1, 0, 0),
        "trips.zones": (1, 1, 1),
    }
    assert validity(town) == {f"report@{day(1)}": True}
    assert [len(inputs(town, f"report@{day(number)}")[0].epochs) for number in (1, 2)] == [1, 0]
    with town.ledger.transaction() as session:
        assert [each.distance for each in lineage_of(session, "trips.zones").nodes] == [0, 1]
    assert [each.run for each in plans_if_changed(town.services, "trips.zones", "2013-01-01").plans] == [
        f"report@{day(1)}"
    ]
