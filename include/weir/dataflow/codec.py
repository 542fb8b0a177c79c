"""A stage as JSON, for the record that a run is pinned to. Invariant: what is written reads back equal.

`executor_config` is left out: it holds Airflow objects, which only the DAG file can make.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, cast

from weir.code.application_rules import Application
from weir.dataflow.digest_rule import DigestRule
from weir.dataflow.quality import Gate
from weir.dataflow.stage import Exchange, Stage, StageKind, TaskSettings
from weir.dataflow.state import State
from weir.dataflow.targets import Target
from weir.typed_json import plain, typed


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    """The fields of a stage, in the form that its constructor gives them."""

    name: str
    function: str
    inputs: dict[str, Exchange]
    parallelism: int
    max_parallelism: int | None
    resolve: str | None
    kind: StageKind
    task: TaskSettings
    spark: dict[str, Any]
    deterministic: bool
    digest: DigestRule
    state: tuple[State, ...]
    quality: tuple[Gate, ...]
    targets: tuple[Target, ...]
    options: dict[str, Any]
    application: Application | None
    goes_on: bool
    moved_from: str


_FIELDS = tuple(field.name for field in fields(_Record))


def stage_to_json(stage: Stage) -> dict[str, Any]:
    """Return the stage as plain JSON values; times are ISO 8601's."""
    task = replace(stage.task, executor_config={})
    return cast("dict[str, Any]", plain({name: getattr(stage, name) for name in _FIELDS} | {"task": task}))


def stage_from_json(document: Mapping[str, Any]) -> Stage:
    """Read the JSON values that `stage_to_json` returned. Raises ValueError for others."""
    record = typed(f"stage {document.get('name')!r}", _Record, document)
    return Stage(**{name: getattr(record, name) for name in _FIELDS})
