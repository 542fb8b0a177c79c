"""A DAG file that declares its states otherwise than before: refused before anything runs, or gone on with."""

import pytest
from sqlalchemy import select
from tests.builders.ledgers import fast_folder
from tests.weir.small_dataflow import Saved, World

from weir.dataflow import Dataflow, Stage, blocking, keyed_state, list_state, sink, source
from weir.formats.codec import from_json
from weir.formats.manifest import Manifest, RowRange
from weir.ledger.database.tables import RestoreRow, ResultRow, RunRow
from weir.recovery.adopt import adopt

DAY = "201301{:02d}T000000Z"


def flow(*states, stage="aircraft", **more):
    keeper = Stage(stage, "p:aircraft", [blocking("flights", by="k")], state=states)
    return Dataflow("ladder", [source("flights", "p:flights"), keeper, sink(stage, "known")], keep="60 days", **more)


def history(schema="k BIGINT, n INT", **more):
    return keyed_state("history", key="k", schema=schema, **more)


@pytest.fixture(scope="module")
def first_day():
    """A day with a history by k, computed once."""
    with fast_folder() as folder:
        (folder / "world" / "store").mkdir(parents=True)
        world = World(folder / "world", flow(history()))
        world.run_first(1)
        yield Saved(world, folder / "saved")


@pytest.fixture
def run_day(world, monkeypatch):
    """Run a day with a dataflow; answers the state of its tasks, and keeps the jobs by epoch and region."""
    return running(world, monkeypatch)


@pytest.fixture
def after_first(first_day, tmp_path):
    """A world after the first day."""
    return first_day.go_on(tmp_path)


def running(world, monkeypatch):
    world.jobs = {}
    run = world.airflow.engine.run

    def noted(job, *more):
        world.jobs[job.epoch, job.region] = job
        return run(job, *more)

    monkeypatch.setattr(world.airflow.engine, "run", noted)

    def run_day(day, declared):
        world.airflow.deploy(declared)
        run_id = world.airflow.dag_run(day)
        world.airflow.run_until_quiet()
        of_run = [task for key, task in world.airflow.tasks.items() if key.run_id == run_id and not task.is_compaction]
        return {task.state for task in of_run} - {None}

    return run_day


def read_of(world, day, state="history", region="aircraft-known"):
    job = world.jobs[DAY.format(day), region]
    return next(each.state for stage in job.stages for each in stage.inputs if each.argument == state), job


def manifest_of(world, day):
    with world.ledger.transaction() as session:
        row = session.scalar(
            select(ResultRow).where(
                ResultRow.run == f"ladder@{DAY.format(day)}", ResultRow.stage == "history", ResultRow.is_current
            )
        )
        folder = row.folder
    return from_json(Manifest, world.store.read(f"{folder}/manifest.json"))


def refusals(world, day):
    of_day = [task for key, task in world.airflow.tasks.items() if f"-{day:02d}" in key.run_id]
    return {task.failed_because for task in of_day if task.failed_because}


@pytest.mark.parametrize(
    ("declared", "why"),
    [
        (flow(history("k STRING, n INT")), "the key column k was bigint and is now string"),
        (flow(history("k BIGINT, n DATE")), "the column n was int and is now date"),
        (flow(history(), max_parallelism=64), "divided into 128 key groups, and max_parallelism is 64"),
        (flow(history(ttl="7 days")), "had no ttl"),
        (flow(list_state("history")), "was a keyed state and is now a split one"),
        (flow(keyed_state("other", key="k", schema="k BIGINT")), "state 'history' is not declared any more"),
        (flow(), "state 'history' is not declared any more"),
    ],
)
def test_a_state_that_cannot_go_on_is_refused_before_anything_runs(after_first, monkeypatch, declared, why):
    assert running(after_first, monkeypatch)(2, declared) == {"failed"}
    told = refusals(after_first, 2)
    assert len(told) == 1
    assert why in told.pop()
    assert after_first.airflow.engine.computed == []
    with after_first.ledger.transaction() as session:
        assert list(session.scalars(select(RunRow.epoch))) == [DAY.format(1)]


def test_the_refused_day_runs_once_the_file_is_put_right(world, run_day):
    run_day(1, flow(history()))
    run_day(2, flow())
    world.airflow.deploy(flow(history()))
    world.airflow.clear_run_by_hand("scheduled__2013-01-02")
    world.airflow.run_until_quiet()
    assert set(world.airflow.states().values()) == {"success"}
    assert [file.epoch for file in manifest_of(world, 2).state.files] == [DAY.format(1), DAY.format(2)]


def test_a_new_state_starts_empty_beside_an_old_one_and_that_is_said(world, run_day):
    run_day(1, flow(history()))
    routes = keyed_state("routes", key="k", schema="k BIGINT, n INT")
    assert run_day(2, flow(history(), routes)) == {"success"}
    read, job = read_of(world, 2, "routes")
    assert (read.files, read.tallies) == ((), ())
    assert read_of(world, 2)[0].files
    assert f"state routes is new and starts empty: ladder@{DAY.format(1)} has kept none of this name" in job.notes
    assert run_day(3, flow(history(), routes)) == {"success"}
    assert len(read_of(world, 3, "routes")[0].files) == 1


def test_a_dataflow_gets_state_in_the_middle_of_its_life(world, run_day):
    run_day(1, flow())
    assert run_day(2, flow(history())) == {"success"}
    assert run_day(3, flow(history())) == {"success"}
    assert [file.epoch for file in manifest_of(world, 3).state.files] == [DAY.format(2), DAY.format(3)]


def test_a_stage_may_hand_its_state_on_to_another_one(world, run_day):
    run_day(1, flow(history()))
    assert run_day(2, flow(history(), stage="planes")) == {"success"}
    assert len(manifest_of(world, 2).state.files) == 2


