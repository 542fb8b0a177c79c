"""Faults of a chaos run. Invariant: an injected fault can be undone, so that nothing outlives the command."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tests.chaos.field import Field


def nothing() -> None:
    """Do nothing: there is nothing to undo."""


@dataclass(frozen=True, slots=True)
class Injection:
    """A fault that was injected.

    `is_over` is polled, and continues actions that take time; `undo` undoes at once what would end by itself later.
    """

    what: str
    is_over: Callable[[], bool]
    undo: Callable[[], None] = nothing


class Fault(Protocol):
    """A kind of fault. All its random choices come from the given random numbers."""

    @property
    def name(self) -> str:
        """The name of the fault in `--faults`."""
        ...

    def inject(self, field: Field, chance: Random) -> Injection | None:
        """Inject the fault; None if there is nothing to inject it into at present."""
        ...
