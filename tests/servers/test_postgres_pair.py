"""A primary and its replica: what is promised of commits when one takes the place of the other."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import create_engine
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import NullPool
from tests.servers.postgres_pair import running_pair

from weir.doctor.examination import Status, examine
from weir.doctor.ledger import LedgerExam
from weir.ledger.ledger import Ledger


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    with running_pair(tmp_path_factory.mktemp("pair")) as pair:
        yield pair


@pytest.fixture
def pair(started):
    """A pair whose primary has a replica."""
    if not started.replica.is_running():
        started.add_replica()
    return started


@pytest.fixture
def numbers(pair):
    """Execute a statement on the server that takes writes, as a client that knows both; a new table of numbers."""
    engine = create_engine(pair.url("numbers"), poolclass=NullPool)

    def run(statement):
        with engine.begin() as connection:
            result = connection.exec_driver_sql(statement)
            return [row[0] for row in result] if result.returns_rows else None

    run("DROP TABLE IF EXISTS numbers")
    run("CREATE TABLE numbers (n int)")
    run("INSERT INTO numbers VALUES (1)")
    return run


FOUND = "SELECT n FROM numbers ORDER BY n"


@pytest.mark.parametrize("is_frozen", [False, True])
def test_what_was_committed_is_there_when_the_replica_was_promoted(pair, numbers, is_frozen):
    if is_frozen:
        pair.primary.freeze()
    pair.fail_over()
    numbers("INSERT INTO numbers VALUES (2)")
    assert numbers(FOUND) == [1, 2]


def test_a_replica_that_was_cut_off_has_lost_what_was_committed_since(pair, numbers):
    pair.cut_replica()
    assert pair.missing_bytes() == 0
    numbers("INSERT INTO numbers VALUES (2)")
    assert pair.missing_bytes() > 0
    pair.fail_over()
    assert numbers(FOUND) == [1]


def test_the_primary_goes_on_without_its_replica_and_the_next_one_has_all(pair, numbers):
    pair.lose_replica()
    numbers("INSERT INTO numbers VALUES (2)")
    pair.add_replica()
    pair.fail_over()
    assert numbers(FOUND) == [1, 2]


def test_a_commit_waits_for_the_replica(pair, numbers):
    pair.replica.stop()
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(numbers, "INSERT INTO numbers VALUES (2)")
        with pytest.raises(TimeoutError):
            waiting.result(timeout=0.5)
        pair.replica.start()
        waiting.result(timeout=60)


def test_the_doctor_examines_the_primary_and_says_when_there_is_none(pair):
    url = pair.url("weir").replace("&target_session_attrs=read-write", "")
    Ledger.open(url).close()
    pair.fail_over()
    pair.add_replica()
    found = {each.name: each for each in examine([LedgerExam(url).checks()])}
    assert {each.status for each in found.values()} == {Status.OK}, found
    assert all(str(server.port) in found["place"].found for server in (pair.primary, pair.replica))
    assert pair.primary.password not in found["place"].found
    pair.primary.kill()
    found = {each.name: each for each in examine([LedgerExam(url).checks()])}
    assert found["answers"].status is Status.PROBLEM
    assert "session is read-only" in found["answers"].found
    pair.primary.start()


def test_while_there_is_only_a_replica_no_host_takes_writes(pair, numbers):
    pair.primary.kill()
    with pytest.raises(OperationalError, match="session is read-only"):
        numbers(FOUND)
    pair.primary.start()
    assert numbers(FOUND) == [1]
