"""Rows that a sink shows before its run is closed: confirmed, replaced or taken back, whatever happens on the way."""

from __future__ import annotations

import json
from dataclasses import replace
from shutil import copytree, rmtree

import pytest
from sqlalchemy import select
from tests.messages.kinds import of_kind
from tests.weir.sinks.test_delivery import dying
from tests.weir.small_dataflow import World, ladder

from weir.dataflow import Dataflow, callback, files, kafka, postgres, sink, target
from weir.errors import Misconfigured
from weir.formats.pointer import pointer_from_json
from weir.ledger.database.outbox_tables import NotificationRow
from weir.ledger.database.tables import PublicationRow, RunRow
from weir.ledger.deliveries import deliveries_of
from weir.reading.opening import open_results
from weir.rebuild.rebuild import rebuild
from weir.recovery.adopt import adopt
from weir.retention.sweep import sweep
from weir.sinks.opening import open_target
from weir.sinks.protocol import PROVISIONAL, Delivery, Outcome
from weir.store.catalogue import published
from weir.store.errors import NotFound
from weir.store.walk import files_below
from weir.upkeep import TARGETS, settle_everywhere

EPOCH, CLOSE = "20130101T000000Z", "weir_close"


@pytest.fixture
def lake(tmp_path):
    return tmp_path / "lake"


def early(lake, flow=None, name="totals"):
    """The ladder, of which the totals are shown early, in files; the report is not."""
    flow = flow or ladder()
    return Dataflow(flow.name, [*flow.stages, sink(name, "early", to=files(str(lake)), delivery="at_least_once")])


@pytest.fixture
def world(tmp_path, lake):
    return World(tmp_path / "world", early(lake))


def held(lake, day="2013-01-01"):
    """The marker in the target, and the bytes of its files; None where there is no such epoch."""
    folder = lake / f"epoch={day}"
    if not (folder / "_weir.json").exists():
        return None
    marker = json.loads((folder / "_weir.json").read_text())
    return marker | {"content": sorted((folder / each["name"]).read_bytes() for each in marker["files"])}


def is_provisional(found):
    return found is not None and found["digest"].startswith(PROVISIONAL)


def publications(world, sink="early"):
    with world.ledger.transaction() as session:
        query = select(PublicationRow).where(PublicationRow.sink == sink).order_by(PublicationRow.version)
        return [(row.version, row.lacks is not None, row.expired_at is None) for row in session.scalars(query)]


def until(world, *regions, day=1):
    """Run a day until these tasks are about to begin, and hold them there."""
    run = world.airflow.dag_run(day)
    for region in regions:
        world.airflow.task(run, region).state = "held"
    world.airflow.run_until_quiet()
    return run


def go_on(world, run):
    for key, task in world.airflow.tasks.items():
        if key.run_id == run and task.state == "held":
            task.state = None
    world.airflow.run_until_quiet()


def upkeep(world):
    settle_everywhere(world.services, TARGETS).require_whole()


REPORT = "report-delays"

SURVIVES, LAST_STEPS = 10_000, 24
"""A number of changes that no process makes, and how many it makes of the store and the ledger after its commit."""


def test_rows_are_shown_when_their_own_tasks_have_committed_and_the_close_confirms_them(world, lake):
    run = until(world, REPORT)
    shown = held(lake)
    assert is_provisional(shown)
    assert publications(world) == [(1, True, True)]
    with open_results("ladder", stage="early", provisional=True, services=world.services) as found:
        assert (found.version, found.lacks) == (
            1,
            "its run is not closed; routes[0], report-delays[0] have not committed",
        )
    go_on(world, run)
    final = held(lake)
    assert publications(world) == [(1, True, False), (3, False, True)]
    assert final["digest"] == shown["digest"].removeprefix(PROVISIONAL)
    assert {**final, "number": 1, "digest": shown["digest"]} == shown, "the marker alone has changed"
    with open_results("ladder", stage="early", provisional=True, services=world.services) as found:
        assert (found.version, found.lacks) == (3, "")


