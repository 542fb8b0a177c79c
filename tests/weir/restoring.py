"""A dataflow with state, days of it, and what its state is."""

from contextlib import contextmanager
from dataclasses import replace

from sqlalchemy import select
from tests.builders.ledgers import fast_folder
from tests.weir.small_dataflow import Saved, World

from weir.dataflow import Dataflow, Stage, blocking, keyed_state, list_state, sink, source
from weir.formats.checkpoint import Checkpoint
from weir.formats.codec import from_json, to_json
from weir.formats.manifest import Manifest, parsed_digest
from weir.formats.savepoint import SAVEPOINT
from weir.ledger.database.tables import AttemptRow, CheckpointRow, DataflowRow, ResultRow
from weir.snapshots.restore import RestoreRequest
from weir.snapshots.restore import restore as restore_snapshot
from weir.snapshots.savepoint import SavepointRequest, create
from weir.testing.fakes.airflow import FakeAirflow

EPOCHS = ("20130101T000000Z", "20130102T000000Z", "20130103T000000Z", "20130104T000000Z", "20130105T000000Z")


def aircraft(name="ladder", parallelism=2, states=None, **more):
    """Each day's flights change the history of the aircraft, and the list of what was read."""
    kept = states or (keyed_state("history", key="k", schema="k BIGINT, n BIGINT"), list_state("offsets"))
    return Dataflow(
        name,
        [
            source("flights", "pipelines.ladder:flights"),
            Stage(
                "aircraft",
                "pipelines.ladder:aircraft",
                [blocking("flights", by="k")],
                parallelism=parallelism,
                state=kept,
            ),
            sink("aircraft", "known"),
        ],
        **{"keep": "60 days", **more},
    )


HISTORY_FLOW = aircraft(parallelism=1, states=keyed_state("history", key="k", schema="k BIGINT"))
"""The smallest dataflow with state."""


@contextmanager
def two_saved_days():
    """Two days of state: a world of which each test has its own copy."""
    with fast_folder() as folder:
        (folder / "world" / "store").mkdir(parents=True)
        world = World(folder / "world", aircraft())
        run_days(world.airflow, 1, 2)
        yield Saved(world, folder / "saved")


def run_days(airflow, *days):
    for day in days:
        airflow.dag_run(day)
        airflow.run_until_quiet()


def states_of(world, day, dataflow="ladder"):
    """The digests of all state at the end of a day, by state and subtask."""
    with world.ledger.transaction() as session:
        return {
            (row.stage, row.subtask): row.digest
            for row in session.scalars(
                select(ResultRow).where(
                    ResultRow.run == f"{dataflow}@{EPOCHS[day - 1]}",
                    ResultRow.stage.in_(("history", "offsets")),
                    ResultRow.is_current,
                )
            )
        }


def rows_of(world, day, stage="history", dataflow="ladder"):
    """The current results of a state, by subtask."""
    with world.ledger.transaction() as session:
        query = select(ResultRow).where(
            ResultRow.run == f"{dataflow}@{EPOCHS[day - 1]}", ResultRow.stage == stage, ResultRow.is_current
        )
        return list(session.scalars(query.order_by(ResultRow.subtask)))


def files_of(world, day, subtask=0, dataflow="ladder"):
    """The files of the keyed state at the end of a day."""
    row = rows_of(world, day, dataflow=dataflow)[subtask]
    return from_json(Manifest, world.store.read(f"{row.folder}/manifest.json")).state.files


def checkpoints(world, dataflow="ladder"):
    """The epochs of retained checkpoints, by number."""
    with world.ledger.transaction() as session:
        query = select(CheckpointRow).where(
            CheckpointRow.dataflow == dataflow, CheckpointRow.subsumed_at.is_(None), CheckpointRow.status == "completed"
        )
        return {row.number: row.epoch for row in session.scalars(query) if not row.folder}


def lineage_of(world, dataflow="ladder"):
    with world.ledger.transaction() as session:
        return session.scalar(select(DataflowRow.lineage).where(DataflowRow.name == dataflow))


def attempts_of_day(world, day, dataflow="ladder"):
    with world.ledger.transaction() as session:
        query = select(AttemptRow).where(AttemptRow.run == f"{dataflow}@{EPOCHS[day - 1]}")
        return list(session.scalars(query.order_by(AttemptRow.began_at)))


def restore(world, source, **more):
    """Restore, as the command line does."""
    return restore_snapshot(world.services, RestoreRequest("ladder", str(source), **more))


def second_airflow(world, flow):
    """Another DAG on the same ledger and store."""
    airflow = FakeAirflow(world.services, world.airflow.engine, flow)
    airflow.time = world.airflow.time
    return airflow


def keep_savepoints(world, *days):
    """Make a savepoint of each day, named after it."""
    numbers = {epoch: number for number, epoch in checkpoints(world).items()}
    for day in days:
        asked = SavepointRequest("ladder", numbers[EPOCHS[day - 1]], name=f"day{day}")
        create(world.services, asked)


def record_other_rows(world, day, subtask=0, **other):
    """Let the savepoint of a day record other rows of the keyed state than its files have; the digest of before."""
    path = f"ladder/_savepoints/day{day}/{SAVEPOINT}"
    savepoint = from_json(Checkpoint, world.store.read(path))
    (history,) = [state for state in savepoint.states if state.state.name == "history"]
    parts = list(history.partitions)
    before = parts[subtask].digest
    recorded = parsed_digest(before)
    parts[subtask] = replace(parts[subtask], **(other or {"digest": str(replace(recorded, xor=recorded.xor ^ 1))}))
    states = tuple(
        replace(history, partitions=tuple(parts)) if state is history else state for state in savepoint.states
    )
    world.store.delete(path)
    world.store.create(path, to_json(replace(savepoint, states=states)))
    return before


def go_on(world):
    """Upkeep comes by, and what follows is done."""
    world.airflow.deliver_clears("ladder")
    world.airflow.run_until_quiet()


def spoil(world, day):
    """Compute a day again with other code, and what follows from it."""
    world.content["aircraft"] = "wrong"
    world.airflow.clear_run_by_hand(f"scheduled__2013-01-{day:02d}")
    world.airflow.run_until_quiet()
    del world.content["aircraft"]
