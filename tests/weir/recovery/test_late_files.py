"""Files that come after a source has read its interval are told of, or have the epoch computed again with them."""

import copy
import json
from random import Random

import pytest
from sqlalchemy import select
from tests.weir.behind.rewinding import RewindingWorld
from tests.weir.command_line import typed, use
from tests.weir.keeping import epoch

from weir.dataflow import Dataflow, Stage, blocking, files_source, keyed_state, sink, target
from weir.dataflow.notifications import callback
from weir.errors import Message
from weir.execution.metrics import LATE_FILES
from weir.formats.codec import from_json
from weir.formats.manifest import Manifest, splits_fingerprint
from weir.formats.paths import manifest_path
from weir.ledger.database.outbox_tables import NotificationRow
from weir.ledger.database.tables import FailoverRow, ResultRow, RunRow
from weir.ledger.publications import published_versions
from weir.ledger.sources import late_of, splits_of
from weir.rebuild.rebuild import rebuild
from weir.recovery import late_files
from weir.recovery.adopt import adopt
from weir.telemetry.gauges import gauges_of
from weir.testing.fakes.airflow import Killed
from weir.upkeep import look_for_late_files_everywhere


def of(number):
    return f"ladder@{epoch(number)}"


@pytest.fixture
def landing(tmp_path):
    folder = tmp_path / "landing"
    folder.mkdir()
    return folder


def file_of(landing, day, name="a"):
    return landing / f"2013-01-{day:02d}" / f"{name}.csv"


def arrives(landing, day, name="a", text="1\n"):
    file = file_of(landing, day, name)
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)


def flow(landing, late="correct", late_epochs=3, parallelism=1, **more):
    path, how = f"{landing}/{{start:%Y-%m-%d}}/*.csv", {"late": late, "late_epochs": late_epochs}
    rows = files_source("rows", path, format="csv", schema="k BIGINT", parallelism=parallelism, **how)
    history = keyed_state("history", key="k", schema="k BIGINT, n BIGINT")
    known = Stage("known", "pipelines.ladder:known", [blocking(rows)], state=history)
    return Dataflow("ladder", [rows, known, sink(known, "copy")], **more)


@pytest.fixture
def world(world, landing):
    world.airflow.deploy(flow(landing))
    return world


def days(world, landing, *numbers):
    """Run these days, each with a file; answers their runs."""
    found = []
    for number in numbers:
        arrives(landing, number)
        found.append(world.airflow.dag_run(number))
        world.airflow.run_until_quiet()
    return found


def first_day(world, landing, *names):
    for name in names:
        arrives(landing, 1, name)
    (run,) = days(world, landing, 1)
    return run


def look(world):
    """Upkeep looks, and Airflow runs what is cleared; answers what upkeep says of the dataflow."""
    settled = look_for_late_files_everywhere(world.services)
    settled.require_whole()
    world.airflow.deliver_clears()
    world.airflow.run_until_quiet()
    return settled.done["ladder"]


def read(world, number):
    with world.ledger.transaction() as session:
        splits = splits_of(session, of(number), "rows")
    return sorted(each["path"].rpartition("/")[2] for split in splits for each in split["files"])


def listings(world):
    """The fingerprints of the listings that the current results of the source have been made of."""
    with world.ledger.transaction() as session:
        folders = session.scalars(select(ResultRow.folder).where(ResultRow.stage == "rows", ResultRow.is_current)).all()
    manifests = [from_json(Manifest, world.store.read(manifest_path(folder))) for folder in folders]
    return [each.resolved["rows"] for each in manifests]


def listing_of(world, number=1):
    with world.ledger.transaction() as session:
        return splits_fingerprint(splits_of(session, of(number), "rows"))


def found_late(world, number=1):
    with world.ledger.transaction() as session:
        return late_of(session, of(number)).get("rows")


def late(world, number=1):
    found = found_late(world, number)
    return None if found is None else (found.added.count, found.rewritten.count, found.vanished.count)


def told(world):
    with world.ledger.transaction() as session:
        found = [row.document for row in session.scalars(select(NotificationRow))]
    return sum(each["details"].get("what") == "late_files" for each in found)


def failovers(world):
    with world.ledger.transaction() as session:
        return [row.kind for row in session.scalars(select(FailoverRow))]


def versions(world, *numbers):
    with world.ledger.transaction() as session:
        return [published_versions(session, of(number))["copy"] for number in numbers]


def executed(world, run):
    return {task: tries for task, tries in world.airflow.executed(run).items() if tries > 1}


