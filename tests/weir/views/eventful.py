"""A world in which everything that a person asks about has happened: a loss, a warned check, state, a target away."""

from __future__ import annotations

from contextlib import contextmanager

from sqlalchemy import select
from tests.weir.checking import NOT_NULL, UNIQUE, with_suites, write_suite
from tests.weir.cli.commands.test_standing import rest
from tests.weir.notifications import receiving
from tests.weir.reading.parquet_world import ReaderWorld
from tests.weir.reading.state_world import keeps_state
from tests.weir.sinks.file_target import FileTarget

from weir.dataflow import Dataflow, Stage, blocking, callback, expectations, keyed_state, sink, source, target
from weir.ledger.database.tables import ResultRow

RUN = "scheduled__2013-01-0{}"
HOSTILE = "<script>alert(1)</script>"


def eventful(lake):
    """Flights by key into clean, which is checked, and that into a stage that keeps history, with a target."""
    return Dataflow(
        "ladder",
        [
            source("flights", "pipelines.ladder:flights", parallelism=2),
            Stage(
                "clean",
                "pipelines.ladder:clean",
                [blocking("flights", by="content")],
                parallelism=2,
                quality=expectations("clean_rows"),
            ),
            Stage(
                "aircraft",
                "pipelines.ladder:aircraft",
                [blocking("clean", by="content")],
                parallelism=2,
                state=keyed_state("history", key="tail", schema="tail STRING, n BIGINT"),
            ),
            sink("aircraft", "known", to=target("tests.weir.sinks.file_target:FileTarget", folder=str(lake))),
        ],
        keep="60 days",
        retained_checkpoints=2,
        notify=[callback("tests.weir.notifications.receiving:tell", receiver="<b>phone", who="phone")],
    )


def after_all(folder):
    """Four days, of which the second has lost a partition and was repaired, while a check warns.

    The target and the receiver do not answer from the publication of the third on: the fourth waits for the target.
    """
    lake = folder / "lake"
    lake.mkdir(parents=True)
    world = keeps_state(ReaderWorld(folder, eventful(lake)))
    write_suite(with_suites(world), "clean_rows", NOT_NULL, (UNIQUE, {"severity": "warning"}))
    world.content["flights"] = "rows of day 1"
    world.run(1)
    world.airflow.engine._engine.violated["clean"] = {UNIQUE}
    world.content["flights"] = "rows of day 2"
    world.run(2)
    lose(world, "flights", 0, day=2)
    world.airflow.clear_by_hand(RUN.format(2), "clean", 1)
    world.airflow.run_until_quiet()
    with receiver_away():
        FileTarget.step = staticmethod(lambda what: (lake / "away").touch() if what == "commit" else None)
        world.airflow.dag_run(3)
        rest(world)
        FileTarget.step = staticmethod(lambda _: None)
        world.airflow.dag_run(4)
        rest(world)
    return world


@contextmanager
def receiver_away():
    receiving.away.add("phone")
    yield
    receiving.away.discard("phone")


def lose(world, stage, subtask, *, day):
    """Delete the files of the current result of a subtask of a day."""
    with world.ledger.transaction() as session:
        query = select(ResultRow.folder).where(ResultRow.stage == stage, ResultRow.subtask == subtask)
        of_day = ResultRow.run.endswith(f"@201301{day:02}T000000Z")
        (folder,) = session.scalars(query.where(of_day, ResultRow.is_current))
    world.store.delete_folder(folder)
