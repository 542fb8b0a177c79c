"""Wrong arguments of declarations, and their answers.

Invariant: an answer is one line that names the place, what was found there and what to write. A stage or another
declaration is shown as it was written, not with all of its settings.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from functools import wraps
from inspect import Parameter, signature
from types import MappingProxyType
from typing import Any, Final, ParamSpec, TypeVar

from weir.errors import Misconfigured
from weir.wording import did_you_mean

_P = ParamSpec("_P")
_R = TypeVar("_R")
_T = TypeVar("_T")
_E = TypeVar("_E", bound=Enum)

MOST_SHOWN: Final = 100
"""The characters of a value that an answer shows."""

WORDS_FOR_BY: Final = ("key", "keys", "on", "key_by", "partition_by", "columns")
"""What Spark, Flink and SQL call the columns that divide rows."""

_OF_DAG_FILE: Final = ("__main__", "<run_path>")
_LIST_OF_NAMES: Final = re.compile(r"\s*\w+\s*(,\s*\w+\s*)+")
_PATH: Final = re.compile(r"[\w/.]+\.py:\w+", re.ASCII)
_DOTTED: Final = re.compile(r"\w+(\.\w+)+", re.ASCII)


def shown(value: object) -> str:
    """Return a value as an answer shows it: short, in one line."""
    if type(value).__module__.startswith("weir.dataflow"):
        return str(value)
    if isinstance(value, list | tuple) and any(type(each).__module__.startswith("weir.dataflow") for each in value):
        return f"[{', '.join(map(shown, value))}]"
    name = getattr(value, "__name__", None)
    text = f"the {type(value).__name__} {name}" if callable(value) and isinstance(name, str) else repr(value)
    text = " ".join(text.split())
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."


def problem_of(what: str, value: object, kind: type | tuple[type, ...], write: str) -> Iterator[str]:
    """Yield a problem unless a value is of a kind; True and False are no numbers."""
    is_unwanted_flag = isinstance(value, bool) and bool not in (kind if isinstance(kind, tuple) else (kind,))
    if is_unwanted_flag or not isinstance(value, kind):
        yield f"{what} is {shown(value)}: write {write}"


def require(where: str, what: str, value: object, kind: type | tuple[type, ...], write: str) -> None:
    """Require a value of a kind. Raises Misconfigured."""
    for problem in problem_of(what, value, kind, write):
        raise Misconfigured.of("dataflow.argument_wrong", where=where, problem=problem)


def choice(where: str, what: str, value: object, kinds: type[_E]) -> _E:
    """Return the one of an enum's values that is given, or named by its text. Raises Misconfigured."""
    for kind in kinds:
        if value is kind or value == kind.value:
            return kind
    known = " or ".join(f'{what}="{kind.value}"' for kind in kinds)
    raise Misconfigured.of("dataflow.choice_wrong", where=where, what=what, value=value, known=known)


def require_connection(where: str, conn_id: object, kind: str) -> None:
    """Require the id of an Airflow connection of a kind. Raises Misconfigured, which repeats no URL with a password."""
    is_url = isinstance(conn_id, str) and ("://" in conn_id or conn_id.startswith("jdbc:"))
    if not isinstance(conn_id, str) or not conn_id or is_url:
        found = "a URL" if is_url else shown(conn_id)
        raise Misconfigured.of("dataflow.conn_id_malformed", where=where, found=found, kind=kind)


_MISREAD_BY_DELTA: Final = re.compile(r"%[0-9A-Fa-f]{2}|[\[\]^|\\\x00-\x1f\x7f]")
_MISREAD_IN_URL: Final = re.compile(r"[#?]")


def require_delta_path(where: str, path: str) -> None:
    """Require a path at which delta-rs finds this table, and no other one. Raises Misconfigured.

    It takes a path for a URL at places: `50%20off` for `50 off`, and in a URL all after # or ? for no path.
    """
    found = _MISREAD_BY_DELTA.search(path) or ("://" in path and _MISREAD_IN_URL.search(path))
    if found:
        raise Misconfigured.of("dataflow.delta_path_misread", where=where, found=found[0], path=path)


