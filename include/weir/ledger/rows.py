"""Makes values of rows of the ledger: most fields of a value have the name of a column."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar

V = TypeVar("V")


def taken(kind: type[V], row: Any, **others: Any) -> V:
    """Return a value with these fields, and all others as the row has them."""
    names = (each.name for each in fields(kind) if each.name not in others)  # type: ignore[arg-type]
    return kind(**{name: getattr(row, name) for name in names}, **others)
