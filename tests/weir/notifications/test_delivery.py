"""Notifications: each receiver gets each event at least once, in order, whatever is killed, away or lost."""

from __future__ import annotations

import json
import threading
from datetime import timedelta

import pytest
from sqlalchemy import select
from tests.builders.ledgers import fast_folder
from tests.weir.command_line import typed, use
from tests.weir.keeping import aircraft, run_days
from tests.weir.notifications import receiving
from tests.weir.notifications.receiving import first, ids
from tests.weir.sinks.file_target import FileTarget
from tests.weir.small_dataflow import Saved, World, ladder
from tests.weir.state.test_checkpoint_kills import dying

from weir.attempts.failing import Users
from weir.attempts.failure import PolicyAnswer
from weir.dataflow import Dataflow, callback, sink, target
from weir.errors import Misconfigured
from weir.ledger.database.outbox_tables import NotificationRow, ReceiverRow
from weir.ledger.database.tables import CheckpointRow, PublicationRow
from weir.ledger.outbox import HOLD, KEPT, hold
from weir.notifications import delivery
from weir.notifications.delivery import deliver, forget
from weir.rebuild.rebuild import rebuild
from weir.restarts.answer import Action
from weir.restarts.strategy import NoRestart
from weir.retention.checkpoints import maintain_checkpoints
from weir.retention.versions import expire_versions
from weir.upkeep import RECEIVERS, TARGETS, release_and_deliver, settle_everywhere
from weir.views.dataflows import upkeep_of

TELL = callback("tests.weir.notifications.receiving:tell")
OTHER = callback("tests.weir.notifications.receiving:tell", receiver="other", who="other")
EPOCH = "20130101T000000Z"
BOTH = pytest.mark.parametrize("database", ["sqlite", "postgresql"])


@pytest.fixture(autouse=True)
def receivers():
    receiving.reset()
    yield
    receiving.reset()


def with_receivers(flow, *receivers):
    return Dataflow(flow.name, flow.stages, keep=flow.keep, notify=list(receivers))


def kinds(who="tell"):
    return [event["kind"] for name, event in receiving.got if name == who]


def outbox(world):
    with world.ledger.transaction() as session:
        return list(session.scalars(select(NotificationRow.event).order_by(NotificationRow.id)))


def no_context():
    return {}


def pass_time(world, **how_long):
    """Let time go by; a server has a clock of its own, which nobody sets, so its times are moved there."""
    world.airflow.time += timedelta(**how_long)
    if world.ledger._is_server:
        with world.ledger.transaction("ladder") as session:
            for row in session.scalars(select(ReceiverRow)):
                for name in ("retry_at", "held_until", "problem_since"):
                    at = getattr(row, name)
                    setattr(row, name, None if at is None else at - timedelta(**how_long))


@BOTH
def test_a_closing_task_tells_what_its_run_has_completed_published_and_subsumed(world):
    world.airflow.deploy(aircraft(retained_checkpoints=1, notify=[TELL]))
    run_days(world, 1, 2)
    assert [(event["kind"], event["epoch"]) for _, event in receiving.got] == [
        ("checkpoint_completed", EPOCH),
        ("version_published", EPOCH),
        ("checkpoint_completed", "20130102T000000Z"),
        ("version_published", "20130102T000000Z"),
        ("checkpoint_subsumed", EPOCH),
    ]
    assert ids() == outbox(world)
    assert ids()[0] == "ladder/checkpoint_completed/1"
    assert receiving.got[-1][1]["details"]["by"] == 2


def test_a_dataflow_without_receivers_records_nothing(world):
    world.run_first(1)
    with world.ledger.transaction() as session:
        assert session.scalars(select(NotificationRow)).all() == session.scalars(select(ReceiverRow)).all() == []


def test_an_event_is_told_only_once_its_manifest_can_be_read(world):
    world.airflow.deploy(aircraft(notify=[TELL]))
    looked = []

    def look(event):
        path = event["details"].get("path") or event["details"]["pointer"]
        looked.append(world.store.read(path))

    receiving.step[0] = look
    run_days(world, 1)
    assert len(looked) == 4


