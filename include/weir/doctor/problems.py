"""Problems of DAG files, as lines for people and as JSON for programs.

Invariant: a problem is one line, which begins with its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from weir.code.hints import hint_of
from weir.errors import WeirError
from weir.typed_json import typed


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What is wrong, and what to write instead; `line` is 0, and a name empty, where it concerns none."""

    file: str
    line: int = 0
    dataflow: str = ""
    stage: str = ""
    text: str

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Problem:
        """Read what `to_json` returned. Raises ValueError for anything else."""
        return typed("problem", cls, document)

    def __str__(self) -> str:
        """Return one line: place, dataflow and stage, text."""
        place = f"{self.file}:{self.line}" if self.line else self.file
        named = [f"{what} {name!r}" for what, name in (("dataflow", self.dataflow), ("stage", self.stage)) if name]
        return ": ".join(part for part in (place, ", ".join(named), " ".join(self.text.split())) if part)


def texts_of(error: BaseException) -> list[str]:
    """Return what an error says: a list of problems one by one, and the type of an error that is none of Weir's."""
    if not isinstance(error, WeirError):
        text, hint = f"{type(error).__name__}: {error}", hint_of(error)
        return [f"{text.rstrip('.')}{hint}" if hint else text]
    first, *listed = str(error).split("\n- ")
    return [f"{first.partition(' has ')[0]}: {each}" for each in listed] or [first]
