from __future__ import annotations

import io
import sys
import zipfile
from pathlib import Path

import pytest

from weir.errors import Misconfigured
from weir_spark.region.archive import pack, top_level


@pytest.fixture
def package(tmp_path: Path, monkeypatch) -> Path:
    folder = tmp_path / "here" / "shipped_pipelines"
    (folder / "nested").mkdir(parents=True)
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "x.pyc").write_bytes(b"")
    (folder / "__init__.py").write_text("raise RuntimeError('packing must not import')")
    (folder / "nested" / "query.sql").write_text("select 1")
    monkeypatch.syspath_prepend(str(folder.parent))
    return folder


def test_the_packages_of_the_functions_travel_unless_modules_are_named() -> None:
    functions = ["pipelines.flights:clean", "pipelines.report:daily", "", "other:f"]
    assert top_level((), functions) == ("other", "pipelines")
    assert top_level(("shared.lib", "pipelines"), functions) == ("pipelines", "shared")


def test_a_package_is_packed_with_its_data_and_without_being_imported(package: Path) -> None:
    names = zipfile.ZipFile(io.BytesIO(pack(["shipped_pipelines"]).data)).namelist()
    assert names == ["shipped_pipelines/__init__.py", "shipped_pipelines/nested/query.sql"]
    assert "shipped_pipelines" not in sys.modules


def test_a_single_module_is_packed_too(pipeline) -> None:
    module = pipeline("def clean(ctx):\n    pass\n")
    assert zipfile.ZipFile(io.BytesIO(pack([module]).data)).namelist() == [f"{module}.py"]


def test_equal_sources_have_equal_archives_whatever_their_times(package: Path) -> None:
    first = pack(["shipped_pipelines"])
    (package / "__init__.py").touch()
    (package / "__pycache__" / "y.pyc").write_bytes(b"other")
    assert pack(["shipped_pipelines"]) == first


def test_an_edit_changes_the_fingerprint(package: Path) -> None:
    first = pack(["shipped_pipelines"])
    (package / "nested" / "query.sql").write_text("select 2")
    assert pack(["shipped_pipelines"]).fingerprint != first.fingerprint


@pytest.mark.parametrize("module", ["no_such_pipeline", "sys"])
def test_a_module_without_a_file_here_cannot_travel(module: str) -> None:
    with pytest.raises(Misconfigured, match=f"the pipeline's module '{module}' is not on this machine"):
        pack([module])


def test_modules_inside_a_zip_on_the_path_have_the_archive_that_their_sources_have(package, pipeline, monkeypatch):
    single = pipeline("def clean(ctx):\n    pass\n")
    names = [single, "shipped_pipelines"]
    of_sources = pack(names)
    travelled = package.parent / "travelled.zip"
    travelled.write_bytes(of_sources.data)
    for folder in (package.parent, package.parents[1] / "modules"):
        monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != str(folder)])
    with pytest.raises(Misconfigured):
        pack(names)
    monkeypatch.syspath_prepend(str(travelled))
    assert pack(names) == of_sources
