"""Regions and result partitions of a dataflow, its independent pipelines, and its compaction tasks.

Invariants: every subtask of every stage is in exactly one region, every partition has one producer, and names never
depend on parallelism. Partitions are described once for each stage and layout, not once for each edge. With each
pipeline taken as one node, the regions still depend on each other in no cycle: a region outside a pipeline is upstream
of all of it, downstream of all of it, or independent of it. No compaction task has the name of a region.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Final

from weir.dataflow.dataflow import Dataflow
from weir.dataflow.graph import datasets_read, group_reads, pipelined_groups, topological_order
from weir.dataflow.stage import Exchange, ExchangeKind, Stage, StageKind
from weir.dataflow.state import Incremental, StateKind
from weir.errors import Internal
from weir.topology.key_groups import key_group_range
from weir.topology.layouts import WrittenLayouts, chosen_of_json, declared_layout, declared_layouts, pinned_json, taken
from weir.topology.partitions import PLAIN, InputPartitions, Layout, LogicalRegion, PartitionId, RegionId

__all__ = ["InputPartitions", "LogicalRegion", "PartitionId", "RegionId", "Topology"]
_MAX_JOINED_NAME = 60


class Topology:
    """The regions, partitions, producers and consumers of a valid dataflow.

    `chosen` are the layouts of stages that are not written as their exchanges declare (None: no layout was chosen).
    """

    def __init__(self, dataflow: Dataflow, chosen: Mapping[str, WrittenLayouts] | None = None) -> None:
        self.dataflow, self.chosen = dataflow, chosen
        self._stages = {stage.name: stage for stage in dataflow.stages}
        groups = {group[0].name: group for group in pipelined_groups(dataflow.stages)}
        order = topological_order(group_reads(tuple(groups.values())))
        self.regions: tuple[LogicalRegion, ...] = tuple(_logical_region(groups[first]) for first in order)
        self._regions = {region.name: region for region in self.regions}
        self._region_of = {stage: region for region in self.regions for stage in region.stages}
        written = declared_layouts(dataflow) | {name: found.written for name, found in (chosen or {}).items()}
        self._layouts = {name: {each.id: each for each in layouts} for name, layouts in written.items()}
        self._readers: dict[tuple[str, str], dict[str, bool]] = {}
        """By stage and layout: the reading regions, and whether each subtask of them reads one partition only."""
        self._exchanges: dict[tuple[str, str], dict[Exchange, None]] = {}
        for stage in dataflow.stages:
            self._enter(stage)
        self._partitions = {
            (stage, layout): tuple(PartitionId(stage, i, layout) for i in range(self._stages[stage].parallelism))
            for stage, layouts in self._layouts.items()
            for layout in layouts
        }

    def _enter(self, stage: Stage) -> None:
        reader = self._region_of[stage.name].name
        for exchange in stage.exchanges.values():
            if not exchange.is_boundary:
                continue
            layout = self.layout_read(stage.name, exchange)
            readers = self._readers.setdefault((exchange.stage, layout.id), {})
            readers[reader] = readers.get(reader, True) and exchange.pointwise
            producer = self._region_of[exchange.stage].name
            self._exchanges.setdefault((producer, reader), {})[exchange] = None

    def to_json(self) -> dict[str, Any]:
        """Return the record that a run is pinned to as plain JSON values."""
        return pinned_json(self.dataflow, self.chosen)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Topology:
        """Read the record that `to_json` wrote. Raises Misconfigured for an unknown version."""
        return cls(Dataflow.from_json(document), chosen_of_json(document))

    def layout_read(self, reader: str, exchange: Exchange) -> Layout:
        """Return the layout in which the stage `reader` reads a blocking or previous exchange of a run like this."""
        return taken(self._layouts[exchange.stage].values(), declared_layout(self.dataflow, reader, exchange))

    def layout_for(self, stage: str, declared: Layout) -> Layout | None:
        """Return the layout of a stage in which a later run reads it; None if the stage is not written."""
        written = self._layouts.get(stage)
        return taken(written.values(), declared) if written else None

    def is_written(self, stage: str) -> bool:
        """Report whether a stage is written in any layout; false for a stage of another dataflow."""
        return bool(self._layouts.get(stage))

    # Regions

    def region(self, name: str) -> LogicalRegion:
        """Return the logical region of that name."""
        if name not in self._regions:
            raise Internal.of("topology.region_unknown", dataflow=self.dataflow.name, name=name, regions=self._regions)
        return self._regions[name]

    def knows(self, region: RegionId) -> bool:
        """Report whether the region belongs to this topology: an id from another topology may not."""
        logical = self._regions.get(region.name)
        return logical is not None and 0 <= region.subtask < logical.parallelism

    def region_ids(self) -> tuple[RegionId, ...]:
        """Return all regions, producers first."""
        return tuple(region for logical in self.regions for region in logical.ids())

    def logical_region_of(self, stage: str) -> LogicalRegion:
        """Return the logical region that a stage belongs to."""
        if stage not in self._region_of:
            raise Internal.of(
                "dataflow.stage_unknown", name=self.dataflow.name, stage=stage, known=", ".join(self._stages)
            )
        return self._region_of[stage]

    def region_of(self, stage: str, subtask: int) -> RegionId:
        """Return the region that a subtask of a stage belongs to."""
        region = RegionId(self.logical_region_of(stage).name, subtask)
        self._expect(region)
        return region

    def stages_of(self, region: str) -> tuple[Stage, ...]:
        """Return the stages of a logical region in topological order."""
        return tuple(self._stages[stage] for stage in self.region(region).stages)

    def upstream(self, region: str) -> tuple[LogicalRegion, ...]:
        """Return the logical regions that this one reads directly."""
        self.region(region)
        return tuple(logical for logical in self.regions if (logical.name, region) in self._exchanges)

    @cached_property
    def pipelines(self) -> tuple[tuple[LogicalRegion, ...], ...]:
        """Sets of regions that advance and recover index by index; a region is in at most one set.

        The regions of a set have one parallelism and are joined by pointwise exchanges only.
        """
        pointwise = {ends: all(each.pointwise for each in between) for ends, between in self._exchanges.items()}
        return pipelines_of(self.regions, pointwise)

    def exchanges_between(self, producer: str, consumer: str) -> tuple[Exchange, ...]:
        """Return the distinct blocking exchanges from one logical region to another."""
        return tuple(self._exchanges.get((producer, consumer), ()))

    @cached_property
    def leaves(self) -> tuple[LogicalRegion, ...]:
        """The logical regions without consumers."""
        producers = {producer for producer, _ in self._exchanges}
        return tuple(logical for logical in self.regions if logical.name not in producers)

    @cached_property
    def sinks(self) -> tuple[str, ...]:
        """The names of the sinks, which are stages too."""
        return tuple(stage.name for stage in self.dataflow.stages if stage.kind is StageKind.SINK)

    @cached_property
    def states(self) -> tuple[str, ...]:
        """The names of the states, which are stages too."""
        return tuple(stage.name for stage in self.dataflow.stages if stage.kind is StageKind.STATE)

    # Result partitions

    def layout(self, layout_id: str) -> Layout:
        """Return the layout of that id, if any stage of this topology is written in it."""
        if layout_id not in self._layout_by_id:
            known = ", ".join(self._layout_by_id)
            raise Internal.of("topology.layout_unknown", dataflow=self.dataflow.name, layout_id=layout_id, known=known)
        return self._layout_by_id[layout_id]

    def layouts_of(self, stage: str) -> tuple[Layout, ...]:
        """Return every layout in which a stage is written: none where it is only read over pipelined exchanges."""
        self.logical_region_of(stage)
        return tuple(self._layouts[stage].values())

    def writes(self, stage: str, layout_id: str) -> bool:
        """Report whether a stage is written in a layout; false for a stage of another dataflow."""
        return (stage, layout_id) in self._partitions

    def copies_of(self, region: str) -> tuple[str, ...]:
        """Return the stages of a region whose output is cached durably: the points from which a retry resumes."""
        return self._cached(region, durable=True)

    def persisted_of(self, region: str) -> tuple[str, ...]:
        """Return the stages of a logical region that are persisted within an attempt."""
        return self._cached(region, durable=False)

    def _cached(self, region: str, *, durable: bool) -> tuple[str, ...]:
        wanted = {
            exchange.stage
            for stage in self.stages_of(region)
            for exchange in stage.exchanges.values()
            if exchange.kind is ExchangeKind.CACHED and exchange.durable is durable
        }
        return tuple(stage for stage in self.region(region).stages if stage in wanted)

    def partitions_of(self, stage: str, layout_id: str) -> tuple[PartitionId, ...]:
        """Return the partitions of a stage in one layout, by subtask."""
        if (stage, layout_id) not in self._partitions:
            raise Internal.of(
                "topology.layout_of_stage_unknown", dataflow=self.dataflow.name, stage=stage, layout_id=layout_id
            )
        return self._partitions[stage, layout_id]

    def outputs(self, region: RegionId) -> tuple[PartitionId, ...]:
        """Return the partitions that a region writes."""
        self._expect(region)
        return tuple(
            self._partitions[stage, layout][region.subtask]
            for stage in self._regions[region.name].stages
            for layout in self._layouts[stage]
        )

    def inputs(self, region: RegionId) -> tuple[InputPartitions, ...]:
        """Return the blocking inputs of a region's stages, in the order of stages and arguments."""
        self._expect(region)
        return tuple(
            self._input(stage, argument, exchange, region)
            for stage in self.stages_of(region.name)
            for argument, exchange in stage.exchanges.items()
            if exchange.is_boundary
        )

    @cached_property
    def reads_previous(self) -> bool:
        """Report whether any stage reads the previous run."""
        return any(each.is_previous for stage in self.dataflow.stages for each in stage.exchanges.values())

    @cached_property
    def reads_datasets(self) -> bool:
        """Report whether any stage reads what another dataflow has published."""
        return bool(datasets_read(self.dataflow.stages))

    @cached_property
    def follows_previous(self) -> bool:
        """Report whether a run follows one that is fixed: any stage reads it, or a source goes on from its position."""
        return self.reads_previous or any(stage.goes_on for stage in self.dataflow.stages)

    @cached_property
    def carried(self) -> frozenset[PartitionId]:
        """The partitions that the next run reads, if it has this topology."""
        written = {
            (exchange.stage, self.layout_read(stage.name, exchange).id)
            for stage in self.dataflow.stages
            for exchange in stage.exchanges.values()
            if exchange.is_previous
        }
        return frozenset(
            partition
            for stage, layout in written
            if self.writes(stage, layout)
            for partition in self.partitions_of(stage, layout)
        )

    def previous_inputs(self, region: RegionId) -> tuple[InputPartitions, ...]:
        """Return the inputs of a region's stages from the previous run, in the order of stages and arguments.

        They read all partitions that run has; it may have written another layout than the declared one.
        """
        self._expect(region)
        return tuple(
            self._read(stage, argument, exchange, region, declared_layout(self.dataflow, stage.name, exchange), ())
            for stage in self.stages_of(region.name)
            for argument, exchange in stage.exchanges.items()
            if exchange.is_previous
        )

    def dataset_inputs(self, region: RegionId) -> tuple[InputPartitions, ...]:
        """Return the inputs of a region's stages from other dataflows.

        Their partitions and layouts are those of the epochs that the run has resolved them to.
        """
        self._expect(region)
        return tuple(
            self._read(stage, argument, exchange, region, PLAIN, ())
            for stage, argument, exchange in datasets_read(self.stages_of(region.name))
        )

    def _input(self, stage: Stage, argument: str, exchange: Exchange, region: RegionId) -> InputPartitions:
        layout = self.layout_read(stage.name, exchange)
        partitions = self._partitions[exchange.stage, layout.id]
        read = partitions[region.subtask : region.subtask + 1] if exchange.pointwise else partitions
        return self._read(stage, argument, exchange, region, layout, read)

    def _read(
        self,
        stage: Stage,
        argument: str,
        exchange: Exchange,
        region: RegionId,
        layout: Layout,
        partitions: tuple[PartitionId, ...],
    ) -> InputPartitions:
        declared = declared_layout(self.dataflow, stage.name, exchange)
        groups = key_group_range(declared.max_parallelism, stage.parallelism, region.subtask) if declared.keys else None
        return InputPartitions(
            argument=argument,
            stage=stage.name,
            producer=exchange.stage,
            layout=layout,
            partitions=partitions,
            declared=declared,
            assigned=groups,
            schema=exchange.schema,
        )

    def producer(self, partition: PartitionId) -> RegionId:
        """Return the region that writes a partition."""
        return self.region_of(partition.stage, partition.subtask)

    def consumers(self, partition: PartitionId) -> tuple[RegionId, ...]:
        """Return the regions of the same run that read a partition.

        All subtasks of a consumer read it, since any row may have any key; over pointwise exchanges only one does.
        """
        self._expect(self.producer(partition))
        if (partition.stage, partition.layout) not in self._readers:
            return ()
        return self._consumers[partition.stage, partition.layout][partition.subtask]

    @cached_property
    def _consumers(self) -> dict[tuple[str, str], tuple[tuple[RegionId, ...], ...]]:
        return {written: self._consumers_of(written[0], readers) for written, readers in self._readers.items()}

    def _consumers_of(self, stage: str, readers: Mapping[str, bool]) -> tuple[tuple[RegionId, ...], ...]:
        """Return the consumers by subtask of the producer: one shared tuple where no reader is pointwise."""
        logical = [each for each in self.regions if each.name in readers]
        count = self._stages[stage].parallelism
        if not any(readers.values()):
            return (tuple(region for each in logical for region in each.ids()),) * count
        return tuple(
            tuple(
                region
                for each in logical
                for region in ((RegionId(each.name, subtask),) if readers[each.name] else each.ids())
            )
            for subtask in range(count)
        )

    @cached_property
    def _layout_by_id(self) -> dict[str, Layout]:
        return {layout_id: layout for layouts in self._layouts.values() for layout_id, layout in layouts.items()}

    def _expect(self, region: RegionId) -> None:
        if self.knows(region):
            return
        logical = self.region(region.name)
        raise Internal.of(
            "topology.region_without_subtask",
            region=region,
            logical=logical.name,
            parallelism=logical.parallelism - 1,
        )


