"""The syntax of a pipeline's modules, which are read and not imported.

Invariant: what this Python cannot read is no error here: another may read it.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor


def parsed(source: bytes) -> ast.Module | None:
    """Return the syntax of a module; None for one of another version of Python, or nested deeper than this one reads.

    Python counts the depth of syntax from that of its caller, which would make a version differ from place to place:
    what is too deep here is read once more in a thread of its own.
    """
    try:
        return _tree(source)
    except (RecursionError, MemoryError):
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(_tree_or_none, source).result()


def _tree(source: bytes) -> ast.Module | None:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError):
        return None


def _tree_or_none(source: bytes) -> ast.Module | None:
    try:
        return _tree(source)
    except (RecursionError, MemoryError):
        return None


def top_level_of(path: str) -> str:
    """Return the top-level package or module that a file below a folder of the path is of."""
    return path.partition("/")[0].removesuffix(".py")


def top_level_imports(files: Mapping[str, bytes]) -> set[str]:
    """Return the top-level names that the modules among files import."""
    found: set[str] = set()
    for name, content in files.items():
        tree = parsed(content) if name.endswith(".py") else None
        for node in ast.walk(tree) if tree is not None else ():
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                found.add((node.module or "").partition(".")[0])
    return found
