"""Labels of failures: `type` and `exception`, and whatever functions of the user's own say (FLIP-304).

Invariant: a function that fails, or two that disagree, never hide the failure or what the others have said.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from weir.errors import Misconfigured
from weir.execution.failure_class import FailureClass, raised_by_worker

TYPE, EXCEPTION = "type", "exception"
BUILT_IN = frozenset({TYPE, EXCEPTION})

MOST_LABELS, LONGEST = 20, 200
"""Labels are for searching and counting; what does not fit is left out or cut off."""

_REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """What a function that labels failures is told: `def owner(failure) -> {"team": "routes"}`.

    `error` is the name of the exception's class, that in the Python worker if one has raised it; `failure_class` is
    one of application, backtrack, conflict, engine, environment and fatal.
    """

    dataflow: str
    epoch: str
    region: str
    subtask: int
    try_number: int
    error: str
    message: str
    failure_class: str


Enricher = Callable[[Failure], Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Enriched:
    """Labels, and what was wrong with those that are not among them."""

    labels: Mapping[str, str]
    complaints: tuple[str, ...]


def built_in_labels(failure: FailureClass, error: BaseException) -> dict[str, str]:
    """The labels that every failure has."""
    return {TYPE: failure.value, EXCEPTION: exception_name(error)[:LONGEST]}


def exception_name(error: BaseException) -> str:
    """The class of an error; that in the Python worker, if one of Spark's has raised it."""
    return raised_by_worker(error) or type(error).__name__


def checked_enrichers(names: Iterable[str]) -> tuple[str, ...]:
    """The names of functions, each once. Raises Misconfigured for what is not "module:function"."""
    found = tuple(dict.fromkeys(names))
    for name in found:
        if not isinstance(name, str) or not _REFERENCE.fullmatch(name):
            raise Misconfigured(f'failure_enrichers has {name!r}, expected "module:function" of a function on the path')
    return found


def enriched(failure: Failure, enrichers: Mapping[str, Enricher]) -> Enriched:
    """Ask functions, by their names, for labels.

    Of two that give one key the first counts. Flink leaves out both, as its enrichers announce their keys beforehand;
    here a key that changes with the failure must not cost the labels of another function.
    """
    labels: dict[str, str] = {}
    origin: dict[str, str] = dict.fromkeys(BUILT_IN, "Weir itself")
    complaints: list[str] = []
    for name, enricher in enrichers.items():
        try:
            said = dict(enricher(failure))
        except Exception as error:  # noqa: BLE001  whatever it is, the failure comes first
            complaints.append(f"{name}: {type(error).__name__}: {error}")
            continue
        for key, value in said.items():
            wrong = _wrong(key, value, origin, len(labels))
            if wrong is None:
                labels[key], origin[key] = value[:LONGEST], name
            else:
                complaints.append(f"{name}: {wrong}")
    return Enriched(MappingProxyType(labels), tuple(complaints))


def shown(labels: Mapping[str, Any]) -> str:
    """Labels on one line."""
    return ", ".join(f"{key}={value}" for key, value in labels.items())


def _wrong(key: Any, value: Any, origin: Mapping[str, str], count: int) -> str | None:
    if not isinstance(key, str) or not isinstance(value, str):
        return f"label {key!r} is a {type(value).__name__}, expected texts"
    if key in origin:
        return f"label {key!r} is given by {origin[key]} already"
    if not key or len(key) > LONGEST or count >= MOST_LABELS:
        return f"label {key[:LONGEST]!r} is left out: there may be {MOST_LABELS}, with keys of 1 to {LONGEST} letters"
    return None