def test_what_came_changed_and_went_is_told_apart_once_and_withdrawn(world, landing):
    world.airflow.deploy(flow(landing, late="report", notify=[callback("alerts:page")]))
    run = first_day(world, landing, "a", "b", "c")
    assert look(world) == "1 interval(s) listed again"
    arrives(landing, 1, "d")
    arrives(landing, 1, "b", "5\n")
    (landing / "2013-01-01" / "c.csv").unlink()
    assert "/d.csv" in look(world)
    assert late(world) == (1, 1, 1)
    assert look(world) == "1 interval(s) listed again"
    assert told(world) == 1
    arrives(landing, 1, "e")
    look(world)
    assert (late(world), told(world)) == ((2, 1, 1), 2)
    assert (read(world, 1), executed(world, run)) == (["a.csv", "b.csv", "c.csv"], {})
    for name in "de":
        (landing / "2013-01-01" / f"{name}.csv").unlink()
    arrives(landing, 1, "b")
    arrives(landing, 1, "c")
    look(world)
    assert (late(world), told(world)) == (None, 2)


def test_commands_and_pages_show_what_is_late(world, landing, monkeypatch):
    use(monkeypatch, world.folder)
    world.airflow.deploy(flow(landing, late="report"))
    first_day(world, landing)
    arrives(landing, 1, "late")
    look(world)
    run = f"ladder@{epoch(1)}"
    assert "late.csv" in typed("why", "rows", "--run", run)
    [task] = json.loads(typed("why", "rows", "--run", run, "--json"))["tasks"]
    assert task["sources"][0]["late"]["added"]["count"] == 1
    assert "late.csv" in typed("run", "show", run)
    assert json.loads(typed("run", "show", run, "--json"))["run"]["late"]["rows"]["added"]["count"] == 1
    assert "1" in typed("runs", "ladder")
    gauges = {each.metric: each.value for each in gauges_of(world.services, "ladder")}
    assert gauges[LATE_FILES] == 1


def test_nobody_looks_where_it_is_not_asked_for(world, landing):
    world.airflow.deploy(flow(landing, late=""))
    first_day(world, landing)
    arrives(landing, 1, "late")
    assert look(world) == "0 interval(s) listed again"


def test_only_the_newest_epochs_are_looked_at(world, landing):
    world.airflow.deploy(flow(landing, late_epochs=2, retained_checkpoints=3))
    days(world, landing, 1, 2, 3)
    for day in (1, 2):
        arrives(landing, day, "late")
    look(world)
    assert (read(world, 1), read(world, 2)) == (["a.csv"], ["a.csv", "late.csv"])


def test_an_adopted_run_reads_what_was_late(world, landing):
    world.airflow.deploy(flow(landing, late="report"))
    run = first_day(world, landing)
    arrives(landing, 1, "late")
    look(world)
    adopt(world.services, f"ladder@{epoch(1)}")
    world.airflow.clear_run_by_hand(run)
    world.airflow.run_until_quiet()
    assert (late(world), read(world, 1)) == (None, ["a.csv", "late.csv"])


def test_a_correction_reaches_later_epochs_and_replaces_what_is_published(world, landing):
    first, second = days(world, landing, 1, 2)
    arrives(landing, 1, "late")
    look(world)
    assert (read(world, 1), late(world)) == (["a.csv", "late.csv"], None)
    assert {world.airflow.state_of(run) for run in (first, second)} == {"success"}
    assert executed(world, first) == {"rows[0]": 2, "known-copy[0]": 2, "weir_close[0]": 2}
    assert executed(world, second) == {"known-copy[0]": 2, "weir_close[0]": 2}
    assert versions(world, 1, 2) == [2, 2]
    assert look(world) == "2 interval(s) listed again"
    assert failovers(world) == ["late files"]


@pytest.mark.soak
def test_later_epochs_are_only_marked_where_the_dataflow_says_so(world, landing):
    world.airflow.deploy(flow(landing, on_reprocess="mark"))
    first, second = days(world, landing, 1, 2)
    arrives(landing, 1, "late")
    look(world)
    assert executed(world, first).keys() >= {"rows[0]", "known-copy[0]"}
    assert executed(world, second) == {}


def test_a_file_that_comes_while_the_epoch_is_corrected_is_the_next_upkeeps(world, landing):
    run = first_day(world, landing)
    arrives(landing, 1, "late")
    look_for_late_files_everywhere(world.services)
    arrives(landing, 1, "later")
    assert "0 interval(s)" in look_for_late_files_everywhere(world.services).done["ladder"]
    world.airflow.deliver_clears()
    world.airflow.run_until_quiet()
    assert read(world, 1) == ["a.csv", "late.csv"]
    look(world)
    assert (read(world, 1), executed(world, run)["rows[0]"]) == (["a.csv", "late.csv", "later.csv"], 3)


