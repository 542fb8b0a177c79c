"""The statements of modules that functions need: those that run when a module is imported, and what these name.

Invariant: what is left out cannot run, and is not read, by what the functions do. Only plain definitions are left out:
functions, simple classes, and constants, each of which nothing that is kept names, in whatever way. Where modules are
asked for what they have (`globals()`, `vars(...)`, `sys.modules`, a module's `__getattr__`), all is kept.
"""

from __future__ import annotations

import ast
import re
import symtable
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

_Function = (ast.FunctionDef, ast.AsyncFunctionDef)

_ASKS: Final = frozenset(
    {
        *("globals", "locals", "vars", "dir", "getmembers", "modules", "currentframe", "_getframe"),
        *("f_globals", "f_locals", "__globals__", "__subclasses__", "__getattr__", "__dir__"),
    }
)
"""Names by which a module, or who has one, is asked for what it defines."""

_PLAIN_DECORATORS: Final = frozenset(
    {
        *("cache", "lru_cache", "cached_property", "property", "staticmethod", "classmethod", "dataclass", "wraps"),
        *(
            "contextmanager",
            "udf",
            "pandas_udf",
            "udtf",
            "arrow_udf",
            "overload",
            "override",
            "final",
            "total_ordering",
        ),
    }
)
"""Decorators of the standard library and of Spark that do nothing but return what they decorate."""

_PLAIN_BUILTINS: Final = frozenset({"property", "staticmethod", "classmethod", "object"})

_NAME: Final = re.compile(r"[^\W\d]\w*")


def needed(
    trees: Mapping[str, ast.Module], packages: Iterable[str], functions: Iterable[tuple[str, str]]
) -> dict[str, ast.Module]:
    """Return the modules with those of their statements that functions, each a module and a name, need.

    `trees` are all modules that they reach, by name; `packages` are the names of those that are packages.
    """
    if any(_asks(tree) for tree in trees.values()):
        return dict(trees)
    of_packages, named = frozenset(packages), list(functions)
    try:
        return _kept(trees, of_packages, named)
    except (RecursionError, MemoryError):  # it counts from the depth of the caller, as in `parsed`
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(_kept_or_all, trees, of_packages, named).result()
    except ValueError:
        return dict(trees)


def _kept(
    trees: Mapping[str, ast.Module], packages: frozenset[str], functions: Iterable[tuple[str, str]]
) -> dict[str, ast.Module]:
    needs = _Needs(trees, packages)
    for module, name in functions:
        needs.need(module, name)
    return needs.kept()


def _kept_or_all(
    trees: Mapping[str, ast.Module], packages: frozenset[str], functions: Iterable[tuple[str, str]]
) -> dict[str, ast.Module]:
    try:
        return _kept(trees, packages, functions)
    except (RecursionError, MemoryError, ValueError, SyntaxError):
        return dict(trees)


def _asks(tree: ast.Module) -> bool:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in _ASKS:
            return True
        if isinstance(node, ast.Attribute) and node.attr in _ASKS:
            return True
        if isinstance(node, ast.alias) and node.name in _ASKS:
            return True
        if isinstance(node, _Function) and node.name in _ASKS and node in tree.body:
            return True
    return False


class _Module:
    """The statements of a module: which names each of its plain definitions binds, and what its imports bind."""

    def __init__(self, name: str, tree: ast.Module, trees: Mapping[str, ast.Module], *, is_package: bool) -> None:
        self.body = tree.body
        self.imports: dict[str, list[str]] = {}
        self.stars: list[str] = []
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    target = alias.name if alias.asname else alias.name.partition(".")[0]
                    self.imports.setdefault(alias.asname or target, []).append(target)
            elif isinstance(node, ast.ImportFrom):
                base = base_of(node, name, is_package=is_package)
                for alias in node.names:
                    if alias.name == "*":
                        self.stars.append(base)
                    else:
                        self.imports.setdefault(alias.asname or alias.name, []).append(f"{base}.{alias.name}")
        own, bound = {each.partition(".")[0] for each in trees}, set(_bound(tree))
        outside = {
            name for name, targets in self.imports.items() if not any(each.partition(".")[0] in own for each in targets)
        }
        outside = (outside | (_PLAIN_BUILTINS - self.imports.keys())) - bound
        self.plain: dict[str, list[int]] = {}
        for number, statement in enumerate(self.body):
            for each in _plainly_bound(statement, outside):
                self.plain.setdefault(each, []).append(number)