def test_a_receiver_is_told_of_the_kinds_that_it_wants(world):
    narrow = callback(TELL.address, kinds="version_published")
    world.airflow.deploy(aircraft(notify=[narrow, OTHER]))
    run_days(world, 1)
    assert kinds() == ["version_published"]
    assert kinds("other") == ["checkpoint_completed", "version_published"]


def test_equal_content_and_a_repeated_close_tell_nothing_anew(world):
    world.airflow.deploy(aircraft(notify=[TELL]))
    run_days(world, 1)
    before = ids()
    world.airflow.clear_by_hand("scheduled__2013-01-01", "weir_close")
    world.airflow.run_until_quiet()
    assert ids() == before


@BOTH
def test_a_receiver_that_is_away_holds_up_only_itself_and_is_left_alone_for_a_while(world):
    receiving.away.add("tell")
    world.airflow.deploy(aircraft(notify=[TELL, OTHER]))
    run_days(world, 1, 2)
    assert ids() == []
    assert first(ids("other")) == outbox(world)
    told, untold = deliver(world.services, "ladder", no_context)
    assert (told, [each.count for each in untold]) == (0, [4])
    assert "ConnectionError: tell does not answer, password=***" in str(untold[0])
    receiving.away.clear()
    tries = len(receiving.got)
    deliver(world.services, "ladder", no_context)
    assert len(receiving.got) == tries  # its pause is not over
    pass_time(world, minutes=15)
    assert deliver(world.services, "ladder", no_context)[1] == []
    assert ids() == outbox(world)


def test_pauses_grow_up_to_a_quarter_of_an_hour(world):
    receiving.away.add("tell")
    world.airflow.deploy(aircraft(notify=[TELL]))
    run_days(world, 1)
    pauses = []
    for _ in range(8):
        world.airflow.time += timedelta(hours=1)
        deliver(world.services, "ladder", no_context)
        with world.ledger.transaction() as session:
            retry_at = session.scalars(select(ReceiverRow.retry_at)).one()
        pauses.append((retry_at - world.airflow.time).total_seconds())
    assert pauses == [20, 40, 80, 160, 320, 640, 900, 900]


def test_upkeep_tells_what_no_closing_task_did_and_fails_for_a_receiver_that_is_away_for_an_hour(world):
    receiving.away.add("tell")
    world.airflow.deploy(aircraft(notify=[TELL]))
    run_days(world, 1)
    kept = settle_everywhere(world.services, RECEIVERS, context=no_context)
    assert not kept.failed
    assert "2 notification(s) wait for callback" in next(iter(kept.done.values()))
    world.airflow.time += timedelta(hours=1)
    assert len(settle_everywhere(world.services, RECEIVERS, context=no_context).failed) == 1
    receiving.away.clear()
    world.airflow.time += timedelta(hours=1)
    kept = settle_everywhere(world.services, RECEIVERS, context=no_context)
    assert (kept.failed, kept.done) == ({}, {"ladder, notifications": "2 delivered"})


def test_a_receiver_that_takes_too_long_is_given_up_and_the_others_are_told(world, monkeypatch):
    monkeypatch.setattr(delivery, "CALL_SECONDS", 0.05)
    over = threading.Event()
    receiving.step[0] = lambda event: over.wait(20) if threading.current_thread().name == "weir-worker" else None
    world.airflow.deploy(aircraft(notify=[TELL]))
    run_days(world, 1)
    over.set()
    (untold,) = deliver(world.services, "ladder", no_context)[1]
    assert "TimeoutError: no answer for 0.05 s" in str(untold)


def test_a_receiver_that_hangs_costs_upkeep_its_time_once_for_all_dataflows(world, monkeypatch):
    receiving.away.add("tell")
    world.airflow.deploy(aircraft(notify=[TELL]))
    run_days(world, 1)
    monkeypatch.setattr(delivery, "HUNG_SECONDS", -1.0)
    hung, tries = set(), []
    receiving.step[0] = tries.append
    for _ in range(2):
        world.airflow.time += timedelta(hours=1)
        deliver(world.services, "ladder", no_context, hung)
    assert (len(tries), hung) == (1, {(TELL.channel, TELL.address)})


