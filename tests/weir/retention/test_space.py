"""Space is reclaimed before it runs out: results that only policies keep go, needed ones never; a refusal names what
holds the space."""

from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import select
from tests.servers.small_disk import small_disk

from weir.assembly import coordinator_of
from weir.dataflow import Dataflow, Stage, blocking, cached, sink, source
from weir.dataflow.retention_settings import RetentionSettings
from weir.errors import DiskFull, QuotaExceeded
from weir.ledger.database.tables import AttemptRow, ResultRow, RunRow
from weir.ledger.leases import take_leases
from weir.ledger.runs import runs_of
from weir.retention.sizes import LATEST, SizeEstimate, bytes_at_rest, runs_by_age, size_estimates
from weir.store.catalogue import published
from weir.testing.fakes.airflow import FakeAirflow
from weir.topology.regions import PartitionId

MIB = 2**20
SIZE = 2 * MIB
"""Bytes of each intermediate result; what is published is small."""
SPARE = MIB


def chain(name="chain", **more):
    """Two intermediate results of the same size, and a small one that is published."""
    stages = [
        source("raw", f"pipelines.{name}:raw"),
        Stage("clean", f"pipelines.{name}:clean", [blocking("raw")]),
        Stage("top", f"pipelines.{name}:top", [blocking("clean")]),
        sink("top", "out"),
    ]
    return Dataflow(name, stages, **{"keep": "90 runs", **more})


@pytest.fixture
def life(world):
    """Say what the deployment says of the life of results."""

    def say(**settings):
        services = replace(world.services, retention=RetentionSettings(**{"least_free": SPARE, **settings}))
        world.services = world.airflow.services = services
        world.airflow.coordinator = coordinator_of(services)

    world.airflow.flow = chain()
    world.airflow.engine.padding = {"raw": SIZE, "clean": SIZE}
    say()
    return say


@pytest.fixture
def disk(tmp_path):
    """FreeSpace for the intermediate results of four runs."""
    with small_disk(tmp_path / "store", megabytes=18) as mounted:
        yield mounted


def run(world, *days):
    world.run_days(*days)


def run_in_vain(world, *days):
    for day in days:
        world.airflow.dag_run(day)
    with pytest.raises(AssertionError, match="no end after 4 tries"):
        world.airflow.run_until_quiet(4)


def errors(world, *, last=False):
    """What failed tries have said."""
    with world.ledger.transaction() as session:
        rows = session.scalars(select(AttemptRow).where(AttemptRow.error.is_not(None)).order_by(AttemptRow.began_at))
        said = [row.error for row in rows]
    return said[-1] if last else said


def kept(world, dataflow="chain"):
    """The days of which intermediate results are there."""
    with world.ledger.transaction() as session:
        query = (
            select(RunRow.epoch, ResultRow.folder)
            .join(RunRow, RunRow.id == ResultRow.run)
            .where(RunRow.dataflow == dataflow, ResultRow.stage == "raw")
        )
        rows = session.execute(query.order_by(RunRow.epoch)).all()
    names = {epoch: {name for name, _ in world.store.list(folder)} for epoch, folder in rows}
    return [int(epoch[6:8]) for epoch, found in names.items() if "part-0.bin" in found]


def is_published(world, *days):
    return all(published(world.store, "chain", "out", f"201301{day:02d}T000000Z").partitions for day in days)


# A disk


def test_on_a_disk_that_would_fill_up_the_oldest_runs_go_and_no_try_fails(world, life, disk):
    free = []
    world.airflow.during = lambda key: key.task_id == "top-out" or free.append(disk.free_bytes)
    run(world, *range(1, 7))
    assert errors(world) == []
    assert min(free[2:]) >= SIZE + SPARE
    assert kept(world) == [3, 4, 5, 6]
    assert is_published(world, *range(1, 7))


def test_no_more_is_released_than_is_needed_and_log_and_ledger_say_what(world, life, disk):
    run(world, 1, 2, 3)
    disk.fill(leave=2 * SIZE)  # enough for one result, and what is to stay free
    notes, compute = [], world.airflow.engine.run
    world.airflow.engine.run = lambda job, during: notes.extend(job.notes) or compute(job, during)
    run(world, 4)
    assert errors(world) == []
    assert kept(world) == [2, 3, 4]
    assert notes == ["4.2 MB in 2 result(s) of chain@20130101T000000Z were deleted to free space"]
    with world.ledger.transaction() as session:
        reasons = set(session.scalars(select(ResultRow.state_reason).where(ResultRow.deleted_at.is_not(None))))
    assert reasons == {"every consumer has committed a result made from it, and space was needed"}


