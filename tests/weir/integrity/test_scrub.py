"""A scrub finds bad results and has them recomputed before a region reads them; every byte is read in turn."""

from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import select

from weir.dataflow.retention_settings import RetentionSettings
from weir.errors import Retryable
from weir.integrity.scrub import scrub_dataflow
from weir.integrity.verify import BAD, VerifyOutcome, verify_results
from weir.ledger.database.tables import FailoverRow, LeaseRow, PendingClearRow, PublicationRow, ResultRow, RunRow
from weir.restarts.recovery_settings import RecoverySettings

EVERYTHING = RetentionSettings(scrub_share=1.0)


@pytest.fixture
def closed(world):
    """A run that has gone through and is kept; all of it is scrubbed at once."""
    world.run_first(1)
    world.services = replace_life(world, EVERYTHING)
    return world


def replace_life(world, life):
    return replace(world.services, retention=life)


def rows(world, stage=None, subtask=None):
    with world.ledger.transaction() as session:
        found = list(session.scalars(select(ResultRow).order_by(ResultRow.id)))
    return [row for row in found if stage in (None, row.stage) and subtask in (None, row.subtask)]


def flip(world, row):
    """Change one byte of the body of a result's only file."""
    path = f"{row.folder}/part-0.bin"
    data = bytearray(world.store.read(path))
    data[3] ^= 1
    world.store.replace(path, bytes(data))


def scrubbed(world):
    return scrub_dataflow(world.services, world.airflow, "ladder")


def outcomes(found):
    return {(each.stage, each.subtask): each.outcome for each in found.bad}


def test_what_is_whole_is_verified(closed):
    found = scrubbed(closed)
    assert found.results == len(rows(closed))
    assert found.bytes == sum(row.bytes for row in rows(closed))
    assert found.bad == ()
    assert all(row.verified_at == closed.airflow.time for row in rows(closed))


def test_no_lease_is_left(closed):
    scrubbed(closed)
    with closed.ledger.transaction() as session:
        assert list(session.scalars(select(LeaseRow))) == []


def test_a_kept_intermediate_with_a_flipped_bit_is_recomputed(closed):
    (bad,) = rows(closed, "joined", 1)
    flip(closed, bad)
    found = scrubbed(closed)
    assert outcomes(found) == {("joined", 1): VerifyOutcome.LOST}
    assert [each.owed for each in found.repairs] == [1]
    closed.airflow.run_until_quiet()
    old, new = rows(closed, "joined", 1)
    assert (old.state, new.state, new.digest) == ("superseded", "finished", old.digest)
    executed = closed.airflow.executed("scheduled__2013-01-01")
    assert {name for name, tries in executed.items() if tries > 1} == {"joined[1]"}
    with closed.ledger.transaction() as session:
        (failover,) = session.scalars(select(FailoverRow))
        assert failover.kind == "scrub"


def test_a_published_result_is_made_and_published_again(closed):
    (bad,) = rows(closed, "delays")
    flip(closed, bad)
    scrubbed(closed)
    closed.airflow.run_until_quiet()
    with closed.ledger.transaction() as session:
        versions = list(session.scalars(select(PublicationRow).order_by(PublicationRow.version)))
    _, new = rows(closed, "delays")
    assert [each.folders for each in versions] == [[bad.folder], [new.folder]]


def owed(world):
    with world.ledger.transaction() as session:
        return [row.region for row in session.scalars(select(PendingClearRow))]


def let(world, hours):
    world.airflow.time += timedelta(hours=hours)


def test_with_scrub_repair_off_a_loss_is_only_reported(closed):
    closed.services = replace_life(closed, replace(EVERYTHING, scrub_repair=False))
    flip(closed, rows(closed, "joined", 1)[0])
    assert outcomes(scrubbed(closed)) == {("joined", 1): VerifyOutcome.LOST}
    assert owed(closed) == []


def test_an_unneeded_bad_result_is_released_and_not_repaired(world):
    world.airflow.flow = replace(world.airflow.flow, keep="1 day")
    world.run_first(1)
    world.services = replace_life(world, EVERYTHING)
    let(world, 25)
    flip(world, rows(world, "joined", 1)[0])
    found = scrubbed(world)
    assert outcomes(found) == {("joined", 1): VerifyOutcome.UNNEEDED}
    assert (rows(world, "joined", 1)[0].state, found.repairs, owed(world)) == ("released", (), [])


def test_released_inputs_of_a_bad_result_are_recomputed_with_it(world):
    world.airflow.flow = replace(world.airflow.flow, keep="on_consumed")
    world.run_first(1)
    world.services = replace_life(world, EVERYTHING)
    (bad,) = rows(world, "delays")
    flip(world, bad)
    assert outcomes(scrubbed(world)) == {("delays", 0): VerifyOutcome.LOST}
    world.airflow.run_until_quiet()
    new = rows(world, "delays")[-1]
    assert (new.digest, new.state, new.is_current) == (bad.digest, "finished", True)


def test_a_damaged_file_that_is_published_of_an_older_attempt_is_published_anew(closed):
    old = rows(closed, "delays")[0]
    closed.airflow.clear_by_hand("scheduled__2013-01-01", "report-delays")
    closed.airflow.run_until_quiet()
    assert [row.is_current for row in rows(closed, "delays")] == [False, True]
    flip(closed, old)
    found = scrubbed(closed)
    assert outcomes(found) == {("delays", 0): VerifyOutcome.LOST}
    assert [each.owed for each in found.repairs] == [1]
    assert owed(closed) == ["weir_close"]
    closed.airflow.run_until_quiet()
    with closed.ledger.transaction() as session:
        newest = session.scalar(select(PublicationRow).order_by(PublicationRow.version.desc()))
    assert newest.folders == [rows(closed, "delays")[1].folder]


