"""What a pipeline imports from outside of its archive, and no version of a distribution tells of."""

import importlib
import sys
import zipfile

import pytest

from weir.code.elsewhere import modules_elsewhere

MODULES = ("fees_of_shop", "rates_of_shop", "money_of_shop", "prices_of_shop")


@pytest.fixture
def path(tmp_path, monkeypatch):
    """Folders of Python's path, each with these modules."""

    def add(folder, **texts):
        place = tmp_path / folder
        place.mkdir(parents=True)
        for name, text in texts.items():
            (place / f"{name}.py").write_text(text)
        monkeypatch.syspath_prepend(str(place))
        return place

    yield add
    for name in MODULES:
        sys.modules.pop(name, None)
    importlib.invalidate_caches()


def found(text, name="shop/stages.py"):
    return sorted(modules_elsewhere({name: text.encode()}))


def installed(folder, kind="dist-info", record="money_of_shop.py,sha256=x,9\n", names="RECORD"):
    info = folder / f"money_of_shop-1.0.{kind}"
    info.mkdir()
    (info / ("METADATA" if kind == "dist-info" else "PKG-INFO")).write_text("Name: money_of_shop\nVersion: 1.0\n")
    (info / names).write_text(record)


def test_modules_of_other_folders_and_what_these_import_are_found(path):
    path("plugins", fees_of_shop="import rates_of_shop\nimport shop.stages\n")
    path("config", rates_of_shop="import json, pyspark, weir.dataflow\n", money_of_shop="")
    assert found("def fees(ctx):\n    from fees_of_shop import fee\n") == ["fees_of_shop.py", "rates_of_shop.py"]


def test_what_is_pythons_installed_or_not_there_is_not_elsewhere(path):
    path("plugins", fees_of_shop="")
    assert found("import json, numpy, pyspark.sql, weir.dataflow, weir_spark, shop, built_never\n") == []


@pytest.mark.parametrize("folder", ["site-packages", "libraries"])
def test_a_distribution_is_known_by_its_version_in_any_folder(path, folder):
    place = path(folder, money_of_shop="SHARE = 1\n")
    installed(place)
    assert found("import money_of_shop") == []


@pytest.mark.parametrize(
    "how",
    [
        {"record": "prices_of_shop.py,sha256=x,9\n"},
        {"kind": "egg-info", "record": "money_of_shop.py\n", "names": "SOURCES.txt"},
    ],
)
def test_a_project_that_is_installed_from_its_folder_is_not_known_by_its_version(path, how):
    installed(path("project", money_of_shop="SHARE = 1\n", prices_of_shop=""), **how)
    assert found("import money_of_shop") == ["money_of_shop.py"]


def test_a_zip_of_the_path_is_read(tmp_path, monkeypatch):
    with zipfile.ZipFile(tmp_path / "more.zip", "w") as zipped:
        zipped.writestr("fees_of_shop/__init__.py", "FEE = 5\n")
    monkeypatch.syspath_prepend(str(tmp_path / "more.zip"))
    assert modules_elsewhere({"shop.py": b"import fees_of_shop"}) == {"fees_of_shop/__init__.py": b"FEE = 5\n"}
