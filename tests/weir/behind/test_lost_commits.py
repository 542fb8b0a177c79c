"""The ledger goes back to what it was before a transaction, at the begin of a later one; everything else goes on."""

import random
from dataclasses import replace

import pytest
from sqlalchemy import select
from tests.builders.ledgers import fast_folder
from tests.messages.kinds import of_kind
from tests.weir.behind.rewinding import RewindingWorld, check, days, flow
from tests.weir.restoring import EPOCHS, files_of, keep_savepoints, restore, second_airflow, spoil

from weir.errors import LedgerBehind, Misconfigured, Retryable
from weir.execution.run_state import CLOSE, AttemptState
from weir.formats.paths import record_path
from weir.ledger.database.tables import AttemptRow, CheckpointRow, RestoreRow, RunRow
from weir.rebuild.catching_up import catch_up
from weir.rebuild.rebuild import rebuild
from weir.snapshots.restored_run import fence_all
from weir.upkeep import RESULTS, settle_everywhere

LAST = 40
"""More than the writing transactions of a day."""

KEPT = 2
"""Transactions that are never lost: before them the ledger knows no such dataflow, and upkeep does not look at it."""


def go_back(folder, last, expected, lost, after, forgets):
    """Put the ledger back by `lost` transactions before the one of number `after`; some processes forget all."""
    world = RewindingWorld(folder, flow())
    world.ledger.moments = []

    def at(number):
        if number == after:
            world.ledger.go_back(world.ledger.moments[after - lost - 1])
            if forgets:
                world.ledger.new_process()

    world.ledger.at = at
    check(world, last, expected)


@pytest.mark.parametrize("forgets", [False, True])
@pytest.mark.parametrize("share", range(3))
def test_a_day_heals_whatever_the_ledger_has_lost(tmp_path, one_day, share, forgets):
    chance = random.Random(f"{share} {forgets}")
    after = chance.randrange(KEPT + 2, one_day[2] + 1)
    go_back(tmp_path, 1, one_day, chance.randrange(1, after - KEPT), after, forgets)


@pytest.mark.parametrize("seed", range(2))
def test_days_that_build_on_each_other_heal(tmp_path, two_days, seed):
    chance = random.Random(seed)
    after = chance.randrange(KEPT + 2, two_days[2] + 1)
    go_back(tmp_path, 2, two_days, chance.randrange(1, after - KEPT), after, forgets=bool(seed % 2))


def test_a_state_stays_whose_checkpoint_the_ledger_has_lost(tmp_path):
    stages = [each for each in flow().stages if each.name != "known"]  # what is published is looked for anyway
    world = RewindingWorld(tmp_path, replace(flow(keep="60 days"), stages=stages))
    run = world.airflow.dag_run(1)
    for name in ("flights", "aircraft"):
        world.airflow.step(world.airflow.task(run, name))
    before = world.ledger.present()
    world.airflow.run_until_quiet()
    files = [file.path for file in files_of(world, 1)]
    world.ledger.go_back(before)
    world.content["aircraft"] = "other"
    world.airflow.clear_by_hand(run, "aircraft")
    world.airflow.step(world.airflow.task(run, "aircraft"))
    assert all((tmp_path / "store" / path).exists() for path in files)
    world.heal()
    assert world.wrong() == []


def test_a_restore_that_the_ledger_has_lost_is_pinned_though_an_earlier_one_is_not_any_more(tmp_path):
    world = RewindingWorld(tmp_path, flow(retained_checkpoints=3, keep="60 days"))
    days(world, 1)
    keep_savepoints(world, 1)
    spoil(world, 1)
    restore(world, "day1")
    days(world, 2)
    assert [is_open for _, is_open in pins(world)] == [False]
    spoil(world, 1)
    before = world.ledger.present()
    restore(world, "day1")
    world.ledger.go_back(before)
    settle_everywhere(world.services, RESULTS).require_whole()
    found = pins(world)
    assert [is_open for _, is_open in found] == [False, True]
    rebuild(world.services)
    assert pins(world) == found
    world.heal()
    assert set(world.airflow.states().values()) == {"success"}


@pytest.fixture
def without_fork(tmp_path):
    """A ledger that has lost a fork from the first of two days, and has caught up with what it is a fork of."""
    world = RewindingWorld(tmp_path, flow(retained_checkpoints=3, keep="60 days"))
    days(world, 1)
    before = world.ledger.present()
    restore(world, 1, fork="forked")
    days(world, 2)
    world.ledger.go_back(before)
    world.ledger.new_process()
    settle_everywhere(world.services, RESULTS).require_whole()
    assert [is_open for _, is_open in pins(world)] == [True]
    assert {each.partition("@")[0] for each in run_ids(world)} == {"ladder"}
    return world


def test_a_fork_takes_no_name_of_a_fork_that_the_ledger_has_lost_and_finds_in_the_store(without_fork):
    with pytest.raises(LedgerBehind):
        restore(without_fork, 2, fork="forked")
    rebuild(without_fork.services, "forked")
    with pytest.raises(Misconfigured, check=of_kind("snapshots.fork_has_runs", fork="forked")):
        restore(without_fork, 2, fork="forked")