def test_a_bad_result_is_recomputed_before_its_reader_begins(world):
    world.airflow.dag_run()
    world.services = replace_life(world, EVERYTHING)
    world.airflow.during = lambda key: corrupted_by(world, key)
    world.airflow.run_until_quiet()
    executed = world.airflow.executed("scheduled__2013-01-01")
    assert {name for name, tries in executed.items() if tries > 1} == {"joined[0]"}
    with world.ledger.transaction() as session:
        assert [row.kind for row in session.scalars(select(FailoverRow))] == ["scrub"]


def corrupted_by(world, key):
    """Damage joined[0] while joined[1] is computed, and scrub."""
    if key.task_id == "joined" and key.map_index == 1 and rows(world, "joined", 0):
        flip(world, rows(world, "joined", 0)[0])
        scrubbed(world)
        world.airflow.during = lambda _key: None


def test_a_dag_run_that_was_deleted_is_left_alone(closed):
    flip(closed, rows(closed, "joined", 1)[0])
    with closed.ledger.transaction("ladder") as session:
        session.scalar(select(RunRow)).deleted_at = closed.airflow.time
    (repair,) = scrubbed(closed).repairs
    assert (repair.owed, "no such DagRun" in repair.said) == (0, True)


def test_a_store_that_has_lost_most_is_left_to_a_person(closed):
    closed.services = replace(closed.services, recovery=RecoverySettings(largest_plan=0.2))
    for row in rows(closed):
        flip(closed, row)
    (repair,) = scrubbed(closed).repairs
    assert "is it the right store" in repair.said
    assert owed(closed) == []
    with closed.ledger.transaction() as session:
        assert [row.kind for row in session.scalars(select(FailoverRow))] == ["held back"]


def test_airflow_that_cannot_be_reached_leaves_the_clears_pending(closed):
    flip(closed, rows(closed, "joined", 1)[0])

    class Away:
        def clear(self, wanted):
            raise Retryable("no answer")

    found = scrub_dataflow(closed.services, Away(), "ladder")
    assert not found.is_settled
    assert "the clears are pending" in str(found)
    closed.airflow.deliver_clears()
    closed.airflow.run_until_quiet()
    assert rows(closed, "joined", 1)[-1].state == "finished"


def test_an_hour_has_its_share_and_no_more(closed):
    closed.services = replace_life(closed, RetentionSettings(scrub_share=0.25))
    total = sum(row.bytes for row in rows(closed))
    assert [scrubbed(closed).bytes for _ in range(3)] == [160, 0, 0]
    let(closed, 1)
    assert scrubbed(closed).bytes <= 0.25 * total + 80
    let(closed, 48)
    assert scrubbed(closed).bytes <= 0.25 * total + 80  # what was not read while upkeep was away is not read at once


def test_in_time_all_has_its_turn_the_oldest_first(closed):
    closed.services = replace_life(closed, RetentionSettings(scrub_share=0.25))
    scrubbed(closed)
    assert [row.verified_at is not None for row in rows(closed)] == [True, True] + [False] * 7
    for _ in range(6):
        let(closed, 1)
        scrubbed(closed)
    assert all(row.verified_at is not None for row in rows(closed))


def test_a_result_that_is_larger_than_an_hours_share_has_its_turn_too(closed):
    closed.services = replace_life(closed, RetentionSettings(scrub_share=0.01))  # 7.2 of 720 bytes
    read = []
    for _ in range(24):
        read.append(scrubbed(closed).bytes)
        let(closed, 1)
    assert sum(read) == 160  # two results of 80 bytes in the time in which 172.8 may be read
    assert read[0] == 0


def test_without_a_share_nothing_is_read(closed):
    closed.services = replace_life(closed, RetentionSettings(scrub_share=0.0))
    assert str(scrubbed(closed)) == "0 result(s) read again, 0 bytes, 0 bad"


def test_a_store_that_is_not_there_costs_no_share(closed):
    (closed.folder / "store").rename(closed.folder / "elsewhere")
    (closed.folder / "store").mkdir()
    with pytest.raises(Retryable):
        scrubbed(closed)
    (closed.folder / "store").rmdir()
    (closed.folder / "elsewhere").rename(closed.folder / "store")
    assert scrubbed(closed).results == 9


@pytest.mark.parametrize("database", ["postgresql"])
def test_on_postgresql(closed):
    flip(closed, rows(closed, "joined", 1)[0])
    assert [each.owed for each in scrubbed(closed).repairs] == [1]
    closed.airflow.run_until_quiet()
    assert all(row.state != "lost" for row in rows(closed))
    let(closed, 1)
    assert scrubbed(closed).bad == ()


def test_what_a_killed_scrub_had_found_is_repaired_by_the_next(closed):
    flip(closed, rows(closed, "joined", 1)[0])
    (found,) = [each for each in verify_results(closed.services, rows(closed), "killed") if each.outcome in BAD]
    assert (found.stage, owed(closed)) == ("joined", [])
    assert [each.owed for each in scrubbed(closed).repairs] == [1]
    assert scrubbed(closed).repairs == ()
