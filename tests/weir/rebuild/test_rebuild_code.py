"""A rebuilt ledger knows the code of runs, attempts and results as the lost one did."""

import pytest
from sqlalchemy import select
from tests.weir.small_dataflow import World, ladder

from weir.execution.run_state import Obstacle
from weir.formats.paths import archive_path, archives_folder
from weir.ledger.code import archives_of, generations_of
from weir.ledger.database.tables import AttemptRow, ResultRow, RunRow
from weir.ledger.runs import run_by_id
from weir.ledger.snapshot import run_state
from weir.rebuild.rebuild import rebuild
from weir.topology.regions import RegionId

FIRST, RUN = "scheduled__2013-01-01", "ladder@20130101T000000Z"


@pytest.fixture
def world(world):
    """A run of which totals were computed by newer code, one of them with the same content as before."""
    world.old = world.deploy()
    world.run_first(1)
    world.new = world.deploy(totals=1)
    world.airflow.clear_by_hand(FIRST, "routes")
    world.airflow.clear_by_hand(FIRST, "totals", 0)
    world.airflow.run_until_quiet()
    return world


def lost_and_rebuilt(world):
    world.lose_ledger()
    (built,) = rebuild(world.services)
    return built


def known(world):
    """What the ledger knows of code, and what follows."""
    with world.ledger.transaction() as session:
        run = run_by_id(session, RUN)
        state = run_state(session, run)
        results = session.scalars(select(ResultRow).where(ResultRow.is_current))
        current = {row.attempt for row in session.scalars(select(ResultRow).where(ResultRow.is_current))}
        attempts = session.scalars(select(AttemptRow).where(AttemptRow.id.in_(current)))
        regions = {each.name for each in run.topology.region_ids()}
        return {
            "archives": {row.fingerprint: row.bytes for row in archives_of(session, "ladder")},
            "run": session.get_one(RunRow, RUN).archive,
            "attempts": {row.id: (row.code, row.archive, row.generation) for row in attempts},
            "versions": {(row.stage, row.subtask, row.layout): row.versions for row in results},
            "valid": {each: state.is_valid(each) for each in state.results},
            "behind": {each: Obstacle.OLDER_CODE in state.obstacles(each) for each in state.results},
            "current": {
                (each.region, each.generation) for each in generations_of(session, RUN, regions) if each.is_current
            }
            & {("totals", each.generation) for each in generations_of(session, RUN, {"totals"})},
        }


def test_code_generations_and_versions_are_as_before(world):
    before = known(world)
    built = lost_and_rebuilt(world)
    after = known(world)
    newest = max(before["current"], key=lambda each: each[1].number)
    assert after.pop("current") == {newest}
    before.pop("current")
    assert after == before
    assert built.notes == built.runs[0].notes == built.runs[0].missing == ()
    assert set(before["archives"]) == {world.old.fingerprint, world.new.fingerprint}


def test_a_second_rebuild_changes_nothing(world):
    lost_and_rebuilt(world)
    before = known(world)
    rebuild(world.services)
    assert known(world) == before


def test_a_rebuild_of_a_present_ledger_keeps_what_it_knows_of_code(world):
    before = known(world)
    rebuild(world.services)
    after = known(world)
    assert {**after, "current": before["current"]} == before


def test_a_stage_whose_second_subtask_is_behind_is_so_after_a_rebuild(world):
    """The newer code had other content, and the process was lost before the sibling was computed by it."""
    world.deploy(totals=2)
    world.airflow.clear_by_hand(FIRST, "totals", 0)
    world.airflow.step(world.airflow.task(FIRST, "totals", 0))
    before = known(world)
    assert [each.subtask for each, is_behind in before["behind"].items() if is_behind] == [1]
    lost_and_rebuilt(world)
    after = known(world)
    assert [each.subtask for each, is_behind in after["behind"].items() if is_behind] == [1]
    for name in ("behind", "valid"):
        assert after[name].items() <= before[name].items()  # what had become stale is left out
    world.airflow.clear_by_hand(FIRST, "weir_close")
    world.airflow.run_until_quiet()
    assert set(world.airflow.states().values()) == {"success"}
    versions = {tuple(made) for (stage, *_), made in known(world)["versions"].items() if stage == "totals"}
    assert len(versions) == 1


