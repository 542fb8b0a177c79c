"""Names of regions and result partitions. Invariant: they sort by name and subtask, and say nothing of parallelism."""

from __future__ import annotations

from dataclasses import dataclass


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


@dataclass(frozen=True, slots=True, order=True)
class RegionId:
    """One unit of recovery: subtask i of each stage of a logical region.

    `run` is empty for the run that is spoken of, else the id of an earlier one.
    """

    name: str
    subtask: int
    run: str = ""

    def __str__(self) -> str:
        return f"{self.name}[{self.subtask}]" + (f" of {self.run}" if self.run else "")


@dataclass(frozen=True, slots=True, order=True)
class PartitionId:
    """The result of one subtask of a stage in one layout, whatever the attempt.

    `run` is empty for the run that is spoken of, else the id of an earlier one.
    """

    stage: str
    subtask: int
    layout: str
    run: str = ""

    def __str__(self) -> str:
        return f"{self.stage}[{self.subtask}] ({self.layout})" + (f" of {self.run}" if self.run else "")
