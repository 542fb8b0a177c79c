"""The names of its module that a statement reads, as Python resolves them. It follows no call and runs nothing.

Invariant: a name that may be read from the module is among them; those that functions, lambdas and comprehensions bind
for themselves are not. A class is no scope for what stands in its functions, and reads the module where it has no value
of that name yet: it counts as if it bound nothing. Nothing here calls itself: chained calls are as deep as they are
long.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from typing import Final

Read = tuple[str, tuple[str, ...]]
"""A name, and the attributes that are asked of it; without any the value itself is handed on."""

FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)
_COMPREHENSIONS: Final = (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)

_NAME: Final = re.compile(r"[^\W\d]\w*")
_IN_TEXT: Final = re.compile(r"@\s*([^\W\d]\w*)")
"""How pandas names a variable in the text of a query."""


def names_read(statement: ast.stmt) -> Iterator[Read]:
    """Yield what a statement may read of its module; also what texts name that it may have evaluated."""
    waiting: list[tuple[ast.AST, frozenset[str], bool]] = [(statement, frozenset(), False)]
    while waiting:
        node, local, is_in_class = waiting.pop()
        if isinstance(node, ast.Name):
            if node.id not in local:
                yield node.id, ()
        elif isinstance(node, ast.Attribute):
            root, attributes = chain(node)
            if not isinstance(root, ast.Name):
                waiting.append((root, local, is_in_class))
            elif root.id not in local:
                yield root.id, attributes
        elif isinstance(node, ast.Import | ast.ImportFrom):
            # What a function imports for itself is asked for where it is used; a class keeps it.
            is_kept = is_in_class or isinstance(node, ast.ImportFrom)
            yield from ((each.asname or each.name.partition(".")[0], ()) for each in node.names if is_kept)
        else:
            waiting += _parts(node, local, is_in_class)
    yield from ((name, ()) for name in _named_in_texts(statement))


def _parts(
    node: ast.AST,
    local: frozenset[str],
    is_in_class: bool,  # noqa: FBT001
) -> Iterator[tuple[ast.AST, frozenset[str], bool]]:
    """Yield the nodes below one, each with the names that are local there."""
    if isinstance(node, (*FUNCTIONS, ast.Lambda)):
        body = [node.body] if isinstance(node, ast.Lambda) else node.body
        bound, of_module = _bound_in(body)
        inner = (local | bound | {each.arg for each in _arguments(node.args)}) - of_module
        yield from ((each, local, is_in_class) for each in _before_body(node))
        yield from ((each, inner, False) for each in body)
    elif isinstance(node, _COMPREHENSIONS):
        first, *others = node.generators
        targets = (each for one in node.generators for each in ast.walk(one.target) if isinstance(each, ast.Name))
        inner = local | {each.id for each in targets}
        values = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        yield first.iter, local, is_in_class
        inside = [*values, *first.ifs, *(each for one in others for each in (one.iter, *one.ifs))]
        yield from ((each, inner, is_in_class) for each in inside)
    else:
        is_class = isinstance(node, ast.ClassDef)
        yield from ((each, local, is_in_class or is_class) for each in ast.iter_child_nodes(node))


def _arguments(given: ast.arguments) -> list[ast.arg]:
    every = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    return [each for each in every if each is not None]


def _before_body(function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> Iterator[ast.expr]:
    """Yield what of a function is computed where it is defined."""
    given = function.args
    yield from (each for each in (*given.defaults, *given.kw_defaults) if each is not None)
    if not isinstance(function, ast.Lambda):
        yield from function.decorator_list
        yield from annotations_of(function)


def annotations_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.expr]:
    """Return the annotations of a function's arguments, and of what it returns."""
    found = [*(each.annotation for each in _arguments(function.args)), function.returns]
    return [each for each in found if each is not None]


def _bound_in(body: Iterable[ast.AST]) -> tuple[set[str], set[str]]:
    """Return the names that the body of a function binds but by imports, and those that it says are the module's."""
    bound, of_module, waiting = set[str](), set[str](), list(body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Global):
            of_module |= set(node.names)
        elif isinstance(node, ast.ClassDef):
            bound.add(node.name)
            waiting += [*node.bases, *node.keywords, *node.decorator_list]
        elif isinstance(node, (*FUNCTIONS, ast.Lambda)):
            bound |= set() if isinstance(node, ast.Lambda) else {node.name}
            waiting += _before_body(node)
        elif isinstance(node, ast.comprehension):
            waiting += [node.iter, *node.ifs]  # its targets are its own
        else:
            bound |= set(bound_by(node))
            waiting += ast.iter_child_nodes(node)
    return bound, of_module


def bound_by(node: ast.AST) -> Iterator[str]:
    """Yield the name that a node binds by itself, which is neither an import nor a definition."""
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        yield node.id
    elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
        yield node.name
    elif isinstance(node, ast.MatchMapping) and node.rest:
        yield node.rest


def chain(node: ast.Attribute) -> tuple[ast.expr, tuple[str, ...]]:
    """Return what attributes are asked of, and these in order: of `a.b.c` it is `a`, and b and c."""
    attributes: list[str] = []
    value: ast.expr = node
    while isinstance(value, ast.Attribute):
        attributes.append(value.attr)
        value = value.value
    return value, tuple(reversed(attributes))


def texts_in(node: ast.AST) -> Iterator[str]:
    """Yield the texts below a node, also those of f-strings."""
    for each in ast.walk(node):
        if isinstance(each, ast.Constant) and isinstance(each.value, str):
            yield each.value


def _named_in_texts(statement: ast.stmt) -> Iterator[str]:
    """Yield the names in annotations that are texts, in queries of pandas, and in what it evaluates."""
    nodes = list(ast.walk(statement))
    pattern = _NAME if any(isinstance(each, ast.Attribute) and each.attr == "eval" for each in nodes) else _IN_TEXT
    is_value = isinstance(statement, ast.Assign | ast.AnnAssign)  # as in Optional["Trip"]
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from pattern.findall(node.value)
        elif isinstance(node, FUNCTIONS):
            yield from (name for each in annotations_of(node) for name in _words(each))
        elif isinstance(node, ast.AnnAssign):
            yield from _words(node.annotation)
        elif is_value and isinstance(node, ast.Subscript):
            yield from _words(node.slice)


def _words(annotation: ast.expr) -> Iterator[str]:
    for text in texts_in(annotation):
        yield from _NAME.findall(text)
