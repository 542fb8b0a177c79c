"""History that is kept from day to day, against a computation over all days at once that keeps nothing."""

from __future__ import annotations

import datetime as dt
import json
import runpy
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.builders.jobs import Jobs
from tests.builders.ledgers import new_ledger
from tests.messages.kinds import of_kind
from tests.pipelines.flight_history_reference import expected_history, expected_rolling
from tests.weir_spark.on_spark import AirflowWithCode, OnSpark
from typer.testing import CliRunner

import weir
from pipelines import flight_delays
from weir.cli.main import app
from weir.coordination.services import Services
from weir.dataflow.resolving import ResolveContext
from weir.errors import Misconfigured
from weir.formats.manifest import StateFile
from weir.formats.region_job import InputToRead, OutputToWrite, RegionJob, StageToRun, StateFileToRead, StateToRead
from weir.state import state_files as state_rows
from weir.state.file_rules import assigned_files, epoch_seconds, visible
from weir.store.store import Store
from weir.topology.partitions import PLAIN, Layout
from weir_spark.region.region import run
from weir_spark.sources import file_mark
from weir_spark.state import reader as state_reader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession
    from tests.servers.spark import TestServer

    from weir.dataflow import Dataflow, State
    from weir.formats.region_job import OutputReport

pytestmark = pytest.mark.spark

DAG_FILE = Path(__file__).parents[2] / "dags" / "flight_history.py"
NEW_YEAR = dt.date(2013, 1, 1)
GROUPS = (0, 127)
OLD_DAYS = 3
"""So many days before those that count are kept by route, too: they have to expire."""
WRITTEN_WHOLE = 6
"""Each so many days a state is written whole, as compaction does in its own time."""

Row = dict[str, Any]


def day(number: int) -> dt.date:
    """A day of January, from 1."""
    return NEW_YEAR + dt.timedelta(days=number - 1)


def epoch_of(of: dt.date) -> str:
    return f"{of:%Y%m%d}T000000Z"


