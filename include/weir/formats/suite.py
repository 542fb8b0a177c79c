"""A suite of expectations, read from the JSON of Great Expectations. Invariant: unknown content is refused."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum
from typing import Any

from weir.errors import Message, Misconfigured, at
from weir.formats.expectation_types import are_texts, argument_problems, is_plain, registry_problems

_OF_SUITE = frozenset({"name", "expectations", "id", "suite_parameters", "meta", "notes"})
_OF_EXPECTATION = frozenset(
    {"type", "kwargs", "meta", "severity", "notes", "description", "id", "expectation_context", "rendered_content"}
)

_PARAMETER = "$PARAMETER"


class Severity(Enum):
    """The effect of a violated expectation: GX's `critical` fails, `warning` and `info` warn."""

    FAIL = "fail"
    WARN = "warn"


_SEVERITIES = {"critical": Severity.FAIL, "warning": Severity.WARN, "info": Severity.WARN}


@dataclass(frozen=True, slots=True)
class Expectation:
    """An expectation, in GX's terms; `blames` names the inputs of the stage that a violation makes suspected."""

    type: str
    kwargs: dict[str, Any]
    severity: Severity = Severity.FAIL
    blames: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def is_plain(self) -> bool:
        """Report whether Weir evaluates it itself, if the type of its column is such."""
        return is_plain(self.type, self.kwargs)


@dataclass(frozen=True, slots=True)
class Suite:
    """Expectations that are checked together; `fingerprint` covers everything that can change an outcome."""

    name: str
    fingerprint: str
    expectations: tuple[Expectation, ...] = field(default=())

    @property
    def of_gx(self) -> dict[int, Expectation]:
        """The expectations that are known to Great Expectations only, by their numbers in the file, from 1."""
        return {number: each for number, each in enumerate(self.expectations, 1) if not each.is_plain}

    def require_known(self, registry: Any) -> None:
        """Have Great Expectations judge types and arguments that are not plain, by its module `registry`.

        Raises Misconfigured.
        """
        problems = [
            at(f"expectation {number}", problem)
            for number, each in self.of_gx.items()
            for problem in registry_problems(each.type, each.kwargs, registry)
        ]
        if problems:
            raise Misconfigured.of("formats.suite_unusable", name=self.name, problems=problems)


class _Written(float):
    """A number of JSON with a point or an exponent, and its text."""

    def __init__(self, text: str) -> None:
        self.text = text

    @property
    def is_kept(self) -> bool:
        """Report whether a float is the number that is written."""
        return math.isfinite(self) and Decimal(repr(float(self))) == Decimal(self.text)


def _lost(value: Any) -> Iterator[_Written]:
    """Yield the numbers within a value of JSON that a float does not keep."""
    if isinstance(value, _Written) and not value.is_kept:
        yield value
    elif isinstance(value, list | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _lost(each)


def suite_from_json(name: str, data: bytes) -> Suite:
    """Read the suite `name` from GX's JSON. Raises Misconfigured for invalid or unknown content."""
    try:
        document = json.loads(data, parse_float=_Written, parse_constant=_Written)
    except ValueError as error:
        raise Misconfigured.of("formats.suite_not_json", name=name, error=error) from error
    problems = list(_suite_problems(name, document))
    if problems:
        raise Misconfigured.of("formats.suite_unusable", name=name, problems=problems)
    expectations = tuple(_expectation(each) for each in document["expectations"])
    return Suite(name, _fingerprint(expectations), expectations)


def _suite_problems(name: str, document: Any) -> Iterator[str]:
    if not isinstance(document, Mapping) or not isinstance(document.get("expectations"), list):
        yield Message("formats.suite_not_an_object")
        return
    if unknown := sorted(document.keys() - _OF_SUITE):
        yield Message("formats.suite_fields_unknown", unknown=unknown)
    if document.get("name", name) != name:
        yield Message("formats.suite_named_otherwise", document=document["name"])
    if document.get("suite_parameters"):
        yield Message("formats.suite_parameters_unknown")
    if not document["expectations"]:
        yield "it expects nothing"
    for number, each in enumerate(document["expectations"], 1):
        yield from (at(f"expectation {number}", problem) for problem in _expectation_problems(each))


def _expectation_problems(document: Any) -> Iterator[str]:
    if not isinstance(document, Mapping) or not isinstance(document.get("type"), str):
        yield Message("formats.expectation_not_an_object")
        return
    if unknown := sorted(document.keys() - _OF_EXPECTATION):
        yield Message("formats.suite_fields_unknown", unknown=unknown)
    for each in ("kwargs", "meta"):
        if not isinstance(document.get(each) or {}, Mapping):
            yield Message("formats.expectation_part_not_an_object", each=each)
            return
    if document.get("severity") not in (None, *_SEVERITIES):
        yield Message("formats.severity_unknown", document=document["severity"], severities=_SEVERITIES)
    if not are_texts((document.get("meta") or {}).get("blames", [])):
        yield Message("formats.blames_malformed")
    if _PARAMETER in json.dumps(document.get("kwargs")):
        yield Message("formats.parameter_not_known", parameter=_PARAMETER)
        return
    kwargs = document.get("kwargs") or {}
    for name, value in kwargs.items():
        for number in _lost(value) if name != "mostly" else ():
            yield Message("formats.number_read_otherwise", name=name, text=number.text, read_as=float(number))
    yield from argument_problems(document["type"], kwargs)


def _expectation(document: Mapping[str, Any]) -> Expectation:
    notes = document.get("notes") or ()
    return Expectation(
        document["type"],
        dict(document.get("kwargs") or {}),
        _SEVERITIES[document.get("severity") or "critical"],
        tuple((document.get("meta") or {}).get("blames", ())),
        (notes,) if isinstance(notes, str) else tuple(str(each) for each in notes),
    )


def _fingerprint(expectations: tuple[Expectation, ...]) -> str:
    """Return a fingerprint that does not depend on the order of the expectations or on their notes."""
    each = sorted(
        json.dumps([one.type, one.kwargs, one.severity.value, sorted(one.blames)], sort_keys=True)
        for one in expectations
    )
    return hashlib.sha256("\n".join(each).encode()).hexdigest()
