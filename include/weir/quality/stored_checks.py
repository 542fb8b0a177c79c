"""Describe stored results for checking jobs: of a restore, a restore test, or a request.

Invariant: the files are those that a reader of the result receives, complete; the expected digest is the one that was
recorded when the rows were written, if it is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import select

from weir.coordination.services import Services
from weir.dataflow import Dataflow
from weir.dataflow.state import State, StateKind
from weir.formats.checkpoint import Checkpoint
from weir.formats.checks import CheckReason, CheckToRun
from weir.formats.manifest import Manifest, UpdateDigest, parsed_digest
from weir.formats.region_job import CheckJob, RestoredToCheck, StateToRead
from weir.ledger.database.tables import RunRow
from weir.ledger.runs import topology_of
from weir.quality.suites import read_suite
from weir.state.assigned import files_to_read
from weir.state.file_rules import assigned_files, epoch_seconds, expired_until
from weir.store.store import Store
from weir.topology.ids import AttemptId, Digest, Epoch
from weir.topology.key_groups import key_group_range
from weir.topology.partitions import Layout


@dataclass(frozen=True, slots=True)
class Recorded:
    """The recorded digest, row count and schema of a partition; `tallies` are the per-update digests of keyed state."""

    digest: Digest
    rows: int
    spark_schema: str
    tallies: tuple[UpdateDigest, ...] | None = ()


def recorded_by(checkpoint: Checkpoint, manifest: Manifest) -> Recorded:
    """Return the record of a partition in a checkpoint or savepoint; if it has none, that in the manifest."""
    for state in checkpoint.states:
        for part in state.partitions:
            if (state.state.name, part.subtask, state.layout.id) == _named(manifest):
                return Recorded(part.digest, part.rows, state.spark_schema, part.tallies)
    for result in checkpoint.results:
        if (result.stage, result.subtask, result.layout) == _named(manifest):
            return Recorded(result.digest, parsed_digest(result.digest).rows, manifest.spark_schema)
    return recorded_in(manifest)


def _named(manifest: Manifest) -> tuple[str, int, str]:
    return manifest.stage, manifest.subtask, manifest.layout


def recorded_in(manifest: Manifest) -> Recorded:
    """Return the record of its rows in a manifest."""
    tallies = () if manifest.state is None else manifest.state.tallies
    return Recorded(Digest(str(manifest.digest)), manifest.rows, manifest.spark_schema, tallies)


def to_check(
    store: Store,
    dataflow: Dataflow,
    manifest: Manifest,
    folder: str,
    recorded: Recorded,
    checks: Sequence[CheckToRun] = (),
) -> RestoredToCheck:
    """Return the description of a partition for a checking job; `dataflow` is the one its run is pinned to."""
    state = keyed_state_of(dataflow, manifest)
    return RestoredToCheck(
        run=manifest.run,
        stage=manifest.stage,
        subtask=manifest.subtask,
        layout=Layout(manifest.keys, manifest.max_parallelism),
        attempt=manifest.attempt,
        digest=recorded.digest,
        rows=recorded.rows,
        spark_schema=recorded.spark_schema,
        files=() if state is not None else tuple(store.spark_url(f"{folder}/{each.name}") for each in manifest.files),
        state=None if state is None else _state(store, dataflow, state, manifest, recorded),
        key_groups=None if state is None else _key_groups(dataflow, manifest),
        at_least=recorded.rows if state is not None and state.grows else None,
        digest_rule=dataflow.stage(manifest.stage).digest,
        checks=tuple(checks),
    )


def keyed_state_of(dataflow: Dataflow, manifest: Manifest) -> State | None:
    """Return the keyed state that a manifest belongs to, if any."""
    states = (state for stage in dataflow.stages for state in stage.states)
    found = (each for each in states if each.name == manifest.stage and each.kind is StateKind.KEYED)
    return None if manifest.state is None else next(found, None)


def _state(store: Store, dataflow: Dataflow, state: State, manifest: Manifest, recorded: Recorded) -> StateToRead:
    """Return the complete partition as its own epoch saw it: later epochs may see less of it (ttl)."""
    assert manifest.state is not None  # noqa: S101  # of keyed state
    until = expired_until(state, manifest.epoch)
    files = assigned_files(manifest.state.files, _key_groups(dataflow, manifest), until)
    return StateToRead(
        state=state,
        files=files_to_read(store, files),
        tallies=recorded.tallies,
        updated=0 if until is None else epoch_seconds(manifest.epoch),
        expired_until=until,
    )


def _key_groups(dataflow: Dataflow, manifest: Manifest) -> tuple[int, int]:
    parallelism = dataflow.stage(manifest.stage).parallelism
    return key_group_range(manifest.max_parallelism, parallelism, manifest.subtask)


def checks_now(
    services: Services, dataflow: str, pinned: Dataflow, stage: str, why: CheckReason
) -> tuple[CheckToRun, ...]:
    """Return all suites of a stage, as the newest run declares it, or else as the run itself does.

    Raises Misconfigured for a suite that is missing or invalid.
    """
    with services.ledger.transaction() as session:
        query = select(RunRow.pinned).where(RunRow.dataflow == dataflow, RunRow.is_pinned, RunRow.has_dag_run)
        newest = session.scalar(query.order_by(RunRow.epoch.desc()).limit(1))
    flows = [pinned] if newest is None else [topology_of(newest).dataflow, pinned]
    stages = [each for flow in flows for each in flow.stages if each.name == stage]
    return tuple(CheckToRun(read_suite(services, gate.suite), gate.policy, why) for gate in stages[0].gates)


def checking_job(
    store: Store,
    dataflow: str,
    epoch: Epoch,
    attempt: AttemptId,
    wanted: Sequence[RestoredToCheck],
    why: CheckReason,
    report: str = "",
) -> CheckJob:
    """Return the job that checks the rows of stored results; `report` is where its report goes, if into the store."""
    at = datetime.fromtimestamp(epoch_seconds(epoch), UTC).isoformat()
    return CheckJob(
        attempt=attempt,
        dataflow=dataflow,
        epoch=epoch,
        interval=(at, at),
        region=f"weir_{why.value}",
        subtask=0,
        store=store.url,
        report=report,
        to_check=tuple(wanted),
        why=why,
    )
