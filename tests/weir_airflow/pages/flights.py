"""Four days of a dataflow about flights, with all that pages are there for, and its DAG in a real Airflow's database.

Names and texts that others give (of DAGs, runs, receivers, errors) are as hostile as they may be.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from tests.weir.checking import NOT_NULL, UNIQUE, with_suites, write_suite
from tests.weir.cli.commands.test_standing import rest
from tests.weir.notifications import receiving
from tests.weir.reading.parquet_world import CONTENT, ReaderWorld
from tests.weir.reading.state_world import epoch, keeps_state
from tests.weir.sinks.file_target import FileTarget
from tests.weir.views.eventful import lose

from weir.dataflow import (
    Dataflow,
    Stage,
    blocking,
    callback,
    expectations,
    keyed_state,
    pipelined,
    sink,
    source,
    target,
)
from weir.ledger.housekeeping import ALL, UPKEEP, note_done
from weir.restarts.strategy import RestartStrategy

HEALED, PENDING, STOPPED = (f"scheduled__2013-01-{day:02}" for day in (2, 3, 4))
"""A result of the first was lost and computed again; the second waits for its target, the third for a person."""


@dataclass(frozen=True)
class Names:
    """What others give."""

    dag: str
    receiver: str
    error: str


HOSTILE = Names(
    dag="flüge.naïve_日本語-daily",
    receiver="<b>phone</b> of 'Zoë'",
    error="""<script>alert("x")</script> 'Größe' überschritten: java.lang.OutOfMemoryError\tat """
    + "org.apache.spark." * 30,
)
PLAIN = Names(dag="flight_delays", receiver="on_call", error="java.lang.OutOfMemoryError: Java heap space")

SECONDS = {"flights-clean": 94, "weather": 12, "joined": 210, "aircraft": 48, "totals": 31, "routes": 55}
ROWS = {"flights": 6_000, "clean": 6_000, "joined": 9_000, "weather": 400}


def flow(lake, names):
    """Flights are cleaned and joined with the weather; delays are summed, and each aircraft's history is kept."""
    into = target("tests.weir.sinks.file_target:FileTarget", folder=str(lake))
    by = {"by": CONTENT}
    return Dataflow(
        "flight_delays",
        [
            source("flights", "pipelines.flights:flights", parallelism=3),
            Stage(
                "clean",
                "pipelines.flights:clean",
                [pipelined("flights")],
                parallelism=3,
                quality=expectations("clean_rows"),
            ),
            source("weather", "pipelines.flights:weather"),
            Stage(
                "joined",
                "pipelines.flights:joined",
                [blocking("clean", **by), blocking("weather", **by)],
                parallelism=3,
            ),
            Stage(
                "aircraft",
                "pipelines.flights:aircraft",
                [blocking("clean", **by)],
                parallelism=2,
                state=keyed_state("history", key="tail", schema="tail STRING, n BIGINT"),
            ),
            Stage("totals", "pipelines.flights:totals", [blocking("joined", **by)], parallelism=2),
            Stage("routes", "pipelines.flights:routes", [blocking("joined", **by)]),
            Stage("report", "pipelines.flights:report", [blocking("totals"), blocking("routes")]),
            sink("report", "delays", to=into),
        ],
        keep="60 days",
        retained_checkpoints=2,
        notify=[callback("tests.weir.notifications.receiving:tell", receiver=names.receiver, who="phone")],
    )


def four_days(folder, names):
    """The days; what it is stored in stays until its ledger is closed."""
    lake = folder / "lake"
    lake.mkdir(parents=True)
    world = ReaderWorld(folder, flow(lake, names))
    world.airflow.engine.rows = ROWS
    world.airflow.dag_id = names.dag
    world.airflow.during = lambda key: pass_time(world, key, names)
    keeps_state(world).airflow.engine.plan = {
        epoch(day): {f"N{number}": day for number in range(day * 40, day * 40 + 400)} for day in range(1, 5)
    }
    write_suite(with_suites(world), "clean_rows", NOT_NULL, (UNIQUE, {"severity": "warning"}))
    a_day(world, 1)
    world.airflow.engine._engine.violated["clean"] = {UNIQUE}
    a_day(world, 2)
    world.airflow.time += timedelta(hours=2, minutes=12)
    lose(world, "clean", 2, day=2)
    world.airflow.clear_by_hand(HEALED, "joined", 1)
    world.airflow.run_until_quiet()
    world.airflow.engine._engine.violated.clear()
    with away(lake):
        a_day(world, 3)
        a_day(world, 4)
    with world.ledger.transaction(ALL) as session:
        note_done(session, UPKEEP, ALL, datetime.now(UTC))
    return world


