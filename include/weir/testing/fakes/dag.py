"""The fake Airflow's DAG: its task instances, and the upstream tasks of each.

Invariant: both are as Weir's DAG has them: one task a region, mapped over its subtasks, in a mapped group where regions
read each other index by index; and one, without downstream tasks, for each region that keeps state in sorted runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from weir.coordination.values import TaskKey
from weir.dataflow import Dataflow
from weir.execution.run_state import CLOSE
from weir.topology.regions import Topology, compacted_regions, compaction_task, region_compacted

RETRIES = 999


def interval_of(run_id: str) -> tuple[datetime, datetime]:
    """Return the data interval of a DagRun: the day that its id ends with."""
    day = datetime.strptime(run_id[-10:], "%Y-%m-%d").replace(tzinfo=UTC)
    return day, day + timedelta(days=1)


@dataclass(slots=True, kw_only=True)
class FakeTask:
    """A task instance. `runs` are the tries that were really executed.

    `waits_on` is what it last waited for, `failed_because` why it last failed.

    It waits for all instances of the tasks in `upstream`, but of those in its `pipeline` for that of its own index.
    """

    key: TaskKey
    upstream: frozenset[str]
    pipeline: frozenset[str] = frozenset()
    state: str | None = None
    try_number: int = 0
    retries: int = RETRIES
    max_tries: int = -1
    not_before: datetime | None = None
    runs: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    waits_on: str = ""
    failed_because: str = ""

    def __post_init__(self) -> None:
        if self.max_tries < 0:
            self.max_tries = self.retries

    def fail(self, reason: str) -> None:
        """Fail, for a reason that its log tells."""
        self.state, self.failed_because = "failed", reason
        self.notes.append(reason)

    @property
    def is_compaction(self) -> bool:
        """Report whether it compacts state: then it runs after its region, whatever became of that (all_done)."""
        return region_compacted(self.key.task_id) is not None

    def waits_for(self, other: TaskKey) -> bool:
        """Report whether its trigger rule looks at `other`."""
        if other.run_id != self.key.run_id or other.task_id not in self.upstream:
            return False
        return other.task_id not in self.pipeline or other.map_index == self.key.map_index


class FakeDag:
    """The tasks of a dataflow: which each waits for, and with which others it is in a mapped group."""

    def __init__(self, flow: Dataflow, dag_id: str) -> None:
        self._dag_id, topology = dag_id, Topology(flow)
        self._indexes = {region.name: (region.map_index(0), region.parallelism) for region in topology.regions}
        self._indexes[CLOSE.name] = (-1, 1)
        self.upstream = {
            region.name: frozenset(each.name for each in topology.upstream(region.name)) for region in topology.regions
        }
        self.upstream[CLOSE.name] = frozenset(each.name for each in topology.leaves)
        for region in compacted_regions(topology):
            self._indexes[compaction_task(region.name)] = (-1, 1)
            self.upstream[compaction_task(region.name)] = frozenset({region.name})
        pipelines = [frozenset(region.name for region in pipeline) for pipeline in topology.pipelines]
        self.pipeline = {region: regions for regions in pipelines for region in regions}

    def has(self, key: TaskKey) -> bool:
        """Report whether the instance is in this DAG: an unmapped task also has its former mapped instances."""
        first, count = self._indexes.get(key.task_id, (-1, 0))
        return count > 0 and (first == -1 or 0 <= key.map_index < count)

    def created(self, run_id: str, known: Set[TaskKey]) -> Iterator[TaskKey]:
        """Yield the instances that Airflow makes when it looks at a run: of tasks of which the run has none.

        The further indexes of a task that is mapped over more subtasks now come when it is `expanded`.
        """
        names = {key.task_id for key in known}
        mapped = {key.task_id for key in known if key.map_index >= 0}
        for name, (first, _) in self._indexes.items():
            if name not in (names if first == -1 else mapped):
                yield from self.expanded(run_id, name)

    def expanded(self, run_id: str, name: str) -> Iterator[TaskKey]:
        """Yield all instances of a task, as Airflow makes them when one of these may run: its upstream is done."""
        first, count = self._indexes.get(name, (-1, 0))
        yield from (TaskKey(self._dag_id, run_id, name, index) for index in range(first, first + count))

    def is_mapped(self, name: str) -> bool:
        """Report whether a task is mapped over its subtasks."""
        return self._indexes.get(name, (-1, 0))[0] >= 0

    def new_task(self, key: TaskKey) -> FakeTask:
        """Return an instance that has never run."""
        pipeline = self.pipeline.get(key.task_id, frozenset())
        return FakeTask(key=key, upstream=self.upstream[key.task_id], pipeline=pipeline)
