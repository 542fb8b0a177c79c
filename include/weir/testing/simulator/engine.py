"""An engine that remembers what each attempt has made of what, so that any result can be computed again.

Invariant: a stage's content follows from its own nature, from the world if it is a source, and from what it read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from weir.errors import WeirError
from weir.results.region_job import RegionJob, RegionReport, StageToRun
from weir.store.store import Store
from weir.testing.engine import TAIL, FakeEngine
from weir.testing.simulator.process import StageFailed

SIZE: Final = 64 + TAIL
"""Bytes of each data file."""


class Nature(Enum):
    """How a stage's content depends on what it reads."""

    FINE = "fine"
    """Any change shows."""
    COARSE = "coarse"
    """Half of all changes do not show."""
    MOODY = "moody"
    """Each attempt makes something else."""


@dataclass(slots=True)
class Made:
    """What one attempt has made, by stage: its content and what it was made of besides what was read."""

    contents: dict[str, str] = field(default_factory=dict)
    own: dict[str, object] = field(default_factory=dict)


def content_of(stage: str, subtask: int, nature: Nature, own: object, read: Sequence[str]) -> str:
    """The content of a stage, whose inputs have the contents `read`."""
    told = sorted(read)
    if nature is Nature.COARSE and read:
        told = [str(sum(int(each[:2], 16) for each in read) % 2)]
    return hashlib.sha256(json.dumps([stage, subtask, own, told]).encode()).hexdigest()


class SimulatedEngine:
    """Computes regions, several at once. `world` says what a source reads now."""

    def __init__(self, store: Store, world: Mapping[str, int], natures: Mapping[str, Nature]) -> None:
        self.natures = natures
        self.made: dict[str, Made] = {}
        self._store, self._world = store, world

    def run(self, job: RegionJob, during: Callable[[], None] = lambda: None) -> RegionReport:
        """Read all inputs, call `during`, then write all outputs. Raises StageFailed."""
        self.made[job.attempt] = Made()
        try:
            return _Computation(self._store, self._world, self, job.attempt).run(job, during)
        except (WeirError, OSError, ValueError) as error:
            raise StageFailed(f"cannot read or write: {error}") from error


class _Computation(FakeEngine):
    """One attempt's."""

    def __init__(self, store: Store, world: Mapping[str, int], engine: SimulatedEngine, attempt: str) -> None:
        super().__init__(store, world)
        self._engine, self._attempt, self._made = engine, attempt, engine.made[attempt]

    def _content(self, stage: StageToRun, contents: Mapping[str, str]) -> str:
        read = [contents[name] for name in stage.pipelined.values()]
        read += [self._read(file) for each in stage.inputs for part in each.partitions for file in part.files]
        nature = self._engine.natures.get(stage.name, Nature.FINE)
        own = self._world.get(stage.name, 0) if stage.is_source else None
        self._made.own[stage.name] = self._attempt if nature is Nature.MOODY else own
        if stage.function == "":
            (content,) = read
        else:
            content = content_of(stage.name, stage.subtask, nature, self._made.own[stage.name], read)
        self._made.contents[stage.name] = content
        return content

    def _resumed(self, stage: StageToRun) -> str:
        content = super()._resumed(stage)
        if stage.resume is not None:
            # Whatever that attempt had made it of, it is made of now.
            self._made.own |= self._engine.made[stage.resume.attempt].own
        self._made.contents[stage.name] = content
        return content

    def _read(self, spark_path: str) -> str:
        content = super()._read(spark_path)
        int(content, 16)
        return content