def test_of_two_upkeeps_one_corrects(world, landing, monkeypatch):
    run = first_day(world, landing)
    arrives(landing, 1, "late")
    planned = late_files.plan_by_looking

    def other_first(*of, **more):
        monkeypatch.setattr(late_files, "plan_by_looking", planned)
        look_for_late_files_everywhere(world.services).require_whole()
        return planned(*of, **more)

    monkeypatch.setattr(late_files, "plan_by_looking", other_first)
    look(world)
    assert (failovers(world), executed(world, run)["rows[0]"]) == (["late files"], 2)


@pytest.mark.parametrize("step", [pytest.param("correct_splits", marks=pytest.mark.soak), "apply_plan", "write_record"])
def test_an_upkeep_that_is_killed_is_taken_up(world, landing, monkeypatch, step):
    run = first_day(world, landing)
    arrives(landing, 1, "late")
    original = getattr(late_files, step)

    def killed(*of, **more):
        if step != "write_record":
            original(*of, **more)
        raise Killed

    monkeypatch.setattr(late_files, step, killed)
    with pytest.raises(Killed):
        look_for_late_files_everywhere(world.services)
    monkeypatch.undo()
    look(world)
    assert (read(world, 1), executed(world, run)["rows[0]"]) == (["a.csv", "late.csv"], 2)
    with world.ledger.transaction() as session:
        assert not session.scalars(select(RunRow.id).where(RunRow.is_record_due)).all()


def test_a_rebuilt_ledger_knows_the_correction_and_reads_no_older_result(world, landing):
    run = first_day(world, landing)
    arrives(landing, 1, "late")
    look_for_late_files_everywhere(world.services).require_whole()
    world.lose_ledger()
    rebuild(world.services)
    assert read(world, 1) == ["a.csv", "late.csv"]
    world.airflow.clear_by_hand(run, "weir_close")
    world.airflow.run_until_quiet()
    assert world.airflow.state_of(run) == "success"
    assert executed(world, run)["rows[0]"] == 2
    before = world.airflow.executed(run)
    world.lose_ledger()
    rebuild(world.services)
    assert (read(world, 1), look(world)) == (["a.csv", "late.csv"], "1 interval(s) listed again")
    assert world.airflow.executed(run) == before


@pytest.mark.parametrize("ran", [pytest.param(0, marks=pytest.mark.soak), 1, pytest.param(2, marks=pytest.mark.soak)])
def test_a_ledger_that_has_lost_the_correction_mixes_no_results(tmp_path, landing, ran):
    """Of two tasks of the source some have been cleared, and have read the new splits."""
    world = RewindingWorld(tmp_path, flow(landing, parallelism=2))
    run = first_day(world, landing, "a", "b")
    before = world.ledger.present()
    arrives(landing, 1, "late")
    look_for_late_files_everywhere(world.services).require_whole()
    tasks = [world.airflow.task(run, "rows", subtask) for subtask in range(2)]
    untouched = {task.key: copy.deepcopy(task) for task in tasks[ran:]}
    world.airflow.deliver_clears()
    for task in tasks[:ran]:
        world.airflow.step(task)
    world.airflow.tasks |= untouched
    world.ledger.go_back(before)
    world.ledger.new_process()
    world.upkeep()
    for _ in range(2):
        world.airflow.deliver_clears()
        world.airflow.run_until_quiet()
        look(world)
    assert (read(world, 1), late(world), world.airflow.state_of(run)) == (
        ["a.csv", "b.csv", "late.csv"],
        None,
        "success",
    )
    assert listings(world) == [listing_of(world)] * 2


@pytest.mark.parametrize("seed", range(6))
def test_a_rebuilt_ledger_takes_results_of_one_listing_alone(world, landing, seed):
    """Of three tasks of the source some have read the new splits."""
    random, airflow = Random(seed), world.airflow
    airflow.deploy(flow(landing, parallelism=3))
    run = first_day(world, landing, "a", "b", "c")
    arrives(landing, 1, "late")
    look_for_late_files_everywhere(world.services).require_whole()
    airflow.deliver_clears()
    for subtask in random.sample(range(3), random.randrange(4)):
        airflow.step(airflow.task(run, "rows", subtask))
    world.lose_ledger()
    rebuild(world.services)
    assert set(listings(world)) <= {listing_of(world)}
    world.airflow.run_until_quiet()
    look(world)
    assert (read(world, 1), world.airflow.state_of(run)) == (["a.csv", "b.csv", "c.csv", "late.csv"], "success")
    assert listings(world) == [listing_of(world)] * 3


# What is not corrected


