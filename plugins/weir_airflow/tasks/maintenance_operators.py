"""Operators for DAGs of your own: a savepoint, a restore, a verification.

Invariant: DAG files import them at every parse, so what they run is imported in `execute`. A task that is tried or
cleared again does what is left to do: what an earlier try has done is found in the ledger.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Context


class WeirSavepointOperator(BaseOperator):  # type: ignore[misc]  # Airflow's classes are not followed
    """Creates a savepoint of a dataflow, as `weir savepoint create` does.

    `checkpoint` is the number of the checkpoint to copy (None: the newest), `to` an existing folder or its URL (None:
    in the store), `name` the name of the savepoint's folder. All of them are templated. A task that is tried or cleared
    again with the same arguments returns the savepoint that it has made in that DagRun, unless it was dropped. Its
    XCom has `dataflow`, `number`, `epoch`, `folder`, `files` and `bytes`. Raises Misconfigured if there is no such
    checkpoint or the folder is taken, and Retryable.
    """

    template_fields: ClassVar[Sequence[str]] = ("dataflow", "checkpoint", "to", "name")

    def __init__(
        self,
        *,
        dataflow: str,
        checkpoint: int | str | None = None,
        to: str | None = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.dataflow = dataflow
        self.checkpoint = checkpoint
        self.to = to
        self.name = name

    def execute(self, context: Context) -> dict[str, Any]:
        """Create the savepoint; what is returned shows as XCom."""
        from weir_airflow.tasks.maintenance import create_savepoint, key_of  # noqa: PLC0415  imports the ledger

        key = key_of(context["ti"], self.dataflow, self.checkpoint, self.to, self.name)
        return create_savepoint(self.dataflow, self.checkpoint, self.to, self.name, key, self.log.info)


class WeirRestoreOperator(BaseOperator):  # type: ignore[misc]  # Airflow's classes are not followed
    """Restores the state of a dataflow from a checkpoint or savepoint, as `weir restore` does.

    `snapshot` is a number, a savepoint's name or its folder; `fork` names a new dataflow that is to start from it
    instead; all of them are templated. `allow_non_restored_state` lets the next epoch ignore states that no stage
    declares any more. A restore that is in effect already is not done again. Its XCom has `dataflow`, `source`,
    `epoch`, `lineage`, `is_in_effect` and the numbers of `restored` partitions, `stale` tasks and `pending_clears`.
    Raises Misconfigured if the snapshot does not exist, is not whole or does not fit, Retryable, and Conflict.
    """

    template_fields: ClassVar[Sequence[str]] = ("dataflow", "snapshot", "fork")

    def __init__(
        self,
        *,
        dataflow: str,
        snapshot: int | str,
        fork: str | None = None,
        allow_non_restored_state: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.dataflow = dataflow
        self.snapshot = snapshot
        self.fork = fork
        self.allow_non_restored_state = allow_non_restored_state

    def execute(self, context: Context) -> dict[str, Any]:  # noqa: ARG002  Airflow's signature
        """Restore; what is returned shows as XCom."""
        from weir.snapshots.restore import RestoreRequest  # noqa: PLC0415  imports the ledger
        from weir_airflow.tasks.maintenance import restore_state  # noqa: PLC0415

        wanted = RestoreRequest(self.dataflow, str(self.snapshot), self.fork or None, self.allow_non_restored_state)
        return restore_state(wanted, self.log.info)


class WeirVerifyOperator(BaseOperator):  # type: ignore[misc]  # Airflow's classes are not followed
    """Reads every stored byte of results again, as `weir verify` does, and fails if anything is bad.

    `dataflow` is a dataflow, or one run: `DATAFLOW@EPOCH` or Airflow's run id; None are all dataflows. It is templated.
    With `repair`, bad results that are needed are recomputed; the task fails all the same, as the command does. A
    failure is final: what was bad is recorded, and another try finds it recorded. Its XCom has the number of `results`
    by outcome, and of `runs`. Raises AirflowFailException with what is bad, Misconfigured for an unknown name, and
    Retryable if ledger or store do not answer.
    """

    template_fields: ClassVar[Sequence[str]] = ("dataflow",)

    def __init__(self, *, dataflow: str | None = None, repair: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.dataflow = dataflow
        self.repair = repair

    def execute(self, context: Context) -> dict[str, Any]:  # noqa: ARG002  Airflow's signature
        """Verify; what is returned shows as XCom."""
        from weir_airflow.tasks.maintenance import verify  # noqa: PLC0415  imports the ledger

        return verify(self.dataflow or None, self.log.info, repairs=self.repair)
