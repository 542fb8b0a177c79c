"""A stage as JSON, for the record that a run is pinned to. Invariant: what is written reads back equal.

`executor_config` is left out: it holds Airflow objects, which only the DAG file can make.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from weir.code.application_rules import Application
from weir.dataflow.digest_rule import DigestRule
from weir.dataflow.quality import Gate, Policy, When
from weir.dataflow.stage import Exchange, ExchangeKind, Stage, StageKind, TaskSettings
from weir.dataflow.state import State, StateKind
from weir.dataflow.targets import Target


def stage_to_json(stage: Stage) -> dict[str, Any]:
    """Return the stage as plain JSON values; times are in seconds."""
    timeout = stage.task.execution_timeout
    return {
        "name": stage.name,
        "kind": stage.kind.value,
        "function": stage.function,
        "resolve": stage.resolve,
        "parallelism": stage.parallelism,
        "max_parallelism": stage.max_parallelism,
        "inputs": {argument: _exchange_to_json(exchange) for argument, exchange in stage.exchanges.items()},
        "task": {
            "pool": stage.task.pool,
            "queue": stage.task.queue,
            "priority_weight": stage.task.priority_weight,
            "execution_timeout": None if timeout is None else timeout.total_seconds(),
            "spark_conn_id": stage.task.spark_conn_id,
        },
        "spark": dict(stage.spark),
        "deterministic": stage.deterministic,
        "digest": {"round": dict(stage.digest.round), "ignore": list(stage.digest.ignore)},
        "state": [_state_to_json(state) for state in stage.states],
        "quality": [_gate_to_json(gate) for gate in stage.gates],
        "targets": [each.to_json() for each in stage.targets],
        "options": dict(stage.options),
        "application": None if stage.application is None else _application_to_json(stage.application),
    }


def stage_from_json(document: Mapping[str, Any]) -> Stage:
    """Read the JSON values that `stage_to_json` returned."""
    task = document["task"]
    timeout = task["execution_timeout"]
    return Stage(
        name=document["name"],
        kind=StageKind(document["kind"]),
        function=document["function"],
        resolve=document["resolve"],
        parallelism=document["parallelism"],
        max_parallelism=document["max_parallelism"],
        inputs={argument: _exchange_from_json(exchange) for argument, exchange in document["inputs"].items()},
        task=TaskSettings(
            pool=task["pool"],
            queue=task["queue"],
            priority_weight=task["priority_weight"],
            execution_timeout=None if timeout is None else timedelta(seconds=timeout),
            spark_conn_id=task["spark_conn_id"],
        ),
        spark=dict(document["spark"]),
        deterministic=document["deterministic"],
        digest=_rule_from_json(document["digest"]),
        state=tuple(_state_from_json(state) for state in document["state"]),
        quality=tuple(_gate_from_json(gate) for gate in document["quality"]),
        targets=tuple(map(Target.from_json, document["targets"])),
        options=document["options"],
        application=None if document["application"] is None else Application(**document["application"]),
    )


def _application_to_json(application: Application) -> dict[str, Any]:
    return {**asdict(application), "arguments": list(application.arguments)}


def _rule_from_json(document: Mapping[str, Any]) -> DigestRule:
    return DigestRule(dict(document["round"]), tuple(document["ignore"]))


def _state_to_json(state: State) -> dict[str, Any]:
    gates = [_gate_to_json(gate) for gate in state.quality]
    return {**asdict(state), "kind": state.kind.value, "keys": list(state.keys), "quality": gates}


def _state_from_json(document: Mapping[str, Any]) -> State:
    gates = tuple(_gate_from_json(gate) for gate in document["quality"])
    known = {"kind": StateKind(document["kind"]), "keys": tuple(document["keys"]), "quality": gates}
    return State(**{**document, **known})


def _gate_to_json(gate: Gate) -> dict[str, Any]:
    return {"suite": gate.suite, "when": gate.when.value, "policy": gate.policy.value}


def _gate_from_json(document: Mapping[str, Any]) -> Gate:
    return Gate(document["suite"], When(document["when"]), Policy(document["policy"]))


def _exchange_to_json(exchange: Exchange) -> dict[str, Any]:
    return {
        "stage": exchange.stage,
        "kind": exchange.kind.value,
        "keys": list(exchange.keys),
        "broadcast": exchange.broadcast,
        "pointwise": exchange.pointwise,
        "durable": exchange.durable,
        "schema": exchange.schema,
    }


def _exchange_from_json(document: Mapping[str, Any]) -> Exchange:
    return Exchange(
        stage=document["stage"],
        kind=ExchangeKind(document["kind"]),
        keys=tuple(document["keys"]),
        broadcast=document["broadcast"],
        pointwise=document["pointwise"],
        durable=document["durable"],
        schema=document["schema"],
    )
