"""A world that was prepared once, and of which each case begins anew: a template database, and a copy of the store."""

import copy
import shutil
from dataclasses import dataclass
from datetime import UTC, datetime

from tests.concurrency.process import Place, ledger_of_case
from tests.weir.restoring import run_days
from tests.weir.small_dataflow import Saved, World

from weir.dataflow import Dataflow, Stage, blocking, keyed_state, list_state, sink, source

AIRCRAFT, COUNTS = "aircraft-known", "counts-counted"
COMPACTION = f"weir_compact-{AIRCRAFT}"


def run_of(day):
    return f"scheduled__2013-01-{day:02d}"


def flow(name="ladder"):
    """Flights change the history of the aircraft, and are counted. Nothing is kept longer than it has to be."""
    states = (
        keyed_state("history", key="k", schema="k BIGINT, n BIGINT", runs=2),
        keyed_state("whole", key="k", schema="k BIGINT, n BIGINT", incremental=False),  # no later epoch names its files
        list_state("offsets"),
    )
    return Dataflow(
        name,
        [
            source("flights", "m:flights"),
            Stage("aircraft", "m:aircraft", [blocking("flights", by="k")], parallelism=2, state=states),
            sink("aircraft", "known"),
            Stage("counts", "m:counts", [blocking("flights", by="k")], parallelism=2),
            sink("counts", "counted"),
        ],
        keep="end_of_run",
        retained_checkpoints=1,
    )


def build(world):
    """Four days: two are closed, the third waits for its close, the fourth for its state. Nothing was released yet.

    A person has cleared the counts and the close of the second day.
    """
    airflow = world.airflow
    airflow.time = datetime.now(UTC)  # leases end by the database's clock
    airflow.collects = False
    run_days(airflow, 1, 2)
    airflow.dag_run(3)
    for task in ("flights", AIRCRAFT, COUNTS):
        _do(airflow, 3, task)
    airflow.dag_run(4)
    _do(airflow, 4, "flights")
    for subtask in (0, 1):
        airflow.clear_by_hand(run_of(2), COUNTS, subtask)
    airflow.clear_by_hand(run_of(2), "weir_close")


def _do(airflow, day, task_id):
    for key, task in list(airflow.tasks.items()):
        if (key.run_id, key.task_id) == (run_of(day), task_id):
            airflow.step(task)
            assert task.state == "success"


@dataclass
class Template:
    """A world as it was when it was saved, in `database` and in a folder; each case is in the folder where it was."""

    admin: object
    database: str
    saved: object
    live: object
    state: dict
    content: dict
    ledger: object
    current: str = ""
    number: int = 0

    @classmethod
    def build(cls, admin, url, folder):
        live, database = folder / "live", url.rpartition("/")[2]
        live.mkdir()
        made = cls(admin, database, folder / "saved", live, {}, {}, None, current=database)
        made.ledger = ledger_of_case(url, lambda: made.current)
        world = World(live, flow(), lambda: made.ledger)
        build(world)
        made.state = {name: copy.deepcopy(getattr(world.airflow, name)) for name in Saved.STATE}
        made.content = dict(world.content)
        made.ledger.close()
        shutil.copytree(live, made.saved)
        return made

    def begin(self):
        """The world of a new case."""
        self.end()
        self.number += 1
        self.current = f"{self.database}_{self.number}"
        self.admin.exec_driver_sql(f'CREATE DATABASE "{self.current}" TEMPLATE "{self.database}"')
        shutil.rmtree(self.live)
        shutil.copytree(self.saved, self.live)
        world = World(self.live, flow(), lambda: self.ledger)
        world.content.update(self.content)
        world.airflow.collects = False
        for name, value in copy.deepcopy(self.state).items():
            setattr(world.airflow, name, value)
        return world

    def place(self, world):
        return Place(database=self.current, store=world.store.url, time=world.airflow.time, content=dict(world.content))

    def end(self):
        self.ledger.close()
        if self.current != self.database:
            self.admin.exec_driver_sql(f'DROP DATABASE IF EXISTS "{self.current}" WITH (FORCE)')
            self.current = self.database
