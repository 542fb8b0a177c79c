"""What differs between two archives for a function: the files that count, what they define, and their lines.

Invariant: a file differs here exactly if it makes another code version (`weir.code.version`).
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from weir.code.definitions import is_text
from weir.code.syntax import parsed
from weir.code.version import canonical, files_that_count

OTHER: Final = "other statements"
"""What a module does at its top level without binding a name."""


@dataclass(frozen=True, slots=True)
class FileDifference:
    """A file that differs, and the names of its top level that do; none of what is no module, or is whole new or gone.

    `is_new` and `is_gone`: the file is in the newer archive alone, or in the older one.
    """

    file: str
    names: tuple[str, ...] = ()
    is_new: bool = False
    is_gone: bool = False

    def __str__(self) -> str:
        """Return the file, with what differs in it."""
        what = "is new" if self.is_new else "is gone" if self.is_gone else ", ".join(self.names)
        return f"{self.file} ({what})" if what else self.file


def differences(
    old: Mapping[str, bytes], new: Mapping[str, bytes], functions: Iterable[str]
) -> tuple[FileDifference, ...]:
    """Return the files that make the code versions of these functions differ, by name."""
    wanted = tuple(functions)
    (before, tree_before), (after, tree_after) = (files_that_count(files, wanted) for files in (old, new))
    names = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    trees = (tree_before, tree_after)
    # A file that is as it was is reached because of another one, which differs.
    return tuple(_difference(name, old, new, trees) for name in names if old.get(name) != new.get(name))


def _difference(
    name: str, old: Mapping[str, bytes], new: Mapping[str, bytes], trees: Sequence[Mapping[str, ast.Module]]
) -> FileDifference:
    if name not in old or name not in new:
        return FileDifference(name, is_new=name not in old, is_gone=name not in new)
    both = zip(trees, (old, new), strict=True)
    before, after = (_defined(each.get(name) or _whole(name, of[name])) for each, of in both)
    return FileDifference(name, tuple(each for each in {**after, **before} if before.get(each) != after.get(each)))


def _whole(name: str, content: bytes) -> ast.Module | None:
    return parsed(content) if name.endswith(".py") else None


def _defined(tree: ast.Module | None) -> dict[str, str]:
    """Return the syntax of each name that a module binds at its top level, in order."""
    found: dict[str, str] = {}
    for node in () if tree is None else tree.body:
        if is_text(node):
            continue
        text = "".join(canonical(node))
        for name in _bound(node) or [OTHER]:
            found[name] = found.get(name, "") + text
    return found


def _bound(node: ast.stmt) -> list[str]:
    """Return the names that a statement of the top level binds."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [node.name]
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return [alias.asname or alias.name for alias in node.names]
    targets = getattr(node, "targets", None) or [getattr(node, "target", None)]
    return [each.id for target in targets if target for each in ast.walk(target) if isinstance(each, ast.Name)]


def unified(name: str, before: Mapping[str, bytes], after: Mapping[str, bytes]) -> Iterator[str]:
    """Yield the lines of a unified diff of a file of two archives."""
    try:
        old, new = (files.get(name, b"").decode().splitlines() for files in (before, after))
    except UnicodeDecodeError:
        yield f"{name} differs, and is no text"
        return
    was, is_now = (
        f"{side}/{name}" if name in files else "/dev/null" for side, files in (("old", before), ("new", after))
    )
    yield from difflib.unified_diff(old, new, was, is_now, lineterm="")
