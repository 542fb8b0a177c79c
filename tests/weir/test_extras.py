"""A missing package is named with the extra that brings it, and any other failure is left as it is."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest
from tests.messages.kinds import of_kind

from weir.errors import Misconfigured
from weir.extras import EXTRAS, command_for, needed_for
from weir.store.store import Store

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]


def test_each_extra_that_is_advised_is_one_of_the_distribution():
    assert set(EXTRAS.values()) <= PROJECT["optional-dependencies"].keys()


@pytest.mark.parametrize(
    ("module", "extra"),
    [
        ("pyspark", "connect"),
        ("pyspark.sql.connect", "connect"),
        ("airflow.providers.apache", "submit"),
        ("airflow.providers.apache.spark", "submit"),
        ("pyiceberg.catalog", "iceberg"),
    ],
)
def test_a_missing_module_is_named_with_the_extra_that_brings_it(module, extra):
    message = rf"^Spark cannot be used: No module.*\. pip install 'weir\[{extra}\]' where Airflow's tasks run$"
    with pytest.raises(Misconfigured, match=message), needed_for("Spark"):
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)


@pytest.mark.parametrize("error", [ModuleNotFoundError("no", name="pysparkle"), ImportError("no", name="pyspark")])
def test_what_no_extra_brings_passes_as_it_is(error):
    assert command_for(error) is None
    with pytest.raises(type(error), match=re.escape(str(error))), needed_for("Spark"):
        raise error


def test_a_store_on_s3_without_s3fs_says_what_to_install(monkeypatch):
    monkeypatch.delitem(sys.modules, "weir.store.s3", raising=False)
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.setitem(sys.modules, "s3fs.core", None)
    with pytest.raises(
        Misconfigured,
        check=of_kind("extras.package_missing", command="pip install 'weir[s3]'", what="the store s3://bucket/weir"),
    ):
        Store.open("s3://bucket/weir")
