"""Labels of the ladder's failures, as a user would write them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weir.execution.labels import Failure


def team(failure: Failure) -> dict[str, str]:
    """Say who is to look."""
    return {"team": f"those of {failure.region}"}