def _logical_region(group: tuple[Stage, ...]) -> LogicalRegion:
    names = tuple(stage.name for stage in group)
    named = [stage.name for stage in group if stage.kind is not StageKind.STATE]
    joined = "-".join(named)
    name = joined if len(joined) <= _MAX_JOINED_NAME else f"{named[0]}-to-{named[-1]}"
    return LogicalRegion(name, names, group[0].parallelism)


_PREFIX: Final = "weir_compact-"


def compaction_task(region: str) -> str:
    """Return the name of the task that compacts the state of a region."""
    return f"{_PREFIX}{region}"


def region_compacted(task: str) -> str | None:
    """Return the region whose state a task compacts; None for any other task."""
    return task.removeprefix(_PREFIX) if task.startswith(_PREFIX) else None


def compacted_regions(topology: Topology) -> tuple[LogicalRegion, ...]:
    """Return the regions with keyed state that is written as sorted runs of changes."""
    return tuple(
        region
        for region in topology.regions
        if any(
            state.kind is StateKind.KEYED and state.incremental is not Incremental.NEVER
            for stage in topology.stages_of(region.name)
            for state in stage.states
        )
    )


def pipelines_of(
    regions: Sequence[LogicalRegion], pointwise: Mapping[tuple[str, str], bool]
) -> tuple[tuple[LogicalRegion, ...], ...]:
    """Return sets of at least two regions of a parallelism above 1 that are joined over pointwise exchanges.

    `regions` are in topological order. `pointwise` tells for each pair of producer and consumer whether all exchanges
    between them are pointwise. Sets grow along the exchanges in that order, as long as the module's invariant holds.
    """
    number = {region.name: place for place, region in enumerate(regions)}
    edges = sorted((number[consumer], number[producer], is_so) for (producer, consumer), is_so in pointwise.items())
    sets = _Sets(len(regions), edges)
    for consumer, producer, is_pointwise in edges:
        if is_pointwise and regions[consumer].parallelism > 1:
            sets.join(producer, consumer)
    found = ([regions[member] for member in members] for members in sets.members if len(members) > 1)
    return tuple(tuple(pipeline) for pipeline in found)