def test_a_disk_without_a_free_byte_heals_by_the_first_attempt_that_meets_it(world, life, disk):
    run(world, 1, 2, 3)
    disk.fill()
    run(world, 4)
    assert [error.partition(":")[0] for error in errors(world)] in ([], ["StoreFull"])
    assert kept(world) == [3, 4]


def test_space_is_reclaimed_from_all_dataflows_of_the_ledger_on_the_disk_that_they_share(world, life, disk):
    other = FakeAirflow(world.services, world.airflow.engine, chain("other"))
    other.time = world.airflow.time
    for day in (1, 2, 3):
        other.dag_run(day)
        other.run_until_quiet()
    world.airflow.time = other.time
    run(world, 1, 2, 3)
    assert errors(world) == []
    assert kept(world, "other") == [3]
    assert kept(world) == [1, 2, 3]


def test_needed_results_stay_and_the_error_says_what_holds_them(world, life, disk):
    world.airflow.engine.padding["out"] = MIB
    run(world, 1, 2)
    with world.ledger.transaction("chain") as session:
        read = session.scalars(select(ResultRow).where(ResultRow.stage.in_(("raw", "clean"))))
        take_leases(session, [each.id for each in read], "the notebook of ann", world.airflow.time)
    disk.fill(leave=2 * MIB)
    run_in_vain(world, 3)
    said = errors(world, last=True)
    assert kept(world) == [1, 2]
    for part in (
        "DiskFull: the disk of the store file://",
        " has too little free space for raw[0] of chain@20130103T000000Z: ",
        "MB of 18.9 MB are free, it is to write about 2.1 MB, and 1.0 MB are to stay free (least_free); ",
        "nothing can be released.\nStored results that have to stay:\n",
        "  8.4 MB of 2 runs of chain: the notebook of ann reads it, under lease until ",
        "  2.1 MB of 2 runs of chain: it is version 1 of out\n",
        " of that disk are no results: files of other programs",
        "the task tries again by itself, and nothing is marked lost",
    ):
        assert part in said
    disk.make_room()
    world.airflow.run_until_quiet()
    assert is_published(world, 3)


def test_results_that_grow_get_more_space_after_they_have_filled_the_disk(world, life, disk):
    run(world, 1, 2, 3)
    world.airflow.engine.padding |= {"raw": 3 * SIZE}
    run(world, 4)
    assert [error.partition(":")[0] for error in errors(world)] == ["StoreFull"]
    assert 4 in kept(world)
    assert is_published(world, 1, 2, 3, 4)


def test_a_first_run_reclaims_space_when_it_has_met_a_full_disk(world, life, disk):
    other = FakeAirflow(world.services, world.airflow.engine, chain("other"))
    for day in (1, 2, 3, 4):
        other.dag_run(day)
        other.run_until_quiet()
    world.airflow.time = other.time
    run(world, 1)
    assert {error.partition(":")[0] for error in errors(world)} <= {"StoreFull"}
    assert kept(world) == [1]


def test_one_exceptionally_large_result_blocks_no_later_attempt(world, life, disk):
    run(world, 1)
    world.airflow.engine.padding["raw"] = 6 * SIZE
    run(world, 2)
    world.airflow.engine.padding["raw"] = SIZE
    disk.fill(leave=2 * SIZE)
    run(world, 3)
    assert errors(world) == []


def test_space_is_reclaimed_for_copies_too(world, life, disk):
    stages = [
        source("raw", "pipelines.chain:raw"),
        Stage("clean", "pipelines.chain:clean", [cached("raw")]),
        Stage("top", "pipelines.chain:top", [blocking("clean")]),
        sink("top", "out"),
    ]
    world.airflow.flow = Dataflow("chain", stages, keep="90 runs")
    run(world, 1, 2)
    disk.fill(leave=SIZE + 2 * SPARE)  # enough for the result, not for the copy as well
    free = []
    world.airflow.during = lambda _key: free.append(disk.free_bytes)
    run(world, 3)
    assert errors(world) == []
    assert free[0] >= SIZE


# A quota


