"""What is bad is found, and made again, before somebody trips over it; what is right is read in its turn."""

import pytest
from sqlalchemy import select

from weir.coordinator.scrub import scrub
from weir.coordinator.verify import Outcome
from weir.ledger.models import FailoverRow, LeaseRow, PublicationRow, ResultRow
from weir.results.life_settings import LifeSettings

EVERYTHING = LifeSettings(scrub_share=1.0)


@pytest.fixture
def closed(world):
    """A run that has gone through and is kept; all of it is scrubbed at once."""
    world.airflow.dag_run()
    world.airflow.run_until_quiet()
    world.services = replace_life(world, EVERYTHING)
    return world


def replace_life(world, life):
    services = world.services
    return type(services)(services.ledger, services.store, services.now, services.new_uuid, services.recovery, life)


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
    (found,) = scrub(world.services, world.airflow).dataflows
    return found


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


def test_a_flipped_bit_of_a_kept_intermediate_is_made_again(closed):
    (bad,) = rows(closed, "joined", 1)
    flip(closed, bad)
    found = scrubbed(closed)
    assert outcomes(found) == {("joined", 1): Outcome.LOST}
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