def a_day(world, day):
    world.airflow.time = max(world.airflow.time, datetime(2026, 1, day + 1, 0, 5, tzinfo=UTC))
    world.content["flights"] = f"rows of day {day}"
    world.airflow.dag_run(day)
    rest(world)


def pass_time(world, key, names):
    world.airflow.time += timedelta(seconds=SECONDS.get(key.task_id, 20))
    if key.run_id == STOPPED and key.task_id == "routes":
        world.airflow.strategy = RestartStrategy.from_options({"restart-strategy.type": "none"})
        raise RuntimeError(names.error)


@contextmanager
def away(lake):
    """Neither the target nor the receiver answers: the target from its next publication on, for ever."""
    receiving.away.add("phone")
    FileTarget.step = staticmethod(lambda what: (lake / "away").touch() if what == "commit" else None)
    yield
    FileTarget.step = staticmethod(lambda _: None)
    receiving.away.discard("phone")


AIRFLOW_DAG = """
from datetime import datetime, UTC
from airflow.sdk import DAG, BaseOperator, CronDataIntervalTimetable

class Region(BaseOperator):
    def __init__(self, *, subtask=0, **kwargs):
        super().__init__(**kwargs)
        self.subtask = subtask

def region(task_id, parallelism=1):
    if parallelism == 1:
        return Region(task_id=task_id)
    return Region.partial(task_id=task_id).expand(subtask=list(range(parallelism)))

daily = CronDataIntervalTimetable("@daily", timezone="UTC")
with DAG("THE DAG", schedule=daily, start_date=datetime(2013, 1, 1, tzinfo=UTC)):
    clean, weather, joined = region("flights-clean", 3), region("weather"), region("joined", 3)
    totals, routes, aircraft = region("totals", 2), region("routes"), region("aircraft", 2)
    close = region("weir_close")
    [clean, weather] >> joined >> [totals, routes] >> region("report-delays") >> close
    clean >> aircraft >> close
"""


@contextmanager
def entered(enter_dags, world):
    """Let Airflow's database have the DAG with its runs as they are in the world; then no more."""
    from airflow.api.common.delete_dag import delete_dag

    dag_id = world.airflow.dag_id
    file, _ = enter_dags("flights_of_pages.py", AIRFLOW_DAG.replace("THE DAG", dag_id))
    enter_runs(world, dag_id)
    yield
    file.unlink()
    delete_dag(dag_id)  # other tests look at all DAGs


def enter_runs(world, dag_id):
    from airflow.models.dagbag import DBDagBag
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from airflow.utils.state import DagRunState
    from airflow.utils.types import DagRunTriggeredByType, DagRunType

    with create_session() as session:
        dag = DBDagBag().get_latest_version_of_dag(dag_id, session=session)
        for run_id in sorted({key.run_id for key in world.airflow.tasks}):
            day = datetime.fromisoformat(run_id.removeprefix("scheduled__")).replace(tzinfo=UTC)
            dag.create_dagrun(
                run_id=run_id,
                logical_date=day,
                data_interval=(day, day + timedelta(days=1)),
                run_after=day + timedelta(days=1),
                run_type=DagRunType.SCHEDULED,
                triggered_by=DagRunTriggeredByType.TEST,
                state=DagRunState("failed" if run_id == STOPPED else "success"),
                start_date=day,
                session=session,
            )
        for ti in session.query(TaskInstance).filter_by(dag_id=dag_id):
            task = world.airflow.task(ti.run_id, ti.task_id, ti.map_index)
            ti.state, ti.try_number = task.state, task.try_number
