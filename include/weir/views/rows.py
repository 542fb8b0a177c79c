"""Makes values of rows of the ledger: most fields of a view have the name of a column."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar

View = TypeVar("View")


def taken(view: type[View], row: Any, **others: Any) -> View:
    """Return a value with these fields, and all others as the row has them."""
    names = (each.name for each in fields(view) if each.name not in others)  # type: ignore[arg-type]
    return view(**{name: getattr(row, name) for name in names}, **others)
