"""Dataflows of one ledger and one store, each with a DAG of its own under one fake Airflow."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from sqlalchemy import select
from tests.builders.ledgers import new_ledger

from weir.coordination.services import Services
from weir.dataflow import Dataflow, Stage, blocking, sink, source
from weir.errors import Misconfigured
from weir.formats.paths import folder_of
from weir.ledger.database.tables import PublicationRow, ResultRow
from weir.testing.fakes.airflow import FakeAirflow
from weir.testing.fakes.engine import FakeEngine
from weir.testing.fakes.stores import store_in_memory

DAILY = "0 0 * * *"
HOURLY = "0 * * * *"
HALF_DAILY = "0 */12 * * *"
HOURS = {HOURLY: 1, HALF_DAILY: 12}


def trips(by=(), **settings):
    """Raw by key into zones, which are published."""
    return Dataflow(
        "trips",
        [
            source("raw", "pipelines.trips:raw"),
            Stage("by_zone", "pipelines.trips:by_zone", [blocking("raw", by="k")], parallelism=2),
            sink("by_zone", "zones", by=by),
        ],
        **settings,
    )


def reader(name="report", **inputs):
    """A dataflow whose first stage reads data sets, and which publishes what the second one makes of them."""
    return Dataflow(
        name,
        [
            Stage("read", f"pipelines.{name}:read", inputs),
            Stage("made", f"pipelines.{name}:made", [blocking("read")]),
            sink("made", "out"),
        ],
    )


class WorldOfEpochs(dict):
    """What the rows of a subtask depend on in an epoch, besides its inputs: how often they were corrected.

    Where it is alike in all epochs, what was never corrected is equal in all of them.
    """

    epoch, subtask, is_alike = "", 0, False

    def get(self, stage, default=None):
        return default if stage.startswith("schema of ") else self.of(stage, self.epoch, self.subtask)

    def of(self, stage, epoch, subtask):
        return ["" if self.is_alike else epoch, super().get((stage, epoch, subtask), 0)]

    def correct(self, stage, epoch, subtask):
        self[stage, epoch, subtask] = super().get((stage, epoch, subtask), 0) + 1


class EngineOfEpochs(FakeEngine):
    """Each epoch has other rows; `require_kept` is called after whatever happens while a job has read its inputs."""

    def __init__(self, store, world, require_kept):
        super().__init__(store, world)
        self._require_kept = require_kept

    def run(self, job, during=lambda: None):
        self._world.epoch = job.epoch
        files = [
            file for stage in job.stages for each in stage.inputs for part in each.partitions for file in part.files
        ]
        folders = {folder_of(self._path(file)) for file in files}

        def watched():
            with self._require_kept(job.attempt, folders):
                during()

        return super().run(job, watched)

    def _content(self, stage, contents):
        self._world.subtask = stage.subtask
        return super()._content(stage, contents)


class NeighbouringAirflow(FakeAirflow):
    """The DAG of one dataflow, in an Airflow that has those of its neighbours, too.

    Runs of one that has several a day are named by their hour. `forbidden` are DAGs that its account may not clear.
    """

    def __init__(self, services, engine, flow, neighbours, every):
        super().__init__(services, engine, flow)
        self.dag_id, self.neighbours, self.every = flow.name, neighbours, every
        self.forbidden = set()

    def hour_run(self, day, hour):
        """Start the DagRun of an hour in January 2013."""
        run_id = f"scheduled__{hour:02d}__2013-01-{day:02d}"
        self._verify_integrity(run_id)
        return run_id

    def request(self, task):
        found = super().request(task)
        start = found.interval[0]
        if self.every in HOURS:
            start += timedelta(hours=int(task.key.run_id.split("__")[1]))
            found = replace(found, interval=(start, start + timedelta(hours=HOURS[self.every])))
        return replace(found, cadence=self.every, session_url="sc://nowhere")

    def clear(self, wanted):
        for item in wanted:
            if item.dag_id in self.forbidden:
                raise Misconfigured(f"the account needs the permission to edit task instances of {item.dag_id}")
        return [self._of(item.dag_id)._cleared(item) for item in wanted]

    def _cleared(self, item):
        (answer,) = super().clear([item])
        return answer

    def inspect(self, wanted):
        return [answer for item in wanted for answer in FakeAirflow.inspect(self._of(item.dag_id), [item])]

    def exists(self, dag_id, run_id):
        return FakeAirflow.exists(self._of(dag_id), dag_id, run_id)

    def start(self, dag_id, run_id):
        return FakeAirflow.start(self._of(dag_id), dag_id, run_id)

    def _of(self, dag_id):
        return self.neighbours.airflows[dag_id]


class Neighbours:
    """Everything a scenario of several dataflows needs. A clear of one may come from a task of another."""

    def __init__(self, folder, ledger=None, store=None):
        if store is None:
            (folder / "store").mkdir()
        self.store = store or store_in_memory(folder / "store")
        self.ledger = ledger or new_ledger(folder / "ledger.db")
        self.time = datetime(2026, 1, 1, tzinfo=UTC)
        self.services = Services(ledger=self.ledger, store=self.store, now=self.now)
        self.content = {}
        self.airflows = {}

    def now(self):
        """The latest time of all: each Airflow has a clock of its own, which its tries advance."""
        self.time = max([self.time, *(each.time for each in self.airflows.values())])
        return self.time

    def add(self, flow, every=DAILY):
        """Deploy a dataflow."""
        engine = FakeEngine(self.store, self.content.setdefault(flow.name, {}))
        self.airflows[flow.name] = NeighbouringAirflow(self.services, engine, flow, self, every)
        return self.airflows[flow.name]

    def run(self, name, *days):
        """Run days of a dataflow, each to its end; answers the run ids."""
        found = []
        for day in days:
            found.append(self.airflows[name].dag_run(day))
            self.airflows[name].run_until_quiet()
        return found

    def go_on(self):
        """Run all DAGs until none of them can go on; those that wait are asked again a few times."""
        for _ in range(6):
            for airflow in self.airflows.values():
                airflow.time = self.now()
                for task in list(airflow.tasks.values()):
                    if task.state in ("up_for_reschedule", "up_for_retry"):
                        task.not_before = None
                self._run(airflow)

    @staticmethod
    def _run(airflow):
        for _ in range(300):
            ready = [each for each in airflow._runnable() if (each.not_before or airflow.time) <= airflow.time]
            if not ready:
                return
            airflow.step(ready[0])

    def versions(self, dataflow, sink="zones", day=1):
        """The published versions of an epoch, oldest first."""
        with self.ledger.transaction() as session:
            run = f"{dataflow}@201301{day:02d}T000000Z"
            query = select(PublicationRow).where(PublicationRow.run == run, PublicationRow.sink == sink)
            return list(session.scalars(query.order_by(PublicationRow.version)))

    def lose(self, dataflow, stage, day=1, subtask=0, hour=0):
        """Delete the files of the current result of a subtask."""
        with self.ledger.transaction() as session:
            query = select(ResultRow.folder).where(
                ResultRow.run == f"{dataflow}@201301{day:02d}T{hour:02d}0000Z",
                ResultRow.stage == stage,
                ResultRow.subtask == subtask,
                ResultRow.is_current,
            )
            (folder,) = session.scalars(query)
        self.store.delete_folder(folder)
