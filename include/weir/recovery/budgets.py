"""How often a task may fail for reasons that are not its own.

Invariant: a failure counts against the restart strategy or against one of these budgets, never against both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from weir.errors import Misconfigured
from weir.recovery.classify import FailureClass
from weir.recovery.restart_options import whole_number

OPTION_PREFIX = "maximum_"


@dataclass(frozen=True, slots=True)
class Budgets:
    """How many failures of each kind a task may have; one more is final. Options have these names, after `maximum_`.

    What counts is what has happened since the task last committed or a person cleared it.
    """

    backtracks: int = 20
    conflicts: int = 20
    engine_losses: int = 30
    environment_failures: int = 30

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) < 0:
                raise Misconfigured(f"{OPTION_PREFIX}{field.name} is {getattr(self, field.name)}, expected 0 or more")

    @staticmethod
    def from_options(options: Mapping[str, Any]) -> Budgets:
        """Read `maximum_backtracks` and so on; others are passed over. Raises Misconfigured."""
        return Budgets(
            **{
                name: whole_number(OPTION_PREFIX + name, options[OPTION_PREFIX + name])
                for name in (field.name for field in fields(Budgets))
                if OPTION_PREFIX + name in options
            }
        )

    def limit_of(self, failure: FailureClass) -> int | None:
        """The budget of a class of failures; None for those that the restart strategy decides about."""
        return {
            FailureClass.BACKTRACK: self.backtracks,
            FailureClass.CONFLICT: self.conflicts,
            FailureClass.ENGINE: self.engine_losses,
            FailureClass.ENVIRONMENT: self.environment_failures,
        }.get(failure)
