"""Labels failures with `type`, `exception` and the labels of the user's failure enrichers (FLIP-304).

Invariant: an enricher that fails, or two that disagree, never hide the failure or the labels of other enrichers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from weir.dataflow import arguments
from weir.errors import Misconfigured
from weir.execution.failure_class import FailureClass, raised_by_worker

TYPE, EXCEPTION = "type", "exception"
BUILT_IN = frozenset({TYPE, EXCEPTION})

MOST_LABELS, LONGEST = 20, 200
"""The largest number of labels and the longest value: labels above it are left out, values are cut off."""

_REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The argument of a failure enricher: `def owner(failure) -> {"team": "routes"}`.

    `error` is the class name of the exception, or of that of a Python worker of Spark; `failure_class` is one of
    application, backtrack, conflict, engine, environment and fatal.
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
    """The accepted labels, and the reasons why others were left out."""

    labels: Mapping[str, str]
    complaints: tuple[str, ...]


def built_in_labels(failure: FailureClass, error: BaseException) -> dict[str, str]:
    """Return the labels of all failures."""
    return {TYPE: failure.value, EXCEPTION: exception_name(error)[:LONGEST]}


def exception_name(error: BaseException) -> str:
    """Return the class name of an error, or of the error of a Python worker of Spark that it wraps."""
    return raised_by_worker(error) or type(error).__name__


def checked_enrichers(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of enrichers without duplicates. Raises Misconfigured for a name not like "module:function"."""
    if isinstance(names, str):
        raise Misconfigured.of("execution.enrichers_not_a_list", names=names)
    found = tuple(dict.fromkeys(names))
    for name in found:
        if not isinstance(name, str) or not _REFERENCE.fullmatch(name):
            right = arguments.reference_for(name)
            hint = f': write "{right}"' if right else ""
            raise Misconfigured.of("execution.enricher_malformed", given=arguments.shown(name), hint=hint)
    return found


def enriched(failure: Failure, names: Iterable[str], load: Callable[[str], Enricher]) -> Enriched:
    """Call the enrichers of these names, which `load` imports, and collect their labels.

    Of two enrichers with one key the first counts. Flink leaves out both, as its enrichers declare their keys
    beforehand; here a key that depends on the failure must not remove the label of another enricher.
    """
    labels: dict[str, str] = {}
    origin: dict[str, str] = dict.fromkeys(BUILT_IN, "Weir itself")
    complaints: list[str] = []
    for name in names:
        try:
            given = dict(load(name)(failure))
        except Exception as error:  # noqa: BLE001  an enricher's error must not hide the failure
            complaints.append(f"{name}: {type(error).__name__}: {error}")
            continue
        for key, value in given.items():
            wrong = _wrong(key, value, origin, len(labels))
            if wrong is None:
                labels[key], origin[key] = value[:LONGEST], name
            else:
                complaints.append(f"{name}: {wrong}")
    return Enriched(MappingProxyType(labels), tuple(complaints))


def shown(labels: Mapping[str, Any]) -> str:
    """Format labels on one line."""
    return ", ".join(f"{key}={value}" for key, value in labels.items())


def _wrong(key: Any, value: Any, origin: Mapping[str, str], count: int) -> str | None:
    if not isinstance(key, str) or not isinstance(value, str):
        return f"label {key!r} is a {type(value).__name__}, expected texts"
    if key in origin:
        return f"label {key!r} is given by {origin[key]} already"
    if not key or len(key) > LONGEST or count >= MOST_LABELS:
        return f"label {key[:LONGEST]!r} is left out: there may be {MOST_LABELS}, with keys of 1 to {LONGEST} letters"
    return None
