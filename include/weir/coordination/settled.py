"""What may be due of a dataflow after its commits, and what has come of it.

Invariant: what is due is settled part by part; a part that fails keeps no other from its turn, and is reported.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from weir.coordination.values import DeliveredClear
from weir.errors import Internal, Misconfigured, Retryable

_KINDS: Final = (Retryable, Misconfigured)
"""Kinds of error that a person must act on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """What may follow from commits, in the order in which it is settled."""

    clears: bool = False
    """Pending clears are delivered to Airflow."""
    runs: tuple[str, ...] | None = ()
    """The runs whose results may be needed no more; None: all, and published versions and checkpoints, too."""
    early: tuple[str, ...] | None = ()
    """The runs whose provisional rows may be other ones now, of sinks that publish early; None: all."""
    readers: bool = False
    """What other dataflows have made of older versions of its data sets runs again, as they declare."""
    receivers: bool = False
    """Those who receive notifications are told."""
    tables: bool = False
    """The tables of states get the rows of new checkpoints."""
    targets: bool = False
    """Published versions are committed into the targets of their sinks."""
    is_thorough: bool = False
    """Whether to look for what earlier processes have left, too, as upkeep does."""


CLEARS: Final = Due(clears=True)


@dataclass(slots=True)
class Settled:
    """What has come of what was due: by dataflow, by run or by receiver, what was done, and what has failed."""

    done: dict[str, str] = field(default_factory=dict)
    failed: dict[str, Exception] = field(default_factory=dict)
    clears: list[DeliveredClear] = field(default_factory=list)

    @contextmanager
    def trying(self, where: str, *passed_on: type[Exception]) -> Iterator[None]:
        """Write down what fails at `where`, whatever it is but an error that is `passed_on`, and go on."""
        try:
            yield
        except passed_on:
            raise
        except Exception as error:  # noqa: BLE001 - the others have their turn, then it is reported
            self.failed.setdefault(where, error)

    def add(self, other: Settled) -> None:
        """Take up what has come of something else that was due."""
        self.done |= other.done
        self.clears += other.clears
        for where, error in other.failed.items():
            self.failed.setdefault(where, error)

    @property
    def pending(self) -> int:
        """The number of clears that remain pending after their delivery."""
        return sum(not clear.is_settled for clear in self.clears)

    def lines(self) -> list[str]:
        """One line for each clear and for all else that was done, then one for each failure."""
        failed = [f"{where}: failed, {type(error).__name__}: {error}" for where, error in self.failed.items()]
        done = [f"{where}: {said}" for where, said in self.done.items()]
        return [*map(str, self.clears), *done, *failed]

    def require_whole(self) -> None:
        """Raise an error if anything has failed: of the failures' common kind, or Internal; the first is its cause."""
        if not self.failed:
            return
        errors = list(self.failed.values())
        reasons = "; ".join(f"{where}: {type(error).__name__}: {error}" for where, error in self.failed.items())
        kind = next((kind for kind in _KINDS if all(isinstance(error, kind) for error in errors)), Internal)
        raise kind(f"Upkeep failed in {len(errors)} place(s), all else was done: {reasons}") from errors[0]
