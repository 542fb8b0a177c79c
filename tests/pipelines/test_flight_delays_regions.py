"""The whole example through real regions, Parquet files and key groups, without Airflow and without a ledger."""

from __future__ import annotations

import datetime as dt
import runpy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from tests.builders.jobs import Jobs

from pipelines.flight_delays_reference import expected_report
from weir.dataflow import Dataflow
from weir.dataflow.resolving import ResolveContext
from weir.dataflow.stage import ExchangeKind
from weir.formats.region_job import InputToRead, OutputToWrite, PartitionToRead, RegionJob, StageToRun
from weir.recovery.resolving import resolve
from weir.store.store import Store
from weir.topology.regions import InputPartitions, PartitionId, RegionId, Topology
from weir_spark.region.region import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from weir.formats.region_job import OutputReport

pytestmark = pytest.mark.spark

DAG_FILE = Path(__file__).parents[2] / "dags" / "flight_delays.py"
BLIZZARD = dt.datetime(2013, 2, 8, tzinfo=dt.UTC)


class LocalRun:
    """One epoch of a dataflow, region by region in topological order; `reports` has what each partition became."""

    def __init__(self, flow: Dataflow, start: dt.datetime, folder: Path, spark: SparkSession) -> None:
        self.flow, self.topology, self.spark = flow, Topology(flow), spark
        self.interval = (start, start + dt.timedelta(days=1))
        self.epoch = f"{start:%Y%m%dT%H%M%SZ}"
        self.store = Store.open(str(folder))
        self.store.initialise()
        self.reports: dict[PartitionId, OutputReport] = {}
        self.splits = {stage.name: self._resolved(stage.name) for stage in flow.stages if stage.resolve}

    def run(self) -> LocalRun:
        for logical in self.topology.regions:
            for region in logical.ids():
                report = run(self._job(region), self.spark, self.store, log=lambda _line: None)
                for output in report.outputs:
                    self.reports[PartitionId(output.stage, region.subtask, output.layout.id)] = output
        return self

    def digest(self, stage: str) -> set[str]:
        return {str(report.digest) for partition, report in self.reports.items() if partition.stage == stage}

    def rows(self, stage: str) -> list[dict[str, Any]]:
        reports = [report for partition, report in self.reports.items() if partition.stage == stage]
        urls = [self.store.spark_url(f"{report.folder}/{file.name}") for report in reports for file in report.files]
        return [row for url in urls for row in pq.read_table(url.removeprefix("file:")).to_pylist()]

    def _resolved(self, name: str) -> list[Any]:
        stage = self.flow.stage(name)
        parameters = self.flow.parameters
        return resolve(stage, ResolveContext(self.flow.name, self.epoch, self.interval, stage.parallelism, parameters))

    def _job(self, region: RegionId) -> RegionJob:
        attempt = "t0001-0123456789ab"
        return RegionJob(
            attempt=attempt,
            dataflow=self.flow.name,
            epoch=self.epoch,
            interval=(self.interval[0].isoformat(), self.interval[1].isoformat()),
            region=region.name,
            subtask=region.subtask,
            store=self.store.url,
            report=f"{self.flow.name}/{self.epoch}/_regions/{region.name}/{region.subtask}/{attempt}/report.json",
            stages=tuple(self._stage(stage.name, region, attempt) for stage in self.topology.stages_of(region.name)),
            parameters=dict(self.flow.parameters),
            spark_conf={"spark.sql.shuffle.partitions": "2"},
            code=Jobs(self.store).code(*(stage.function for stage in self.flow.stages)),
        )

    def _stage(self, name: str, region: RegionId, attempt: str) -> StageToRun:
        stage = self.flow.stage(name)
        pipelined = {
            argument: exchange.stage
            for argument, exchange in stage.exchanges.items()
            if exchange.kind is ExchangeKind.PIPELINED
        }
        inputs = [self._input(read) for read in self.topology.inputs(region) if read.stage == name]
        outputs = [self._output(written, attempt) for written in self.topology.outputs(region) if written.stage == name]
        return StageToRun(
            name=name,
            function=stage.function,
            is_source=not stage.exchanges,
            subtask=region.subtask,
            parallelism=stage.parallelism,
            pipelined=pipelined,
            inputs=tuple(inputs),
            outputs=tuple(outputs),
            split=self.splits[name][region.subtask] if stage.resolve else None,
        )

    def _output(self, partition: PartitionId, attempt: str) -> OutputToWrite:
        place = f"{partition.stage}/{partition.layout}/{partition.subtask}/{attempt}"
        folder = f"{self.flow.name}/{self.epoch}/{place}"
        return OutputToWrite(self.topology.layout(partition.layout), folder, self.store.spark_url(folder))

    def _input(self, read: InputPartitions) -> InputToRead:
        partitions = tuple(self._partition(partition) for partition in read.partitions)
        schema = self.reports[read.partitions[0]].spark_schema
        return InputToRead(
            argument=read.argument,
            layout=read.layout,
            spark_schema=schema,
            partitions=partitions,
            key_groups=read.key_groups,
        )

    def _partition(self, partition: PartitionId) -> PartitionToRead:
        report = self.reports[partition]
        files = tuple(self.store.spark_url(f"{report.folder}/{file.name}") for file in report.files)
        return PartitionToRead(partition.stage, partition.subtask, files)


@pytest.fixture(scope="module")
def flow() -> Dataflow:
    loaded: Dataflow = runpy.run_path(str(DAG_FILE))["flow"]
    return loaded


@pytest.mark.soak
def test_what_the_sink_stages_equals_the_reference_at_any_parallelism(
    spark: SparkSession, flow: Dataflow, tmp_path: Path
) -> None:
    as_declared = LocalRun(flow, BLIZZARD, tmp_path / "declared", spark).run()
    (sink,) = as_declared.topology.sinks
    assert sorted(as_declared.rows(sink), key=_order) == expected_report(BLIZZARD.date())

    rescaled = LocalRun(_rescaled(flow), BLIZZARD, tmp_path / "rescaled", spark).run()
    assert rescaled.digest(sink) == as_declared.digest(sink)


def _rescaled(flow: Dataflow) -> Dataflow:
    parallelism = {"flights": 4, "clean": 4, "join": 3, "by_carrier": 1, "by_route": 3}
    stages = [replace(stage, parallelism=parallelism.get(stage.name, stage.parallelism)) for stage in flow.stages]
    return Dataflow(flow.name, stages)


def _order(row: dict[str, Any]) -> tuple[str, int]:
    return row["kind"], row["rank"]
