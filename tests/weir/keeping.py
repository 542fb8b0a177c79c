"""A dataflow that keeps a history from day to day, days of it, and what it has kept."""

from sqlalchemy import select

from weir.dataflow import Dataflow, Stage, blocking, keyed_state, sink, source
from weir.formats.codec import from_json
from weir.formats.manifest import Manifest
from weir.ledger.database.tables import ResultRow


def epoch(day):
    return f"201301{day:02d}T000000Z"


def aircraft(parallelism=1, history=None, states=(), **more):
    """Each day's flights change the history of the aircraft, declared by `history`, and `states` besides."""
    return Dataflow(
        "ladder",
        [
            source("flights", "pipelines.ladder:flights"),
            Stage(
                "aircraft",
                "pipelines.ladder:aircraft",
                [blocking("flights", by="k")],
                parallelism=parallelism,
                state=(keyed_state("history", key="k", schema="k BIGINT, n BIGINT", **(history or {})), *states),
            ),
            sink("aircraft", "known"),
        ],
        **{"keep": "60 days", **more},
    )


def run_days(world, *days):
    world.run_days(*days)


def manifest_of(world, day, subtask=0):
    """What a subtask has kept at the end of a day."""
    with world.ledger.transaction() as session:
        query = select(ResultRow.folder).where(
            ResultRow.run == f"ladder@{epoch(day)}",
            ResultRow.stage == "history",
            ResultRow.subtask == subtask,
            ResultRow.is_current,
        )
        folder = session.scalar(query)
    return from_json(Manifest, world.store.read(f"{folder}/manifest.json"))
