"""Resolving what a source reads. Invariant: a run's slices are resolved by one attempt and used by all later ones."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from weir.coordinator.services import Services
from weir.dataflow import Stage
from weir.errors import Fenced, Misconfigured
from weir.ledger.models import AttemptRow
from weir.ledger.runs import Run
from weir.ledger.slices import fix_slices, slices_of
from weir.recovery.run_state import AttemptState


@dataclass(frozen=True, slots=True)
class ResolveContext:
    """What a resolver is told: whose data, which interval (UTC, end exclusive), for how many subtasks."""

    dataflow: str
    epoch: str
    interval: tuple[datetime, datetime]
    parallelism: int
    parameters: Mapping[str, Any]


def slice_for(services: Services, run: Run, stage: Stage, subtask: int, attempt: str) -> Any:
    """What subtask `subtask` of the source `stage` reads in this run; None for a source without a resolver.

    Raises Misconfigured if the resolver cannot be found, or does not answer one JSON value a subtask, and Fenced if the
    attempt has ended meanwhile: its run may be pinned to another parallelism by now.
    """
    if stage.resolve is None:
        return None
    with services.ledger.transaction(run.dataflow.name) as session:
        known = slices_of(session, run.id, stage.name)
    if known is None:
        resolved = _resolve(run, stage)
        with services.ledger.transaction(run.dataflow.name) as session:
            if session.get_one(AttemptRow, attempt).state != AttemptState.RUNNING.value:
                raise Fenced(
                    f"attempt {attempt} ended while it resolved the slices of {stage.name}. Nothing was changed"
                )
            known = fix_slices(session, run.id, stage.name, resolved, attempt, services.now())
    return known[subtask]


def _resolve(run: Run, stage: Stage) -> list[Any]:
    context = ResolveContext(run.dataflow.name, run.epoch, run.interval, stage.parallelism, run.parameters)
    slices = list(_resolver(stage)(context))
    if len(slices) != stage.parallelism:
        raise Misconfigured(
            f"resolver {stage.resolve} of source {stage.name} returned {len(slices)} slice(s) for parallelism "
            f"{stage.parallelism}: return one JSON value for each subtask"
        )
    try:
        found: list[Any] = json.loads(json.dumps(slices, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise Misconfigured(
            f"resolver {stage.resolve} of source {stage.name} returned something that is not JSON ({error}): "
            "return numbers, strings, lists and dicts only"
        ) from error
    return found


def _resolver(stage: Stage) -> Any:
    module, _, name = str(stage.resolve).partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise Misconfigured(
            f"resolver {stage.resolve} of source {stage.name} cannot be imported: {error}. Is the module installed on "
            "this worker, and is the function's name right?"
        ) from error