def recompute(world, run, stage, content, *held):
    """Have a task compute other rows, while these tasks are held."""
    if content is None:
        del world.content[stage]
    else:
        world.content[stage] = content
    world.airflow.clear_by_hand(run, stage, 0 if stage == "joined" else -1)
    for task_id, index in held:
        world.airflow.task(run, task_id, index).state = "held"
    world.airflow.run_until_quiet()


def test_other_rows_replace_those_that_are_shown(world, lake):
    run = until(world, REPORT)
    before = held(lake)
    recompute(world, run, "joined", "other")
    after = held(lake)
    assert is_provisional(after)
    assert after["content"] != before["content"]
    assert publications(world) == [(1, True, False), (3, True, True)]
    go_on(world, run)
    assert {**held(lake), "number": 3, "digest": after["digest"]} == after
    assert publications(world)[-1] == (5, False, True)


def test_rows_that_are_stale_are_taken_out_where_there_is_no_version(world, lake):
    run = until(world, REPORT)
    recompute(world, run, "joined", "other", ("totals-early", 0), ("totals-early", 1))
    assert held(lake)["content"] == []
    assert publications(world) == [(1, True, False)]
    with pytest.raises(Misconfigured, check=of_kind("reading.not_published")):
        open_results("ladder", stage="early", provisional=True, services=world.services)
    go_on(world, run)
    assert not is_provisional(held(lake))
    assert len(held(lake)["content"]) == 2


def test_rows_that_are_stale_make_place_for_the_last_version(world, lake):
    run = world.run_days(1)[0]
    version = held(lake)
    recompute(world, run, "joined", "other", (REPORT, -1))
    assert is_provisional(held(lake))
    with open_results("ladder", stage="early", services=world.services) as found:
        assert found.lacks == "", "who does not ask gets versions only"
    recompute(world, run, "joined", "third", ("totals-early", 0), ("totals-early", 1))
    assert (held(lake)["content"], held(lake)["digest"]) == (version["content"], version["digest"])
    go_on(world, run)
    assert publications(world)[-1][1:] == (False, True)
    assert held(lake)["number"] == publications(world)[-1][0]


def test_rows_that_turn_out_as_the_version_has_them_make_place_for_it(world, lake):
    run = world.run_days(1)[0]
    version = held(lake)
    recompute(world, run, "joined", "other", (REPORT, -1))
    recompute(world, run, "joined", None, (REPORT, -1))
    assert (held(lake)["content"], held(lake)["digest"]) == (version["content"], version["digest"])
    go_on(world, run)
    assert (held(lake)["content"], held(lake)["digest"]) == (version["content"], version["digest"])


def test_a_deleted_run_leaves_no_rows(world, lake):
    run = until(world, REPORT)
    world.airflow.delete(run)
    with world.ledger.transaction("ladder") as session:
        session.scalars(select(RunRow)).one().deleted_at = world.airflow.time
    upkeep(world)
    assert held(lake)["content"] == []
    assert publications(world) == [(1, True, False)]


def test_a_process_that_comes_late_shows_nothing(world, lake):
    run = until(world, REPORT)
    with world.ledger.transaction() as session:
        (row,) = deliveries_of(session, run_of(world), "early")
        delivery = Delivery.from_json(row.delivery)
    recompute(world, run, "joined", "other", ("totals-early", 0), ("totals-early", 1))
    assert open_target(delivery.target, world.services).commit(delivery.version, delivery.token) is Outcome.ROLLED_BACK
    assert held(lake)["content"] == []
    go_on(world, run)
    assert open_target(delivery.target, world.services).commit(delivery.version, delivery.token) is Outcome.SUPERSEDED


def test_a_process_that_comes_late_does_not_take_the_place_of_the_version(world, lake):
    """What was suspended before the target had rows that it was to show wakes up after they were taken back."""
    run = world.run_days(1)[0]
    version = held(lake)
    copytree(lake, lake.with_name("before"), symlinks=True)
    recompute(world, run, "joined", "other", (REPORT, -1))
    with world.ledger.transaction("ladder") as session:
        row = deliveries_of(session, run_of(world), "early")[0]
        delivery, row.outcome = Delivery.from_json(row.delivery), None
    rmtree(lake)
    copytree(lake.with_name("before"), lake, symlinks=True)
    recompute(world, run, "joined", "third", ("totals-early", 0), ("totals-early", 1))
    assert open_target(delivery.target, world.services).commit(delivery.version, delivery.token) is Outcome.SUPERSEDED
    assert (held(lake)["content"], held(lake)["digest"]) == (version["content"], version["digest"])


