"""An archive of code that is missing or damaged is found, and stored again by whoever has it."""

from dataclasses import replace
from datetime import timedelta

import pytest

from weir.dataflow.retention_settings import RetentionSettings
from weir.errors import Retryable
from weir.integrity.archives import archive_inconsistencies, scrubbed_archives
from weir.integrity.scrub import scrub_dataflow
from weir.ledger.code import archives_of, forget_archive

RUN, FIRST = "ladder@20130101T000000Z", "scheduled__2013-01-01"


@pytest.fixture
def world(world):
    """A run whose code is stored."""
    world.code = world.deploy()
    world.run_first(1)
    (world.file,) = [row.path for row in rows(world)]
    return world


def rows(world):
    with world.ledger.transaction() as session:
        return archives_of(session, "ladder")


def flip(world):
    data = bytearray(world.store.read(world.file))
    data[40] ^= 1
    world.store.replace(world.file, bytes(data))


def remove(world):
    world.store.delete(world.file)


def check(world):
    return archive_inconsistencies(world.services, [RUN])


def test_an_archive_that_is_whole_is_no_finding(world):
    assert check(world) == ()
    assert [row.path for row in rows(world)] == [world.file]


@pytest.mark.parametrize(("spoil", "found"), [(flip, "the code of runs: "), (remove, "found no such file")])
def test_an_archive_that_is_not_is_reported_and_forgotten(world, spoil, found):
    spoil(world)
    (bad,) = check(world)
    assert (bad.run, bad.path, bad.is_published) == (RUN, world.file, False)
    assert found in bad.detail
    assert rows(world) == []
    assert check(world) == ()


def test_the_next_begin_that_has_the_code_stores_it_again(world):
    flip(world)
    check(world)
    world.airflow.clear_by_hand(FIRST, "totals", 0)
    world.airflow.run_until_quiet()
    (row,) = rows(world)
    assert row.fingerprint == world.code.fingerprint
    assert row.path != world.file
    assert check(world) == ()
    assert set(world.airflow.states().values()) == {"success"}


def test_a_begin_that_has_other_code_is_told_what_is_lost(world):
    """What Weir computes again runs the code that made what was lost, which is gone. A clear of each stage mends it."""
    remove(world)
    check(world)
    world.deploy(joined=1)
    world.lose("joined", 0)
    world.airflow.clear_by_hand(FIRST, "routes")
    world.airflow.run_until_quiet()
    failed = world.airflow.task(FIRST, "joined", 0)
    assert failed.state == "failed"
    assert "is lost: clear a subtask of joined in Airflow" in failed.failed_because
    for stage in (("joined", 0), ("totals", 0), ("report-delays",)):
        world.airflow.clear_by_hand(FIRST, *stage)
        world.airflow.run_until_quiet()
    assert set(world.airflow.states().values()) == {"success"}


def test_what_a_run_does_not_name_is_not_looked_at(world):
    remove(world)
    assert archive_inconsistencies(world.services, []) == ()
    assert len(rows(world)) == 1


def test_while_the_store_does_not_answer_nothing_is_forgotten(world):
    store = world.folder / "store"
    store.rename(world.folder / "away")
    with pytest.raises(Retryable):
        check(world)
    (world.folder / "away").rename(store)
    assert len(rows(world)) == 1


def test_a_row_that_names_another_file_by_now_stays(world):
    with world.ledger.transaction("ladder") as session:
        assert not forget_archive(session, "ladder", world.code.fingerprint, world.file.replace("_code/", "_code/0"))
    assert [row.path for row in rows(world)] == [world.file]


def test_a_scrub_reports_it_and_each_archive_has_its_hour(world):
    remove(world)
    now = world.airflow.time
    hours = [now + timedelta(hours=each) for each in range(4)]
    found = [scrubbed_archives(world.services, "ladder", 0.25, each) for each in hours]
    assert sorted(len(each) for each in found) == [0, 0, 0, 1]
    assert scrubbed_archives(world.services, "ladder", 0.0, now) == ()


def test_a_scrub_of_all_names_the_archive(world):
    flip(world)
    services = replace(world.services, retention=RetentionSettings(scrub_share=1.0))
    found = scrub_dataflow(services, world.airflow, "ladder")
    assert [each.path for each in found.inconsistencies] == [world.file]
    assert found.repairs == ()
