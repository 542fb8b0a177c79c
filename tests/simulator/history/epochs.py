"""The dataflow that each run is pinned to, and the run before it.

Invariant: a region or a result is named with its run; an input of the run before is named with that run.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator

from tests.simulator.history.ledger_view import Partition

from weir.execution.run_state import CLOSE
from weir.ledger.runs import run_key, topology_of
from weir.topology.partitions import InputPartitions
from weir.topology.regions import PartitionId, RegionId, Topology

RunRegion = tuple[str, RegionId]
"""A run and its region."""


class Epochs:
    """The runs of one simulation; `newest` is the dataflow that a run is pinned to which begins now."""

    def __init__(self, connection: sqlite3.Connection, topology: Topology) -> None:
        self.newest = topology
        self._connection = connection
        self._pinned: dict[str, Topology | None] = {}
        """By the text of a record that a run is pinned to."""

    def deploy(self, topology: Topology) -> None:
        """Runs that begin from now on are pinned to another one."""
        self.newest = topology

    def topology_of(self, run: str) -> Topology:
        """Return the topology that a run is pinned to: its dataflow and its layouts."""
        row = self._connection.execute("SELECT pinned FROM run WHERE id = ?", (run,)).fetchone()
        if row is None or row[0] is None:
            return self.newest
        if row[0] not in self._pinned:
            pinned = json.loads(row[0])
            self._pinned[row[0]] = topology_of(pinned) if pinned else None
        return self._pinned[row[0]] or self.newest

    def has(self, run: str, region: RegionId) -> bool:
        """Report whether the topology that a run is pinned to has a region."""
        return region == CLOSE or region in self.topology_of(run).region_ids()

    def is_pinned(self, run: str) -> bool:
        """Report whether a run has begun."""
        row = self._connection.execute("SELECT pinned FROM run WHERE id = ?", (run,)).fetchone()
        return row is not None and row[0] not in (None, "null")

    def previous_of(self, run: str) -> str | None:
        """Return the run before it, whose state and results it reads."""
        if not self.newest.reads_previous:
            return None
        row = self._connection.execute("SELECT dataflow, predecessor FROM run WHERE id = ?", (run,)).fetchone()
        return None if row is None or row[1] is None else run_key(*row)

    def inputs_of(self, where: RunRegion) -> Iterator[Partition]:
        """Yield the inputs of a region, of its own run and the one before; the closing task needs all of its own."""
        run, region = where
        topology = self.topology_of(run)
        if region == CLOSE:
            yield from (Partition(run, each) for one in topology.region_ids() for each in topology.outputs(one))
            return
        for read in topology.inputs(region):
            yield from (Partition(run, each) for each in read.partitions)
        yield from self.previous_inputs(where)

    def previous_inputs(self, where: RunRegion) -> Iterator[Partition]:
        """Yield the inputs of a region that are of the run before."""
        run, region = where
        if region == CLOSE:
            return
        before = self.previous_of(run)
        for read in () if before is None else self.topology_of(run).previous_inputs(region):
            yield from self.partitions_read(before or "", read)

    def partitions_read(self, before: str, read: InputPartitions) -> list[Partition]:
        """Return the partitions that an input is of the run before, in the layout in which they are written."""
        layout = self.topology_of(before).layout_for(read.producer, read.layout)
        return [] if layout is None else self.partitions_of(before, read.producer, layout.id)

    def partitions_of(self, run: str, stage: str, layout: str) -> list[Partition]:
        """Return the partitions of a stage in a run."""
        topology = self.topology_of(run)
        found: tuple[PartitionId, ...] = topology.partitions_of(stage, layout) if topology.writes(stage, layout) else ()
        return [Partition(run, each) for each in found]

    def producer(self, partition: Partition) -> RunRegion:
        """Return the region that writes a partition."""
        return partition.run, self.topology_of(partition.run).producer(partition.id)
