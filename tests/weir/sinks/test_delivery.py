"""Versions in the targets of their sinks: once each, whole, whatever is killed, away or lost."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from sqlalchemy import select
from tests.messages.kinds import of_kind
from tests.weir.command_line import typed, use
from tests.weir.sinks.file_target import FileTarget
from tests.weir.small_dataflow import World, ladder
from tests.weir.state.test_checkpoint_kills import DyingLedger, DyingStore, Fate

from weir.dataflow import Dataflow, files, postgres, sink, target
from weir.errors import Misconfigured
from weir.ledger.database.tables import AttemptRow, CheckpointRow, DeliveryRow, LeaseRow, PublicationRow, RunRow
from weir.rebuild.rebuild import rebuild
from weir.recovery.adopt import adopt
from weir.retention.versions import expire_versions
from weir.sinks import TargetAway, VersionFile, folders, publishing
from weir.sinks.delivery import deliver, rollback
from weir.sinks.opening import ServicesReach
from weir.store.catalogue import published
from weir.testing.fakes.airflow import FakeAirflow
from weir.testing.fakes.engine import FakeEngine
from weir.upkeep import TARGETS, settle_everywhere

REFERENCE = "tests.weir.sinks.file_target:FileTarget"
EPOCH = "20130101T000000Z"
CLOSE = "weir_close"


@pytest.fixture
def lake(tmp_path):
    folder = tmp_path / "lake"
    folder.mkdir()
    return folder


def with_target(*lakes, flow=None):
    """The small dataflow, of which the report goes into targets as well."""
    flow = flow or ladder()
    to = [target(REFERENCE, folder=str(lake)) for lake in lakes]
    stages = [*flow.stages[:-1], sink("report", "delays", to=to)]
    return Dataflow(flow.name, stages)


@pytest.fixture
def world(tmp_path, lake):
    return World(tmp_path / "world", with_target(lake))


def held(lake, epoch=EPOCH):
    found = lake / f"delays@{epoch}.json"
    return json.loads(found.read_text()) if found.exists() else None


def commits(lake):
    log = lake / "log"
    return log.read_text().splitlines() if log.exists() else []


def rows(world, *columns):
    with world.ledger.transaction() as session:
        return [tuple(row) for row in session.execute(select(*columns).order_by(DeliveryRow.id))]


def outcomes(world):
    return rows(world, DeliveryRow.version, DeliveryRow.outcome)


def published_content(world, epoch=EPOCH):
    pointer = published(world.store, "ladder", "delays", epoch)
    files = [f"{part.folder}/{name}" for part in pointer.partitions for name in part.files]
    return {"number": pointer.version, "content": [world.store.read(path).hex() for path in files]}


def without_digest(found):
    return {name: value for name, value in found.items() if name != "digest"}


def test_a_version_is_in_its_target_when_the_run_is_closed(world, lake):
    run = world.run_first(1)
    assert world.airflow.state_of(run) == "success"
    assert without_digest(held(lake)) == published_content(world)
    assert outcomes(world) == [(1, "committed")]
    closing = world.airflow.task(run, CLOSE)
    closing.state, closing.try_number = "running", 2
    closed = world.airflow.coordinator.close(world.airflow.request(closing), world.airflow).summary["delays"]
    assert (closed["rows"], closed["version"], [*closed["targets"].values()]) == (1, 1, ["committed"])


def test_equal_content_makes_no_version_and_other_content_replaces_the_epoch(world, lake):
    run = world.run_first(1)
    first = held(lake)
    world.airflow.clear_by_hand(run, CLOSE)
    world.airflow.run_until_quiet()
    assert commits(lake) == [f"{EPOCH} 1"]
    world.content["routes"] = "other"
    world.airflow.clear_by_hand(run, "routes")
    world.airflow.run_until_quiet()
    assert held(lake)["number"] == 2
    assert held(lake)["content"] != first["content"]
    assert commits(lake) == [f"{EPOCH} 1", f"{EPOCH} 2"]


def test_a_version_that_somebody_has_removed_comes_back_when_the_run_is_closed_again(world, lake):
    run = world.run_first(1)
    before = held(lake)
    (lake / f"delays@{EPOCH}.json").unlink()
    world.airflow.clear_by_hand(run, CLOSE)
    world.airflow.run_until_quiet()
    assert held(lake) == before
    assert outcomes(world) == [(1, "committed")]


def test_a_version_that_was_taken_out_comes_back_with_the_next_close_only(world, lake):
    run = world.run_first(1)
    before = held(lake)
    rollback(world.services, "ladder", "delays", EPOCH)
    assert held(lake)["content"] == []
    settle_everywhere(world.services, TARGETS).require_whole()
    assert outcomes(world) == [(1, "rolled back")]
    assert held(lake)["content"] == []
    world.airflow.clear_by_hand(run, CLOSE)
    world.airflow.run_until_quiet()
    assert held(lake) == before | {"number": 2}
    assert outcomes(world) == [(1, "rolled back"), (2, "committed")]


def test_a_rebuilt_ledger_does_not_bring_back_what_was_taken_out(world, lake):
    world.run_first(1)
    rollback(world.services, "ladder", "delays", EPOCH)
    world.lose_ledger()
    rebuild(world.services, "ladder")
    settle_everywhere(world.services, TARGETS).require_whole()
    assert held(lake)["content"] == []
    assert outcomes(world) == [(1, "rolled back")]


def test_what_was_taken_out_before_the_ledger_was_rebuilt_comes_back_with_the_next_close(world, lake):
    run = world.run_first(1)
    before = held(lake)
    rollback(world.services, "ladder", "delays", EPOCH)
    world.lose_ledger()
    rebuild(world.services, "ladder")
    settle_everywhere(world.services, TARGETS).require_whole()
    world.airflow.clear_by_hand(run, CLOSE)
    world.airflow.run_until_quiet()
    assert held(lake) == before | {"number": 2}


def test_a_version_that_was_there_already_is_taken_out_too(world, lake, tmp_path):
    run = world.run_first(1)
    other = tmp_path / "other"
    other.mkdir()
    world.airflow.deploy(with_target(lake, other))
    adopt(world.services, f"ladder@{EPOCH}")
    world.airflow.clear_by_hand(run, CLOSE)
    world.airflow.run_until_quiet()
    assert outcomes(world) == [(1, "committed"), (2, "equal"), (2, "committed")]
    rollback(world.services, "ladder", "delays", EPOCH)
    assert held(lake)["content"] == held(other)["content"] == []


def test_a_table_that_has_outlived_ledger_and_store_gets_the_versions_of_new_ones(world, lake, tmp_path):
    run = world.run_first(1)
    for content in ("second", "third", "fourth"):
        world.content["routes"] = content
        world.airflow.clear_by_hand(run, "routes")
        world.airflow.run_until_quiet()
    assert held(lake)["number"] == 4
    other = tmp_path / "other"
    other.mkdir()
    anew = World(tmp_path / "anew", with_target(lake, other))
    anew.content["routes"] = "fifth"
    run = anew.run_first(1)
    assert without_digest(held(lake)) == without_digest(held(other)) == published_content(anew)
    assert {outcome for _, outcome in outcomes(anew)} == {"committed"}
    anew.content["routes"] = "sixth"
    anew.airflow.clear_by_hand(run, "routes")
    anew.airflow.run_until_quiet()
    assert without_digest(held(lake)) == published_content(anew)


def test_a_version_is_taken_out_while_the_next_one_has_but_a_number(world, lake, monkeypatch):
    run = world.run_first(1)
    world.content["routes"] = "other"
    world.airflow.clear_by_hand(run, "routes")
    while (task := world.airflow._ready()).key.task_id != CLOSE:
        world.airflow.step(task)
    monkeypatch.setattr(publishing, "_create", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        world.airflow.step(task)
    assert outcomes(world) == [(1, "committed"), (2, None)]
    rollback(world.services, "ladder", "delays", EPOCH)
    assert (held(lake)["number"], held(lake)["content"]) == (1, [])


def test_a_version_that_another_process_has_committed_meanwhile_is_no_problem(world, lake, away_at_commit, monkeypatch):
    until_close_waits(world, world.airflow.dag_run(1))
    (lake / "away").unlink()

    def step(name):
        if name == "commit":
            monkeypatch.undo()
            assert deliver(world.services, "ladder") == []
            (lake / "away").touch()

    monkeypatch.setattr(FileTarget, "step", staticmethod(step))
    assert deliver(world.services, "ladder") == []
    assert rows(world, DeliveryRow.outcome, DeliveryRow.problem) == [("committed", None)]


def test_a_process_that_wakes_after_a_rollback_does_not_record_its_commit_over_it(
    world, lake, away_at_commit, monkeypatch
):
    until_close_waits(world, world.airflow.dag_run(1))
    monkeypatch.undo()
    (lake / "away").unlink()
    commit = FileTarget.commit

    def suspended(self, version, token):
        found = commit(self, version, token)
        monkeypatch.undo()
        assert deliver(world.services, "ladder") == []
        rollback(world.services, "ladder", "delays", EPOCH)
        return found

    monkeypatch.setattr(FileTarget, "commit", suspended)
    assert deliver(world.services, "ladder") == []
    assert held(lake)["content"] == []
    assert outcomes(world) == [(1, "rolled back")]


def test_a_version_is_taken_out_only_where_the_target_holds_it(world, lake):
    with pytest.raises(Misconfigured, check=of_kind("sinks.no_version_to_roll_back")):
        rollback(world.services, "ladder", "delays", EPOCH)
    world.run_first(1)
    newer = held(lake) | {"number": 7}
    (lake / f"delays@{EPOCH}.json").write_text(json.dumps(newer))
    with pytest.raises(Misconfigured, check=of_kind("sinks.target_holds_another")):
        rollback(world.services, "ladder", "delays", EPOCH)
    assert held(lake) == newer


@pytest.mark.parametrize("may_link", [True, False])
def test_the_bytes_that_a_target_has_written_once_more_are_recorded(tmp_path, lake, monkeypatch, may_link):
    if not may_link:
        monkeypatch.setattr(folders, "LINK_SECONDS", -60.0)
    stages = [*ladder().stages[:-1], sink("report", "delays", to=files(str(lake / "delays")))]
    world = World(tmp_path / "world", Dataflow("ladder", stages))
    world.run_first(1)
    ((delivery, copied),) = rows(world, DeliveryRow.delivery, DeliveryRow.copied_bytes)
    assert copied == (0 if may_link else sum(file["bytes"] for file in delivery["version"]["files"]))


def test_what_the_target_refuses_fails_before_anything_is_published(world, lake):
    (lake / "refused").touch()
    run = world.airflow.dag_run()
    world.airflow.run_until_quiet()
    closing = world.airflow.task(run, CLOSE)
    assert closing.state == "failed"
    assert "the column k has another type there" in world.airflow.note(closing.key)
    with world.ledger.transaction() as session:
        assert session.scalars(select(PublicationRow)).all() == []
        assert session.scalars(select(CheckpointRow)).all() == []
    assert published(world.store, "ladder", "delays", EPOCH) is None
    (lake / "refused").unlink()
    world.airflow.clear_by_hand(run, CLOSE)
    world.airflow.run_until_quiet()
    assert world.airflow.state_of(run) == "success"
    assert held(lake)["number"] == 1


def until_close_waits(world, run):
    for _ in range(200):
        task = world.airflow._ready()
        world.airflow.step(task)
        if task.key.task_id == CLOSE and task.key.run_id == run:
            return task
    raise AssertionError("the closing task never ran")


def test_a_target_that_is_away_before_the_publication_holds_it_back_without_a_try(world, lake):
    (lake / "away").touch()
    run = world.airflow.dag_run()
    waiting = until_close_waits(world, run)
    assert waiting.state == "up_for_reschedule"
    assert "nothing is published until its target answers" in waiting.waits_on
    assert published(world.store, "ladder", "delays", EPOCH) is None
    with world.ledger.transaction() as session:
        assert session.scalars(select(LeaseRow.result)).all() == []  # or each turn leases the results once more
    assert waiting.notes[-1] == f"Weir: {waiting.waits_on}"
    (lake / "away").unlink()
    world.airflow.run_until_quiet()
    assert world.airflow.state_of(run) == "success"
    assert waiting.try_number == 1
    assert "it has waited" in waiting.notes[-1]
    assert commits(lake) == [f"{EPOCH} 1"]


def test_the_note_of_a_person_stays_where_a_target_is_waited_for(world, lake):
    (lake / "away").touch()
    run = world.airflow.dag_run()
    world.airflow.task(run, CLOSE).notes.append("the disk is being replaced")
    assert until_close_waits(world, run).notes == ["the disk is being replaced"]


@pytest.fixture
def away_at_commit(monkeypatch, lake):
    """The target goes away between the publication and its commit."""

    def step(name):
        if name == "commit":
            (lake / "away").touch()

    monkeypatch.setattr(FileTarget, "step", staticmethod(step))
    yield
    (lake / "away").unlink(missing_ok=True)


def test_a_target_that_goes_away_holds_the_close_and_later_versions_of_its_sink_only(
    world, lake, away_at_commit, monkeypatch
):
    first = world.airflow.dag_run(1)
    waiting = until_close_waits(world, first)
    assert waiting.state == "up_for_reschedule"
    assert "is published, and not yet in" in waiting.waits_on
    assert waiting.notes[-1] == f"Weir: {waiting.waits_on}"
    assert published(world.store, "ladder", "delays", EPOCH).version == 1
    with world.ledger.transaction() as session:
        assert session.scalar(select(RunRow.closed_at)) is not None
    assert outcomes(world) == [(1, None)]
    monkeypatch.undo()
    (lake / "away").unlink()
    second = world.airflow.dag_run(2)
    world.airflow.run_until_quiet()
    assert [world.airflow.state_of(run) for run in (first, second)] == ["success", "success"]
    assert commits(lake) == [f"{EPOCH} 1", "20130102T000000Z 1"]
    assert waiting.try_number == 1


def test_a_version_that_its_target_refuses_fails_its_own_close_and_later_ones_wait(world, lake, monkeypatch):
    def step(name):
        if name == "commit":
            raise Misconfigured("a constraint refuses the rows")

    monkeypatch.setattr(FileTarget, "step", staticmethod(step))
    first = world.airflow.dag_run(1)
    world.airflow.run_until_quiet()
    assert world.airflow.task(first, CLOSE).state == "failed"
    later = until_close_waits(world, world.airflow.dag_run(2))
    assert later.state == "up_for_reschedule"
    assert f"version 1 of delays of ladder@{EPOCH} is published, and not yet in" in later.waits_on
    monkeypatch.undo()
    world.airflow.run_until_quiet()
    assert world.airflow.state_of(later.key.run_id) == "success"
    assert commits(lake) == [f"{EPOCH} 1", "20130102T000000Z 1"]


def test_a_target_that_a_sink_has_no_longer_holds_up_no_later_epoch(world, lake, tmp_path, away_at_commit, monkeypatch):
    waiting = until_close_waits(world, world.airflow.dag_run(1))
    monkeypatch.undo()
    other = tmp_path / "other"
    other.mkdir()
    world.airflow.deploy(with_target(other))
    closing = until_close_waits(world, world.airflow.dag_run(2))
    assert (closing.state, waiting.state) == ("success", "up_for_reschedule")
    assert commits(other) == ["20130102T000000Z 1"]
    assert [str(lake) in str(each.target.options) for each in deliver(world.services, "ladder")] == [True]


def test_what_a_target_says_is_told_without_secrets(world, lake, monkeypatch):
    monkeypatch.setattr(FileTarget, "step", staticmethod(lambda name: name == "commit" and away_with_secret(lake)))
    waiting = until_close_waits(world, world.airflow.dag_run())
    ((problem,),) = rows(world, DeliveryRow.problem)
    for told in (problem, waiting.waits_on):
        assert "postgres://me:***@db" in told, told


def away_with_secret(lake):
    (lake / "away").write_text("postgres://me:hunter22@db")


def test_upkeep_commits_what_no_closing_task_does_and_tells_a_person_after_an_hour(
    world, lake, away_at_commit, monkeypatch
):
    run = world.airflow.dag_run()
    until_close_waits(world, run)
    kept = settle_everywhere(world.services, TARGETS)
    assert not kept.failed
    assert "version 1 of delays" in kept.done["ladder.delays"]
    world.airflow.time += timedelta(hours=1)
    assert list(settle_everywhere(world.services, TARGETS).failed) == ["ladder.delays"]
    monkeypatch.undo()
    (lake / "away").unlink()
    kept = settle_everywhere(world.services, TARGETS)
    assert (kept.done, kept.failed) == ({}, {})
    assert without_digest(held(lake)) == published_content(world)
    assert rows(world, DeliveryRow.outcome, DeliveryRow.problem) == [("committed", None)]


def test_of_several_targets_each_gets_each_version_and_one_that_is_away_holds_up_none_of_the_others(
    world, lake, tmp_path, away_at_commit, monkeypatch
):
    other = tmp_path / "other"
    other.mkdir()
    world.airflow.deploy(with_target(lake, other))
    until_close_waits(world, world.airflow.dag_run(1))
    (lake / "away").touch()
    (other / "away").unlink(missing_ok=True)
    monkeypatch.undo()
    (waiting,) = deliver(world.services, "ladder")
    assert (waiting.run, str(lake) in str(waiting.target.options)) == (f"ladder@{EPOCH}", True)
    assert commits(lake) == []
    assert commits(other) == [f"{EPOCH} 1"]
    (lake / "away").unlink()
    world.airflow.dag_run(2)
    world.airflow.run_until_quiet()
    assert commits(lake) == commits(other) == [f"{EPOCH} 1", "20130102T000000Z 1"]
    assert outcomes(world) == [(1, "committed")] * 4
    rollback(world.services, "ladder", "delays", EPOCH)
    assert held(lake)["content"] == held(other)["content"] == []


def test_a_server_is_not_waited_for_once_more_for_each_of_its_targets(world, lake, tmp_path, monkeypatch):
    """Of three targets, two have one connection, and its server answers after a minute and a half that it does not."""
    folders = [lake, tmp_path / "second", tmp_path / "other"]
    to = [target(REFERENCE, folder=str(each), conn_id=conn) for each, conn in zip(folders, "aab", strict=True)]
    world.airflow.deploy(Dataflow("ladder", [*ladder().stages[:-1], sink("report", "delays", to=to)]))
    for each in folders[1:]:
        each.mkdir()
    tried = []

    def silent(self, what):
        if what == "commit" and self.options["conn_id"] == "a":
            tried.append(self.options["folder"])
            world.airflow.time += timedelta(seconds=130)
            raise TargetAway("it does not answer")

    monkeypatch.setattr(FileTarget, "_reach", silent)
    until_close_waits(world, world.airflow.dag_run(1))
    tried.clear()
    kept = settle_everywhere(world.services, TARGETS)
    assert tried in ([str(lake)], [str(folders[1])])
    assert "its server was waited for 130 s for other versions, in vain" in kept.done["ladder.delays"]
    assert commits(folders[2]) == [f"{EPOCH} 1"]
    monkeypatch.undo()
    settle_everywhere(world.services, TARGETS).require_whole()
    assert commits(lake) == commits(folders[1]) == [f"{EPOCH} 1"]


@pytest.mark.parametrize("last", [0, 1])
def test_a_target_that_waits_in_vain_does_not_keep_another_one_of_its_server_waiting_for_ever(
    world, lake, tmp_path, monkeypatch, last
):
    """A table that is locked, say: upkeep comes every three minutes, and has no patience left for the server."""
    folders = [lake, tmp_path / "second"]
    folders[1].mkdir()
    world.airflow.deploy(
        Dataflow(
            "ladder",
            [
                *ladder().stages[:-1],
                sink("report", "delays", to=[target(REFERENCE, folder=str(each), conn_id="a") for each in folders]),
            ],
        )
    )
    good, bad = folders[last], folders[1 - last]

    def away(self, what):
        if what == "commit" and self.options["folder"] in closed:
            world.airflow.time += timedelta(seconds=130)
            raise TargetAway("it does not answer")

    closed = {str(each) for each in folders}
    monkeypatch.setattr(FileTarget, "_reach", away)
    until_close_waits(world, world.airflow.dag_run(1))
    closed.remove(str(good))
    for _ in range(20):
        world.airflow.time += timedelta(seconds=50)
        settle_everywhere(world.services, TARGETS)
    assert commits(good) == [f"{EPOCH} 1"]
    assert commits(bad) == []


def test_a_version_that_is_pending_does_not_expire(world, lake, away_at_commit, monkeypatch):
    world.airflow.deploy(Dataflow("ladder", with_target(lake).stages, keep_published="1 days"))
    run = world.airflow.dag_run()
    until_close_waits(world, run)
    world.airflow.time += timedelta(days=3)
    assert expire_versions(world.services, "ladder") == []
    monkeypatch.undo()
    (lake / "away").unlink()
    assert deliver(world.services, "ladder") == []
    assert len(expire_versions(world.services, "ladder")) == 1


def test_a_rebuilt_ledger_finds_what_is_published_and_commits_it(world, lake, away_at_commit, monkeypatch):
    run = world.airflow.dag_run()
    until_close_waits(world, run)
    world.lose_ledger()
    rebuild(world.services, "ladder")
    assert outcomes(world) == [(1, None)]
    monkeypatch.undo()
    (lake / "away").unlink()
    assert deliver(world.services, "ladder") == []
    assert without_digest(held(lake)) == published_content(world)


def dying(world, nth):
    """The world as a process sees it that is killed at its n-th change of ledger, store or target."""
    fate = Fate(nth)
    services = world.services.__class__(
        ledger=DyingLedger(world.ledger, fate), store=DyingStore(world.store, fate), now=lambda: world.airflow.time
    )
    airflow = FakeAirflow(services, FakeEngine(services.store, world.content), world.airflow.flow)
    for name in ("tasks", "time", "clear_numbers", "queued", "incarnations", "marks", "run_notes"):
        setattr(airflow, name, getattr(world.airflow, name))
    return airflow, fate


def test_a_closing_task_that_is_killed_at_any_step_commits_each_version_once(world, lake, monkeypatch):
    run = world.run_first(1)
    version, killed = 1, 0
    for nth in range(1, 100, 2):  # before each change: a kill after it is a kill before the next
        world.content["routes"] = f"content {nth}"
        world.airflow.clear_by_hand(run, "routes")
        world.airflow.clear_by_hand(run, CLOSE)  # a person's clear: what was killed before does not count any more
        while (task := world.airflow._ready()).key.task_id != CLOSE:
            world.airflow.step(task)
        doomed, fate = dying(world, nth)
        monkeypatch.setattr(FileTarget, "step", staticmethod(lambda name, fate=fate: fate.step()))
        doomed.step(task)
        monkeypatch.undo()
        world.airflow.time = doomed.time
        is_killed = fate.left <= 0
        world.airflow.run_until_quiet()
        assert world.airflow.state_of(run) == "success", (nth, world.airflow.note(task.key))
        assert without_digest(held(lake)) == published_content(world), f"killed at step {nth}"
        assert len(set(commits(lake))) == len(commits(lake)), f"killed at step {nth}"
        assert held(lake)["number"] > version
        assert {outcome for _, outcome in outcomes(world)} <= {"committed", "superseded"}
        version = held(lake)["number"]
        killed += is_killed
        if not is_killed:
            break
    assert killed > 10


def test_a_run_whose_sink_gets_a_target_later_is_committed_there(tmp_path, lake):
    world = World(tmp_path / "world", ladder())
    run = world.run_first(1)
    world.airflow.deploy(with_target(lake))
    adopt(world.services, run_of(world))
    world.airflow.clear_run_by_hand(run)
    world.airflow.run_until_quiet()
    assert held(lake)["number"] == 2


def run_of(world):
    with world.ledger.transaction() as session:
        return session.scalar(select(RunRow.id))


def test_the_command_line_lists_what_is_where_and_takes_a_day_out(world, lake, monkeypatch):
    use(monkeypatch, world.folder)
    assert "No version has been published for a target" in typed("sinks")
    world.run_first(1)
    (found,) = json.loads(typed("sinks", "ladder", "--json"))["sinks"]
    assert (found["epoch"], found["sink"], found["version"], found["state"]) == (EPOCH, "delays", 1, "committed")
    assert found["target"] == REFERENCE
    assert EPOCH in typed("sinks")
    assert "no longer in" in typed("sinks", "rollback", "delays", "--epoch", "2013-01-01")
    assert held(lake)["content"] == []
    assert json.loads(typed("sinks", "--json"))["sinks"][0]["state"] == "rolled back"
    with pytest.raises(Misconfigured, check=of_kind("ledger.dataflow_unknown", name="lader")):
        typed("sinks", "lader")


@pytest.mark.parametrize(
    ("mistyped", "meant"),
    [
        ("delay --epoch 2013-01-01", of_kind("ledger.sink_unknown")),
        ("delay --epoch 2013-01-01 --dataflow ladder", of_kind("ledger.sink_unknown", dataflow="ladder")),
        ("others --epoch 2013-01-01", of_kind("ledger.sink_unknown")),
        ("delays --epoch 2013-01-01 --dataflow lader", of_kind("ledger.dataflow_unknown")),
        (
            "delays --epoch 20130101T000000z0",
            of_kind("ledger.run_unknown", where="ladder has no run"),
        ),
        ("delays --epoch 2013-01-11", of_kind("ledger.run_unknown", name="2013-01-11", where="ladder has no run")),
    ],
)
def test_a_rollback_that_is_mistyped_is_answered_with_what_was_meant(world, monkeypatch, mistyped, meant):
    use(monkeypatch, world.folder)
    world.run_first(1)
    with pytest.raises(Misconfigured, check=meant):
        typed("sinks", "rollback", *mistyped.split())


def test_the_command_line_lists_what_is_to_come_and_why(world, lake, monkeypatch):
    use(monkeypatch, world.folder)
    run = world.airflow.dag_run()
    world.airflow.step(world.airflow._ready())
    found = only_sink("sinks", "--json")
    assert (found["epoch"], found["sink"], found["version"], found["state"]) == (EPOCH, "delays", None, "unpublished")
    assert found["problem"] == "weir_close of its run has not begun yet"
    (lake / "away").touch()
    until_close_waits(world, run)
    assert "weir_close waits: the server does not answer" in only_sink("sinks", "ladder", "--json")["problem"]
    assert "unpublished" in typed("sinks")
    (lake / "away").unlink()
    (lake / "refused").touch()
    world.airflow.run_until_quiet()
    assert (
        "weir_close has failed: Misconfigured: the column k has another type there"
        in only_sink("sinks", "--json")["problem"]
    )
    (lake / "refused").unlink()
    world.airflow.clear_by_hand(run, CLOSE)
    world.airflow.run_until_quiet()
    assert only_sink("sinks", "--json")["state"] == "committed"
    world.airflow.clear_by_hand(run, "routes")  # it may come to equal content
    assert only_sink("sinks", "--json")["state"] == "committed"


def only_sink(*command):
    (found,) = json.loads(typed(*command))["sinks"]
    return found


def test_the_record_of_a_dataflow_keeps_its_targets(lake):
    flow = with_target(lake)
    assert Dataflow.from_json(json.loads(json.dumps(flow.to_json()))).stage("delays") == flow.stage("delays")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sink("report", "delays", to="postgres"), of_kind("dataflow.not_a_target")),
        (lambda: sink("report", "delays", to=[target("a:B"), target("a:B")]), of_kind("dataflow.target_twice")),
        (lambda: target("no class"), of_kind("dataflow.target_reference_malformed")),
        (lambda: target("a:B", when=object()), of_kind("dataflow.target_options_not_json")),
        (lambda: target("a:B", url="postgres://me:s3cret@db/x"), of_kind("dataflow.target_options_have_secret")),
    ],
)
def test_a_target_that_cannot_be_is_refused_when_it_is_declared(make, message):
    with pytest.raises(Misconfigured, check=message):
        make()


def test_a_target_finds_files_by_their_paths_and_urls(world):
    reach, file = ServicesReach(world.services), VersionFile("runs/file.parquet", 1, 1, "")
    assert reach.local_path(file) == f"{world.folder}/store/runs/file.parquet"
    assert reach.url(file) == f"file://{reach.local_path(file)}"


def test_a_class_that_is_no_target_is_named(world, lake):
    stages = [*ladder().stages[:-1], sink("report", "delays", to=target("tests.weir.small_dataflow:World"))]
    world.airflow.deploy(Dataflow("ladder", stages))
    run = world.run_first(1)
    assert "extends weir.sinks.SinkTarget" in world.airflow.note(world.airflow.task(run, CLOSE).key)


def failing(monkeypatch, method, error):
    """Have a method of the target raise; return its calls, as they come."""
    calls = []

    def step(name):
        if name == method:
            calls.append(name)
            raise error

    monkeypatch.setattr(FileTarget, "step", staticmethod(step))
    return calls


@pytest.mark.parametrize("method", ["prepare", "commit"])
@pytest.mark.parametrize(
    "error", [KeyError("k"), NotADirectoryError(20, "no"), TargetAway("no such host: Name or service not known")]
)
def test_an_error_that_a_target_does_not_know_fails_the_close_when_it_does_not_pass(
    world, lake, monkeypatch, method, error
):
    calls = failing(monkeypatch, method, error)
    run = world.airflow.dag_run(1)
    world.airflow.run_until_quiet()
    closing = world.airflow.task(run, CLOSE)
    assert closing.state == "failed"
    told = "Is the connection right?" if isinstance(error, TargetAway) else type(error).__name__
    assert told in closing.notes[-1]
    assert 1 < len(calls) < 60
    monkeypatch.undo()
    settle_everywhere(world.services, TARGETS).require_whole()
    assert commits(lake) == ([f"{EPOCH} 1"] if method == "commit" else [])


@pytest.mark.parametrize("method", ["prepare", "commit"])
@pytest.mark.parametrize("error", [PermissionError(13, "no"), TargetAway("self-signed: certificate verify failed")])
def test_a_login_a_right_or_a_certificate_that_is_refused_fails_the_close_at_once(
    world, lake, monkeypatch, method, error
):
    calls = failing(monkeypatch, method, error)
    run = world.airflow.dag_run(1)
    world.airflow.run_until_quiet()
    assert (world.airflow.task(run, CLOSE).state, len(calls)) == ("failed", 1)
    monkeypatch.undo()
    world.airflow.clear_by_hand(run, CLOSE)
    world.airflow.run_until_quiet()
    assert commits(lake) == [f"{EPOCH} 1"]


def test_a_connection_that_does_not_exist_fails_the_first_task_before_anything_is_computed(tmp_path):
    stages = [*ladder().stages[:-1], sink("report", "delays", to=postgres("lost_db", "t"))]
    world = World(tmp_path / "world", Dataflow("ladder", stages))
    world.airflow.dag_run(1)
    world.airflow.run_until_quiet()
    failed = [each for each in world.airflow.tasks.values() if each.state == "failed"]
    assert failed
    assert all("lost_db" in each.notes[-1] and each.try_number == 1 for each in failed)
    with world.ledger.transaction() as session:
        assert session.scalars(select(AttemptRow.id)).all() == []


def test_an_error_that_a_target_does_not_know_and_that_passes_is_healed_by_the_next_try(world, lake, monkeypatch):
    def step(name):
        if name == "commit":
            monkeypatch.undo()
            raise ValueError(name)

    monkeypatch.setattr(FileTarget, "step", staticmethod(step))
    assert world.airflow.state_of(world.run_first(1)) == "success"
    assert commits(lake) == [f"{EPOCH} 1"]


class ServiceUnavailable(Exception):
    """As a client library has it, that knows none of ours."""


@pytest.mark.parametrize("method", ["prepare", "commit"])
@pytest.mark.parametrize("error", [ConnectionResetError(), ServiceUnavailable(), OSError(28, "full")])
def test_a_lost_connection_and_a_full_disk_are_waited_for(world, lake, monkeypatch, method, error):
    def step(name):
        if name == method:
            raise error

    monkeypatch.setattr(FileTarget, "step", staticmethod(step))
    waiting = until_close_waits(world, world.airflow.dag_run(1))
    assert waiting.state in ("up_for_reschedule", "up_for_retry")
    monkeypatch.undo()
    world.airflow.run_until_quiet()
    assert commits(lake) == [f"{EPOCH} 1"]


@pytest.mark.parametrize("is_refused", [True, False])
def test_a_run_is_closed_once_a_target_that_it_has_since_it_was_adopted_has_its_version(
    world, lake, tmp_path, is_refused
):
    run = world.run_first(1)
    other = tmp_path / "other"
    other.mkdir()
    if is_refused:
        (other / "refused").touch()
    world.airflow.deploy(with_target(lake, other))
    adopt(world.services, f"ladder@{EPOCH}")
    if is_refused:
        world.airflow.clear_run_by_hand(run)
    else:
        for key in [key for key in world.airflow.tasks if key.task_id != CLOSE]:
            world.airflow.clear_by_hand(run, key.task_id, key.map_index)
    world.airflow.run_until_quiet()
    with world.ledger.transaction() as session:
        is_closed = session.get_one(RunRow, f"ladder@{EPOCH}").closed_at is not None
    assert (is_closed, held(other) is not None) == (not is_refused, not is_refused)
