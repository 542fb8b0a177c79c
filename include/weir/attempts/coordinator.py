"""The coordinator: Flink's JobMaster without a server. Decisions over the ledger, taken in the task's own process."""

from __future__ import annotations

from weir.attempts import begin, close, commit, commit_check
from weir.attempts.rooms import Rooms
from weir.coordination.airflow import Clearer
from weir.coordination.services import Services
from weir.coordination.values import (
    BeginOutcome,
    BeginRequest,
    Begun,
    CloseOutcome,
    Committed,
    Evaluated,
)
from weir.formats.region_job import RegionReport
from weir.state import compaction
from weir.state.compaction import CompactionRequest, ToCompact


class Coordinator:
    """The steps of an attempt, in the order in which an operator takes them."""

    def __init__(self, services: Services, rooms: Rooms) -> None:
        self._services, self.rooms = services, rooms

    @property
    def services(self) -> Services:
        """The ledger, the store and the clock of the coordinator."""
        return self._services

    def begin(self, request: BeginRequest, clearer: Clearer) -> BeginOutcome:
        """Start a try of a region. Raises Fenced, ResultUnavailable, Misconfigured, Retryable or Conflict."""
        return begin.begin(self._services, self.rooms, request, clearer)

    def check_inputs(self, begun: Begun) -> None:
        """Check whether inputs or a full disk made a computation fail. Raises ResultUnavailable or Retryable."""
        commit.check_inputs(self._services, begun)

    def evaluate(self, begun: Begun, report: RegionReport) -> Evaluated:
        """Evaluate the checks of the written results. Raises QualityFailed, ResultUnavailable or as commit."""
        return self.rooms.gates.evaluate(begun, report)

    def commit(self, begun: Begun, report: RegionReport, clearer: Clearer) -> Committed:
        """Make the written results current. Raises Fenced, Conflict, ResultUnavailable, Misconfigured or Retryable."""
        return commit.commit(self._services, self.rooms.gates, begun, report, clearer)

    def heartbeat(self, begun: Begun) -> None:
        """Renew the attempt's read leases, record its heartbeat; raise Fenced or Conflict where its commit would."""
        commit_check.heartbeat(self._services, begun)

    def close(self, request: BeginRequest, clearer: Clearer) -> CloseOutcome:
        """Complete the run and publish. Raises ResultUnavailable, Conflict, Fenced, Misconfigured or Retryable."""
        return close.close(self._services, self.rooms.publishing, request, clearer)

    def plan_compaction(self, request: CompactionRequest) -> ToCompact | None:
        """Plan the compaction of the state that a region keeps; None if none is needed. Raises Retryable."""
        return compaction.plan_compaction(self._services, request)

    def enter_compacted(self, begun: ToCompact, report: RegionReport | None) -> list[str]:
        """Record the compacted files for all later readers; returns a line per partition. Raises Retryable."""
        return compaction.enter_compacted(self._services, begun, report)
