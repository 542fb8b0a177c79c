"""Weir's own housekeeping. Invariant: what it finds undone it does or names; a failure of one step hides no other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weir_airflow.office import Office

if TYPE_CHECKING:
    from collections.abc import Callable


def settle_owed_clears(tell: Callable[[str], None]) -> dict[str, Any]:
    """Carry out the clears that are still owed, of every dataflow in the ledger."""
    with Office.open() as office:
        remaining = office.settle(None, tell)
    tell(f"{remaining} clear(s) remain owed" if remaining else "Nothing is owed")
    return {"owed": remaining}