def is_held_back(world, run, message, number=1):
    assert (found_late(world, number).held_back, executed(world, run)) == (message, {})
    assert read(world, number) == ["a.csv"]
    assert told(world) == 1
    return True


def test_an_epoch_of_which_files_are_gone_is_not_corrected(world, landing):
    world.airflow.deploy(flow(landing, notify=[callback("alerts:page")]))
    run = first_day(world, landing)
    file_of(landing, 1).unlink()
    look(world)
    assert (late(world), found_late(world).held_back, executed(world, run)) == ((0, 0, 1), "", {})
    arrives(landing, 1, "late")
    look(world)
    lost = found_late(world).vanished
    message = Message("recovery.late_files_beside_lost_ones", run=of(1), lost=lost)
    assert (found_late(world).held_back, executed(world, run), told(world)) == (message, {}, 2)
    arrives(landing, 1)
    look(world)
    assert (read(world, 1), late(world)) == (["a.csv", "late.csv"], None)


def test_an_epoch_without_a_dag_run_is_not_corrected(world, landing):
    world.airflow.deploy(flow(landing, notify=[callback("alerts:page")]))
    run = first_day(world, landing)
    with world.ledger.transaction("ladder") as session:
        session.get_one(RunRow, of(1)).deleted_at = world.airflow.now()
    arrives(landing, 1, "late")
    look(world)
    assert is_held_back(world, run, Message("recovery.late_files_without_dag_run", run=of(1)))


@pytest.mark.soak
def test_where_weir_clears_nothing_nothing_is_corrected(world, landing):
    world.airflow.deploy(flow(landing, failover="individual", notify=[callback("alerts:page")]))
    run = first_day(world, landing)
    arrives(landing, 1, "late")
    look(world)
    assert is_held_back(world, run, Message("recovery.late_files_with_individual_failover", run=of(1)))


@pytest.mark.parametrize("appended", [pytest.param("copy", marks=pytest.mark.soak), "log"])
def test_what_a_table_that_only_grows_has_is_not_corrected(world, landing, tmp_path, appended):
    """Whether of the epoch or of the next one; what goes elsewhere is."""
    to = {appended: target("tests.weir.sinks.file_target:FileTarget", folder=str(tmp_path), mode="append")}
    rows, known, *_ = flow(landing).stages
    path = f"{landing}/{{start:%Y-%m-%d}}/*.csv"
    events = files_source("events", path, format="csv", schema="k BIGINT", late="correct")
    stages = [
        rows,
        known,
        sink(known, "copy", to=to.get("copy", ())),
        events,
        sink(events, "log", to=to.get("log", ())),
    ]
    world.airflow.deploy(Dataflow("ladder", stages))
    days(world, landing, 1, 2)
    arrives(landing, 1, "late")
    look(world)
    with world.ledger.transaction() as session:
        found = late_of(session, of(1))
    held, corrected = {"copy": ("rows", "events"), "log": ("events", "rows")}[appended]
    message = Message("recovery.correction_of_append", run=of(1), sink=appended, published=of(1))
    assert {source: each.held_back for source, each in found.items()} == {held: message}
    with world.ledger.transaction() as session:
        assert [len(splits_of(session, of(1), each)[0]["files"]) for each in (held, corrected)] == [1, 2]


def test_an_epoch_whose_state_before_was_released_is_not_corrected(world, landing):
    world.airflow.deploy(flow(landing, retained_checkpoints=1, notify=[callback("alerts:page")]))
    _, run, _ = days(world, landing, 1, 2, 3)
    arrives(landing, 2, "late")
    print(look(world))
    why = found_late(world, 2).held_back
    assert why.startswith(str(Message("recovery.correction_impossible", run=of(2), why="")))
    assert is_held_back(world, run, why, 2)


# Listings that fail


def test_a_listing_that_fails_is_told_once_and_fails_no_upkeep(world, landing):
    world.airflow.deploy(flow(landing, notify=[callback("alerts:page")]))
    days(world, landing, 1, 2)
    arrives(landing, 1, "late")
    arrives(landing, 2, "b:c")
    for _ in range(2):
        look(world)
    assert (read(world, 1), told(world)) == (["a.csv", "late.csv"], 1)


def test_a_listing_that_takes_too_long_is_given_up(world, landing, monkeypatch):
    first_day(world, landing)
    arrives(landing, 1, "late")
    with monkeypatch.context() as patch:
        patch.setattr(late_files, "LISTING_SECONDS", 0)
        look(world)
    assert (read(world, 1), late(world)) == (["a.csv"], None)
    look(world)
    assert read(world, 1) == ["a.csv", "late.csv"]
