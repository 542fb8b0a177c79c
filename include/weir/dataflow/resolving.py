"""What a source's resolver is told and what it may answer. Invariant: one JSON value a subtask, none of them null."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from weir.errors import Misconfigured


@dataclass(frozen=True, slots=True)
class ResolveContext:
    """The argument of a source's `resolve` function, which runs once a run, for all subtasks, without Spark.

    `epoch` is the start of `interval` as `20130101T000000Z`; `interval` is in UTC, its end exclusive. `parameters` are
    those of the run.
    """

    dataflow: str
    epoch: str
    interval: tuple[datetime, datetime]
    parallelism: int
    parameters: Mapping[str, Any]


def checked_slices(answer: Any, owner: str, parallelism: int) -> list[Any]:
    """What `owner` answered, as it is recorded.

    Raises Misconfigured if that is not a list of JSON values, one a subtask.
    """
    if not isinstance(answer, (list, tuple)) or len(answer) != parallelism or None in answer:
        raise Misconfigured(
            f"{owner} must return a list of {parallelism} values, one a subtask and none of them None; found "
            f"{_shown(answer)}"
        )
    try:
        slices: list[Any] = json.loads(json.dumps(answer, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise Misconfigured(f"{owner} must return numbers, strings, lists and dicts only: {error}") from error
    return slices


def _shown(answer: object) -> str:
    if isinstance(answer, (list, tuple)):
        return f"{len(answer)} values: {str(answer)[:200]}"
    return f"{type(answer).__name__}: {str(answer)[:200]}"