@BOTH
def test_a_process_leaves_a_receiver_to_the_process_that_holds_it(world):
    receiving.away.add("tell")
    world.airflow.deploy(aircraft(notify=[TELL]))
    run_days(world, 1)
    receiving.away.clear()
    pass_time(world, hours=1)
    with world.ledger.transaction("ladder") as session:
        assert hold(session, "ladder", TELL, "another", world.services.now()) is not None
    assert deliver(world.services, "ladder", no_context)[0] == 0
    pass_time(world, minutes=2)
    assert deliver(world.services, "ladder", no_context)[0] == 2


def test_a_process_that_was_suspended_and_lost_its_lease_tells_nothing_out_of_order(world):
    """The other one goes on; what the first had sent arrives once more, and what was not told first stays in order."""
    receiving.away.add("tell")
    world.airflow.deploy(aircraft(notify=[TELL]))
    run_days(world, 1)
    receiving.away.clear()
    world.airflow.time += timedelta(hours=1)

    def suspended(event):
        if not receiving.got:
            receiving.step[0] = lambda event: None
            world.airflow.time += HOLD
            assert deliver(world.services, "ladder", no_context) == (2, [])

    receiving.step[0] = suspended
    deliver(world.services, "ladder", no_context)
    assert first(ids()) == outbox(world)
    assert len(ids()) == 3


def test_the_receivers_of_the_newest_run_are_told_and_a_new_one_from_there_on(world):
    world.airflow.deploy(aircraft(notify=[TELL]))
    run_days(world, 1)
    world.airflow.deploy(aircraft(notify=[OTHER]))
    run_days(world, 2)
    assert {event["epoch"] for who, event in receiving.got if who == "other"} == {"20130102T000000Z"}
    assert len(kinds("other")) == 2
    assert len(kinds()) == 2
    world.content["flights"] = "other"
    world.airflow.clear_by_hand("scheduled__2013-01-01", "flights")
    world.airflow.run_until_quiet()
    again = [event["kind"] for who, event in receiving.got[4:] if who == "other" and event["epoch"] == EPOCH]
    assert "version_published" in again  # an old run that runs again tells those of the newest
    assert len(kinds()) == 2


@pytest.mark.parametrize("is_away", [False, True])
def test_a_receiver_gets_no_older_events_of_kinds_that_it_is_given_later(world, is_away):
    if is_away:
        receiving.away.add("tell")
    for day, wanted in enumerate([["checkpoint_completed"], ["version_published"], []], 1):
        world.airflow.deploy(aircraft(notify=[callback(TELL.address, kinds=wanted), OTHER]))
        run_days(world, day)
        pass_time(world, hours=1)
        receiving.away.clear()
        settle_everywhere(world.services, RECEIVERS, context=no_context).require_whole()
    assert [(event["kind"], event["epoch"][:8]) for who, event in receiving.got if who == "tell"] == [
        ("checkpoint_completed", "20130101"),
        ("version_published", "20130102"),
        ("checkpoint_completed", "20130103"),
        ("version_published", "20130103"),
    ]
    assert len(kinds("other")) == 6


def test_what_all_have_got_is_forgotten_after_a_week_and_what_waits_never(world):
    receiving.away.add("tell")
    narrow = callback(TELL.address, kinds="version_published")
    world.airflow.deploy(aircraft(notify=[narrow, OTHER]))
    run_days(world, 1)
    waiting = "ladder/version_published/known@20130101T000000Z/1/"
    world.airflow.time += KEPT
    forget(world.services, "ladder")
    assert [each.startswith(waiting) for each in outbox(world)] == [True]
    receiving.away.clear()
    deliver(world.services, "ladder", no_context)
    forget(world.services, "ladder")
    assert outbox(world) == []
    run_days(world, 2)
    assert len(kinds()) == 2  # its number is above that of what was deleted
    world.airflow.deploy(aircraft())
    run_days(world, 3)
    forget(world.services, "ladder")
    with world.ledger.transaction() as session:
        assert session.scalars(select(ReceiverRow)).all() == []


