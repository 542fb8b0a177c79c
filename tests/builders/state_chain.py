"""A keyed state over epochs without a coordinator: the inputs of jobs, and their reports.

Invariant: each epoch reads the state of the one before, by the same pure rules as in a run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.builders.jobs import new_task_attempt

from weir.dataflow.state import Incremental
from weir.formats.manifest import RowRange, StateContent, StateFile, UpdateDigest
from weir.formats.paths import result_folder
from weir.formats.region_job import OutputReport, OutputToWrite, ReplacedState, StateFileToRead, StateToRead
from weir.state.chain_rules import rows_known
from weir.state.file_rules import assigned_files, epoch_seconds, visible
from weir.topology.ids import Digest, Epoch
from weir.topology.key_groups import key_group_range
from weir.topology.partitions import Layout
from weir.units import time_from_text

if TYPE_CHECKING:
    from weir.dataflow.state import State
    from weir.store.store import Store


KeyGroups = tuple[int, int]


@dataclass
class StateChain:
    """The partitions of one state, by their key groups, as the newest epoch has left them."""

    store: Store
    state: State
    max_parallelism: int = 128
    partitions: dict[KeyGroups, StateContent] = field(default_factory=dict)
    digests: dict[KeyGroups, Digest] = field(default_factory=dict)
    replaced: dict[KeyGroups, ReplacedState] = field(default_factory=dict)
    """What the epoch that is computed now has committed before."""

    def key_groups(self, parallelism: int) -> list[KeyGroups]:
        """Return the ranges of the subtasks."""
        return [key_group_range(self.max_parallelism, parallelism, subtask) for subtask in range(parallelism)]

    def read(self, epoch: str, key_groups: KeyGroups | None = None) -> StateToRead:
        """Return the state that a subtask with these key groups reads in an epoch."""
        mine, until = key_groups or (0, self.max_parallelism - 1), self.expired_until(epoch)
        files = tuple(
            StateFileToRead(
                self.store.spark_url(each.path), each.epoch, each.key_groups, each.file.rows, each.file.bytes
            )
            for each in self.share(epoch, mine)
        )
        tallies: tuple[UpdateDigest, ...] | None = ()
        if self.partitions:
            known = self.partitions[mine].tallies if mine in self.partitions else None
            tallies = None if known is None else visible(known, until)
        updated = 0 if until is None else epoch_seconds(epoch)
        return StateToRead(
            state=self.state,
            files=files,
            tallies=tallies,
            updated=updated,
            expired_until=until,
            is_full=self.state.incremental is Incremental.NEVER,
            epoch=Epoch(epoch),
            digest=self.digests.get(mine),
            rows=self._rows(mine, tallies, until),
            replaced=self.replaced.get(mine),
        )

    def _rows(self, mine: KeyGroups, tallies: tuple[UpdateDigest, ...] | None, until: int | None) -> RowRange | None:
        content = self.partitions.get(mine)
        if content is None:
            return None
        return rows_known(tallies, content.rows, content.files, expires=until is not None)

    def share(self, epoch: str, key_groups: KeyGroups) -> tuple[StateFile, ...]:
        """Return the files of these key groups."""
        files = [file for content in self.partitions.values() for file in content.files]
        return assigned_files(files, key_groups, self.expired_until(epoch))

    def output(self, epoch: str) -> OutputToWrite:
        """Return a partition to write."""
        layout = Layout(self.state.divided_by, self.max_parallelism)
        folder = result_folder("flow", epoch, self.state.name, layout.id, 0, new_task_attempt())
        return OutputToWrite(layout, folder, self.store.spark_url(folder))

    def go_on(self, epoch: str, reports: dict[KeyGroups, OutputReport]) -> None:
        """Make the reports of an epoch's subtasks the state that the next epoch reads."""
        self.partitions = {mine: self._content(epoch, mine, report) for mine, report in reports.items()}
        self.digests = {mine: Digest(str(report.digest)) for mine, report in reports.items()}

    def expired_until(self, epoch: str) -> int | None:
        """Return the newest update that has expired in an epoch."""
        time = None if self.state.ttl is None else time_from_text("ttl", self.state.ttl)
        return None if time is None else epoch_seconds(epoch) - int(time.total_seconds())

    def _content(self, epoch: str, mine: KeyGroups, report: OutputReport) -> StateContent:
        assert report.state is not None  # the report of a state
        written = tuple(StateFile(report.folder, file, Epoch(epoch), mine) for file in report.files)
        kept = () if report.state.is_whole else self.share(epoch, mine)
        state, until = report.state, self.expired_until(epoch)
        return StateContent((*kept, *written), state.tallies, state.changed, state.rows, until)