class Kept:
    """One state over the days: its files and tallies, as manifests have them. Each sixth day it is written whole."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.files: tuple[StateFile, ...] = ()
        self.tallies: tuple[Any, ...] = ()
        self.until: int | None = None

    def read(self, epoch: str, store: Store) -> StateToRead:
        self.until = None if self.state.ttl is None else epoch_seconds(epoch) - 7 * 24 * 60 * 60
        self.files = assigned_files(self.files, GROUPS, self.until)
        files = tuple(
            StateFileToRead(store.spark_url(each.path), each.epoch, each.key_groups, each.file.rows, each.file.bytes)
            for each in self.files
        )
        updated = 0 if self.until is None else epoch_seconds(epoch)
        is_full = len(files) >= WRITTEN_WHOLE
        return StateToRead(
            state=self.state,
            files=files,
            tallies=visible(self.tallies, self.until),
            updated=updated,
            expired_until=self.until,
            is_full=is_full,
            epoch=epoch,
        )

    def went_on(self, epoch: str, report: OutputReport) -> None:
        assert report.state is not None
        written = tuple(StateFile(report.folder, file, epoch, GROUPS) for file in report.files)
        self.files = written if report.state.is_whole else (*self.files, *written)
        self.tallies = report.state.tallies


class OneRegion:
    """Day after day of the stages of the DAG file, all in one Spark plan, without Airflow and without a ledger."""

    def __init__(self, flow: Dataflow, spark: SparkSession, folder: Path, flights: Path) -> None:
        self.flow, self.spark = flow, spark
        self.split = {"airports": flight_delays.AIRPORTS, "file": file_mark(str(flights))}
        self.store = Store.open(str(folder))
        self.store.initialise()
        self.kept = {name: Kept(flow.state(name)) for name in ("history", "days")}

    def run(self, of: dt.date, stages: tuple[str, ...]) -> dict[str, OutputReport]:
        start = dt.datetime.combine(of, dt.time(), dt.UTC)
        epoch = epoch_of(of)
        job = RegionJob(
            attempt="t0001-0123456789ab",
            dataflow=self.flow.name,
            epoch=epoch,
            interval=(start.isoformat(), (start + dt.timedelta(days=1)).isoformat()),
            region="all",
            subtask=0,
            store=self.store.url,
            report=f"{self.flow.name}/{epoch}/_regions/all/0/t/report.json",
            stages=tuple(self._stage(name, epoch) for name in stages),
            parameters={},
            spark_conf={"spark.sql.shuffle.partitions": "1"},
            code=Jobs(self.store).code(*(self.flow.stage(name).function for name in stages)),
        )
        reports = {each.stage: each for each in run(job, self.spark, self.store, log=lambda _line: None).outputs}
        for name in reports.keys() & self.kept.keys():
            self.kept[name].went_on(epoch, reports[name])
        return reports

    def rows(self, report: OutputReport) -> list[Row]:
        return [row for file in report.files for row in self._table(f"{report.folder}/{file.name}").to_pylist()]

    def state(self, name: str) -> list[Row]:
        """The rows of a state, merged by those who read it without Spark."""
        kept = self.kept[name]
        tables = [self._table(file.path) for file in kept.files]
        own = {state_rows.DELETED, state_rows.UPDATED, "_weir_key_group"}
        columns = pa.schema([field for field in tables[0].schema if field.name not in own])
        shape = state_rows.Shape(columns, kept.state.keys, kept.until)
        merged = state_rows.newest([state_rows.as_stored(table, shape.stored) for table in tables], shape)
        return merged.select(columns.names).to_pylist()

    def _table(self, path: str) -> pa.Table:
        return pq.read_table(self.store.spark_url(path).removeprefix("file:").replace("///", "/"))

    def _stage(self, name: str, epoch: str) -> StageToRun:
        stage = self.flow.stage(name)
        states = {state.name: self.kept[state.name] for state in stage.states}
        inputs = tuple(
            InputToRead(
                argument=argument,
                layout=_layout(kept.state),
                spark_schema="",
                partitions=(),
                key_groups=GROUPS,
                state=kept.read(epoch, self.store),
            )
            for argument, kept in states.items()
        )
        keeper = next((each.name for each in self.flow.stages if name in [state.name for state in each.states]), "")
        layout = _layout(self.kept[name].state) if keeper else PLAIN
        folder = f"{self.flow.name}/{epoch}/{name}/{layout.id}/0/t"
        outputs = (OutputToWrite(layout, folder, self.store.spark_url(folder)),)
        return StageToRun(
            name=name,
            function=stage.function,
            is_source=not stage.exchanges,
            subtask=0,
            parallelism=1,
            pipelined={argument: each.stage for argument, each in stage.exchanges.items() if argument not in states},
            inputs=inputs,
            outputs=outputs if keeper or name == "rolling" else (),
            split=self.split if stage.resolve else None,
            keeps_state_of=keeper,
        )


def _layout(state: State) -> Layout:
    return Layout(state.keys, GROUPS[1] + 1)


def _january(folder: Path) -> Path:
    """The flights of January alone: they are read anew for each day."""
    (part,) = flight_delays.resolve_flights(ResolveContext("flight_history", "", (NEW_YEAR, NEW_YEAR), 1, {}))
    path = folder / "january.csv"
    with zipfile.ZipFile(part["file"]["path"]) as archive, path.open("wb") as kept:
        for line in archive.open(archive.namelist()[0]):
            if line.startswith((b"year", b'"year"', b"2013,1,")):
                kept.write(line)
    return path


@pytest.fixture(scope="module")
def flow() -> Dataflow:
    loaded: Dataflow = runpy.run_path(str(DAG_FILE))["flow"]
    return loaded


@pytest.fixture(scope="module")
def spark(session_of: Callable[[], SparkSession]) -> SparkSession:
    return session_of()


@pytest.fixture(scope="module")
def two_days(server: TestServer, flow: Dataflow, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AirflowWithCode]:
    """Two days of the dataflow as it is declared, in a store and a ledger that the environment names."""
    folder = tmp_path_factory.mktemp("history")
    store = Store.open(str(folder / "store"))
    store.initialise()
    ledger = new_ledger(folder / "ledger.db")
    airflow = AirflowWithCode(Services(ledger=ledger, store=store), OnSpark(server.url, store), flow)
    for number in (1, 2):
        airflow.dag_run(number)
        airflow.run_until_quiet()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WEIR_STORE", str(folder / "store"))
        patch.setenv("WEIR_LEDGER", f"sqlite:///{folder}/ledger.db")
        yield airflow
    ledger.close()


@pytest.mark.soak
def test_each_day_publishes_what_is_known_at_its_end(two_days: AirflowWithCode) -> None:
    with weir.open("flight_history", day(2), "rolling_delays", services=two_days.services) as rolling:
        assert sorted(rolling.arrow().to_pylist(), key=_route) == expected_rolling(day(2))
    known = {row["tailnum"]: row for row in expected_history(day(2))}
    with weir.open("flight_history", day(2), "seen", services=two_days.services) as seen:
        rows = seen.arrow().to_pylist()
    assert len(rows) > 500
    assert rows == [known[row["tailnum"]] for row in rows]


def test_the_state_of_each_day_is_read_alike_with_and_without_spark(
    two_days: AirflowWithCode, spark: SparkSession
) -> None:
    for number in (1, 2):
        with weir.open("flight_history", day(number), state="history", services=two_days.services) as history:
            rows = sorted(history.arrow().to_pylist(), key=_tailnum)
            assert rows == expected_history(day(number))
            assert sorted(history.spark(spark).toArrow().to_pylist(), key=_tailnum) == rows
            assert history.get(rows[7]["tailnum"]) == rows[7]
    with weir.open("flight_history", state="days", services=two_days.services) as days:
        assert days.get("EWR", "IAH", day(1))["flights"] > 0
        assert days.get("EWR", "IAH", "2013-01-01") == days.get("EWR", "IAH", day(1))


def test_states_are_queried_as_one_epoch_has_left_them(two_days: AirflowWithCode, server: TestServer) -> None:
    query = "SELECT sum(flights) AS flights, (SELECT sum(flights) FROM days) AS of_routes FROM history"
    words = ["state", "sql", "flight_history", query, "--remote", server.url, "--epoch", "2013-01-01", "--json"]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    told = json.loads(done.output)
    assert (told["state"], told["epoch"]) == (["days", "history"], epoch_of(day(1)))
    routes = sum(row["flights"] for row in expected_rolling(day(1)))
    aircraft = sum(row["flights"] for row in expected_history(day(1)))
    assert told["rows"] == [{"flights": aircraft, "of_routes": routes}]


def test_what_spark_says_of_a_query_is_told(two_days: AirflowWithCode, server: TestServer) -> None:
    with pytest.raises(Misconfigured, check=of_kind("cli.query_not_answered")):
        CliRunner().invoke(
            app,
            ["state", "sql", "flight_history", "SELECT altitude FROM history", "--remote", server.url],
            catch_exceptions=False,
        )
    assert set(two_days.states().values()) == {"success"}


@pytest.mark.parametrize("count", [11, pytest.param(30, marks=pytest.mark.soak)])
def test_the_last_of_many_days_is_what_all_days_at_once_come_to(
    spark: SparkSession, flow: Dataflow, tmp_path: Path, count: int
) -> None:
    days = OneRegion(flow, spark, tmp_path / "store", _january(tmp_path))
    read, aircraft, routes = ("flights", "clean", "departures"), ("aircraft", "history"), ("route_days", "days")
    for number in range(1, count):
        is_kept = number > count - 7 - OLD_DAYS
        days.run(day(number), (*read, *aircraft, *(routes if is_kept else ())))
    reports = days.run(day(count), (*read, *aircraft, *routes, "rolling"))
    assert sorted(days.state("history"), key=lambda row: row["tailnum"]) == expected_history(day(count))
    assert sorted(days.rows(reports["rolling"]), key=_route) == expected_rolling(day(count))
    assert {row["day"] for row in days.state("days")} == {day(number) for number in range(count - 6, count + 1)}


def test_both_readers_name_the_columns_of_the_files_alike() -> None:
    assert (state_rows.DELETED, state_rows.UPDATED) == (state_reader.DELETED, state_reader.UPDATED)


def _route(row: Row) -> tuple[str, str]:
    return row["origin"], row["dest"]


def _tailnum(row: Row) -> str:
    tailnum: str = row["tailnum"]
    return tailnum
