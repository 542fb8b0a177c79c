"""The statements of modules that functions need: those that run when a module is imported, and what these name.

Invariant: what is left out cannot run, and is not read, by what the functions do. Only plain statements are left out:
functions, simple classes, constants and imports of Python's own and of Spark's, each of which nothing that is kept
names, in whatever way. Where modules are asked for what they have (`globals()`, `sys.modules`, a module's
`__getattr__`), or objects are made by the names of their classes (`pickle`), all is kept.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from weir.code.names_read import FUNCTIONS, annotations_of, bound_by, chain, names_read, texts_in

_ASKS: Final = frozenset(
    {
        *("globals", "getmembers", "getmodule", "get_objects", "currentframe", "_getframe", "f_globals", "f_locals"),
        *("__globals__", "__subclasses__", "__getattr__", "__dir__", "__annotations__"),
        *("pickle", "cloudpickle", "dill", "joblib", "read_pickle", "pickleFile"),
        *("PipelineModel", "CrossValidatorModel", "DefaultParamsReader", "DefaultParamsReadable"),
    }
)
"""Names by which a module is asked for what it defines, or by which classes are found by their names."""

_ASK_WITHOUT_ARGUMENTS: Final = frozenset({"vars", "dir", "locals"})

_PLAIN_DECORATORS: Final = frozenset(
    {
        *("cache", "lru_cache", "cached_property", "property", "staticmethod", "classmethod", "dataclass", "wraps"),
        *("contextmanager", "udf", "pandas_udf", "udtf", "arrow_udf", "overload", "override", "final", "unique"),
    }
)
"""Decorators of the standard library and of Spark that do nothing but return what they decorate."""

_PLAIN_BASES: Final = frozenset(
    {
        *("object", "Enum", "IntEnum", "StrEnum", "Flag", "IntFlag", "NamedTuple", "TypedDict", "Protocol", "ABC"),
        *("Generic", "Exception", "ValueError", "RuntimeError", "TypeError", "KeyError", "LookupError", "OSError"),
    }
)
"""Classes that do nothing with a class that is made of them."""

_AT_CREATION: Final = frozenset({"__new__", "__init__", "__init_subclass__", "__set_name__", "__class_getitem__"})
"""Methods that may run when a class with a base, or a value of it, is made."""

_PLAIN_BUILTINS: Final = frozenset({"property", "staticmethod", "classmethod", *_PLAIN_BASES})
_PLAIN_CALLED: Final = frozenset({"frozenset", "set", "tuple", "list", "dict", "str", "int", "float", "range", "len"})
_PLAIN_CALLED_OF: Final = (
    *("pyspark.sql.types", "pyspark.sql.functions", "pyspark.sql.Window", "pyspark.sql.window.Window"),
    *("datetime", "decimal.Decimal", "fractions.Fraction", "re.compile", "dataclasses.field", "enum.auto"),
    *("typing.NewType", "typing.TypeVar", "types.MappingProxyType", "logging.getLogger"),
)
"""What makes values, and does nothing else."""

_PLAIN_MODULES: Final = frozenset(
    {
        *("abc", "collections", "contextlib", "dataclasses", "datetime", "decimal", "enum", "fractions", "functools"),
        *("itertools", "json", "logging", "math", "operator", "pathlib", "pyspark", "re", "string", "types", "typing"),
    }
)
"""Packages of which an import that nobody uses does nothing."""

_ALL: Final = "*"
_DOTTED: Final = re.compile(r"[^\W\d]\w*(?:[.:][^\W\d]\w*)+")


def needed(
    trees: Mapping[str, ast.Module], packages: Iterable[str], functions: Iterable[tuple[str, str]]
) -> dict[str, ast.Module]:
    """Return the modules with those of their statements that functions, each a module and a name, need.

    `trees` are all modules that they reach, by name; `packages` are the names of those that are packages.
    """
    nodes = {name: list(ast.walk(tree)) for name, tree in trees.items()}
    if any(_asks(tree, nodes[name]) for name, tree in trees.items()):
        return dict(trees)
    needs = _Needs(trees, nodes, frozenset(packages))
    for module, name in functions:
        needs.need(module, name)
    return needs.kept()


def _asks(tree: ast.Module, nodes: Sequence[ast.AST]) -> bool:
    with_arguments = {id(node.func) for node in nodes if isinstance(node, ast.Call) and node.args}
    at_top = {id(each) for each in tree.body}
    for node in nodes:
        if isinstance(node, ast.Name):
            found = node.id in _ASKS or (node.id in _ASK_WITHOUT_ARGUMENTS and id(node) not in with_arguments)
        elif isinstance(node, ast.ClassDef):
            found = any(isinstance(each, ast.Name) and _is_mangled(each.id) for each in ast.walk(node))
        elif isinstance(node, ast.Attribute):
            found = node.attr in _ASKS or (node.attr == "modules" and isinstance(node.value, ast.Name))
        elif isinstance(node, ast.alias):
            found = bool({node.name, node.name.partition(".")[0], node.asname} & (_ASKS | {"modules"}))
        else:
            found = isinstance(node, FUNCTIONS) and node.name in _ASKS and id(node) in at_top
        if found:
            return True
    return False


def _is_mangled(name: str) -> bool:
    """Report whether a name stands for another one in a class."""
    return name.startswith("__") and not name.endswith("__")


class _Module:
    """The statements of a module: which names each of the plain ones binds, and what its imports bind."""

    def __init__(
        self, name: str, body: list[ast.stmt], nodes: Sequence[ast.AST], own: set[str], *, is_package: bool
    ) -> None:
        self.body = body
        self.imports: dict[str, list[str]] = {}
        self.stars: list[str] = []
        for node in nodes:
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
        known = _Known.of(nodes, self.imports, self.stars, own)
        self.plain: dict[str, list[int]] = {}
        self.plain_imports: set[int] = set()
        for number, statement in enumerate(self.body):
            if known.is_plain_import(statement):
                self.plain_imports.add(number)
            for each in known.plainly_bound(statement):
                self.plain.setdefault(each, []).append(number)


class _Known:
    """The names of a module that are known to be of the standard library, of Spark or of Python itself."""

    def __init__(
        self, outside: Mapping[str, str], imported: Collection[str] = (), bound: Collection[str] = (), star: str = ""
    ) -> None:
        self._outside, self._imported, self._bound = outside, imported, bound
        self._star = star
        """The one module of Spark that all of is imported from: it binds what nothing else does."""

    @staticmethod
    def of(nodes: Sequence[ast.AST], imports: Mapping[str, list[str]], stars: list[str], own: set[str]) -> _Known:
        """Find what is bound by nothing but one import of what is not among the modules, and not patched."""
        if any(each.partition(".")[0] in own for each in stars):
            return _Known({}, imports)  # it may bind all names anew
        bound = set()
        for node in nodes:
            if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
                bound.add(node.name)
            elif isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
                root, _ = chain(node)
                bound |= {root.id} if isinstance(root, ast.Name) else set()
            bound |= set(bound_by(node))
        outside = {
            name: targets[0]
            for name, targets in imports.items()
            if len(set(targets)) == 1 and targets[0].partition(".")[0] not in own
        }
        outside |= {name: name for name in _PLAIN_BUILTINS | _PLAIN_CALLED if name not in imports}
        star = stars[0] if len(stars) == 1 and stars[0] in _PLAIN_CALLED_OF else ""
        found = {name: target for name, target in outside.items() if name not in bound}
        return _Known(found, imports, bound, star)

    def is_plain_import(self, statement: ast.stmt) -> bool:
        """Report whether a statement only imports from packages of which that does nothing."""
        if isinstance(statement, ast.Import):
            return all(each.name.partition(".")[0] in _PLAIN_MODULES for each in statement.names)
        if not isinstance(statement, ast.ImportFrom) or statement.level or statement.names[0].name == "*":
            return False
        return (statement.module or "").partition(".")[0] in _PLAIN_MODULES

    def plainly_bound(self, statement: ast.stmt) -> list[str]:
        """Return the names that a statement binds if it does nothing else when its module is imported; else none."""
        if isinstance(statement, FUNCTIONS):
            return [statement.name] if self._is_plain_function(statement) else []
        if isinstance(statement, ast.ClassDef):
            return [statement.name] if self._is_plain_class(statement) else []
        if isinstance(statement, ast.Assign):
            names = [name for each in statement.targets for name in _names_of_target(each)]
            return names if names and None not in names and self._makes_a_value(statement.value) else []  # type: ignore[return-value]
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            is_plain = statement.value is None or self._makes_a_value(statement.value)
            name = statement.target.id
            return [name] if is_plain and not name.startswith("__") and _calls_nothing(statement.annotation) else []
        return []

    def _is_plain_function(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
        defaults = (each for each in (*function.args.defaults, *function.args.kw_defaults) if each is not None)
        return (
            all(map(self._makes_a_value, defaults))
            and all(map(_calls_nothing, annotations_of(function)))
            and all(map(self._is_plain_decorator, function.decorator_list))
        )

    def _is_plain_class(self, cls: ast.ClassDef) -> bool:
        if cls.keywords or not all(map(self._is_plain_decorator, cls.decorator_list)):
            return False
        bases = [each.value if isinstance(each, ast.Subscript) else each for each in cls.bases]
        if not all(self._last_name(each) in _PLAIN_BASES for each in bases):
            return False
        if bases and any(isinstance(each, FUNCTIONS) and each.name in _AT_CREATION for each in cls.body):
            return False
        return all(self._is_plain_in_class(each) for each in cls.body)

    def _is_plain_in_class(self, statement: ast.stmt) -> bool:
        if isinstance(statement, ast.Pass) or is_text(statement):
            return True
        return not isinstance(statement, ast.ClassDef) and bool(self.plainly_bound(statement))

    def _is_plain_decorator(self, decorator: ast.expr) -> bool:
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        if isinstance(decorator, ast.Call):
            given = [*decorator.args, *(each.value for each in decorator.keywords)]
            if not all(map(self._makes_a_value, given)):
                return False
        return self._last_name(called) in _PLAIN_DECORATORS

    def _last_name(self, value: ast.expr) -> str:
        """Return the last part of a name that is from outside; empty for any other expression."""
        return self._target(value).rpartition(".")[2]

    def _target(self, value: ast.expr) -> str:
        """Return the dotted name of what an expression names, if that is from outside; else empty."""
        root, attributes = chain(value) if isinstance(value, ast.Attribute) else (value, ())
        if not isinstance(root, ast.Name):
            return ""
        if root.id not in self._outside:
            is_of_star = self._star and root.id not in self._imported and root.id not in self._bound
            return ".".join([self._star, root.id, *attributes]) if is_of_star else ""
        return ".".join([self._outside[root.id], *attributes])

    def _makes_a_value(self, value: ast.expr) -> bool:
        """Report whether an expression does nothing but make a value, so that only who reads that depends on it."""
        waiting: list[ast.AST] = [value]
        while waiting:
            node = waiting.pop()
            if isinstance(node, ast.Call):
                if not self._is_plain_call(node):
                    return False
                waiting += [*node.args, *(each.value for each in node.keywords)]
                continue
            if isinstance(node, ast.Lambda):
                waiting += [each for each in (*node.args.defaults, *node.args.kw_defaults) if each is not None]
                continue
            if isinstance(node, ast.Attribute):  # of an object it may be a property
                root, _ = chain(node)
                if not isinstance(root, ast.Name) or root.id not in self._imported:
                    return False
                continue
            if not isinstance(node, _VALUES) or (isinstance(node, ast.BinOp) and isinstance(node.op, _ACTING)):
                return False
            waiting += ast.iter_child_nodes(node)
        return True

    def _is_plain_call(self, call: ast.Call) -> bool:
        target = self._target(call.func)
        if target in _PLAIN_CALLED:
            return True
        return any(target == each or target.startswith(f"{each}.") for each in _PLAIN_CALLED_OF)


_ACTING: Final = (ast.LShift, ast.RShift, ast.BitOr, ast.BitAnd, ast.BitXor, ast.MatMult)
"""Operators that classes define to do something, such as to chain tasks."""

_VALUES: Final = (
    *(ast.Constant, ast.Name, ast.Tuple, ast.List, ast.Set, ast.Dict, ast.JoinedStr, ast.FormattedValue),
    *(ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp),
    *(ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context, ast.keyword),
)


def _names_of_target(target: ast.expr) -> Iterator[str | None]:
    """Yield the names that an assignment binds; None for what it does besides, or a name that Python reads."""
    if isinstance(target, ast.Tuple | ast.List):
        for each in target.elts:
            yield from _names_of_target(each)
    else:
        name = target.id if isinstance(target, ast.Name) else "__"
        yield name if not name.startswith("__") or name in _UNREAD else None


_UNREAD: Final = frozenset({"__all__", "__version__", "__author__"})
"""Names of Python's form that it does not read, or only where all of a module is imported."""


