"""Describes the Spark job of an attempt, with the splits of its sources.

Invariant: a job names exactly the files that the manifests name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from weir.attempts.copies import with_copies
from weir.coordination.registered import Registered
from weir.coordination.services import Services, attempt_folder, region_folder
from weir.coordination.source_copies import with_source_copies
from weir.coordination.values import AssignedState
from weir.dataflow import DigestRule, Stage
from weir.dataflow.graph import spark_conf
from weir.dataflow.key_types import key_types, require_equal_key_types
from weir.dataflow.stage import Reuse, StageKind
from weir.dataflow.state_schema import fields_of_ddl, json_of_columns, spark_json
from weir.errors import Misconfigured
from weir.execution.run_state import RunState
from weir.formats.manifest import OF_RESULT, OF_STORED_ROWS, InputRead, Manifest, splits_fingerprint
from weir.formats.region_job import (
    ApplicationToRun,
    InputToRead,
    OutputToWrite,
    PartitionToRead,
    RegionJob,
    StageToRun,
    StateToRead,
)
from weir.recovery.resolving import SplitsOf, splits_for
from weir.recovery.rules.staleness import restarts_consumers
from weir.state.assigned import replaced_state, state_as_read, state_to_read
from weir.state.operator_state import operator_state_to_read
from weir.topology.partitions import Layout
from weir.topology.regions import InputPartitions, PartitionId


def region_job(
    services: Services,
    registered: Registered,
    state: RunState,
    manifests: Mapping[PartitionId, Manifest],
    states: Mapping[str, AssignedState],
    splits_of: SplitsOf | None = None,
) -> RegionJob:
    """Describe the job; `states` are the keyed states that it starts from, `splits_of` finds the splits of a source.

    Raises Misconfigured where inputs do not fit each other or a split cannot be resolved.
    """
    run, attempt = registered.run, registered.attempt
    inputs = state.all_inputs(attempt.region)
    _check_keys(inputs, manifests, registered.topology.states)
    stages = registered.topology.stages_of(attempt.region.name)
    job = RegionJob(
        attempt=attempt.id,
        dataflow=run.dataflow.name,
        epoch=run.epoch,
        interval=(_iso(run.interval[0]), _iso(run.interval[1])),
        zone=run.zone,
        region=attempt.region.name,
        subtask=attempt.region.subtask,
        store=services.store.url,
        report=region_folder(run, attempt.region.name, attempt.region.subtask, attempt.id) + "/report.json",
        stages=tuple(
            _with_split(
                _stage(services, registered, state, stage, inputs, manifests, states),
                None if stage.resolve is None else (splits_of or splits_for)(services, run, stage, attempt.id),
            )
            for stage in stages
        ),
        parameters=dict(run.parameters),
        spark_conf=spark_conf(stages),
        code=attempt.code,
        revision=services.ledger.seen(run.dataflow.name),
    )
    return with_source_copies(services, registered, with_copies(services, registered, job, contents_of(state, inputs)))


def _with_split(stage: StageToRun, splits: list[Any] | None) -> StageToRun:
    if splits is None:
        return stage
    return replace(stage, split=splits[stage.subtask], resolved=splits_fingerprint(splits))


def contents_of(state: RunState, inputs: Sequence[InputPartitions]) -> dict[tuple[str, str], list[str]]:
    """Return the contents of the partitions of each input, by stage and argument: equal texts, equal rows."""
    return {(read.stage, read.argument): [_content(state, each) for each in read.partitions] for read in inputs}


def _content(state: RunState, partition: PartitionId) -> str:
    """Return the text that must be equal for the use of a cached stage output that was computed from the partition."""
    result = state.input_result(partition)
    if partition in state.published:
        return result.digest
    if restarts_consumers(state.topology_of(partition.run), partition.stage):
        return f"{result.digest} of {result.attempt}"
    return result.digest


def _iso(at: datetime) -> str:
    return at.astimezone(UTC).isoformat()


def _stage(
    services: Services,
    registered: Registered,
    state: RunState,
    stage: Stage,
    inputs: Sequence[InputPartitions],
    manifests: Mapping[PartitionId, Manifest],
    states: Mapping[str, AssignedState],
) -> StageToRun:
    run, attempt = registered.run, registered.attempt
    subtask = attempt.region.subtask
    # A run has digests of one version, so that what is computed again is compared.
    version = OF_STORED_ROWS if registered.topology.chosen is None else OF_RESULT
    return StageToRun(
        name=stage.name,
        function=stage.function,
        is_source=stage.kind is StageKind.SOURCE,
        subtask=subtask,
        parallelism=stage.parallelism,
        pipelined={argument: exchange.stage for argument, exchange in stage.exchanges.items() if exchange.joins_plan},
        inputs=tuple(
            replace(
                _input(services, state, each, manifests), state=_state(services, registered, state, stage, each, states)
            )
            for each in inputs
            if each.stage == stage.name
        ),
        outputs=tuple(
            _output(services, attempt_folder(run, stage.name, layout.id, subtask, attempt.id), layout, version)
            for layout in registered.topology.layouts_of(stage.name)
        ),
        digest=_rule(registered, stage),
        keeps_state_of=_keeper(stage),
        is_persisted=stage.name in registered.topology.persisted_of(attempt.region.name),
        application=_application(stage),
        is_vouched_for=stage.reuse is Reuse.EQUAL,
    )


def _application(stage: Stage) -> ApplicationToRun | None:
    found = stage.application
    return None if found is None else ApplicationToRun(tuple(found.arguments), found.main_class)


def _state(
    services: Services,
    registered: Registered,
    state: RunState,
    stage: Stage,
    read: InputPartitions,
    states: Mapping[str, AssignedState],
) -> StateToRead | None:
    if read.producer not in registered.topology.states:
        return None
    kept = registered.topology.dataflow.state(read.producer)
    is_own = kept in stage.states
    if kept.name in states and not is_own:
        return state_as_read(services, states[kept.name])
    if kept.name in states:
        (layout,) = registered.topology.layouts_of(kept.name)
        old = state.results.get(PartitionId(kept.name, registered.attempt.region.subtask, layout.id))
        replaced = replaced_state(services, old)
        return state_to_read(services, registered.run, states[kept.name], replaced)
    return operator_state_to_read(kept, state, read, registered.run.epoch if is_own else None)


def _keeper(stage: Stage) -> str:
    """Return the stage that keeps a state; empty for a stage of another kind."""
    return next(iter(stage.exchanges.values())).stage if stage.kind is StageKind.STATE else ""


def _rule(registered: Registered, stage: Stage) -> DigestRule:
    """Return the digest rule of a stage; a sink has that of the stage whose rows it publishes."""
    if stage.kind is not StageKind.SINK:
        return stage.digest
    (published,) = stage.exchanges.values()
    return registered.run.dataflow.stage(published.stage).digest


def _output(services: Services, folder: str, layout: Layout, digest_version: int) -> OutputToWrite:
    return OutputToWrite(layout, folder, services.store.spark_url(folder), digest_version)


def _input(
    services: Services, state: RunState, read: InputPartitions, manifests: Mapping[PartitionId, Manifest]
) -> InputToRead:
    spark_schema, declared = _schemas(read, manifests)
    return InputToRead(
        argument=read.argument,
        layout=read.layout,
        spark_schema=spark_schema,
        partitions=tuple(
            PartitionToRead(
                each.stage,
                each.subtask,
                tuple(
                    services.store.spark_url(f"{state.input_result(each).folder}/{file.name}")
                    for file in manifests[each].files
                ),
                manifests[each].attempt,
                each.run,
                "" if each.layout == read.layout.id else each.layout,
            )
            for each in read.partitions
        ),
        key_groups=read.key_groups,
        filter=read.filter,
        declared_schema=declared,
    )


def _schemas(read: InputPartitions, manifests: Mapping[PartitionId, Manifest]) -> tuple[str, str]:
    """Return the schema by which an input is read, and the one that it is compared with.

    Of a data set the declared columns alone are read, which it is known to have.
    """
    if not read.partitions:
        return "", read.schema
    recorded = manifests[read.partitions[0]].spark_schema
    if read.is_dataset and read.schema:
        return json_of_columns(recorded, fields_of_ddl(read.schema)), ""
    _require_one_schema(read, manifests)
    return recorded, read.schema


def _require_one_schema(read: InputPartitions, manifests: Mapping[PartitionId, Manifest]) -> None:
    """Refuse partitions of one result with different schemas: no code that was recorded explains them."""
    schemas = {manifests[each].digest.schema: each for each in read.partitions}
    if len(schemas) > 1:
        one, other = list(schemas.values())[:2]
        raise Misconfigured.of("attempts.columns_of_subtasks_differ", one=one, other=other, producer=read.producer)


def _check_keys(
    inputs: Sequence[InputPartitions], manifests: Mapping[PartitionId, Manifest], states: Sequence[str]
) -> None:
    """Compare the key types of the inputs and states of a stage, also of states that are still empty."""
    found: dict[str, dict[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {}
    for read in inputs:
        keys = read.declared.keys
        schema = spark_json(fields_of_ddl(read.schema)) if read.producer in states and keys else ""
        if read.partitions:
            schema = manifests[read.partitions[0]].spark_schema
        if keys and schema:
            types = key_types(schema, keys, f"the result of stage {read.producer}")
            found.setdefault(read.stage, {})[read.argument] = (keys, types)
    for stage, keyed in found.items():
        require_equal_key_types(stage, keyed)


def reads_of_job(
    state: RunState, inputs: Sequence[InputPartitions], manifests: Mapping[PartitionId, Manifest]
) -> tuple[InputRead, ...]:
    """Return the partitions that the attempt reads, with their current digests."""
    return tuple(
        InputRead(
            argument=f"{read.stage}.{read.argument}",
            run=each.run_id(state.run),
            stage=each.stage,
            subtask=each.subtask,
            layout=each.layout,
            attempt=manifests[each].attempt,
            digest=state.input_result(each).digest,
        )
        for read in inputs
        for each in read.partitions
    )