class _Sets:
    """Disjoint sets of regions, numbered by their first region, and the exchanges between them."""

    def __init__(self, size: int, edges: Sequence[tuple[int, int, bool]]) -> None:
        self.members: list[list[int]] = [[place] for place in range(size)]
        self._set_of = list(range(size))
        self._after: list[dict[int, bool]] = [{} for _ in range(size)]
        """By set: the sets that read it, and whether over pointwise exchanges only."""
        self._before: list[set[int]] = [set() for _ in range(size)]
        for consumer, producer, is_pointwise in edges:
            self._after[producer][consumer] = is_pointwise
            self._before[consumer].add(producer)

    def join(self, producer: int, consumer: int) -> None:
        """Merge the sets of two regions if all exchanges between them are pointwise and no other path joins them."""
        kept, gone = self._set_of[producer], self._set_of[consumer]
        if kept == gone or not self._after[kept][gone] or self._has_detour(kept, gone):
            return
        if gone < kept:
            kept, gone = gone, kept
        for place in self.members[gone]:
            self._set_of[place] = kept
        self.members[kept] = sorted(self.members[kept] + self.members[gone])
        self.members[gone] = []
        self._redirect(gone, kept)

    def _has_detour(self, start: int, end: int) -> bool:
        waiting = [each for each in self._after[start] if each != end]
        seen = set(waiting)
        for each in waiting:
            if end in self._after[each]:
                return True
            new = self._after[each].keys() - seen
            seen |= new
            waiting += new
        return False

    def _redirect(self, gone: int, kept: int) -> None:
        for reader, is_pointwise in self._after[gone].items():
            self._before[reader].discard(gone)
            if reader != kept:
                self._before[reader].add(kept)
                self._after[kept][reader] = is_pointwise and self._after[kept].get(reader, True)
        for read in self._before[gone]:
            is_pointwise = self._after[read].pop(gone)
            if read != kept:
                self._before[kept].add(read)
                self._after[read][kept] = is_pointwise and self._after[read].get(kept, True)
        self._after[gone], self._before[gone] = {}, set()