def failing(world, task_id="report-delays"):
    """The first run fails for good, since its engine raises what no other try can change."""

    def during(key):
        if key.task_id == task_id:
            raise Misconfigured("no such column")

    world.airflow.during = during
    world.airflow.dag_run(1)
    world.airflow.run_until_quiet()


def test_a_task_that_fails_for_good_needs_a_person_and_upkeep_tells(world):
    world.airflow.deploy(with_receivers(ladder(), TELL))
    failing(world)
    assert receiving.got == []
    settle_everywhere(world.services, RECEIVERS, context=no_context)
    ((_, event),) = receiving.got
    assert (event["kind"], event["run"], event["details"]["what"]) == (
        "person_needed",
        f"ladder@{EPOCH}",
        "task_failed",
    )
    assert event["details"]["task_id"] == "report-delays"
    assert "no such column" in event["text"]


def test_a_failure_that_the_users_policy_has_tried_again_is_not_told(world):
    world.airflow.deploy(with_receivers(ladder(), TELL))
    world.airflow.strategy = NoRestart()
    recorded = []

    class Policy(Users):
        def answer(self, _decision):
            recorded.extend(outbox(world))
            return PolicyAnswer(Action.RETRY, "the policy says so", 1)

    def fails_once(key):
        if key.task_id == "report-delays" and not recorded:
            raise ValueError("x")

    world.airflow.users = Policy()
    world.airflow.during = fails_once
    world.airflow.dag_run(1)
    world.airflow.run_until_quiet()
    assert "person_needed" in recorded[0]
    assert kinds() == ["version_published"]


def to_files(lake, *receivers):
    stages = [*ladder().stages[:-1]]
    to = target("tests.weir.sinks.file_target:FileTarget", folder=str(lake))
    return Dataflow("ladder", [*stages, sink("report", "delays", to=to)], notify=list(receivers))


def run_until_its_close_waits(world):
    world.airflow.dag_run()
    for _ in range(20):
        world.airflow.step(world.airflow._ready())
        if world.airflow.task("scheduled__2013-01-01", "weir_close").state == "up_for_reschedule":
            break


def test_a_person_is_told_when_a_target_keeps_a_run_from_being_published_for_an_hour(tmp_path):
    lake = tmp_path / "lake"
    lake.mkdir()
    (lake / "away").touch()
    world = World(tmp_path / "world", to_files(lake, TELL))
    run = world.airflow.dag_run()
    closing = world.airflow.task(run, "weir_close")
    while closing.state != "up_for_reschedule":
        world.airflow.step(world.airflow._ready())
    assert not settle_everywhere(world.services, TARGETS).failed
    world.airflow.time += timedelta(hours=1)
    world.airflow.step(closing)
    assert list(settle_everywhere(world.services, TARGETS).failed) == ["ladder@20130101T000000Z"]
    settle_everywhere(world.services, RECEIVERS, context=no_context)
    assert (kinds(), receiving.got[-1][1]["details"]["what"]) == (["person_needed"], "publication_waits")
    (lake / "away").unlink()
    world.airflow.run_until_quiet()
    assert world.airflow.state_of(run) == "success"
    assert not settle_everywhere(world.services, TARGETS).failed


def published_while_its_target_was_away(folder, monkeypatch):
    """A world whose close waits for its target, and the folder of the target."""
    lake = folder / "lake"
    lake.mkdir()
    world = World(folder / "world", to_files(lake, TELL))
    monkeypatch.setattr(FileTarget, "step", staticmethod(lambda name: name == "commit" and (lake / "away").touch()))
    run_until_its_close_waits(world)
    return world, lake


