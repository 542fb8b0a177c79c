"""A commit whose answer is lost: nothing that it has committed, or will, is deleted."""

import os
from contextlib import nullcontext

import pytest
from tests.builders.ledgers import copied_ledger, fast_folder
from tests.postgres_ledgers import fill
from tests.weir.late_ledger import LateLedger
from tests.weir.restoring import aircraft, keep_savepoints, lineage_of, restore, rows_of, run_days, spoil, states_of
from tests.weir.small_dataflow import Saved, World

from weir.errors import Retryable
from weir.retention.sweep import sweep
from weir.snapshots.savepoint import SavepointRequest, create, savepoints, show
from weir.store.walk import files_below


@pytest.fixture(scope="module")
def two_days():
    """Two days, the first with a savepoint: a world of which each test has its own copy."""
    with fast_folder() as folder:
        world = World(folder / "world", aircraft(retained_checkpoints=9))
        run_days(world.airflow, 1, 2)
        keep_savepoints(world, 1)
        yield Saved(world, folder / "saved")


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.soak)])
def late(request, two_days, tmp_path):
    """Two days, the first with a savepoint, on a ledger that can lose answers."""

    def opened(path):
        if request.param == "sqlite":
            return LateLedger.open(f"sqlite:///{path}")
        return fill(LateLedger.open(request.getfixturevalue("new_postgres_url")()), copied_ledger(path))

    world = two_days.go_on(tmp_path, opened)
    yield world
    world.ledger.close()


def grow_old(world):
    at = world.airflow.time.timestamp()
    for path in (world.folder / "store").rglob("*"):
        os.utime(path, (at, at))
    world.airflow.time += 2 * world.services.retention.orphan_age


def lying(world, folder="ladder"):
    return {each.path for each in files_below(world.store, [folder])}


def are_whole(world, dataflow="ladder"):
    """Whether each current result of the first day has its manifest, and the files that this names."""
    rows = [*rows_of(world, 1, dataflow=dataflow), *rows_of(world, 1, "offsets", dataflow)]
    return bool(rows) and all(f"{row.folder}/manifest.json" in lying(world, row.folder) for row in rows)


@pytest.mark.parametrize("fork", [None, "forked"])
def test_what_a_lost_commit_restores_is_not_deleted(late, fork):
    right = states_of(late, 1)
    spoil(late, 1)
    late.ledger.lose()
    done = restore(late, "day1", fork=fork)
    late.ledger.settle()
    assert done.lineage == lineage_of(late, fork or "ladder")
    assert states_of(late, 1, fork or "ladder") == right
    assert are_whole(late, fork or "ladder")


@pytest.mark.parametrize("commits", [True, False])
def test_a_restore_that_has_nothing_to_replace_is_known_by_its_lineage(late, commits):
    before = lineage_of(late)
    late.ledger.lose(commits=commits)
    with nullcontext() if commits else pytest.raises(Retryable, match="closed the connection"):
        restore(late, "day1")
    late.ledger.settle()
    assert lineage_of(late) == before + commits
    assert are_whole(late)


def test_what_a_lost_transaction_did_not_restore_is_deleted(late):
    spoil(late, 1)
    spoilt, lineage, before = states_of(late, 1), lineage_of(late), lying(late)
    late.ledger.lose(commits=False)
    with pytest.raises(Retryable, match="closed the connection"):
        restore(late, "day1")
    late.ledger.settle()
    assert (states_of(late, 1), lineage_of(late), lying(late)) == (spoilt, lineage, before)


@pytest.mark.parametrize("commits", [True, False])
def test_what_nobody_knows_to_be_restored_is_kept_until_the_ledger_is_asked(late, commits):
    right = states_of(late, 1)
    spoil(late, 1)
    spoilt = states_of(late, 1)
    late.ledger.lose(commits=commits, is_gone=True)
    with pytest.raises(Retryable, match="connection refused"):
        restore(late, "day1")
    late.ledger.settle()
    assert are_whole(late)
    assert states_of(late, 1) == (right if commits else spoilt)
    late.airflow.run_until_quiet()
    grow_old(late)
    sweep(late.services, "ladder", is_full=True)
    assert are_whole(late)
    named = {row.attempt for row in rows_of(late, 1)}
    restored = {path.split("/")[5] for path in lying(late, "ladder/20130101T000000Z/history") if "/t0000-" in path}
    assert restored == (named if commits else set())


@pytest.mark.parametrize("commits", [True, False])
def test_a_savepoint_that_is_written_stays_whatever_the_ledger_answers(late, commits):
    late.ledger.lose(3, commits=commits)  # those before take the number and renew the leases
    with pytest.raises(Retryable):
        create(late.services, SavepointRequest("ladder", name="mine"))
    late.ledger.settle()
    assert "ladder/_savepoints/mine/savepoint.json" in lying(late, "ladder/_savepoints/mine")
    create(late.services, SavepointRequest("ladder", name="next"))
    assert {each.name: each.status for each in savepoints(late.services)} == dict.fromkeys(
        ("day1", "mine", "next"), "completed"
    )
    assert show(late.services, "ladder", "mine").is_savepoint
    spoil(late, 2)
    restore(late, "mine")
