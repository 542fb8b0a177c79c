"""The rooms that an attempt stands on: gates, files, publishing, and what is settled after a commit.

Invariant: an attempt knows them by what it asks of them here, and imports none of them. Each of these takes the
transactions of its own part; `weir.assembly` joins them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from sqlalchemy.orm import Session

from weir.coordination.registered import Gathered, Registered
from weir.coordination.settled import Due, Settled
from weir.coordination.values import Awaiting, BeginRequest, Begun, Evaluated
from weir.dataflow import Dataflow
from weir.dataflow.targets import Target
from weir.execution.run_state import RunState
from weir.formats.manifest import InputRead, Manifest
from weir.formats.region_job import RegionJob, RegionReport
from weir.topology.regions import PartitionId

AddChecks = Callable[[RegionJob], RegionJob]
"""Adds to a job what it has to check. Raises Retryable."""


class Gates(Protocol):
    """What rows have to pass before they become current."""

    def open(self, registered: Registered, gathered: Gathered, request: BeginRequest) -> AddChecks:
        """Read the suites of an attempt, before it computes.

        Raises Misconfigured for a suite that is missing or invalid, and QualityFailed if the attempt can only compute
        rows that have failed already.
        """
        ...

    def has_passed_all(self, session: Session, registered: Registered, state: RunState) -> bool:
        """Report whether the committed results of the region have passed the gates that are for restored results."""
        ...

    def evaluate(self, begun: Begun, report: RegionReport) -> Evaluated:
        """Release the written results for the commit, or put them in quarantine.

        Raises QualityFailed, ResultUnavailable where inputs are suspected, Conflict, Fenced, or Retryable.
        """
        ...

    def require_evaluated(self, session: Session, begun: Begun) -> None:
        """Raise Internal if the attempt was to be checked, and has not been."""
        ...


class Files(Protocol):
    """The room that the store has for the files of an attempt."""

    def make_room(self, registered: Registered, declared: Dataflow, reads: int) -> tuple[str, ...]:
        """Ensure that an attempt that reads so many bytes has space; return lines about what was deleted for it.

        Raises DiskFull, QuotaExceeded, or Retryable.
        """
        ...

    def make_room_when_full(self, dataflow: str) -> str:
        """Free space after a write has found the store's disk full; return the outcome for the log."""
        ...


@dataclass(frozen=True, slots=True)
class SinkResult:
    """The partitions of one sink, by subtask, with their manifests, and its targets."""

    sink: str
    partitions: tuple[PartitionId, ...]
    manifests: tuple[Manifest, ...]
    targets: tuple[Target, ...]

    @property
    def digest(self) -> str:
        """The digests of its partitions, in their order."""
        return "|".join(str(manifest.digest) for manifest in self.manifests)

    @property
    def fingerprint(self) -> str:
        """Its digest in 64 characters, however many partitions it has."""
        return hashlib.sha256(self.digest.encode()).hexdigest()


class Publication(Protocol):
    """What one close publishes: all that can fail in a target has been tried."""

    def write(self, reads: Sequence[InputRead]) -> None:
        """Give each sink whose content is new a version, and write its pointer. `reads` are the results it is of.

        Raises Fenced, Conflict, LedgerBehind or Retryable.
        """
        ...

    def deliver(self) -> Awaiting | None:
        """Commit what is published into the targets. Raises what a target refuses, where a person has to act."""
        ...

    def outcomes(self, versions: Mapping[str, int]) -> Mapping[str, Mapping[str, str]]:
        """Return what the targets of each sink hold of these versions, by the name of the target."""
        ...


class Publishing(Protocol):
    """The versions of sinks, and the targets that get them."""

    def prepare(
        self,
        registered: Registered,
        state: RunState,
        sinks: Sequence[SinkResult],
        intact: Mapping[str, Manifest],
    ) -> Publication | Awaiting:
        """Prepare a publication in all targets: nothing is visible yet. Returns Awaiting where a target is away.

        `intact` are the manifests of what has just been compared byte for byte, by folder. Raises Misconfigured,
        Retryable, or what a target does not know.
        """
        ...


class Settling(Protocol):
    """What follows from the commits of a dataflow, as one process settles it."""

    def settle(self, dataflow: str | None, due: Due) -> Settled:
        """Settle what is due; what fails is in the answer, and any later process does it."""
        ...

    def catch_up(self, dataflow: str) -> str:
        """Have a ledger that has lost commits catch up with the store, and describe it.

        Raises Misconfigured or Retryable.
        """
        ...


@dataclass(frozen=True, slots=True)
class Rooms:
    """The rooms that the coordinator of one ledger and store stands on."""

    gates: Gates
    files: Files
    publishing: Publishing
