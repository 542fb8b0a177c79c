"""Derives the code version of a task from the files of an archive.

Invariant: equal versions have equal syntax in all that the task's functions can reach by imports and names, equal SQL
files and applications, and equal other files beside. Comments, docstrings, formatting, and modules and definitions that
are not reached do not count, nor does the Python version that reads them. Where the imports of a module cannot be
followed, the version is that of the whole archive.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import PurePosixPath
from typing import Final

from weir.code.application_rules import is_application, is_stored_application, name_in_archive
from weir.code.data_beside import data_beside
from weir.code.definitions import base_of, needed
from weir.code.sql_rules import version_of
from weir.code.syntax import parsed

_PREFIX: Final = "code:"
_WHOLE: Final = "archive:"

_UNFOLLOWED: Final = frozenset(
    {
        *("import_module", "__import__", "run_module", "run_path", "walk_packages", "resolve_name"),
        *("spec_from_file_location", "exec_module", "load_module", "SourceFileLoader", "SourcelessFileLoader"),
        *("__doc__", "getdoc", "getsource", "getsourcelines", "getcomments", "model_json_schema"),
    }
)
"""Names by which a module reaches code, or docstrings, that its import statements do not name."""

_UNFOLLOWED_BUILTINS: Final = frozenset({"exec", "eval", "compile"})
"""The same of the built-in functions; a method of this name, such as a DataFrame's, is none of them."""

_IGNORED: Final = frozenset({"ctx", "kind", "type_comment", "type_ignores"})
"""Fields of syntax nodes that say nothing about what runs."""

_WITH_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def code_version(files: Mapping[str, bytes], functions: Iterable[str]) -> str:
    """Return the code version of a task with these functions, each "module:function" or the path of a file.

    `files` are the files of its archive, by their names there, such as "pipelines/trips.py".
    """
    named = list(functions)
    trees = code_reached(files, named)
    if trees is None:
        return f"{_WHOLE}{_digest_of_files(files)}"
    content = _content(files, named, trees)
    return f"{_PREFIX}{_digest(repr(sorted(each[1:] for each in content)).encode())}"


def files_that_count(
    files: Mapping[str, bytes], functions: Iterable[str]
) -> tuple[dict[str, str], dict[str, ast.Module]]:
    """Return the files of an archive on which the code version of a task with these functions depends.

    Each has a digest of what counts of it; all files are there where imports cannot be followed. The second is what
    counts of modules, by file: of others all does.
    """
    named = list(functions)
    trees = code_reached(files, named)
    if trees is None:
        return {name: _digest(data) for name, data in files.items()}, {}
    found: dict[str, str] = {}
    for file, _, digest in _content(files, named, trees):  # a SQL file that lies in a package counts as both
        found[file] = found.get(file, "") + digest
    return found, {file: trees[name] for name, file in _modules(files).items() if name in trees}


def _content(
    files: Mapping[str, bytes], named: Sequence[str], trees: Mapping[str, ast.Module]
) -> list[tuple[str, str, str]]:
    """Return all that counts: the file, its name in a version, and a digest."""
    modules = _modules(files)
    reached = [(modules[name], name, _digest("".join(canonical(tree)).encode())) for name, tree in trees.items()]
    beside = _files_beside(files, {file for file, _, _ in reached})
    own = [(file, each, files[file]) for each in named if (file := name_in_archive(each)) in files]
    return [
        *reached,
        *((name, name, _digest(files[name])) for name in beside),
        *((file, each, _version_of_file(each, data)) for file, each, data in own),
    ]


def code_reached(files: Mapping[str, bytes], functions: Iterable[str]) -> dict[str, ast.Module] | None:
    """Return the modules that functions reach by imports, with what they need of them; None if it can't be followed."""
    modules = _modules(files)
    named = [each.partition(":") for each in functions if not name_in_archive(each)]
    trees = _modules_reached(files, modules, [module for module, _, _ in named])
    if trees is None:
        return None
    packages = [name for name in trees if modules[name].endswith("__init__.py")]
    return needed(trees, packages, [(module, name.partition(".")[0]) for module, _, name in named])


def _modules_reached(
    files: Mapping[str, bytes], modules: Mapping[str, str], first: Iterable[str]
) -> dict[str, ast.Module] | None:
    """Return the modules that some reach by imports, with their syntax; None where that cannot be followed."""
    reached: dict[str, ast.Module] = {}
    waiting = [part for each in first for part in _with_parents(each)]
    while waiting:
        name = waiting.pop()
        if name in reached or name not in modules:
            continue
        tree = parsed(files[modules[name]])
        if tree is None or _is_unfollowed(tree):
            return None
        reached[name] = tree
        waiting += _imported(tree, name, is_package=modules[name].endswith("__init__.py"), modules=modules)
    return reached


def _version_of_file(name: str, content: bytes) -> str:
    try:
        return _digest(content) if is_application(name) else version_of(content.decode())
    except UnicodeDecodeError:  # it is refused before it runs
        return _digest(content)


