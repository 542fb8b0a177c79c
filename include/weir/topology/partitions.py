"""Ids of regions and result partitions, layouts of results, and the inputs of a region as partitions.

Invariants: ids sort by name and subtask and do not depend on parallelism. Two layouts are equal exactly if their ids
are. The description of an input is complete: its reader needs no exchange.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from weir.topology.ids import OWN_RUN, RunId, RunRef, run_of_ref


@dataclass(frozen=True, slots=True)
class LogicalRegion:
    """Stages (in topological order) that run as one Airflow task, which is mapped if `parallelism` is above 1."""

    name: str
    stages: tuple[str, ...]
    parallelism: int

    def ids(self) -> tuple[RegionId, ...]:
        """Return the regions, one for each subtask."""
        return tuple(RegionId(self.name, subtask) for subtask in range(self.parallelism))

    def map_index(self, subtask: int) -> int:
        """Return Airflow's map index of a subtask: -1 if the task is not mapped."""
        return -1 if self.parallelism == 1 else subtask


class _InRun:
    """The common part of ids that refer to a run."""

    __slots__ = ()
    run: RunRef

    @property
    def is_of_own_run(self) -> bool:
        """Report whether it is of the run from which the id is seen."""
        return self.run == OWN_RUN

    def run_id(self, own: str) -> RunId:
        """Return the id of its run, seen from the run `own`."""
        return run_of_ref(self.run, own)

    def is_of_other_dataflow(self, own: str) -> bool:
        """Report whether its run is one of another dataflow than the run `own`, from which it is seen."""
        return not self.is_of_own_run and self.run.partition("@")[0] != own.partition("@")[0]

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
        """The layout's id, which is safe in paths and never looks like a Hive partition (`a=b`)."""
        if not self.keys:
            return "plain"
        readable = "-".join(re.sub(r"[^A-Za-z0-9_]", "_", key) for key in self.keys)[:60]
        exact = hashlib.sha256(repr(self.keys).encode()).hexdigest()[:6]
        return f"by-{readable}-{self.max_parallelism}-{exact}"


PLAIN = Layout()


@dataclass(frozen=True, slots=True)
class KeyFilter:
    """The rows whose keys are in an inclusive range of key groups, in files of another layout than `layout`."""

    layout: Layout
    key_groups: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class InputPartitions:
    """The partitions that a blocking or previous input of a region reads, in the layout in which they are written.

    The rows are those of the inclusive range `assigned` of key groups of the layout `declared` by the exchange (None:
    all rows). Partitions of a data set can each be in a layout of their own: `layout` then is the declared one if any
    of them is. `schema` is the declared schema as Spark DDL (empty: none). Those of a previous input are known once its
    run is: until then it has none, and the declared layout.
    """

    argument: str
    stage: str
    producer: str
    layout: Layout
    partitions: tuple[PartitionId, ...]
    declared: Layout
    assigned: tuple[int, int] | None
    schema: str = ""

    @property
    def is_dataset(self) -> bool:
        """Report whether it reads what another dataflow has published: `producer` is "dataflow.sink"."""
        return "." in self.producer

    @property
    def key_groups(self) -> tuple[int, int] | None:
        """The inclusive range of the key groups of files in its layout that it reads; None if it reads all of them."""
        return self.assigned if self.layout == self.declared else None

    def key_groups_of(self, partition: PartitionId) -> tuple[int, int] | None:
        """Return the inclusive range of the key groups that it reads of a partition; None if it reads all of them."""
        return self.assigned if partition.layout == self.declared.id else None

    @property
    def filter(self) -> KeyFilter | None:
        """The rows that it keeps of partitions in other layouts than the declared one; None if these are all rows."""
        others = self.layout != self.declared or any(each.layout != self.declared.id for each in self.partitions)
        if self.assigned is None or not others:
            return None
        is_all = self.assigned == (0, self.declared.max_parallelism - 1)
        return None if is_all else KeyFilter(self.declared, self.assigned)