def _calls_nothing(annotation: ast.expr) -> bool:
    acts = (ast.Call, ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom)
    return not any(isinstance(node, acts) for node in ast.walk(annotation))


def is_text(statement: ast.stmt) -> bool:
    """Report whether a statement is a docstring, or another value that nobody reads."""
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _never_runs(statement: ast.stmt) -> bool:
    """Report whether a statement runs only where its file is a program, or types are checked: here it is imported."""
    if not isinstance(statement, ast.If) or statement.orelse:
        return False
    test = statement.test
    if isinstance(test, ast.Name | ast.Attribute):
        return (test.id if isinstance(test, ast.Name) else test.attr) == "TYPE_CHECKING"
    if not isinstance(test, ast.Compare) or len(test.ops) != 1 or not isinstance(test.ops[0], ast.Eq):
        return False
    sides = [test.left, *test.comparators]
    named = any(isinstance(each, ast.Name) and each.id == "__name__" for each in sides)
    return named and any(isinstance(each, ast.Constant) and each.value == "__main__" for each in sides)


class _Needs:
    """What is needed so far; what is new is looked through before more is asked for."""

    def __init__(
        self, trees: Mapping[str, ast.Module], nodes: Mapping[str, Sequence[ast.AST]], packages: frozenset[str]
    ) -> None:
        own = {each.partition(".")[0] for each in trees}
        self._modules = {
            name: _Module(name, tree.body, nodes[name], own, is_package=name in packages)
            for name, tree in trees.items()
        }
        self._prefixes = {".".join(name.split(".")[:n]) for name in trees for n in range(1, name.count(".") + 1)}
        self._kept: dict[str, set[int]] = {name: set() for name in trees}
        self._used: dict[str, set[str]] = {name: set() for name in trees}
        """Of the names that plain imports bind, those that are asked for."""
        self._asked: set[tuple[str, str, tuple[str, ...]]] = set()
        self._questions: list[tuple[str, str, tuple[str, ...]]] = []
        self._waiting: list[tuple[str, int]] = []
        for name, module in self._modules.items():
            left_out = module.plain_imports.union(*module.plain.values())
            for number, statement in enumerate(module.body):
                if number not in left_out and not is_text(statement) and not _never_runs(statement):
                    self._keep(name, number)

    def kept(self) -> dict[str, ast.Module]:
        """Return the modules with what is needed of them, in its order; of plain imports the names that are used."""
        return {name: ast.Module(list(self._statements(name)), []) for name in self._modules}

    def _statements(self, name: str) -> Iterator[ast.stmt]:
        module = self._modules[name]
        for number, statement in enumerate(module.body):
            if number in self._kept[name]:
                yield statement
            elif number in module.plain_imports and isinstance(statement, ast.Import | ast.ImportFrom):
                used = [each for each in statement.names if _bound_name(each) in self._used[name]]
                if used and isinstance(statement, ast.Import):
                    yield ast.Import(used)
                elif used and isinstance(statement, ast.ImportFrom):
                    yield ast.ImportFrom(statement.module, used, statement.level)

    def need(self, module: str, name: str) -> None:
        """Keep what binds a name of a module, and all that this names."""
        self._ask(module, name)
        while self._waiting or self._questions:
            if self._questions:
                self._answer(*self._questions.pop())
            else:
                self._look_through(*self._waiting.pop())

    def _look_through(self, module: str, number: int) -> None:
        statement = self._modules[module].body[number]
        if isinstance(statement, ast.Import | ast.ImportFrom):
            return  # who uses what it binds asks for that
        if isinstance(statement, ast.Try):
            self._ask_for_imports(module, statement)
        for name, attributes in names_read(statement):
            self._ask(module, name, attributes)
        for text in texts_in(statement):
            for dotted in _DOTTED.findall(text):
                self._follow_text(re.split("[.:]", dotted))

    def _keep(self, module: str, number: int) -> None:
        if number not in self._kept[module]:
            self._kept[module].add(number)
            self._waiting.append((module, number))

    def _ask(self, module: str, name: str, attributes: tuple[str, ...] = ()) -> None:
        if (module, name, attributes) not in self._asked:
            self._asked.add((module, name, attributes))
            self._questions.append((module, name, attributes))

    def _answer(self, module: str, name: str, attributes: tuple[str, ...]) -> None:
        if name == _ALL:
            self._answer_all(module)
            return
        below = f"{module}.{name}"
        if below in self._modules or below in self._prefixes:
            self._follow(below, attributes)
        here = self._modules.get(module)
        if here is None:
            return
        self._used[module].add(name)
        for number in here.plain.get(name, ()):
            self._keep(module, number)
        for target in here.imports.get(name, ()):
            self._follow(target, attributes)
        for star in here.stars:
            self._ask(star, "__all__")
            self._ask(star, name, attributes)

    def _follow(self, target: str, attributes: tuple[str, ...]) -> None:
        """Ask for what an import has bound: a module, of which attributes are named or all is handed on, or a name."""
        if target in self._modules or target in self._prefixes:
            if not attributes or attributes[0].startswith("__"):
                self._ask_all(target)
            else:
                self._ask(target, attributes[0], attributes[1:])
        base, _, name = target.rpartition(".")
        if base:
            self._ask(base, name, attributes)

    def _follow_text(self, parts: list[str]) -> None:
        """Ask for what a text names, such as "pipelines.rates:Rate", if it begins with a module."""
        for length in range(len(parts), 0, -1):
            module = ".".join(parts[:length])
            if module in self._modules:
                self._follow(module, tuple(parts[length:]))
                return

    def _ask_for_imports(self, module: str, statement: ast.Try) -> None:
        """Ask for all of what is imported where an error of it has something else done."""
        here = self._modules[module]
        for node in ast.walk(statement):
            for each in node.names if isinstance(node, ast.Import | ast.ImportFrom) else ():
                for target in here.imports.get(_bound_name(each), ()):
                    self._ask_all(target)
                    self._ask_all(target.rpartition(".")[0])

    def _ask_all(self, module: str) -> None:
        self._ask(module, _ALL)

    def _answer_all(self, module: str) -> None:
        for below in [each for each in self._modules if each.startswith(f"{module}.")]:
            self._ask_all(below)
        here = self._modules.get(module)
        if here is None:
            return
        for name in [*here.plain, *here.imports]:
            self._ask(module, name)
        for star in here.stars:
            self._ask_all(star)


def _bound_name(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]


def base_of(node: ast.ImportFrom, module: str, *, is_package: bool) -> str:
    """Return the absolute name of the module that an import is from."""
    if not node.level:
        return node.module or ""
    parts = module.split(".") if is_package else module.split(".")[:-1]
    parts = parts[: len(parts) - node.level + 1]
    return ".".join([*parts, *([node.module] if node.module else [])])