class _Needs:
    """What is needed so far; what is new is looked through before more is asked for."""

    def __init__(self, trees: Mapping[str, ast.Module], packages: frozenset[str]) -> None:
        self._trees = trees
        self._modules = {name: _Module(name, tree, trees, is_package=name in packages) for name, tree in trees.items()}
        self._kept: dict[str, set[int]] = {name: set() for name in trees}
        self._asked: set[tuple[str, str, tuple[str, ...]]] = set()
        self._waiting: list[tuple[str, int]] = []
        for name, module in self._modules.items():
            left_out = {number for numbers in module.plain.values() for number in numbers}
            for number, statement in enumerate(module.body):
                if number not in left_out and not _is_of_main(statement):
                    self._keep(name, number)

    def kept(self) -> dict[str, ast.Module]:
        """Return the modules with what is needed of them, in its order."""
        return {
            name: ast.Module([self._modules[name].body[each] for each in sorted(numbers)], [])
            for name, numbers in self._kept.items()
        }

    def need(self, module: str, name: str) -> None:
        """Keep what binds a name of a module, and all that this names."""
        self._ask(module, name)
        while self._waiting:
            of, number = self._waiting.pop()
            if isinstance(self._modules[of].body[number], ast.Import | ast.ImportFrom):
                continue  # who uses what it binds asks for that
            for found, attributes in _names(self._modules[of].body[number]):
                self._ask(of, found, attributes)

    def _keep(self, module: str, number: int) -> None:
        if number not in self._kept[module]:
            self._kept[module].add(number)
            self._waiting.append((module, number))

    def _ask(self, module: str, name: str, attributes: tuple[str, ...] = ()) -> None:
        if module not in self._modules or (module, name, attributes) in self._asked:
            return
        self._asked.add((module, name, attributes))
        here = self._modules[module]
        for number in here.plain.get(name, ()):
            self._keep(module, number)
        for target in here.imports.get(name, ()):
            self._follow(target, attributes)
        for star in here.stars:
            self._ask(star, name, attributes)

    def _follow(self, target: str, attributes: tuple[str, ...]) -> None:
        """Ask for what an import has bound: a module, of which attributes are named or all is handed on, or a name."""
        below = [each for each in self._modules if each.startswith(f"{target}.")]
        if target in self._modules or below:
            if not attributes or attributes[0].startswith("__"):
                for each in (target, *below):
                    self._ask_all(each)
            else:
                self._ask(target, attributes[0], attributes[1:])
                if below:
                    self._follow(f"{target}.{attributes[0]}", attributes[1:])
        base, _, name = target.rpartition(".")
        if base:
            self._ask(base, name, attributes)

    def _ask_all(self, module: str) -> None:
        if module not in self._modules or (module, "*", ()) in self._asked:
            return
        self._asked.add((module, "*", ()))
        here = self._modules[module]
        for name in [*here.plain, *here.imports]:
            self._ask(module, name)
        for star in here.stars:
            self._ask_all(star)


def base_of(node: ast.ImportFrom, module: str, *, is_package: bool) -> str:
    """Return the absolute name of the module that an import is from."""
    if not node.level:
        return node.module or ""
    parts = module.split(".") if is_package else module.split(".")[:-1]
    parts = parts[: len(parts) - node.level + 1]
    return ".".join([*parts, *([node.module] if node.module else [])])


def _is_of_main(statement: ast.stmt) -> bool:
    """Report whether a statement runs only where its file is a program: here it is imported."""
    return isinstance(statement, ast.If) and not statement.orelse and ast.unparse(statement.test) in _OF_MAIN


_OF_MAIN: Final = ("__name__ == '__main__'", "'__main__' == __name__")


def _plainly_bound(statement: ast.stmt, outside: set[str]) -> list[str]:
    """Return the names that a statement binds if it does nothing else when its module is imported; else none."""
    if isinstance(statement, _Function):
        return [statement.name] if _is_plain_function(statement, outside) else []
    if isinstance(statement, ast.ClassDef):
        return [statement.name] if _is_plain_class(statement, outside) else []
    if isinstance(statement, ast.Assign) and all(isinstance(each, ast.Name) for each in statement.targets):
        names = [each.id for each in statement.targets if isinstance(each, ast.Name)]
        is_plain = _computes_nothing(statement.value) and not any(each.startswith("__") for each in names)
        return names if is_plain else []
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        values = [each for each in (statement.value, statement.annotation) if each is not None]
        return [statement.target.id] if all(map(_computes_nothing, values)) else []
    return []


