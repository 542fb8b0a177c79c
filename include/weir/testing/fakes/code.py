"""Archives of code for tests without Spark: each function of a dataflow returns the number of its edits.

Invariant: an edit of a function is other code for all functions of its module, and other content for its own stage
alone.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

from weir.code.archive import Archive
from weir.dataflow import Dataflow


def archive_of_edits(flow: Dataflow, edits: Mapping[str, int]) -> Archive:
    """Return the modules of a dataflow's functions; `edits` are numbers by stage, where they are not 0."""
    modules: dict[str, list[tuple[str, int]]] = {}
    for stage in flow.stages:
        if stage.function:
            module, _, name = stage.function.partition(":")
            modules.setdefault(module, []).append((name, edits.get(stage.name, 0)))
    files = {f"{module.replace('.', '/')}.py": _text(found).encode() for module, found in modules.items()}
    packages = {name.rpartition("/")[0] for name in files if "/" in name}
    return Archive({**files, **{f"{package}/__init__.py": b"" for package in packages}})


def _text(functions: Sequence[tuple[str, int]]) -> str:
    """Return a module of functions, each of which names all of them."""
    names = ", ".join(name for name, _ in functions)
    return "\n\n".join(f"def {name}():\n    return {edit}\n    {names}\n" for name, edit in functions)


def edit_of(archive: Archive, function: str) -> int:
    """Return the number of edits of a function in an archive."""
    module, _, name = function.partition(":")
    for node in ast.parse(archive.files[f"{module.replace('.', '/')}.py"]).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            (returned,) = (each.value for each in node.body if isinstance(each, ast.Return))
            return int(ast.literal_eval(returned or ast.Constant(0)))
    raise KeyError(function)