def test_a_version_is_told_when_its_target_has_it_and_a_person_when_it_waits_for_an_hour(tmp_path, monkeypatch):
    world, lake = published_while_its_target_was_away(tmp_path, monkeypatch)
    settle_everywhere(world.services, RECEIVERS, context=no_context)
    assert kinds() == ["version_published"]
    world.airflow.time += timedelta(hours=2)
    settle_everywhere(world.services, TARGETS)
    settle_everywhere(world.services, TARGETS)
    settle_everywhere(world.services, RECEIVERS, context=no_context)
    assert kinds() == ["version_published", "person_needed"]
    assert receiving.got[-1][1]["details"]["what"] == "version_waits"
    monkeypatch.undo()
    (lake / "away").unlink()
    world.airflow.run_until_quiet()
    assert kinds()[2:] == ["version_delivered"]
    assert receiving.got[-1][1]["details"]["outcome"] == "committed"


def test_upkeep_tells_receivers_before_it_waits_for_a_target(tmp_path, monkeypatch):
    world, lake = published_while_its_target_was_away(tmp_path, monkeypatch)
    (lake / "away").unlink()
    told_before = []
    monkeypatch.setattr(FileTarget, "step", staticmethod(lambda _name: told_before.append(kinds())))
    release_and_deliver(world.services, no_context).require_whole()
    assert told_before[0] == ["version_published"]
    assert kinds() == ["version_published"]
    assert upkeep_of(world.services).done_at == world.services.now()
    release_and_deliver(world.services, no_context).require_whole()
    assert kinds() == ["version_published", "version_delivered"]


def test_a_checkpoint_that_lost_its_manifest_is_told_as_given_up(world):
    world.airflow.deploy(aircraft(notify=[TELL]))
    run_days(world, 1, 2)
    world.store.delete("ladder/_checkpoints/00000002.json")
    receiving.got.clear()
    maintain_checkpoints(world.services, "ladder", is_thorough=True)
    deliver(world.services, "ladder", no_context)
    assert ids() == ["ladder/checkpoint_aborted/2", "ladder/checkpoint_completed/3"]
    assert receiving.got[0][1]["details"]["was_completed"] is True


def test_a_version_whose_process_was_killed_after_its_pointer_is_told_by_whoever_finds_it(world):
    world.airflow.deploy(with_receivers(ladder(), TELL))
    run_days(world, 1)
    world.airflow.time += timedelta(days=30)
    with world.ledger.transaction("ladder") as session:
        session.scalars(select(PublicationRow)).one().published_at = None
        session.query(NotificationRow).delete()
    receiving.got.clear()
    expire_versions(world.services, "ladder")
    deliver(world.services, "ladder", no_context)
    assert kinds() == ["version_published"]


def test_a_rebuilt_ledger_tells_again_what_the_store_shows_with_the_same_ids(world):
    world.airflow.deploy(aircraft(notify=[TELL]))
    run_days(world, 1, 2)
    receiving.away.add("tell")
    run_days(world, 3)
    before = outbox(world)
    receiving.away.clear()
    receiving.got.clear()
    world.lose_ledger()
    rebuild(world.services, "ladder")
    assert deliver(world.services, "ladder", no_context)[1] == []
    assert ids() == before
    assert {event["rebuilt"] for _, event in receiving.got} == {True}
    rebuild(world.services, "ladder")
    assert outbox(world) == before


def test_a_ledger_that_is_rebuilt_after_a_long_time_does_not_tell_of_all_years(world):
    world.airflow.deploy(aircraft(notify=[TELL]))
    run_days(world, 1)
    world.airflow.time += KEPT
    run_days(world, 2)
    receiving.got.clear()
    world.lose_ledger()
    rebuild(world.services, "ladder")
    deliver(world.services, "ladder", no_context)
    assert {event["epoch"] for _, event in receiving.got} == {"20130102T000000Z"}