def copy_of(given: Any) -> Any:
    """Return a copy of a dict, an empty one for None, and anything else as it is, for the validation that follows."""
    if given is None:
        return {}
    return dict(given) if isinstance(given, Mapping) else given


def column_names(where: str, what: str, given: str | Sequence[str]) -> tuple[str, ...]:
    """Return one column name, or a list of them, as a tuple. Raises Misconfigured."""
    if isinstance(given, str) and _LIST_OF_NAMES.fullmatch(given):
        names = ", ".join(f'"{name.strip()}"' for name in given.split(","))
        raise Misconfigured.of("dataflow.columns_are_a_text", where=where, what=what, given=given, names=names)
    require(where, what, given, (str, list, tuple), f'{what}="column" or {what}=["column", "other"], in this order')
    return (given,) if isinstance(given, str) else tuple(given)


def reference_for(value: object) -> str:
    """Return how a function that was given otherwise is named; empty where that cannot be told."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    if callable(value) and module and module not in _OF_DAG_FILE and name.isidentifier():
        return f"{module}:{name}"
    if isinstance(value, str) and _PATH.fullmatch(value):
        path, _, name = value.rpartition(":")
        return f"{path.removesuffix('.py').strip('/').replace('/', '.')}:{name}"
    if isinstance(value, str) and _DOTTED.fullmatch(value):
        return ":".join(value.rsplit(".", 1))
    return ""


def unknown_argument(where: str, word: str, known: Sequence[str], passed_on: Sequence[str] = ()) -> Misconfigured:
    """Return the answer to an argument that does not exist: the closest one, else all but those that are passed on."""
    hint = did_you_mean(word, [*known, *passed_on], f"it has {', '.join(known)}", form="{}=")
    return Misconfigured.of("dataflow.argument_unknown", where=where, word=word, hint=hint)


def answers(
    words: Mapping[str, str] = MappingProxyType({}), second: str = ""
) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Decorate a function: who gives an argument that it does not have is told the right one.

    `words` maps a word of another system to the argument's name here, or to a sentence; `second` is the name of the
    argument that one expects in the second place. An argument that is missing is Python's own error.
    """
    return lambda function: _checked(function, function.__name__, words, second)


def answering(kind: type[_T]) -> type[_T]:
    """Decorate a dataclass: who gives a field that it does not have is told the closest one."""
    setattr(kind, "__init__", _checked(kind.__init__, kind.__name__, is_method=True))  # noqa: B010  mypy allows no other
    return kind


def _checked(
    function: Callable[_P, _R],
    name: str,
    words: Mapping[str, str] = MappingProxyType({}),
    second: str = "",
    *,
    is_method: bool = False,
) -> Callable[_P, _R]:
    parameters = list(signature(function).parameters.values())[is_method:]
    known = [each.name for each in parameters if each.kind is not Parameter.VAR_KEYWORD]
    takes_any = len(known) < len(parameters)

    @wraps(function)
    def checked(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        wrong = next((word for word in kwargs if word in words or not (takes_any or word in known)), None)
        given = args[is_method:]
        if wrong is None and not (second and len(given) > 1):
            return function(*args, **kwargs)
        first = given[0] if given else kwargs.get(known[0])
        where = f"{name}({'...' if first is None else shown(first)})"
        if wrong is None:
            raise Misconfigured.of("dataflow.argument_unnamed", where=where, given=shown(given[1]), second=second)
        right = words.get(wrong)
        if right is None:
            raise unknown_argument(where, wrong, known)
        advice = f"write {right}={shown(kwargs[wrong])}" if right.isidentifier() else right
        raise Misconfigured.of("dataflow.argument_misspelled", where=where, wrong=wrong, advice=advice)

    return checked