def test_what_is_lost_afterwards_is_computed_by_the_code_that_made_it(world):
    lost_and_rebuilt(world)
    world.deploy(totals=7, joined=7)
    with world.ledger.transaction() as session:
        rows = session.scalars(select(ResultRow).where(ResultRow.is_current)).all()
        before = {(row.stage, row.subtask): row.digest for row in rows}
        (folder,) = [row.folder for row in rows if (row.stage, row.subtask) == ("totals", 1)]
    world.store.delete_folder(folder)
    world.airflow.clear_by_hand(FIRST, "report-delays")
    world.airflow.run_until_quiet()
    assert set(world.airflow.states().values()) == {"success"}
    with world.ledger.transaction() as session:
        rows = session.scalars(select(ResultRow).where(ResultRow.is_current)).all()
        anew = select(AttemptRow).where(AttemptRow.region == "totals", AttemptRow.origin != "rebuilt")
        (again,) = session.scalars(anew)
    assert {(row.stage, row.subtask): row.digest for row in rows} == before
    assert again.archive == world.new.fingerprint


def test_of_several_files_of_an_archive_one_that_is_whole_is_entered(world):
    folder = archives_folder("ladder")
    with world.ledger.transaction() as session:
        damaged = {row.fingerprint: row.path for row in archives_of(session, "ladder")}[world.old.fingerprint]
    world.store.replace(damaged, b"no zip")
    other = archive_path("ladder", world.old.fingerprint, "ffffffff")
    world.store.create(other, world.old.data)
    world.store.create(f"{folder}/notes.txt", b"mine")
    built = lost_and_rebuilt(world)
    with world.ledger.transaction() as session:
        paths = {row.fingerprint: row.path for row in archives_of(session, "ladder")}
    assert paths[world.old.fingerprint] == other
    (note,) = built.notes
    assert note.startswith(f"{damaged} is damaged, so it is left out: ")


def test_an_archive_whose_file_is_gone_is_forgotten(world):
    with world.ledger.transaction() as session:
        path = {row.fingerprint: row.path for row in archives_of(session, "ladder")}[world.old.fingerprint]
    world.store.delete(path)
    rebuild(world.services)
    with world.ledger.transaction() as session:
        assert [row.fingerprint for row in archives_of(session, "ladder")] == [world.new.fingerprint]


def test_a_file_that_is_about_to_be_deleted_is_not_entered_again(world):
    with world.ledger.transaction("ladder") as session:
        (row,) = [row for row in archives_of(session, "ladder") if row.fingerprint == world.old.fingerprint]
        row.deleting_at = world.airflow.time
        path = row.path
    rebuild(world.services)
    with world.ledger.transaction() as session:
        (row,) = [row for row in archives_of(session, "ladder") if row.fingerprint == world.old.fingerprint]
        assert (row.path, row.deleting_at is not None) == (path, True)
    other = archive_path("ladder", world.old.fingerprint, "ffffffff")
    world.store.create(other, world.old.data)
    rebuild(world.services)
    with world.ledger.transaction() as session:
        (row,) = [row for row in archives_of(session, "ladder") if row.fingerprint == world.old.fingerprint]
        assert (row.path, row.deleting_at) == (other, None)


def test_results_of_an_older_weir_have_no_versions(tmp_path):
    world = World(tmp_path, ladder())
    world.run_first(1)
    lost_and_rebuilt(world)
    with world.ledger.transaction() as session:
        attempts = session.scalars(select(AttemptRow)).all()
        assert {(row.code, row.archive, row.generation) for row in attempts} == {(None, None, None)}
        assert session.get_one(RunRow, RUN).archive is None
        region = RegionId("joined", 0)
        assert run_state(session, run_by_id(session, RUN)).region(region).committed_generation == 0
