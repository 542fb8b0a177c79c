"""Resolving what a source reads. Invariant: a run's slices are resolved by one attempt and used by all later ones."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

from weir.coordinator.services import Services
from weir.dataflow import Stage
from weir.dataflow.resolving import ResolveContext, checked_slices
from weir.errors import Fenced, Misconfigured
from weir.ledger.models import AttemptRow
from weir.ledger.runs import Run
from weir.ledger.slices import fix_slices, slices_of
from weir.recovery.run_state import AttemptState


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
        context = ResolveContext(run.dataflow.name, run.epoch, run.interval, stage.parallelism, run.parameters)
        resolved = resolve(stage, context)
        with services.ledger.transaction(run.dataflow.name) as session:
            if session.get_one(AttemptRow, attempt).state != AttemptState.RUNNING.value:
                raise Fenced(
                    f"attempt {attempt} ended while it resolved the slices of {stage.name}. Nothing was changed"
                )
            known = fix_slices(session, run.id, stage.name, resolved, attempt, services.now())
    return known[subtask]


def resolve(stage: Stage, context: ResolveContext) -> list[Any]:
    """Ask a source's resolver what each subtask reads.

    Raises Misconfigured if it cannot be found or called, or answers something else; its own errors pass through.
    """
    owner = f"resolver {stage.resolve} of source {stage.name}"
    return checked_slices(_resolver(str(stage.resolve), owner)(context), owner, context.parallelism)


def _resolver(reference: str, owner: str) -> Callable[[ResolveContext], Any]:
    module, _, name = reference.partition(":")
    try:
        found: Callable[[ResolveContext], Any] = getattr(importlib.import_module(module), name)
        inspect.signature(found).bind(None)
    except (ImportError, AttributeError) as error:
        raise Misconfigured(
            f"{owner} cannot be imported: {error}. Is the module installed on this worker, and is the function's name "
            "right?"
        ) from error
    except TypeError as error:
        raise Misconfigured(f"{owner} must be `def {name}(ctx)`: {error}") from error
    return found