def test_what_is_put_back_waits_for_no_other_run(world, lake):
    """The version of the day before is refused by the target, which has something else in its place."""
    run = world.run_days(1, 2)[-1]
    version = held(lake, "2013-01-02")
    (lake / "epoch=2013-01-01").unlink()
    (lake / "epoch=2013-01-01").mkdir()
    with world.ledger.transaction("ladder") as session:
        deliveries_of(session, run_of(world), "early")[0].outcome = None
    recompute(world, run, "joined", "other", (REPORT, -1))
    assert is_provisional(held(lake, "2013-01-02"))
    recompute(world, run, "joined", "third", ("totals-early", 0), ("totals-early", 1))
    after = held(lake, "2013-01-02")
    assert (after["content"], after["digest"]) == (version["content"], version["digest"])


def test_a_target_that_the_sink_has_no_more_holds_no_provisional_rows(world, lake):
    run = until(world, REPORT)
    assert is_provisional(held(lake))
    other = lake.with_name("other")
    world.airflow.deploy(early(other))
    adopt(world.services, run_of(world))
    world.airflow.clear_run_by_hand(run)
    world.airflow.run_until_quiet()
    upkeep(world)
    assert world.airflow.state_of(run) == "success"
    assert held(lake)["content"] == []
    assert not is_provisional(held(other))


def test_rows_that_the_ledger_does_not_know_are_not_replaced_early(world, lake, tmp_path):
    world.run_days(1)
    version = held(lake)
    another = World(tmp_path / "another", early(lake))
    another.content["joined"] = "other"
    run = until(another, REPORT)
    assert held(lake) == version
    go_on(another, run)
    assert held(lake)["content"] != version["content"]


def test_a_pointer_that_was_not_written_yet_is_written(world):
    until(world, REPORT)
    with world.ledger.transaction() as session:
        (row,) = session.scalars(select(PublicationRow)).all()
    before = pointer_from_json(world.store.read(row.pointer))
    world.store.delete(row.pointer)
    upkeep(world)
    assert publications(world) == [(1, True, True)]
    after = pointer_from_json(world.store.read(row.pointer))
    assert replace(after, published_at=before.published_at, revision=before.revision) == before


def test_a_pointer_that_was_written_late_goes_and_keeps_no_rebuild_from_its_end(world):
    run = until(world, REPORT)
    with world.ledger.transaction() as session:
        (row,) = session.scalars(select(PublicationRow)).all()
    late = world.store.read(row.pointer)
    recompute(world, run, "joined", "other", ("totals-early", 0), ("totals-early", 1))
    world.store.create(row.pointer, late)
    rebuild(world.services, "ladder")
    assert publications(world) == [(1, True, False)]
    sweep(world.services, "ladder", is_daily=True, clearer=world.airflow)
    with pytest.raises(NotFound):
        world.store.read(row.pointer)


def test_nobody_is_told_of_a_version_that_is_put_back(world, lake):
    world.airflow.deploy(replace(world.airflow.flow, notify=[callback("tests:tell")]))
    run = world.run_days(1)[0]
    recompute(world, run, "joined", "other", (REPORT, -1))
    with world.ledger.transaction() as session:
        told = [row.id for row in session.scalars(select(NotificationRow))]
    recompute(world, run, "joined", "third", ("totals-early", 0), ("totals-early", 1))
    assert held(lake)["number"] == 5
    with world.ledger.transaction() as session:
        kinds = [row.kind for row in session.scalars(select(NotificationRow)) if row.id not in told]
    assert "version_delivered" not in kinds


def run_of(world):
    with world.ledger.transaction() as session:
        return session.scalar(select(RunRow.id).order_by(RunRow.epoch))


def test_a_target_that_is_away_holds_nothing_up(world, lake):
    away = lake.parent / "gone"
    world.airflow.deploy(early(away / "lake"))
    run = until(world, REPORT)
    assert publications(world) == []
    assert world.airflow.task(run, "totals-early", 1).state == "success"
    upkeep(world)
    assert publications(world) == []
    away.mkdir()
    upkeep(world)
    assert is_provisional(held(away / "lake"))


