"""What code mostly means: a missing import, a close name, a placeholder in an f-string, a session at import."""

import sys

import pytest

from weir import dataflow
from weir.code.functions import load
from weir.code.hints import files_like, hint_of
from weir.dataflow.sources import BOUNDS
from weir.doctor.problems import texts_of
from weir.errors import Misconfigured


def raised(text):
    with pytest.raises(Exception) as found:  # noqa: PT011  any
        exec(text, {})  # noqa: S102
    return found.value


class PySparkRuntimeError(Exception):
    """As pyspark has it."""


@pytest.mark.parametrize(
    ("error", "meant"),
    [
        (raised("F.lit(1)"), "from pyspark.sql import functions as F"),
        (raised("pd.DataFrame"), "import pandas as pd"),
        (raised("timedelta(1)"), "from datetime import timedelta"),
        (raised("files_source('a')"), "from weir.dataflow import files_source"),
        (raised("json.loads('1')"), "import json"),
        (raised("f'/data/{start:%Y}'"), "f-string"),
        (raised("f'/data/{end_local:%Y}'"), "f-string"),
        (raised("import pandaz"), "did you mean 'pandas'?"),
        (raised("from weir.dataflow import filessource"), "did you mean 'files_source'?"),
        (raised("import weir.dataflo"), "did you mean 'weir.dataflow'?"),
        (PySparkRuntimeError("[CONNECT_URL_NOT_SET] Cannot create a Spark Connect session"), "ctx.spark"),
        (RuntimeError("Traceback:\nNameError: name 'np' is not defined\n"), "import numpy as np"),
    ],
)
def test_what_is_meant_is_told(error, meant):
    assert meant in hint_of(error)
    (text,) = texts_of(error)
    assert meant in text


def test_the_names_of_declarations_are_those_that_there_are():
    declared = [each for each in dataflow.__all__ if each[0].islower()]
    assert [each for each in declared if f"weir.dataflow import {each}" not in hint_of(raised(each))] == []
    assert all("f-string" in hint_of(raised(each)) for each in BOUNDS)


@pytest.mark.parametrize(
    "error", [raised("mine"), raised("def f():\n    x += 1\nf()"), raised("import qqzzxx"), KeyError("start")]
)
def test_where_nothing_is_known_nothing_is_guessed(error):
    assert hint_of(error) == ""


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("of_hints.trips_stags:clean", "of_hints.trips_stages"), ("of_hintz.trips_stages:clean", "of_hints.trips_stages")],
)
def test_a_module_that_does_not_exist_is_answered_with_a_close_one(tmp_path, monkeypatch, wrong, right):
    package = tmp_path / "of_hints"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "trips_stages.py").write_text("raise AssertionError('imported for a hint')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(Misconfigured) as refused:
        load(wrong, "stage clean")
    sys.modules.pop("of_hints", None)
    assert f"did you mean '{right}'?" in str(refused.value)


def test_an_import_that_a_module_lacks_is_noted_at_its_error(tmp_path, monkeypatch):
    (tmp_path / "of_hints_f.py").write_text("ONE = F.lit(1)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(NameError) as found:
        load("of_hints_f:clean", "stage clean")
    assert any("functions as F" in note for note in found.value.__notes__)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("sql/by_zon.sql", "sql/by_zone.sql"), ("by_zone.sql", "sql/by_zone.sql"), ("SQL/By_Zone.sql", "sql/by_zone.sql")],
)
def test_a_file_that_does_not_exist_is_answered_with_a_close_one(tmp_path, wrong, right):
    (tmp_path / "sql").mkdir()
    for name in ("by_zone.sql", "prices.sql", "by_zone.txt"):
        (tmp_path / "sql" / name).touch()
    assert files_like(wrong, [tmp_path]) == [right]
    assert files_like("qq.sql", [tmp_path]) == []
