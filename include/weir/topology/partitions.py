"""Names of regions and result partitions. Invariant: they sort by name and subtask, and say nothing of parallelism.

How the rows of a result are laid out in its files. Invariant: equal layouts have equal ids, and only they do.

What a region reads. Invariant: whoever reads an input needs to know nothing of exchanges.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from weir.topology.ids import OWN_RUN, RunId, RunRef, run_of_ref


@dataclass(frozen=True, slots=True)
class LogicalRegion:
    """Stages (in topological order) that run as one task: a mapped one where `parallelism` is above 1."""

    name: str
    stages: tuple[str, ...]
    parallelism: int

    def ids(self) -> tuple[RegionId, ...]:
        """Return the region's instances, one a subtask."""
        return tuple(RegionId(self.name, subtask) for subtask in range(self.parallelism))

    def map_index(self, subtask: int) -> int:
        """Return Airflow's map index of a subtask: -1 where the task is not mapped."""
        return -1 if self.parallelism == 1 else subtask


class _InRun:
    """What ids that refer to a run have in common."""

    __slots__ = ()
    run: RunRef

    @property
    def is_of_own_run(self) -> bool:
        """Report whether it is of the run from which the id is seen."""
        return self.run == OWN_RUN

    def run_id(self, own: str) -> RunId:
        """Return the id of its run, seen from the run `own`."""
        return run_of_ref(self.run, own)

    def _of_run(self) -> str:
        return "" if self.is_of_own_run else f" of {self.run}"


@dataclass(frozen=True, slots=True, order=True)
class RegionId(_InRun):
    """One unit of recovery: subtask i of each stage of a logical region.

    `run` is OWN_RUN for the run from which the id is seen, else the id of another run.
    """

    name: str
    subtask: int
    run: RunRef = OWN_RUN

    def in_run(self, run: RunRef) -> RegionId:
        """Return the same region in another run."""
        return RegionId(self.name, self.subtask, run)

    def __str__(self) -> str:
        return f"{self.name}[{self.subtask}]" + self._of_run()


@dataclass(frozen=True, slots=True, order=True)
class PartitionId(_InRun):
    """The result of one subtask of a stage in one layout, whatever the attempt.

    `run` is OWN_RUN for the run from which the id is seen, else the id of an earlier one.
    """

    stage: str
    subtask: int
    layout: str
    run: RunRef = OWN_RUN

    def in_run(self, run: RunRef) -> PartitionId:
        """Return the same partition in another run."""
        return PartitionId(self.stage, self.subtask, self.layout, run)

    def __str__(self) -> str:
        return f"{self.stage}[{self.subtask}] ({self.layout})" + self._of_run()


KEY_GROUP_COLUMN = "_weir_key_group"


@dataclass(frozen=True, slots=True)
class Layout:
    """`plain`, or sorted by the key group of `keys` among `max_parallelism` groups."""

    keys: tuple[str, ...] = ()
    max_parallelism: int = 0

    @property
    def id(self) -> str:
        """A name that is safe in paths and never looks like a Hive partition (`a=b`)."""
        if not self.keys:
            return "plain"
        readable = "-".join(re.sub(r"[^A-Za-z0-9_]", "_", key) for key in self.keys)[:60]
        exact = hashlib.sha256(repr(self.keys).encode()).hexdigest()[:6]
        return f"by-{readable}-{self.max_parallelism}-{exact}"


PLAIN = Layout()


@dataclass(frozen=True, slots=True, kw_only=True)
class InputPartitions:
    """What one blocking input of a region reads; `key_groups` is the inclusive range to keep (None: all rows).

    `schema` is what it was declared to be, as Spark DDL (empty: nothing was declared).
    """

    argument: str
    stage: str
    producer: str
    layout: Layout
    partitions: tuple[PartitionId, ...]
    key_groups: tuple[int, int] | None
    schema: str = ""


@dataclass(frozen=True, slots=True)
class PreviousInput:
    """What one `previous` input of a region reads of the run before: all partitions that run has of the producer.

    `schema` is what it reads where there is no such run, as Spark DDL.
    """

    argument: str
    stage: str
    producer: str
    layout: Layout
    key_groups: tuple[int, int] | None
    schema: str
