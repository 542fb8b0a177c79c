"""What a fault is to the chaos run. Invariant: a strike can always be mended, so that nothing outlives the command."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from weir_dev.chaos.field import Field


def nothing() -> None:
    """There is nothing to mend."""


@dataclass(frozen=True, slots=True)
class Strike:
    """A fault that has struck.

    `is_over` is asked again and again, and carries on with what takes time; `mend` undoes at once what time would undo.
    """

    what: str
    is_over: Callable[[], bool]
    mend: Callable[[], None] = nothing


class Fault(Protocol):
    """A kind of fault. Everything that is left to chance comes from the given random numbers."""

    @property
    def name(self) -> str:
        """What `--faults` calls it."""
        ...

    def strike(self, field: Field, chance: Random) -> Strike | None:
        """Strike something; None if there is nothing to strike at present."""
        ...
