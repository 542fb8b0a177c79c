"""A dataflow with a gate and a target whose days meet faults by name, under the fake Airflow, told to `receiving`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sqlalchemy import select
from tests.weir.checking import NOT_NULL, with_suites, write_suite
from tests.weir.notifications import receiving
from tests.weir.sinks.file_target import FileTarget
from tests.weir.small_dataflow import World

from weir.dataflow import Dataflow, EventKind, Stage, blocking, callback, expectations, sink, source, target
from weir.errors import Conflict, EngineLost, Fenced, Misconfigured
from weir.ledger.database.tables import ResultRow
from weir.ledger.runs import epoch_of
from weir.restarts.strategy import FixedDelay
from weir.testing.fakes.airflow import Killed

PUBLISH_BY = timedelta(hours=6)
ATTEMPTS = 3
"""How often the user's own failures are tried again, in vain."""

TASKS = ("raw", "weather", "clean", "totals", "routes-delays")
EVER = 1000

RAISED = {
    "killed": Killed,
    "raises": lambda: ValueError("a bad row"),
    "away": lambda: EngineLost("Spark is away"),
    "changed": lambda: Conflict("an input has changed"),
    "stale": lambda: Fenced("a newer try"),
    "hopeless": lambda: Misconfigured("no such column"),
}
"""What a fault of a name raises in the middle of a task."""


def flow(lake):
    return Dataflow(
        "ladder",
        [
            source("raw", "m:raw", parallelism=2),
            source("weather", "m:weather"),
            Stage(
                "clean",
                "m:clean",
                [blocking("raw", pointwise=True), blocking("weather", broadcast=True)],
                parallelism=2,
                quality=[expectations("rows", policy="retry")],
            ),
            Stage("totals", "m:totals", [blocking("clean", by="k")], parallelism=2),
            Stage("routes", "m:routes", [blocking("totals"), blocking("clean")]),
            sink("routes", "delays", to=target("tests.weir.sinks.file_target:FileTarget", folder=str(lake))),
        ],
        keep="2 runs",
        publish_by=PUBLISH_BY,
        notify=[callback("tests.weir.notifications.receiving:tell", kinds=[each.value for each in EventKind])],
    )


class Faulty:
    """A world whose tasks meet the faults that were added, until these are over, or a person has mended them."""

    def __init__(self, folder, patch):
        receiving.reset()
        self.lake = folder / "lake"
        self.lake.mkdir()
        self.world = World(folder, flow(self.lake))
        write_suite(with_suites(self.world), "rows", NOT_NULL)
        self.faults = {}
        """By task, how often more it meets a fault, and the fault: a function."""
        self.refused = ""
        """What the target of the sink refuses."""
        patch.setattr(FileTarget, "step", staticmethod(self._at_target))
        self.take(self.world.airflow)

    def take(self, airflow):
        """Go on under this fake Airflow."""
        airflow.time, airflow.strategy = datetime(2013, 1, 1, tzinfo=UTC), FixedDelay(ATTEMPTS, 60_000)
        airflow.during = self._during
        self.world.airflow = self.airflow = airflow

    def begin(self, day):
        """Start the run of a day, at its end at the earliest; answers Airflow's id of it."""
        end = datetime(2013, 1, 1, tzinfo=UTC) + timedelta(days=day)
        self.run_id, self.deadline = f"ladder@{epoch_of(end - timedelta(days=1))}", end + PUBLISH_BY
        self.airflow.time = max(self.airflow.time, end)
        return self.airflow.dag_run(day)

    def add(self, kind, task, times=1):
        """Let a task meet a fault so often."""
        match kind:
            case "lost":
                self.faults["totals"] = 1, lambda: self._lose(("weather", "clean"))
            case "all is lost":
                self.faults["totals"] = 1, lambda: self._lose(("raw", "weather", "clean"))
            case "bad rows":
                self.airflow.engine.violated["clean"] = {NOT_NULL}
            case "refused":
                self.refused = "prepare"
            case "refused once published":
                self.refused = "commit"
            case "away after publication":
                (self.lake / "away").touch()
            case _:
                self.faults[task] = times, lambda: self._raise(kind)

    def mend(self, tasks):
        """Mend whatever these tasks have met, and the target."""
        for task in tasks:
            self.faults.pop(task.key.task_id, None)
        self.refused = ""
        self.airflow.engine.violated.clear()

    def told(self, *kinds):
        """How often events of these kinds, or of all, were told; none twice."""
        events = {event["id"]: event["kind"] for _, event in receiving.got}
        assert len(events) == len(receiving.got)
        return {kind: list(events.values()).count(kind) for kind in kinds}

    def _during(self, key):
        left, fault = self.faults.get(key.task_id, (0, None))
        if left > 0:
            self.faults[key.task_id] = left - 1, fault
            fault()

    def _at_target(self, step):
        if step == self.refused:
            raise Misconfigured(f"the target refuses to {step}")

    def _raise(self, kind):
        raise RAISED[kind]()

    def _lose(self, stages):
        with self.world.ledger.transaction() as session:
            is_there = ResultRow.is_current & ResultRow.stage.in_(stages) & (ResultRow.state == "finished")
            folders = list(session.scalars(select(ResultRow.folder).where(is_there, ResultRow.run == self.run_id)))
        for folder in folders:
            self.world.store.delete_folder(folder)
