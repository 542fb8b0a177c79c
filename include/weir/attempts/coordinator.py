"""The coordinator: Flink's JobMaster without a server. Decisions over the ledger, taken in the task's own process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from weir.attempts import begin, close, commit, commit_check, failure
from weir.attempts.rooms import Rooms
from weir.coordination.airflow import Clearer
from weir.coordination.services import Services
from weir.coordination.values import (
    Action,
    BeginOutcome,
    BeginRequest,
    Begun,
    CloseOutcome,
    Committed,
    Evaluated,
    FailedTry,
    FailureDecision,
    TaskKey,
)
from weir.errors import StoreFull
from weir.execution.failure_words import PastTries
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

    def fail(self, failed: FailedTry, airflow: Callable[[], Clearer]) -> FailureDecision:
        """Record a failed try and decide what follows; settle the pending clears next. Raises Retryable."""
        decision = failure.fail(self._services, failed, airflow)
        if not isinstance(failed.error, StoreFull):
            return decision
        return replace(decision, reason=f"{decision.reason}; {self.rooms.files.make_room_when_full(failed.dataflow)}")

    def override(
        self, dataflow: str, decision: FailureDecision, action: Action, delay_seconds: float, reason: str
    ) -> FailureDecision:
        """Override the decision about a recorded failure by a user policy, where that may. Raises Retryable."""
        return failure.override(self._services, dataflow, decision, action, delay_seconds, reason)

    def label(self, dataflow: str, attempt: str, labels: Mapping[str, str]) -> dict[str, str]:
        """Add labels to a recorded failure and return all of its labels. Raises Retryable."""
        return failure.label(self._services, dataflow, attempt, labels)

    def past_tries(self, dataflow: str, key: TaskKey, try_number: int) -> PastTries:
        """Return what has become of a task since it last committed before a try. Raises Retryable."""
        return failure.past_tries(self._services, dataflow, key, try_number)

    def plan_compaction(self, request: CompactionRequest) -> ToCompact | None:
        """Plan the compaction of the state that a region keeps; None if none is needed. Raises Retryable."""
        return compaction.plan_compaction(self._services, request)

    def enter_compacted(self, begun: ToCompact, report: RegionReport | None) -> list[str]:
        """Record the compacted files for all later readers; returns a line per partition. Raises Retryable."""
        return compaction.enter_compacted(self._services, begun, report)
