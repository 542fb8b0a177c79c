"""The context of a stage's function, and importing that function by its name "module:function".

Invariant: the context is the same in all tries of a run. A wrong name is an error before any stage is computed.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from weir.connections import Connections, from_environment
from weir.dataflow.stage import ResolveContext
from weir.errors import Internal, Misconfigured

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


__all__ = ["ResolveContext", "StageContext"]


def _no_file(name: str, data: bytes) -> str:
    raise Internal(f"the file {name} ({len(data)} bytes) belongs to no attempt; report this")


@dataclass(frozen=True, slots=True, kw_only=True)
class StageContext:
    """The first argument of every stage function.

    `epoch` is the start of `interval` as `20130101T000000Z`; `interval` is in UTC, its end exclusive. `subtask` counts
    from 0 to `parallelism` - 1. `parameters` are those of the run. `spark` is for sources; other stages are given
    their DataFrames. `connection` looks up an Airflow connection by its id, where the stage runs. `create_file` writes
    bytes under a name, for Spark to read, and returns the path; the file is deleted when the attempt ends.
    """

    epoch: str
    interval: tuple[datetime, datetime]
    subtask: int
    parallelism: int
    parameters: Mapping[str, Any]
    spark: SparkSession
    connection: Connections = from_environment
    create_file: Callable[[str, bytes], str] = _no_file


def load(reference: str, owner: str) -> Callable[..., Any]:
    """Import the function that `owner` ("stage clean", for example) names as "module:function".

    Raises Misconfigured if there is no such module or function; errors of the module's own code pass through.
    """
    module_name, separator, name = reference.partition(":")
    if not separator or not module_name or not name:
        raise Misconfigured(f"{owner}: expected a function as 'module:function', found {reference!r}")
    module = _import(module_name, owner)
    function = getattr(module, name, None)
    if callable(function):
        return function  # type: ignore[no-any-return]  # getattr gives Any
    near = difflib.get_close_matches(name, [key for key in vars(module) if not key.startswith("_")], 1)
    hint = f", did you mean {near[0]!r}?" if near else ""
    raise Misconfigured(f"{owner}: the module {module_name} has no function {name!r}{hint} ({module.__file__})")


def check_call(function: Callable[..., Any], owner: str, positional: tuple[str, ...], named: tuple[str, ...]) -> None:
    """Make sure that `function` can be called so. Raises Misconfigured with the declaration to write."""
    try:
        inspect.signature(function).bind(*positional, **dict.fromkeys(named))
    except TypeError as error:
        wanted = ", ".join((*positional, *named))
        raise Misconfigured(
            f"{owner}: expected `def {function.__name__}({wanted})`, found "
            f"`def {function.__name__}{inspect.signature(function)}`: {error}"
        ) from error


def prepare_for_connect() -> None:
    """Make `pyspark.sql.functions` build Spark Connect's columns from now on in this process.

    pyspark decides at each call by this variable, which it sets when a remote session is created. A module with
    `@udf` at its top level that is imported before, by a source's resolver for example, would get UDFs that fail later.
    """
    os.environ.setdefault("SPARK_CONNECT_MODE_ENABLED", "1")


def _import(name: str, owner: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and (name == missing or name.startswith(f"{missing}.")):
            raise Misconfigured(
                f"{owner}: there is no module {missing!r} on this machine; is its package installed where tasks run?"
            ) from error
        raise Misconfigured(f"{owner}: importing the module {name} failed: {error}") from error