def at_rest(world, dataflow="chain"):
    with world.ledger.transaction() as session:
        return bytes_at_rest(session, dataflow)


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_a_dataflow_keeps_no_more_than_its_quota(world, life):
    quota, most = 3 * SIZE + MIB, []
    life(quota=quota)
    world.airflow.after_commit = lambda _key: most.append(at_rest(world))
    run(world, 1, 2, 3)
    assert errors(world) == []
    assert max(most) <= quota
    assert kept(world) == [3]
    assert is_published(world, 1, 2, 3)


def test_a_quota_is_of_one_dataflow_and_others_keep_theirs(world, life):
    other = FakeAirflow(world.services, world.airflow.engine, chain("other"))
    for day in (1, 2):
        other.dag_run(day)
        other.run_until_quiet()
    world.airflow.flow = chain(quota=f"{3 * SIZE}")
    run(world, 1, 2)
    assert kept(world, "other") == [1, 2]
    assert kept(world) == [2]


def test_an_exceeded_quota_names_what_is_kept_and_a_raised_one_helps_at_once(world, life):
    world.airflow.engine.padding["out"] = 4 * MIB
    run(world, 1)
    world.airflow.flow = chain(quota="5 MB")
    run_in_vain(world, 2)
    said = errors(world, last=True)
    for part in (
        "QuotaExceeded: chain may keep 5.0 MB, its quota, which leaves too little for raw[0] of chain@20130102T000000Z",
        ": it is to write about 2.1 MB, and 4.2 MB are at rest; nothing can be released.\n",
        "Stored results that have to stay:\n  4.2 MB of chain",
        "Raise the quota (`Dataflow(quota=...)` in the DAG file",
    ):
        assert part in said
    world.airflow.flow = chain(quota="50 MB")
    world.airflow.run_until_quiet()
    assert is_published(world, 2)


def test_published_results_are_named_once(world, life):
    stages = [source("raw", "pipelines.chain:raw"), sink("raw", "out")]
    world.airflow.flow = Dataflow("chain", stages, keep="30 days")
    world.airflow.engine.padding["out"] = SIZE
    run(world, 1, 2)
    world.airflow.flow = Dataflow("chain", stages, keep="30 days", quota="5 MB")
    run_in_vain(world, 3)
    for said in errors(world):
        (line,) = [line for line in said.splitlines() if line.startswith("  ")]
        assert line.startswith("  4.2 MB of ")


def test_running_attempts_that_began_before_count_against_a_quota(world, life):
    run(world, 1)
    life(quota=2 * SIZE + MIB // 2)
    refused = []

    def begin_next(key):
        if key.task_id != "clean":
            return
        world.airflow.during = lambda _key: None
        task = world.airflow.task(world.airflow.dag_run(3), "raw")
        task.state, task.try_number = "running", 1
        world.airflow.time += timedelta(seconds=1)
        with pytest.raises(QuotaExceeded) as refusal:
            world.airflow.coordinator.begin(world.airflow.request(task), world.airflow)
        refused.append(str(refusal.value))
        task.state = None

    world.airflow.during = begin_next
    run(world, 2)
    assert "it is to write about 2.1 MB, running attempts that began before are to write 2.1 MB, and " in refused[0]
    assert is_published(world, 2, 3)


# What is likely


def test_the_size_of_the_next_result_is_estimated_by_the_latest_three(world, life):
    for day, size in enumerate((100, 50, 10, 30), start=1):
        world.airflow.engine.padding["raw"] = size * 1000
        run(world, day)
    with world.ledger.transaction() as session:
        found = size_estimates(session, "chain", [PartitionId("raw", 0, "plain"), PartitionId("raw", 1, "plain")])
    assert LATEST == 3
    assert found == {PartitionId("raw", 0, "plain"): SizeEstimate(10_080, 50_080)}


def test_refusals_are_full_disks_that_are_waited_for():
    assert issubclass(QuotaExceeded, DiskFull)


def test_of_each_dataflow_the_oldest_epoch_is_reclaimed_first_whenever_it_was_closed(world, life):
    run(world, 1, 2, 3)
    world.content["raw"] = "corrected"
    world.airflow.clear_run_by_hand("scheduled__2013-01-01")
    world.airflow.run_until_quiet()
    with world.ledger.transaction() as session:
        found = [run.partition("@")[2][:8] for _, run in runs_by_age(session, ["chain"])]
        closed = [row.closed_at for row in runs_of(session, "chain")]
    assert closed[0] > closed[-1]
    assert found == ["20130101", "20130102", "20130103"]
