"""A small dataflow on a real ledger and a real store, under the fake Airflow: for scenarios of all folders of tests."""

import copy
import json
import shutil

from sqlalchemy import select
from tests.builders.ledgers import copied_ledger, new_ledger

from weir.coordination.services import Services
from weir.dataflow import Dataflow, Stage, blocking, pipelined, sink, source
from weir.ledger.database.tables import ResultRow
from weir.testing.fakes.airflow import FakeAirflow
from weir.testing.fakes.code import archive_of_edits
from weir.testing.fakes.engine import FakeEngine
from weir.testing.fakes.stores import FilesInMemory, store_in_memory


def ladder(parallelism: int = 2) -> Dataflow:
    """Raw into clean (pipelined), by key into joined with weather, by key into totals and routes, into a report."""
    return Dataflow(
        "ladder",
        [
            source("raw", "pipelines.ladder:raw", parallelism=parallelism),
            Stage("clean", "pipelines.ladder:clean", [pipelined("raw")], parallelism=parallelism),
            source("weather", "pipelines.ladder:weather"),
            Stage(
                "joined",
                "pipelines.ladder:joined",
                [blocking("clean", by="k"), blocking("weather", by="k")],
                parallelism=2,
            ),
            Stage("totals", "pipelines.ladder:totals", [blocking("joined", by="k")], parallelism=2),
            Stage("routes", "pipelines.ladder:routes", [blocking("joined", by="k")]),
            Stage("report", "pipelines.ladder:report", [blocking("totals"), blocking("routes")]),
            sink("report", "delays"),
        ],
    )


def apart():
    """The ladder, with a module for each stage: the version of code is that of a module."""
    record = ladder().to_json()
    functions = {
        each["name"]: each["function"] and f"pipelines.{each['name']}:{each['name']}" for each in record["stages"]
    }
    return Dataflow.from_json(
        {**record, "stages": [{**each, "function": functions[each["name"]]} for each in record["stages"]]}
    )


class World:
    """Everything a scenario needs, in one place."""

    computed = None
    """The first days of worlds of this process, where they are kept (`FirstDays`)."""

    def __init__(self, folder, flow, empty_ledger=None):
        (folder / "store").mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.store = store_in_memory(folder / "store")
        self.content = {}
        self._empty_ledger = empty_ledger or self._empty_file
        self._open(flow)

    def deploy(self, **edits):
        """Deploy the functions of stages with these numbers of edits, and return the archive of their code."""
        self.airflow.deployed = archive_of_edits(self.airflow.flow, edits)
        return self.airflow.deployed

    def lose(self, stage, subtask):
        """Delete the files of the current result of a subtask."""
        with self.ledger.transaction() as session:
            query = select(ResultRow.folder).where(
                ResultRow.stage == stage, ResultRow.subtask == subtask, ResultRow.is_current
            )
            (folder,) = session.scalars(query)
        self.store.delete_folder(folder)

    def run_first(self, *days):
        """Run the first days of this new world; answers the run of the last."""
        assert not self.airflow.tasks
        return self.run_days(*days)[-1]

    def run_days(self, *days):
        """Run days, each to its end; answers their runs.

        The first days of worlds are computed once a process for each dataflow, and copied, where the ledger is a file
        and nobody has changed anything of the world.
        """
        if self.computed is None or not self._is_new():
            return self._run(days)
        code = self.airflow.deployed and self.airflow.deployed.fingerprint
        key = (json.dumps(self.airflow.flow.to_json(), sort_keys=True), code, days)
        if key in self.computed:
            self.computed[key].put_into(self)
            return [self.airflow.dag_run(day) for day in days]
        runs = self._run(days)
        self.computed[key] = Saved(self, self.computed.folder / str(len(self.computed)))
        return runs

    def _is_new(self):
        """Whether it is as it was opened, but for its dataflow and code, and all that it does is in its folder."""
        flow = self.airflow.flow
        is_alone = not flow.notify and not any(each.targets for each in flow.stages)
        is_empty = not (self.content or self.airflow.tasks or any((self.folder / "store").iterdir()))
        is_plain = self._empty_ledger == self._empty_file and type(self.store.files) is FilesInMemory
        return is_alone and is_empty and is_plain and self._parts() == self._opened

    def _parts(self):
        airflow = {name: value for name, value in vars(self.airflow).items() if name not in {"flow", "deployed"}}
        return self.ledger, self.services, self.airflow, airflow

    def _run(self, days):
        runs = []
        for day in days:
            runs.append(self.airflow.dag_run(day))
            self.airflow.run_until_quiet()
        return runs

    def lose_ledger(self):
        """Go on with an empty ledger; Airflow and the store stay."""
        self.ledger.close()
        before = self.airflow
        self._open(before.flow)
        for name in ("tasks", "time", "strategy", "during", "after_commit", "reachable", "clear_numbers", "deployed"):
            setattr(self.airflow, name, getattr(before, name))

    def _open(self, flow):
        self.ledger = self._empty_ledger()
        self.services = Services(ledger=self.ledger, store=self.store, now=lambda: self.airflow.time)
        self.airflow = FakeAirflow(self.services, FakeEngine(self.store, self.content), flow)
        self._opened = self._parts()

    def _empty_file(self):
        for file in self.folder.glob("ledger.db*"):
            file.unlink()
        return new_ledger(self.folder / "ledger.db")


class Saved:
    """A world as it was, of which any number can go on from there."""

    STATE = ("tasks", "time", "clear_numbers", "queued", "incarnations", "marks", "run_notes")

    def __init__(self, world, folder):
        world.ledger.close()
        self._folder, self._flow, self._content = folder, world.airflow.flow, dict(world.content)
        self._airflow = copy.deepcopy({name: getattr(world.airflow, name) for name in self.STATE})
        self._computed = list(world.airflow.engine.computed)
        shutil.copytree(world.folder, folder)

    def go_on(self, folder, copied=copied_ledger):
        """A world of its own, in a new folder; `copied` opens its ledger."""
        shutil.copytree(self._folder, folder, dirs_exist_ok=True)
        world = World(folder, self._flow, lambda: copied(folder / "ledger.db"))
        world._empty_ledger = world._empty_file
        world.content.update(self._content)
        self._set(world.airflow)
        return world

    def put_into(self, world):
        """Have a new world of this dataflow go on."""
        world.ledger.close()
        for file in world.folder.glob("ledger.db*"):
            file.unlink()
        shutil.copytree(self._folder, world.folder, dirs_exist_ok=True)
        world.airflow.engine.computed.extend(self._computed)
        self._set(world.airflow)

    def _set(self, airflow):
        for name, value in copy.deepcopy(self._airflow).items():
            setattr(airflow, name, value)


class FirstDays(dict):
    """The worlds of a process after their first days, by dataflow and days, in a folder."""

    def __init__(self, folder):
        super().__init__()
        self.folder = folder