def _is_plain_function(function: ast.FunctionDef | ast.AsyncFunctionDef, outside: set[str]) -> bool:
    arguments = function.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    at_import = [
        *arguments.defaults,
        *(each for each in arguments.kw_defaults if each is not None),
        *(each.annotation for each in every if each is not None and each.annotation is not None),
        *([function.returns] if function.returns is not None else []),
    ]
    decorators = function.decorator_list
    return all(map(_computes_nothing, at_import)) and all(_is_plain_decorator(each, outside) for each in decorators)


def _is_plain_class(cls: ast.ClassDef, outside: set[str]) -> bool:
    if cls.keywords or not all(_is_plain_decorator(each, outside) for each in cls.decorator_list):
        return False
    return all(_is_from(each, outside) for each in cls.bases) and all(
        isinstance(each, ast.Pass)
        or (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))
        or (not isinstance(each, ast.ClassDef) and bool(_plainly_bound(each, outside)))
        for each in cls.body
    )


def _is_plain_decorator(decorator: ast.expr, outside: set[str]) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    if isinstance(decorator, ast.Call):
        given = [*decorator.args, *(each.value for each in decorator.keywords)]
        if not all(map(_computes_nothing, given)):
            return False
    name = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
    return name in _PLAIN_DECORATORS and _is_from(called, outside)


def _is_from(value: ast.expr, outside: set[str]) -> bool:
    """Report whether a name, or an attribute of it, is bound by nothing but imports of what is not among the modules.

    Or is one of Python's own.
    """
    while isinstance(value, ast.Attribute):
        value = value.value
    return isinstance(value, ast.Name) and value.id in outside


def _computes_nothing(value: ast.expr) -> bool:
    """Report whether an expression calls nothing and binds nothing, so that only who reads it depends on it."""
    acts = (ast.Call, ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom)
    return not any(isinstance(node, acts) for node in ast.walk(value))


def _names(statement: ast.stmt) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the names of its module that a statement may read, each with the attributes that are asked of it.

    Once with none where the value itself is handed on. What functions in it bind for themselves is not among them,
    but for what they import.
    """
    text = ast.unparse(statement)
    of_module = _globals(symtable.symtable(text, "<statement>", "exec"), is_top=True)
    imported = {
        name
        for node in ast.walk(statement)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
        for name in (alias.asname or alias.name.partition(".")[0],)
    }
    rooted: set[int] = set()
    quoted = {name for annotation in _annotations(statement) for name in _quoted(annotation)}
    yield from ((each, ()) for each in quoted)
    for node in ast.walk(statement):
        if isinstance(node, ast.Attribute):
            root, attributes = _chain(node)
            if root is not None and id(root) not in rooted:
                rooted.add(id(root))  # the whole chain comes before its parts
                if root.id in of_module | imported:
                    yield root.id, attributes
        elif isinstance(node, ast.Name):
            if node.id.startswith("__") and not node.id.endswith("__"):
                raise ValueError  # in a class it is another name
            if id(node) not in rooted and node.id in of_module | imported:
                yield node.id, ()
        elif isinstance(node, ast.ImportFrom):
            yield from ((alias.asname or alias.name, ()) for alias in node.names)


def _annotations(statement: ast.stmt) -> Iterator[ast.expr]:
    for node in ast.walk(statement):
        found = node.returns if isinstance(node, _Function) else getattr(node, "annotation", None)
        if found is not None:
            yield found


def _quoted(annotation: ast.expr) -> Iterator[str]:
    """Yield the names in the texts of an annotation, which somebody may evaluate."""
    for node in ast.walk(annotation):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from _NAME.findall(node.value)


def _bound(tree: ast.Module) -> Iterator[str]:
    """Yield the names that a module binds anywhere but by imports."""
    for node in ast.walk(tree):
        if isinstance(node, (*_Function, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id


def _globals(table: symtable.SymbolTable, *, is_top: bool = False) -> set[str]:
    found = {each.get_name() for each in table.get_symbols() if is_top or each.is_global()}
    return found.union(*(_globals(each) for each in table.get_children()))


def _chain(node: ast.Attribute) -> tuple[ast.Name | None, tuple[str, ...]]:
    attributes: list[str] = []
    value: ast.expr = node
    while isinstance(value, ast.Attribute):
        attributes.append(value.attr)
        value = value.value
    return (value if isinstance(value, ast.Name) else None), tuple(reversed(attributes))