@BOTH
def test_the_command_shows_what_waits_and_tells_nothing(world, tmp_path, monkeypatch, database):
    world.airflow.deploy(aircraft(notify=[TELL]))
    receiving.away.add("tell")
    run_days(world, 1)
    receiving.away.clear()
    use(monkeypatch, tmp_path)
    if database == "postgresql":
        monkeypatch.setenv("WEIR_LEDGER", world.ledger._engine.url.render_as_string(hide_password=False))
    (found,) = json.loads(typed("notifications", "--json"))["receivers"]
    assert (found["dataflow"], found["receiver"], found["waiting"]) == ("ladder", TELL.name, 2)
    assert "password=***" in found["problem"]
    assert "callback tests.weir.notifications.receiving:tell" in typed("notifications", "ladder")
    assert receiving.got == []
    world.airflow.time += timedelta(hours=1)
    if database == "sqlite":
        deliver(world.services, "ladder", no_context)
        assert "No notification waits" in typed("notifications")


def _completed(world):
    with world.ledger.transaction() as session:
        done = session.scalars(select(CheckpointRow.number).where(CheckpointRow.completed_at.is_not(None)))
        versions = session.scalars(select(PublicationRow).where(PublicationRow.published_at.is_not(None)))
        return {f"ladder/checkpoint_completed/{number}" for number in done} | {
            f"ladder/version_published/{row.sink}@{row.run[7:]}/{row.version}/{row.attempt}" for row in versions
        }


@pytest.fixture(scope="module")
def before_the_third_closes(tmp_path_factory):
    """Two days of a history, and a third of which only the closing task is left."""
    folder = tmp_path_factory.mktemp("notifications")
    (folder / "world" / "store").mkdir(parents=True)
    world = World(folder / "world", aircraft(retained_checkpoints=2, notify=[TELL, OTHER]))
    run_days(world, 1, 2)
    world.airflow.dag_run(3)
    while (ready := world.airflow._ready()).key.task_id != "weir_close":
        world.airflow.step(ready)
    return Saved(world, folder / "saved")


def killed_at(before, nth, check, *, is_ledger_lost=False):
    """Kill the closing task at its n-th step, let all go on until it is quiet, and report whether it was killed."""
    with fast_folder() as folder:
        receiving.reset()
        world = before.go_on(folder / "killed")
        doomed, fate = dying(world, nth)
        receiving.step[0] = lambda event: fate.step()
        doomed.step(doomed.task("scheduled__2013-01-03", "weir_close"))
        world.airflow.time = doomed.time
        receiving.step[0] = lambda event: None
        if fate.left > 0:
            return False
        if is_ledger_lost:
            world.lose_ledger()
            rebuild(world.services, "ladder")
            world.airflow.clear_by_hand("scheduled__2013-01-03", "weir_close")
        world.airflow.run_until_quiet()
        world.airflow.time += timedelta(hours=1)
        settle_everywhere(world.services, RECEIVERS, context=no_context).require_whole()
        check(world, nth)
        world.ledger.close()
    return True


def test_a_closing_task_that_is_killed_at_any_step_loses_and_confuses_no_notification(before_the_third_closes):
    earlier = {"20130101T000000Z", "20130102T000000Z"}

    def check(world, nth):
        new = [each for each in outbox(world) if not any(e["id"] == each for e in told_before)]
        for who in ("tell", "other"):
            assert first(ids(who)) == new, f"killed at step {nth}"
        assert _completed(world) <= set(outbox(world)), f"killed at step {nth}"

    told_before = []
    with fast_folder() as folder:
        world = before_the_third_closes.go_on(folder / "whole")
        with world.ledger.transaction() as session:
            told_before += list(session.scalars(select(NotificationRow.document)))
        assert {event["epoch"] for event in told_before} == earlier
        world.ledger.close()
    killed = 0
    for nth in range(1, 200, 2):  # before each change: a kill after it is a kill before the next
        if not killed_at(before_the_third_closes, nth, check):
            break
        killed += 1
    assert killed > 20


@pytest.mark.soak
def test_a_ledger_that_is_lost_right_where_a_closing_task_was_killed_tells_all(before_the_third_closes):
    def check(world, nth):
        assert _completed(world) <= set(ids()), f"killed at step {nth}"
        assert set(outbox(world)) <= set(ids()), f"killed at step {nth}"

    killed = 0
    while killed_at(before_the_third_closes, killed + 1, check, is_ledger_lost=True):
        killed += 1
    assert killed > 40
