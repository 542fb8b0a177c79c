"""The JSON of typed values, which commands print and pages show: both show the same document.

Invariant: the JSON has every field of a value; what a table or a page leaves out is in the JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import date
from decimal import Decimal
from enum import Enum
from functools import singledispatch
from math import inf, isfinite
from typing import Any, Final

from weir.recovery.rules.plan import Plan
from weir.recovery.rules.standing import Standing
from weir.topology.regions import RegionId

VERSION: Final = 1
"""Of every document: docs/reference/contracts.md says when it changes."""


_NO_JSON: Final = {inf: "Infinity", -inf: "-Infinity"}


@singledispatch
def plain(value: Any) -> Any:
    """Return a value for JSON: dataclasses as objects, times in ISO 8601, decimals as text, bytes in hex.

    Numbers that JSON does not have are texts, as Spark writes them: "NaN", "Infinity", "-Infinity".
    """
    if is_dataclass(value):
        return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    return value


plain.register(Mapping, lambda value: {name: plain(each) for name, each in value.items()})
plain.register(list, lambda value: [plain(each) for each in value])
plain.register(tuple, lambda value: [plain(each) for each in value])
plain.register(Enum, lambda value: value.value)
plain.register(date, lambda value: value.isoformat())
plain.register(Decimal, str)
plain.register(float, lambda value: value if isfinite(value) else _NO_JSON.get(value, "NaN"))
plain.register(bytes, bytes.hex)
plain.register(RegionId, str)
plain.register(Plan, Plan.to_json)  # as it is recorded
plain.register(Standing, Standing.to_json)


def document(**of: Any) -> dict[str, Any]:
    """Return a document with these fields."""
    return {"version": VERSION, **plain(of)}
