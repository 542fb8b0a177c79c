"""What has become of the files of an interval since a source had read them.

Invariant: a file is known by its path and its mark. What came, what changed and what went are told apart.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from weir.typed_json import typed

_NAMED: Final = 5
"""How many files of a kind are named."""


@dataclass(frozen=True, slots=True)
class SomeFiles:
    """How many files they are, and the first of their names."""

    count: int
    first: tuple[str, ...]

    @classmethod
    def of(cls, paths: Iterable[str]) -> SomeFiles:
        """Return the files of these paths."""
        names = sorted(paths)
        return cls(len(names), tuple(names[:_NAMED]))

    def __str__(self) -> str:
        more = f" and {self.count - len(self.first)} more" if self.count > len(self.first) else ""
        return f"{', '.join(self.first)}{more}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LateFiles:
    """The files that were added, rewritten or gone when an interval was listed again, after its epoch had read it.

    `fingerprint` tells the same finding from another one. `found_at` is when it was found first, in UTC, ISO 8601.
    `held_back` says why the epoch is not corrected though its source is to be; empty where it is only to report.
    """

    added: SomeFiles
    rewritten: SomeFiles
    vanished: SomeFiles
    fingerprint: str
    found_at: str
    held_back: str = ""

    @property
    def is_to_be_read(self) -> bool:
        """Report whether there is anything that the epoch has not read: not where files are only gone."""
        return bool(self.added.count or self.rewritten.count)

    def is_like(self, other: LateFiles) -> bool:
        """Report whether it is the same finding, and the same becomes of it."""
        return (self.fingerprint, self.held_back) == (other.fingerprint, other.held_back)

    @property
    def count(self) -> int:
        """The number of files."""
        return self.added.count + self.rewritten.count + self.vanished.count

    def __str__(self) -> str:
        """Say it without a verb, for a sentence of the caller's."""
        kinds = {"added": self.added, "rewritten": self.rewritten, "vanished": self.vanished}
        told = "; ".join(f"{files.count} {kind}: {files}" for kind, files in kinds.items() if files.count)
        return f"{told} (not corrected: {self.held_back})" if self.held_back else told

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> LateFiles:
        """Read what `weir.typed_json.plain` has made of one. Raises ValueError for anything else."""
        return typed("late files", cls, document)


def late_files(
    splits: Iterable[Mapping[str, Any]], found: Iterable[Mapping[str, Any]], found_at: str
) -> LateFiles | None:
    """Compare the splits by which files were read with the marks of those that match now; None if they are the same."""
    before = {each["path"]: each for split in splits for each in split["files"]}
    now = {each["path"]: each for each in found}
    added, vanished = now.keys() - before.keys(), before.keys() - now.keys()
    rewritten = {path for path in before.keys() & now.keys() if before[path] != now[path]}
    if not (added or vanished or rewritten):
        return None
    told = [sorted(vanished), [[path, now[path]] for path in sorted(added | rewritten)]]
    return LateFiles(
        added=SomeFiles.of(added),
        rewritten=SomeFiles.of(rewritten),
        vanished=SomeFiles.of(vanished),
        fingerprint=hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16],
        found_at=found_at,
    )