def lacking_functions(files: Mapping[str, bytes], functions: Iterable[str]) -> tuple[str, ...]:
    """Return the functions, each "module:function" or the path of a file, that the files of an archive lack.

    One is taken to be there if its module binds the name at its top level, or may bind any ("import *", an error of
    syntax).
    """
    modules = _modules(files)
    found = []
    for function in functions:
        if name_in_archive(function):
            found += [] if name_in_archive(function) in files else [function]
            continue
        module, _, name = function.partition(":")
        tree = parsed(files[modules[module]]) if module in modules else ast.Module([], [])
        if tree is not None and not _may_bind(tree, name):
            found.append(function)
    return tuple(found)


def _may_bind(tree: ast.Module, name: str) -> bool:
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and node.name == name:
            return True
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store):
            return True
        if isinstance(node, ast.alias) and (node.asname or node.name) in (name, "*"):
            return True
    return False


def _modules(files: Mapping[str, bytes]) -> dict[str, str]:
    """Return the file of each module, by the module's name."""
    found = {}
    # Of a package and a module of one name Python takes the package.
    for name in sorted(files, key=lambda each: (each.endswith("/__init__.py"), each)):
        path = PurePosixPath(name)
        if path.suffix == ".py":
            parts = path.parent.parts if path.name == "__init__.py" else path.with_suffix("").parts
            found[".".join(parts)] = name
    return found


def _with_parents(module: str) -> Iterator[str]:
    """Yield a module and the packages that are imported before it."""
    parts = module.split(".")
    for length in range(1, len(parts) + 1):
        yield ".".join(parts[:length])


def _is_unfollowed(tree: ast.Module) -> bool:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in _UNFOLLOWED | _UNFOLLOWED_BUILTINS:
            return True
        if isinstance(node, ast.Attribute) and node.attr in _UNFOLLOWED:
            return True
        if isinstance(node, ast.ImportFrom) and any(alias.name in _UNFOLLOWED for alias in node.names):
            return True
    return False


def _imported(tree: ast.Module, module: str, *, is_package: bool, modules: Mapping[str, str]) -> Iterator[str]:
    """Yield the names that a module's import statements may import, wherever they stand."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _with_parents(alias.name)
        elif isinstance(node, ast.ImportFrom):
            base = base_of(node, module, is_package=is_package)
            yield from _with_parents(base)
            for alias in node.names:
                yield from (f"{base}.{alias.name}",) if alias.name != "*" else _below(base, modules)


def _below(package: str, modules: Mapping[str, str]) -> Iterator[str]:
    """Yield the modules that "import *" from a package may import."""
    yield from (each for each in modules if each.rpartition(".")[0] == package)


def _files_beside(files: Mapping[str, bytes], reached: set[str]) -> Iterator[str]:
    """Yield the files of the reached modules' packages that are no modules, such as SQL, in any folder below.

    That a folder below has modules, too, which nothing imports, does not tell that nothing reads its files. Beside
    packages and modules of their own are the files that these name.
    """
    packages = {PurePosixPath(name).parent for name in reached} - {PurePosixPath()}
    data = data_beside({name: files[name] for name in reached})
    for name in files:
        path = PurePosixPath(name)
        if name.endswith(".py"):
            continue
        if packages & set(path.parents) or (data.has(path.parts[0]) and not is_stored_application(name)):
            yield name


def canonical(tree: ast.AST) -> Iterator[str]:
    """Yield a text of a syntax tree that is the same for all versions of Python.

    Chained calls and sums are as deep as they are long, so that it must not call itself.
    """
    waiting: list[ast.AST | str] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, str):
            yield node
        elif isinstance(node, ast.Constant):
            yield f"{type(node.value).__name__}:{_literal(node.value)};"
        else:
            waiting += reversed(list(_fields(node)))


def _fields(node: ast.AST) -> Iterator[ast.AST | str]:
    """Yield the nodes below a node, and the texts between them."""
    yield f"{type(node).__name__}("
    for name, value in sorted(ast.iter_fields(node)):
        if name in _IGNORED or value is None or value == []:
            continue
        yield f"{name}="
        parts = value if isinstance(value, list) else [value]
        if name == "body" and isinstance(node, _WITH_DOCSTRING) and _is_docstring(parts[0]):
            parts = parts[1:]
        for part in _joined(parts) if isinstance(node, ast.JoinedStr) else parts:
            yield part if isinstance(part, ast.AST) else f"{part!r};"
    yield ")"


def _literal(value: object) -> str:
    try:
        return repr(value)
    except ValueError:  # a number of more digits than Python writes, which its source has in hexadecimal digits
        return hex(value)  # type: ignore[arg-type]


def _joined(parts: list[ast.expr]) -> Iterator[ast.expr]:
    """Yield the parts of an f-string with its texts in one piece each: versions of Python divide them differently."""
    for is_text, group in groupby(parts, lambda part: isinstance(part, ast.Constant)):
        some = list(group)
        text = "".join(str(part.value) for part in some if isinstance(part, ast.Constant))
        if text:
            yield ast.Constant(text)
        if not is_text:
            yield from some


def _is_docstring(statement: ast.AST) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def _digest_of_files(files: Mapping[str, bytes]) -> str:
    return _digest(repr(sorted((name, _digest(content)) for name, content in files.items())).encode())


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