def test_a_fork_whose_run_has_no_record_yet_gives_its_name_to_none_but_one_that_begins_as_it_did(without_fork):
    world = without_fork
    (world.folder / "store" / record_path("forked", EPOCHS[0])).unlink()
    with pytest.raises(Misconfigured, check=of_kind("snapshots.fork_has_begun", fork="forked", epoch=EPOCHS[0])):
        restore(world, 2, fork="forked")
    restore(world, 1, fork="forked")
    fork = second_airflow(world, replace(flow(), name="forked"))
    fork.dag_run(2)
    fork.run_until_quiet()
    assert set(fork.states().values()) == {"success"}


def test_a_closing_task_is_known_whose_end_is_lost_and_which_a_restore_fences_then(tmp_path):
    world = RewindingWorld(tmp_path, flow())
    world.ledger.moments = []
    days(world, 1)
    for moment in reversed(world.ledger.moments):
        world.ledger.go_back(moment)
        world.ledger.new_process()
        with world.ledger.transaction("ladder") as session:
            closing = session.scalar(select(AttemptRow).where(AttemptRow.region == CLOSE.name))
            if closing is not None and closing.state == AttemptState.RUNNING.value:
                assert fence_all(session, world.services, "ladder", 2) == (closing.id,)
                break
    world.heal()
    assert world.wrong() == []
    assert closes(world) == ["committed"]


class BeforeARecord:
    """Files that call `at` once, before a record is written."""

    def __init__(self, files, at):
        self._files, self._at = files, [at]

    def __getattr__(self, name):
        return getattr(self._files, name)

    def replace(self, path, data):
        while self._at:
            self._at.pop()()
        self._files.replace(path, data)


def test_a_run_is_known_again_whose_pin_is_lost_before_its_record_is_written(tmp_path):
    world = RewindingWorld(tmp_path, flow())
    days(world, 1)
    before, run = world.ledger.present(), world.airflow.dag_run(2)

    def lose_the_pin():
        world.ledger.go_back(before)
        assert catch_up(world.services, "ladder") is not None  # as another process does
        lost.append(runs(world))

    world.store.files, lost = BeforeARecord(world.store.files, lose_the_pin), []
    task = world.airflow.task(run, "flights")
    world.airflow.step(task)
    assert (lost, task.state) == ([{EPOCHS[0]}], "up_for_retry")
    world.heal()
    assert (world.wrong(), runs(world)) == ([], set(EPOCHS[:2]))


@pytest.mark.parametrize("how", ["lost", "marked"])
def test_a_closing_task_is_known_whose_next_try_is_lost_and_a_mark_before_it_is_obeyed(tmp_path, how):
    stages = [each for each in flow().stages if each.name != "known"]  # what is published is looked for anyway
    world = RewindingWorld(tmp_path, replace(flow(), stages=stages))
    closing = world.airflow.task(world.airflow.dag_run(1), CLOSE.name)
    world.ledger.at = lambda _number: fail_once_the_checkpoint_is_complete(world)
    while closing.state != "up_for_retry":
        world.airflow.step(world.airflow._ready())
    if how == "lost":
        before = world.ledger.present()
        world.airflow.step(closing)
        world.ledger.go_back(before)
    else:
        closing.state = "success"
    assert closes(world) == ["retrying"]
    world.heal()
    assert closes(world) == (["fenced"] if how == "lost" else ["retrying"])
    assert world.wrong() == ([] if how == "lost" else [f"ladder@{EPOCHS[0]} is open"])


def fail_once_the_checkpoint_is_complete(world):
    with world.ledger.transaction() as session:
        is_complete = "completed" in session.scalars(select(CheckpointRow.status))
    if is_complete:
        world.ledger.at = lambda _number: None  # the failure is recorded
        raise Retryable("the server does not answer")


def runs(world):
    """The epochs of the runs that the ledger knows."""
    with world.ledger.transaction() as session:
        return set(session.scalars(select(RunRow.epoch)))


def run_ids(world):
    """The runs that the ledger knows, of all dataflows."""
    with world.ledger.transaction() as session:
        return set(session.scalars(select(RunRow.id)))


def closes(world):
    """The states of the tries of the closing task, oldest first."""
    query = select(AttemptRow.state).where(AttemptRow.region == CLOSE.name).order_by(AttemptRow.try_number)
    with world.ledger.transaction() as session:
        return list(session.scalars(query))


def pins(world):
    """The lineages of the restores of the first day, and whether their pins still hold."""
    query = select(RestoreRow.lineage, RestoreRow.unpinned_at).where(RestoreRow.epoch == EPOCHS[0])
    with world.ledger.transaction() as session:
        return [(row.lineage, row.unpinned_at is None) for row in session.execute(query.order_by(RestoreRow.id))]


@pytest.mark.soak
@pytest.mark.parametrize("forgets", [False, True])
@pytest.mark.parametrize("after", range(KEPT + 2, LAST))
def test_a_day_heals_whatever_the_ledger_has_lost_at_each_moment(one_day, after, forgets):
    for lost in range(1, after - KEPT if after <= one_day[2] else 1):
        with fast_folder() as folder:
            go_back(folder, 1, one_day, lost, after, forgets)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(200))
def test_days_heal_whatever_the_ledger_has_lost(tmp_path, two_days, seed):
    chance = random.Random(1000 + seed)
    after = chance.randrange(KEPT + 2, two_days[2] + 1)
    go_back(tmp_path, 2, two_days, chance.randrange(1, after - KEPT), after, forgets=chance.random() < 0.5)
