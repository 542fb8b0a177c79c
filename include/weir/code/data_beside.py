"""The data that modules read beside themselves: files in the folder of the path that the modules lie in.

Invariant: archive and code version find the same by the same rule. A module in a package has all files of the package.
For other files its text tells: a module that asks where it lies names what it reads from there, or lists all.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from weir.code.syntax import parsed

_ASKS_FOR_PLACE: Final = frozenset(
    {"__file__", "__spec__", "__loader__", "get_data", "getfile", "getsourcefile", "getabsfile", "resources"}
)
_ASKS: Final = re.compile("|".join(sorted(_ASKS_FOR_PLACE)).encode())
_UP: Final = re.compile(rb"parents|parent\s*\)*\s*\.\s*parent|dirname|\.\.|pardir")
_LISTS: Final = frozenset({"iterdir", "listdir", "scandir", "walk", "rglob"})
_ALL: Final = frozenset({"*", "**"})
_HOLES: Final = re.compile(r"\{[^{}]*\}|%\(?\w*\)?[sdi]")
"""Of texts that are formatted later."""


@dataclass(frozen=True, slots=True)
class DataBeside:
    """What modules read in the folder of the path that they lie in: names in that folder, and patterns of names."""

    names: frozenset[str] = frozenset()
    patterns: frozenset[str] = frozenset()

    def has(self, name: str) -> bool:
        """Report whether they may read a file or folder of this name, or something in it."""
        return name in self.names or any(fnmatchcase(name, pattern) for pattern in self.patterns)


def data_beside(files: Mapping[str, bytes]) -> DataBeside:
    """Return what the modules among files read beside themselves; files are by their names in an archive.

    Names may be constants of another module than that which reads them.
    """
    looking = [tree for name, content in files.items() if (tree := _looking(name, content)) is not None]
    if not looking:
        return DataBeside()
    if any(_name_of(node) in _LISTS for tree in looking for node in ast.walk(tree)):
        return DataBeside(patterns=_ALL)
    trees = (parsed(content) for name, content in files.items() if name.endswith(".py"))
    found = {pattern for tree in trees if tree for node in ast.walk(tree) for pattern in _patterns(node)}
    patterns = {each for each in found if set("*?[") & set(each)}
    return DataBeside(frozenset(found - patterns), frozenset(patterns))


def _looking(name: str, content: bytes) -> ast.Module | None:
    """Return the syntax of a module that looks into the folder it lies in or, from inside of a package, further up.

    Most do not: their text is searched before it is parsed.
    """
    is_in_package = "/" in name
    may_look = name.endswith(".py") and _ASKS.search(content) and (not is_in_package or _UP.search(content))
    tree = parsed(content) if may_look else None
    if tree is None or not any(_name_of(node) in _ASKS_FOR_PLACE for node in ast.walk(tree)):
        return None
    return tree if not is_in_package or any(_climbs(node) for node in ast.walk(tree)) else None


def _name_of(node: ast.AST) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.alias):
        return node.name.rpartition(".")[2]
    return ""


def _climbs(node: ast.AST) -> bool:
    """Report whether an expression may lead further up than the folder of a module."""
    if isinstance(node, ast.Attribute) and node.attr in ("parent", "parents"):
        return node.attr == "parents" or _name_of(node.value) == "parent"
    if isinstance(node, ast.Call) and _name_of(node.func) == "dirname":
        return any(isinstance(each, ast.Call) and _name_of(each.func) == "dirname" for each in node.args)
    return (isinstance(node, ast.Constant) and ".." in str(node.value).split("/")) or _name_of(node) == "pardir"


def _patterns(node: ast.AST) -> Iterator[str]:
    """Yield the pattern of names by which a text, as a path below a folder, may begin: "rules" of "/rules/a.csv"."""
    if isinstance(node, ast.JoinedStr):
        parts = (str(part.value) if isinstance(part, ast.Constant) else "*" for part in node.values)
        text, is_whole = "".join(parts), False
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        text, is_whole = _HOLES.sub("*", node.value), node.value in _ALL or "*" in node.value
    else:
        return
    if "://" in text or "\n" in text:
        return
    first = next((part for part in text.split("/") if part not in ("", ".", "..")), "")
    if first.strip("*") or (first and is_whole):
        yield f"*{first}" if first.startswith(".") else first
