"""A stage as JSON, for the record that a run is pinned to. Invariant: what is written reads back equal.

Version 1 has neither `deterministic` and `digest` of a stage nor `pointwise`, `durable` and `schema` of an exchange:
they are read as their defaults. `executor_config` is left out: it holds Airflow objects, which only the DAG file can
make.
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
            # Absent where empty, so that records of earlier versions stay the same.
            **({"spark_conn_id": stage.task.spark_conn_id} if stage.task.spark_conn_id else {}),
        },
        "spark": dict(stage.spark),
        "deterministic": stage.deterministic,
        "digest": {"round": dict(stage.digest.round), "ignore": list(stage.digest.ignore)},
        # Absent where empty, so that records of earlier versions stay the same.
        **({"state": [_state_to_json(state) for state in stage.states]} if stage.states else {}),
        **({"quality": [_gate_to_json(gate) for gate in stage.gates]} if stage.gates else {}),
        **({"targets": [each.to_json() for each in stage.targets]} if stage.targets else {}),
        **({"options": dict(stage.options)} if stage.options else {}),
        **({"application": _application_to_json(stage.application)} if stage.application else {}),
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
            spark_conn_id=task.get("spark_conn_id"),
        ),
        spark=dict(document["spark"]),
        deterministic=document.get("deterministic", True),
        digest=_rule_from_json(document.get("digest", {"round": {}, "ignore": []})),
        state=tuple(_state_from_json(state) for state in document.get("state", ())),
        quality=tuple(_gate_from_json(gate) for gate in document.get("quality", ())),
        targets=tuple(map(Target.from_json, document.get("targets", ()))),
        options=document.get("options", {}),
        application=Application(**document["application"]) if "application" in document else None,
    )


def _application_to_json(application: Application) -> dict[str, Any]:
    return {**asdict(application), "arguments": list(application.arguments)}


def _rule_from_json(document: Mapping[str, Any]) -> DigestRule:
    return DigestRule(dict(document["round"]), tuple(document["ignore"]))


def _state_to_json(state: State) -> dict[str, Any]:
    plain = {**asdict(state), "kind": state.kind.value, "keys": list(state.keys)}
    # Absent where empty, so that records of earlier versions stay the same.
    younger = {"grows": state.grows, "quality": [_gate_to_json(gate) for gate in state.quality]}
    return {name: value for name, value in {**plain, **younger}.items() if name not in younger or value}


def _state_from_json(document: Mapping[str, Any]) -> State:
    gates = tuple(_gate_from_json(gate) for gate in document.get("quality", ()))
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
        pointwise=document.get("pointwise", False),
        durable=document.get("durable", True),
        schema=document.get("schema", ""),
    )
