"""An engine without Spark: it writes results that depend on their inputs and on nothing else.

Invariant: equal inputs, equal functions and equal worlds give equal digests, as deterministic stages do.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from weir.dataflow.resolving import ResolveContext
from weir.results.codec import manifest_from_json
from weir.results.manifest import ContentDigest, DataFile, Segment
from weir.results.region_job import OutputReport, OutputToWrite, RegionJob, RegionReport, StageToRun
from weir.store.store import Store

TAIL = 16
"""Bytes at the end of a fake file that stand for indexes and footer."""

SCHEMA = json.dumps({"type": "struct", "fields": [{"name": "k", "type": "long", "nullable": True, "metadata": {}}]})


class FakeEngine:
    """Computes a region: the content of a stage is a hash of its name, its inputs' contents and its world.

    `world` maps a stage to anything that its content depends on besides its inputs; change it to change the content.
    """

    def __init__(self, store: Store, world: Mapping[str, Any]) -> None:
        self._store = store
        self._world = world

    def run(self, job: RegionJob, during: Callable[[], None] = lambda: None) -> RegionReport:
        """Read all inputs, call `during`, then write all outputs."""
        contents: dict[str, str] = {}
        for stage in job.stages:
            contents[stage.name] = self._content(stage, contents)
        during()
        outputs = tuple(
            self._write(stage, output, contents[stage.name]) for stage in job.stages for output in stage.outputs
        )
        return RegionReport(job.attempt, outputs, "code", {}, {"compute": 0.0})

    def _content(self, stage: StageToRun, contents: Mapping[str, str]) -> str:
        read = [contents[name] for name in stage.pipelined.values()]
        read += [self._read(file) for each in stage.inputs for part in each.partitions for file in part.files]
        own = "" if stage.function == "" else json.dumps([stage.name, stage.subtask, self._world.get(stage.name)])
        return hashlib.sha256(json.dumps([own, sorted(read)]).encode()).hexdigest()

    def _read(self, spark_path: str) -> str:
        path = spark_path.removeprefix(self._store.spark_url("").rstrip("/") + "/")
        data = self._store.read(path)
        manifest = manifest_from_json(self._store.read(path.rpartition("/")[0] + "/manifest.json"))
        if len(data) != manifest.files[0].bytes:
            raise OSError(f"{path} is truncated")
        return data[:64].decode()

    def _write(self, stage: StageToRun, output: OutputToWrite, content: str) -> OutputReport:
        data = content.encode() + b"\0" * TAIL
        self._store.create(f"{output.folder}/part-0.bin", data)
        body, tail = data[:-TAIL], data[-TAIL:]
        segments = (
            Segment(0, len(body), hashlib.sha256(body).hexdigest()),
            Segment(len(body), TAIL, hashlib.sha256(tail).hexdigest(), is_tail=True),
        )
        file = DataFile("part-0.bin", 1, len(data), hashlib.sha256(data).hexdigest(), segments)
        digest = ContentDigest("k:bigint", 1, int(content[:15], 16), 0, 0)
        return OutputReport(stage.name, output.layout, output.folder, SCHEMA, digest, (file,))


def slices_by_day(context: ResolveContext) -> list[str]:
    """Resolve a source: each subtask reads its part of the interval's first day."""
    return [f"{context.interval[0]:%Y-%m-%d}/{subtask}" for subtask in range(context.parallelism)]
