"""Functions by their names, and the calls that they have to take."""

from __future__ import annotations

import functools
import uuid

import pytest
from tests.messages.kinds import of_kind

from weir.code.functions import check_call, load
from weir.errors import Misconfigured


@pytest.fixture
def pipeline(tmp_path, monkeypatch):
    """Write a module of stage functions and return its name, which no other test has."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(text: str) -> str:
        name = f"pipeline_{uuid.uuid4().hex[:12]}"
        (tmp_path / f"{name}.py").write_text(text)
        return name

    return write


def test_a_function_is_loaded_by_module_and_name(pipeline) -> None:
    module = pipeline("def clean(ctx, flights):\n    return flights\n")
    assert load(f"{module}:clean", "stage clean")(None, 7) == 7


@pytest.mark.parametrize("reference", ["clean", ":clean", "module:", ""])
def test_a_reference_needs_a_module_and_a_name(reference) -> None:
    with pytest.raises(Misconfigured, check=of_kind("code.reference_malformed", owner="stage clean")):
        load(reference, "stage clean")


def test_an_unknown_module_is_named() -> None:
    with pytest.raises(
        Misconfigured, check=of_kind("code.module_missing", missing="no_such_pipeline", owner="stage clean")
    ):
        load("no_such_pipeline.flights:clean", "stage clean")


def test_the_package_that_has_no_such_module_is_shown_since_it_may_be_another_one() -> None:
    with pytest.raises(Misconfigured, check=of_kind("code.module_missing", missing="json.flights")):
        load("json.flights:clean", "stage clean")


def test_a_module_with_a_missing_import_is_refused_with_its_name(pipeline) -> None:
    module = pipeline("import no_such_library\n")
    with pytest.raises(Misconfigured, check=of_kind("code.import_failed", name=module)):
        load(f"{module}:clean", "stage clean")


def test_an_unknown_function_is_named_with_the_one_that_was_meant(pipeline) -> None:
    module = pipeline("def clean(ctx):\n    pass\n")
    with pytest.raises(Misconfigured, check=of_kind("code.name_not_in_module", kind="function")):
        load(f"{module}:claen", "stage clean")


def test_an_error_of_the_modules_own_code_passes_through(pipeline) -> None:
    module = pipeline("1 / 0\n")
    with pytest.raises(ZeroDivisionError):
        load(f"{module}:clean", "stage clean")


def test_a_function_that_does_not_take_its_inputs_is_refused_with_the_declaration_to_write() -> None:
    def clean(ctx, flight):
        pass

    with pytest.raises(
        Misconfigured,
        check=of_kind("code.signature_does_not_fit", name="clean", signature="(ctx, flight)", wanted="ctx, flights"),
    ):
        check_call(clean, "stage clean", ("ctx",), ("flights",))


def test_what_can_be_called_without_a_name_is_refused_like_a_function() -> None:
    def clean(ctx, flight):
        pass

    with pytest.raises(
        Misconfigured,
        check=of_kind("code.signature_does_not_fit", name="function", owner="stage clean", wanted="ctx, flights"),
    ):
        check_call(functools.partial(clean), "stage clean", ("ctx",), ("flights",))


def test_what_python_cannot_compile_is_refused_and_an_endless_recursion_is_the_module_s_own(pipeline) -> None:
    deep = pipeline("def f(a):\n    return " + "+".join(["a"] * 50_000))
    with pytest.raises(Misconfigured, check=of_kind("code.expression_too_deep", name=deep)):
        load(f"{deep}:f", "stage clean")
    endless = pipeline("def f():\n    f()\n\n\nf()\n")
    with pytest.raises(RecursionError):
        load(f"{endless}:f", "stage clean")