def test_a_state_is_let_go_where_a_restore_says_so(world, run_day):
    run_day(1, flow(history()))
    with world.ledger.transaction("ladder") as session:
        session.add(
            RestoreRow(
                dataflow="ladder",
                epoch=DAY.format(1),
                lineage=2,
                origin="ladder",
                number=1,
                source="ladder/_checkpoints/1.json",
                mode="same",
                left_out=["history"],
                restored_at=world.services.now(),
            )
        )
    assert run_day(2, flow()) == {"success"}
    assert run_day(3, flow(history())) == {"success"}
    assert [file.epoch for file in manifest_of(world, 3).state.files] == [DAY.format(3)]


def test_a_new_column_has_the_rows_counted_anew_and_writes_only_what_changes(world, run_day):
    run_day(1, flow(history()))
    assert run_day(2, flow(history("k BIGINT, n BIGINT, seen DATE"))) == {"success"}
    read, _ = read_of(world, 2)
    assert (read.tallies, read.is_full) == (None, False)
    run_day(3, flow(history("k BIGINT, n BIGINT, seen DATE")))
    read, _ = read_of(world, 3)
    assert (read.tallies is None, read.is_full, len(read.files)) == (False, False, 2)


def test_a_dropped_column_has_all_of_the_state_written_once_so_that_it_cannot_come_back(world, run_day):
    run_day(1, flow(history()))
    assert run_day(2, flow(history("k BIGINT"))) == {"success"}
    read, _ = read_of(world, 2)
    assert (read.tallies, read.is_full) == (None, True)
    assert [file.epoch for file in manifest_of(world, 2).state.files] == [DAY.format(2)]
    assert run_day(3, flow(history("k BIGINT, n STRING"))) == {"success"}
    read, _ = read_of(world, 3)
    assert (read.tallies, read.is_full) == (None, False)


def test_what_has_expired_stays_so_when_rows_are_to_live_longer(world, run_day):
    run_day(1, flow(history(ttl="1 day")))
    run_day(2, flow(history(ttl="1 day")))
    assert len(manifest_of(world, 2).state.files) == 1  # of the first day's rows none is left
    assert run_day(3, flow(history(ttl="30 days"))) == {"success"}
    read, _ = read_of(world, 3)
    assert read.is_full
    assert read.expired_until == 1356998400  # the first day, as the second day saw it
    assert [file.epoch for file in manifest_of(world, 3).state.files] == [DAY.format(3)]
    run_day(4, flow(history(ttl="30 days")))
    assert not read_of(world, 4)[0].is_full


def test_a_blind_epoch_goes_on_from_a_digest_unless_it_has_to_be_exact(world, run_day):
    run_day(1, flow(history()))
    assert read_of(world, 1)[0].digest is None
    run_day(2, flow(history()))
    read, _ = read_of(world, 2)
    assert (read.epoch, read.digest, read.rows) == (DAY.format(2), str(manifest_of(world, 1).digest), RowRange(1, 1))
    assert read.replaced is None
    before = manifest_of(world, 2)
    world.airflow.clear_run_by_hand("scheduled__2013-01-02")
    world.airflow.run_until_quiet()
    replaced = read_of(world, 2)[0].replaced
    assert replaced.digest == str(before.digest)
    assert [file.path.rpartition("/")[2] for file in replaced.files] == [file.file.name for file in before.state.files]
    assert len(replaced.files) == 2


def test_the_first_epoch_with_another_ttl_is_exact(world, run_day):
    run_day(1, flow(history(ttl="30 days")))
    run_day(2, flow(history(ttl="20 days")))
    assert (read_of(world, 2)[0].digest, read_of(world, 2)[0].tallies is None) == (None, False)


def test_a_shorter_life_takes_effect_at_once_and_rewrites_nothing(world, run_day):
    for day in (1, 2, 3):
        run_day(day, flow(history(ttl="30 days")))
    assert run_day(4, flow(history(ttl="1 day"))) == {"success"}
    read, _ = read_of(world, 4)
    assert not read.is_full
    assert [file.epoch for file in read.files] == []


def test_a_run_that_is_adopted_is_checked_against_the_day_before(world, run_day):
    for day in (1, 2):
        run_day(day, flow(history()))
    adopt(world.services, "scheduled__2013-01-02")
    world.airflow.deploy(flow(history("k STRING, n INT")))
    world.airflow.clear_run_by_hand("scheduled__2013-01-02")
    world.airflow.run_until_quiet()
    assert any("the key column k was bigint and is now string" in note for note in refusals(world, 2))


def test_a_day_that_began_before_its_predecessor_is_checked_when_it_reads_it(world, run_day):
    world.airflow.deploy(flow(history()))
    first = world.airflow.dag_run(1)
    world.airflow.deploy(flow(history("k BIGINT, n DATE")))
    second = world.airflow.dag_run(2)
    world.airflow.step(world.airflow.task(second, "flights"))
    world.airflow.deploy(flow(history()))
    world.airflow.step(world.airflow.task(first, "flights"))
    world.airflow.run_until_quiet()
    assert any("the column n was int and is now date" in note for note in refusals(world, 2))
    assert world.airflow.task(first, "weir_close").state == "success"


def test_a_key_of_another_type_than_that_of_the_inputs_is_refused_in_the_first_epoch(world, run_day):
    assert run_day(1, flow(history("k STRING, n INT"))) == {"success", "failed"}
    notes = refusals(world, 1)
    assert notes
    for note in notes:
        assert "the keyed inputs of stage aircraft have different key types" in note
        assert "flights by k (bigint); history by k (string)" in note
    assert world.airflow.engine.computed == ["flights"]
