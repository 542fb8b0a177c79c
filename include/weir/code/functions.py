"""Functions and classes of the user, which are named as "module:function" and "module:Class".

Invariant: a wrong name, and a function that cannot be called with what it gets, are errors before anything is computed.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import traceback
from collections.abc import Callable
from typing import Any

from weir.code.hints import hint_of, modules_beside
from weir.errors import Misconfigured
from weir.extras import command_for
from weir.wording import did_you_mean


def load(reference: str, owner: str) -> Callable[..., Any]:
    """Import the function or class that `owner` ("stage clean", for example) names as "module:name".

    Raises Misconfigured if there is no such module or name; errors of the module's own code pass through.
    """
    module_name, separator, name = reference.partition(":")
    if not separator or not module_name or not name:
        raise Misconfigured.of("code.reference_malformed", owner=owner, reference=reference)
    module = import_module(module_name, owner)
    function = getattr(module, name, None)
    if callable(function):
        return function  # type: ignore[no-any-return]  # getattr gives Any
    if function is not None:
        raise Misconfigured.of("code.not_a_function", owner=owner, reference=reference, name=type(function).__name__)
    hint = did_you_mean(name, [key for key in vars(module) if not key.startswith("_")], lead=", ")
    kind = "class" if name[:1].isupper() else "function"
    raise Misconfigured.of(
        "code.name_not_in_module",
        owner=owner,
        module_name=module_name,
        kind=kind,
        name=name,
        hint=hint,
        file=module.__file__,
    )


def check_call(function: Callable[..., Any], owner: str, positional: tuple[str, ...], named: tuple[str, ...]) -> None:
    """Make sure that `function` can be called so. Raises Misconfigured with the declaration to write."""
    try:
        inspect.signature(function).bind(*positional, **dict.fromkeys(named))
    except TypeError as error:
        name = getattr(function, "__name__", "function")
        wanted = ", ".join((*positional, *named))
        raise Misconfigured.of(
            "code.signature_does_not_fit",
            owner=owner,
            name=name,
            wanted=wanted,
            signature=inspect.signature(function),
            error=error,
        ) from error


def import_module(name: str, owner: str) -> Any:
    """Import the module of functions of `owner`. Raises Misconfigured; errors of its own code pass through."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and (name == missing or name.startswith(f"{missing}.")):
            others = "; is its package installed where tasks run, or its folder on PYTHONPATH?"
            hint = did_you_mean(name, _modules_like(name, missing), others, lead=", ")
            raise Misconfigured.of(
                "code.module_missing",
                owner=owner,
                missing=missing,
                place_of_package=_place_of_package(missing),
                hint=hint,
            ) from error
        command = command_for(error)
        cure = hint_of(error) if command is None else f". {command} where it runs"
        raise Misconfigured.of("code.import_failed", owner=owner, name=name, error=error, cure=cure) from error
    except (RecursionError, MemoryError) as error:
        if not _is_of_compiler(error):
            raise
        raise Misconfigured.of("code.expression_too_deep", owner=owner, name=name, error=error) from error
    except Exception as error:
        if hint := hint_of(error):
            error.add_note(f"in module {name}{hint}")
        raise


def _modules_like(name: str, missing: str) -> list[str]:
    """Return full names for one of which a part is missing, with the rest of it."""
    return [f"{each}{name.removeprefix(missing)}" for each in modules_beside(missing)]


def _is_of_compiler(error: BaseException) -> bool:
    """Report whether an error is one of reading source, and not of code that ran."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return last.filename.startswith("<frozen importlib")


def _place_of_package(missing: str) -> str:
    """Return where the package of a missing module was found, which may be another one of the same name."""
    package = missing.rpartition(".")[0]
    found = sys.modules.get(package)
    if found is None:
        return ""
    places = [getattr(found, "__file__", None) or "", *getattr(found, "__path__", ())]
    return f" ({package!r} is {next(place for place in places if place)})" if any(places) else ""
