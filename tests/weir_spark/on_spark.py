"""Regions that a Connect server computes, in the place of the fake engine, of code that the fake Airflow has packed."""

from __future__ import annotations

import uuid

from weir.code.archive import pack, top_level
from weir.formats.codec import from_json
from weir.formats.region_job import RegionReport
from weir.testing.fakes.airflow import FakeAirflow
from weir_spark.transport.connect import ConnectEngine


class OnSpark:
    """An engine for a fake Airflow: each region in a session of its own, as an Airflow task runs it."""

    def __init__(self, url, store):
        self._engine, self._store = ConnectEngine(url, retries=2), store

    def run(self, job, during=lambda: None):
        self._engine.run(job, str(uuid.uuid4()), lambda line: None)
        during()
        return from_json(RegionReport, self._store.read(job.report))


class AirflowWithCode(FakeAirflow):
    """A fake Airflow each of whose processes has the pipeline as it lies on this machine when the process starts."""

    def request(self, task):
        self.deployed = pack(top_level(stage.function for stage in self.flow.stages))
        return super().request(task)
