"""A deliberate fault of a shipped module, as a value."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Replacements of texts in one module, each of which occurs once, and what they break.

    `of` names the defect that a fault brings back, where there was one: a commit, or a reproduction. `mix` is the
    simulation that has what it breaks, `tests` the folder of tests of that, where they are not those of the module.
    """

    name: str
    module: str
    edits: tuple[tuple[str, str], ...]
    breaks: str
    of: str = ""
    mix: str = ""
    tests: str = ""

    @property
    def package(self) -> str:
        """The dotted name of the module."""
        return ".".join(Path(self.module).with_suffix("").parts[1:])

    def source(self, root: Path = ROOT) -> str:
        """Return the source of the module without the fault."""
        return (root / self.module).read_text()

    def applied(self, source: str) -> str:
        """Return the source with the fault. Raises ValueError where it does not fit any more."""
        for old, new in self.edits:
            if source.count(old) != 1:
                raise ValueError(f"{self.name}: {self.module} has {source.count(old)} times, expected once:\n{old}")
            source = source.replace(old, new)
        return source


def changes_syntax(before: str, after: str) -> bool:
    """Report whether two sources differ in more than comments and layout."""
    return ast.dump(ast.parse(before)) != ast.dump(ast.parse(after))
