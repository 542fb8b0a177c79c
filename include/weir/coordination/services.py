"""Defines the services of the coordinator. Clock and ids are arguments, for tests and the simulator."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from weir.connections import Connections, LookUps, Variables, from_environment, variable_from_environment
from weir.dataflow.dataflow import Dataflow
from weir.dataflow.retention_settings import RetentionSettings
from weir.dataflow.sources import connections_of
from weir.errors import Misconfigured
from weir.formats.paths import attempt_record_folder, result_folder
from weir.ledger.ledger import Ledger
from weir.ledger.runs import Run
from weir.restarts.recovery_settings import RecoverySettings
from weir.settings import EXPECTATIONS, Settings
from weir.store.store import Store, opener
from weir.topology.ids import FIRST_TRY, AttemptId, AttemptKind, new_attempt_id
from weir.topology.layouts import SMALL_RESULT


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The ledger, the store, the clock, the source of unique ids, and the deployment's settings.

    `expectations` is the folder of the suites.
    """

    ledger: Ledger
    store: Store
    now: Callable[[], datetime] = _now
    new_uuid: Callable[[], uuid.UUID] = uuid.uuid4
    recovery: RecoverySettings = field(default_factory=RecoverySettings)
    retention: RetentionSettings = field(default_factory=RetentionSettings)
    expectations: str = EXPECTATIONS
    small_result: int = SMALL_RESULT
    """The bytes up to which a result is written plain, and filtered when it is read."""
    open_store: Callable[[str], Store] = Store.open
    """Opens another store by its URL, with the options of this one where both are of one kind."""
    connections: Connections = from_environment
    """Looks up the connections of sinks, of receivers of notifications and of functions."""
    variables: Variables = variable_from_environment
    """Looks up the variables of functions."""

    @classmethod
    def of(
        cls,
        settings: Settings,
        ledger: Ledger,
        connections: Connections = from_environment,
        variables: Variables = variable_from_environment,
    ) -> Services:
        """Return the services of a deployment, with the store that its settings name. Raises Misconfigured."""
        return cls(
            ledger=ledger,
            store=Store.open(settings.store, settings.store_options),
            open_store=opener(settings.store, settings.store_options),
            recovery=settings.recovery,
            retention=settings.retention,
            expectations=settings.expectations,
            small_result=settings.small_result,
            connections=connections,
            variables=variables,
        )

    @property
    def look_ups(self) -> LookUps:
        """The look-ups for functions of the user, whose secrets are recorded nowhere."""
        return LookUps(self.connections, self.variables).hiding()

    def store_id(self) -> str:
        """The id of the store that is mounted now.

        Only the first run creates the marker: a disk that is not mounted looks like an empty folder.
        Raises Retryable if the store is not the one that the ledger knows.
        """
        known = self.ledger.store_id()
        if known is None:
            return str(self.store.initialise())
        self.store.check_marker(known)
        return known

    def attempt_id(self, try_number: int) -> AttemptId:
        """Make the id of a new try of a task; no other attempt ever uses its file names."""
        return self._new_id(AttemptKind.TASK, try_number)

    def synthetic_attempt_id(self) -> AttemptId:
        """Make the id of a new attempt that is no try of a task."""
        return self._new_id(AttemptKind.SYNTHETIC)

    def compaction_attempt_id(self) -> AttemptId:
        """Make the id of a new attempt that compacts state."""
        return self._new_id(AttemptKind.COMPACTION, FIRST_TRY)

    def _new_id(self, kind: AttemptKind, try_number: int = 0) -> AttemptId:
        return new_attempt_id(kind, self.new_uuid().hex[:12], try_number)


def require_connections(look_up: Connections, flow: Dataflow) -> None:
    """Look up what targets and ready-made sources name. Raises Misconfigured with all that is missing, or Retryable."""
    missing: dict[str, str] = {}
    for stage in flow.stages:
        for conn_id, who in connections_of(stage).items():
            try:
                look_up(conn_id)
            except Misconfigured as error:
                missing[str(error)] = f"stage {stage.name!r}, {who}: {error}"
    if missing:
        raise Misconfigured("; ".join(missing.values()))


def attempt_folder(run: Run, stage: str, layout: str, subtask: int, attempt: str) -> str:
    """Return the folder of an attempt's result partition, relative to the store."""
    return result_folder(run.dataflow.name, run.epoch, stage, layout, subtask, attempt)


def region_folder(run: Run, region: str, subtask: int, attempt: str) -> str:
    """Return the folder of an attempt's job description and report, relative to the store."""
    return attempt_record_folder(run.dataflow.name, run.epoch, region, subtask, attempt)
