"""Small pipelines to run, and a store to run them on."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from weir.results.layout import PLAIN, Layout
from weir.results.region_job import InputToRead, OutputReport, OutputToWrite, PartitionToRead, RegionJob, StageToRun
from weir.store.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    opened = Store.open(str(tmp_path / "store"))
    opened.initialise()
    return opened


@pytest.fixture
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Write a module of stage functions and return its name, which no other test has."""
    folder = tmp_path / "modules"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))

    def write(text: str) -> str:
        name = f"pipeline_{uuid.uuid4().hex[:12]}"
        (folder / f"{name}.py").write_text(text)
        return name

    return write


@dataclass(frozen=True)
class Jobs:
    """Builds what the operator would ask for."""

    store: Store

    def output(self, stage: str, layout: Layout = PLAIN, *, subtask: int = 0) -> OutputToWrite:
        folder = f"flow/20130101T000000Z/{stage}/{layout.id}/{subtask}/t0001-{uuid.uuid4().hex[:12]}"
        return OutputToWrite(layout, folder, self.store.spark_url(folder))

    def stage(self, name: str, function: str, *outputs: OutputToWrite, **more: object) -> StageToRun:
        given = {"is_source": False, "subtask": 0, "parallelism": 1, "pipelined": {}, "inputs": (), **more}
        return StageToRun(name=name, function=function, outputs=outputs, **given)  # type: ignore[arg-type]

    def region(self, *stages: StageToRun, **more: object) -> RegionJob:
        attempt = f"t0001-{uuid.uuid4().hex[:12]}"
        given = {
            "attempt": attempt,
            "dataflow": "flow",
            "epoch": "20130101T000000Z",
            "interval": ("2013-01-01T00:00:00+00:00", "2013-01-02T00:00:00+00:00"),
            "region": "-".join(stage.name for stage in stages)[:60],
            "subtask": 0,
            "store": self.store.url,
            "report": f"flow/20130101T000000Z/_regions/r/0/{attempt}/report.json",
            "parameters": {},
            **more,
        }
        return RegionJob(stages=stages, **given)  # type: ignore[arg-type]

    def read(self, argument: str, *reports: OutputReport, key_groups: tuple[int, int] | None = None) -> InputToRead:
        partitions = tuple(
            PartitionToRead(each.stage, subtask, self.files(each)) for subtask, each in enumerate(reports)
        )
        first = reports[0]
        return InputToRead(argument, first.layout, first.spark_schema, partitions, key_groups)

    def files(self, report: OutputReport) -> tuple[str, ...]:
        folder = report.folder
        return tuple(self.store.spark_url(f"{folder}/{file.name}") for file in report.files)


@pytest.fixture
def jobs(store: Store) -> Jobs:
    return Jobs(store)
