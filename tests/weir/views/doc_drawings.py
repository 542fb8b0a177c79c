"""The drawings of docs/figures that explain terms: `.venv/bin/python tests/weir/views/doc_drawings.py` draws them anew.

They are drawn by what draws pages and `--svg` files, of runs of small dataflows under the fake Airflow.
"""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).parents[3]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from tests.builders.ledgers import fast_folder  # noqa: E402
from tests.weir.small_dataflow import World  # noqa: E402  a script finds only what is beside it

from weir.dataflow import Dataflow, Stage, blocking, cached, keyed_state, pipelined, previous, sink, source  # noqa: E402
from weir.ledger.runs import run_by_id  # noqa: E402
from weir.ledger.snapshot import run_state  # noqa: E402
from weir.testing.fakes.engine import FakeEngine  # noqa: E402
from weir.views.charts import chart_file_of_bytes  # noqa: E402
from weir.views.checkpoints import checkpoint_views  # noqa: E402
from weir.views.drawings import drawing_of, svg_file  # noqa: E402
from weir.views.graphs import graph_of  # noqa: E402

FIGURES = ROOT / "docs" / "figures"
MB = 1_000_000
COLUMNS = ("k", "origin", "carrier", "route", "customer")
SCHEMA = json.dumps(
    {"type": "struct", "fields": [{"name": name, "type": "long", "nullable": True, "metadata": {}} for name in COLUMNS]}
)


def read(name, **more):
    return source(name, f"pipelines.flights:{name}", **more)


def stage(name, *inputs, **more):
    return Stage(name, f"pipelines.flights:{name}", list(inputs), **more)


DELAYS = [
    read("flights", parallelism=3),
    stage("clean", pipelined("flights"), parallelism=3),
    read("weather"),
    stage("joined", blocking("clean", by="origin"), blocking("weather", by="origin"), parallelism=3),
    stage("carriers", blocking("joined", by="carrier"), parallelism=2),
    stage("routes", blocking("joined", by="route")),
    stage("report", blocking("carriers"), pipelined("routes")),
    sink("report", "delays"),
]
"""Flights are cleaned and joined with the weather; what is computed from them is reported."""

BYTES = {
    "rates": 30_000,
    "priced": 90 * MB,
    "scored": 60 * MB,
    "customers": 8 * MB,
    "clean": 40 * MB,
    "weather": 2 * MB,
    "joined": 55 * MB,
    "carriers": MB,
    "routes": 3 * MB,
}

EXCHANGES = [
    read("orders", parallelism=3),
    stage("priced", pipelined("orders"), blocking("rates", broadcast=True), parallelism=3),
    read("rates"),
    stage("checked", blocking("priced", pointwise=True), parallelism=3),
    stage("scored", cached("checked"), parallelism=3),
    stage(
        "customers",
        blocking("scored", by="customer"),
        previous("customers", by="customer", schema="customer LONG"),
        parallelism=2,
    ),
    sink("customers", "sales"),
]
"""An exchange of each kind."""


class WithColumns(FakeEngine):
    """Its results have all columns by which these dataflows read."""

    def _write_of(self, *args):
        return replace(super()._write_of(*args), spark_schema=SCHEMA)


@contextmanager
def world_of(stages, **more):
    with fast_folder() as folder:
        world = World(folder, Dataflow("flights", stages, **more))
        world.airflow.engine = WithColumns(world.store, world.content)
        world.airflow.engine.padding |= BYTES
        yield world
        world.ledger.close()


def drawn(world, day):
    """The drawing of the run of a day as it is now."""
    with world.ledger.transaction() as session:
        run = run_by_id(session, f"flights@201301{day:02}T000000Z")
        graph = graph_of(session, run, run_state(session, run))
    untimed = (
        replace(region, subtasks=tuple(replace(each, seconds=None) for each in region.subtasks))
        for region in graph.regions
    )
    return svg_file(drawing_of(replace(graph, regions=tuple(untimed))))  # nothing takes time under the fake Airflow


def regions():
    """A run that is over."""
    with world_of(DELAYS) as world:
        world.run_first(1)
        return drawn(world, 1)


def exchanges():
    """A run that is over, of a dataflow with each kind of exchange."""
    with world_of(EXCHANGES) as world:
        world.run_first(1)
        return drawn(world, 1)


def backtracking():
    """A result was lost, and the task that found it missing waits for it."""
    moments = []
    with world_of(DELAYS) as world:
        (run_id,) = world.run_days(1)
        world.lose("clean", 2)
        world.airflow.clear_by_hand(run_id, "joined", 1)
        world.airflow.during = lambda _: moments.append(drawn(world, 1))
        world.airflow.run_until_quiet()
    return moments[0]


def checkpoints():
    """Some epochs of a state, of which each changes a part."""
    state = keyed_state("history", key="k", schema="k BIGINT, n BIGINT", budget="1 MB")
    stages = [
        read("flights"),
        stage("aircraft", blocking("flights", by="k"), state=state, parallelism=2),
        sink("aircraft", "fleet"),
    ]
    with world_of(stages, retained_checkpoints=8, keep="60 days") as world:
        for day in range(1, 7):
            world.airflow.engine.padding["history"] = (14 if day == 1 else 2 + day % 3) * MB
            world.run_days(day)
        return chart_file_of_bytes(checkpoint_views(world.services, "flights", looks=False))


DRAWINGS = {each.__name__: each for each in (regions, exchanges, backtracking, checkpoints)}


if __name__ == "__main__":
    for name, draw in DRAWINGS.items():
        (FIGURES / f"{name}.svg").write_text(draw())