def test_rows_that_are_shown_are_no_version_to_anybody(world, lake):
    world.airflow.deploy(replace(world.airflow.flow, notify=[callback("tests:tell")]))
    run = until(world, REPORT)
    assert is_provisional(held(lake))
    assert published(world.store, "ladder", "early", EPOCH) is None
    with pytest.raises(Misconfigured, check=of_kind("reading.not_published")):
        open_results("ladder", stage="early", services=world.services)
    with world.ledger.transaction() as session:
        assert [row.kind for row in session.scalars(select(NotificationRow))] == []
    go_on(world, run)
    assert published(world.store, "ladder", "early", EPOCH).version == 3


def test_what_is_shown_stays_while_it_is_shown(world, lake):
    run = until(world, REPORT)
    with world.ledger.transaction() as session:
        (row,) = session.scalars(select(PublicationRow)).all()
        folders = list(row.folders)
    recompute(world, run, "joined", "other", ("totals-early", 0), ("totals-early", 1))
    assert publications(world) == [(1, True, False)]
    go_on(world, run)
    world.airflow.release("ladder")
    assert [folder for folder in folders if any(files_below(world.store, [f"{folder}/data"]))] == []


def test_a_rebuilt_ledger_takes_rows_back_or_has_them_confirmed(world, lake):
    run = until(world, REPORT)
    shown = held(lake)
    world.lose_ledger()
    rebuild(world.services, "ladder")
    assert publications(world) == [(1, True, True)]
    upkeep(world)
    assert held(lake) == shown
    go_on(world, run)
    assert not is_provisional(held(lake))
    assert held(lake)["content"] == shown["content"]


@pytest.mark.parametrize(
    "to",
    [
        kafka("events", topic="t", key="k"),
        postgres("db", "t", mode="append"),
        postgres("db", "t", mode="upsert", key="k"),
        target("own:Target"),
    ],
    ids=str,
)
def test_what_keeps_its_rows_is_refused(to):
    with pytest.raises(Misconfigured, check=of_kind("dataflow.provisional_stays", sink="early", target=to)):
        sink("totals", "early", to=[files("/lake"), to], delivery="at_least_once")


@pytest.mark.parametrize("shows", [True, False], ids=["while rows are shown", "while rows are taken back"])
def test_what_is_killed_at_any_step_is_completed_or_undone(world, lake, shows):
    """The process that commits shows rows, or takes those back that are stale by its commit; it is killed there."""
    run, killed = world.run_days(1)[0], 0
    world.airflow.clear_by_hand(run, CLOSE)
    steps = [SURVIVES]
    for nth in steps:
        recompute(world, run, "joined", f"shown {nth}", (REPORT, -1))
        before = held(lake)
        assert is_provisional(before)
        world.content["joined"] = f"content {nth}"
        last = ("totals-early", 1) if shows else ("joined", 0)
        for cleared in {("joined", 0), last}:  # a person's clear: what was killed before does not count any more
            world.airflow.clear_by_hand(run, *cleared)
        while ((task := world.airflow._ready()).key.task_id, task.key.map_index) != last:
            world.airflow.step(task)
        doomed, fate = dying(world, nth)
        doomed.step(task)
        world.airflow.time = doomed.time
        upkeep(world)
        assert sum(is_early and is_there for _, is_early, is_there in publications(world)) <= 1, nth
        world.airflow.run_until_quiet()
        upkeep(world)
        after = held(lake)
        assert after["content"] != before["content"], nth
        assert publications(world)[-1] == (after["number"], is_provisional(after), True), nth
        if nth == SURVIVES:  # what the process does last is this; a kill after a change is a kill before the next
            steps += range(SURVIVES - fate.left - LAST_STEPS, SURVIVES - fate.left + 1, 2)
        killed += fate.left <= 0
    go_on(world, run)
    assert world.airflow.state_of(run) == "success"
    assert (held(lake)["number"], False, True) in publications(world)
    assert killed == LAST_STEPS // 2 + 1
