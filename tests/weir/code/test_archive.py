from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from tests.messages.kinds import of_kind

from weir.code import archive
from weir.code.archive import archive_of, pack, top_level
from weir.code.version import code_version
from weir.errors import Misconfigured, Retryable


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


@pytest.fixture
def single(tmp_path: Path, monkeypatch) -> str:
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "single_pipeline.py").write_text("def clean(ctx):\n    pass\n")
    monkeypatch.syspath_prepend(str(folder))
    return "single_pipeline"


def test_the_packages_of_the_functions_travel_without_weir_s_own() -> None:
    functions = ["pipelines.flights:clean", "pipelines.report:daily", "", "other:f", "weir.testing.flows:f"]
    assert top_level(functions) == ("other", "pipelines")


def test_a_package_is_packed_with_its_data_and_without_being_imported(package: Path) -> None:
    assert sorted(pack(["shipped_pipelines"]).files) == [
        "shipped_pipelines/__init__.py",
        "shipped_pipelines/nested/query.sql",
    ]
    assert "shipped_pipelines" not in sys.modules


def test_a_single_module_is_packed_too(single: str) -> None:
    assert list(pack([single]).files) == [f"{single}.py"]


def test_a_folder_of_modules_is_a_package_in_the_archive(package: Path) -> None:
    (package / "lazy" / "more").mkdir(parents=True)
    (package / "lazy" / "more" / "late.py").write_text("")
    added = {"shipped_pipelines/lazy/__init__.py", "shipped_pipelines/lazy/more/__init__.py"}
    files = pack(["shipped_pipelines"]).files
    assert added <= files.keys()
    assert "shipped_pipelines/nested/__init__.py" not in files


def test_of_two_locations_of_a_package_the_first_has_its_modules(tmp_path: Path, monkeypatch) -> None:
    for place in ("second", "first"):
        folder = tmp_path / place / "shared_pipelines"
        folder.mkdir(parents=True)
        (folder / "both.py").write_text(f"PLACE = '{place}'")
        (folder / f"of_{place}.py").write_text("")
        monkeypatch.syspath_prepend(str(folder.parent))
    files = pack(["shared_pipelines"]).files
    assert files["shared_pipelines/both.py"] == b"PLACE = 'first'"
    assert {"shared_pipelines/of_first.py", "shared_pipelines/of_second.py"} <= files.keys()


def test_an_archive_is_read_back_as_it_was_packed(package: Path) -> None:
    packed = pack(["shipped_pipelines"])
    assert archive_of(packed.data, packed.fingerprint) == packed


@pytest.mark.parametrize(
    "damage", [lambda data: b"", lambda data: data[: len(data) // 2], lambda data: data[:60] + b"x" + data[61:]]
)
def test_a_damaged_archive_is_not_read(package: Path, damage) -> None:
    packed = pack(["shipped_pipelines"])
    with pytest.raises(ValueError, match=r"it cannot be read as a zip|its fingerprint is"):
        archive_of(damage(packed.data), packed.fingerprint)


def test_an_archive_with_other_files_is_not_read(package: Path) -> None:
    packed = pack(["shipped_pipelines"])
    with pytest.raises(ValueError, match="its fingerprint is"):
        archive_of(packed.data, "0" * 64)


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
    with pytest.raises(Misconfigured, check=of_kind("code.module_not_here", module=module)):
        pack([module])


def test_modules_inside_a_zip_on_the_path_have_the_archive_that_their_sources_have(package, single, monkeypatch):
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


def test_modules_beside_a_module_that_import_each_other_travel_together(tmp_path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    texts = {
        "weir_a": "from weir_b import late",
        "weir_b": "def late():\n    import weir_c",
        "weir_c": "",
        "weir_d": "",
    }
    for name, text in texts.items():
        (tmp_path / f"{name}.py").write_text(text)
    assert set(pack(["weir_a"]).files) == {"weir_a.py", "weir_b.py", "weir_c.py"}
    assert set(pack(["weir_d"]).files) == {"weir_d.py"}


def test_installed_packages_and_weir_itself_do_not_travel(tmp_path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "weir_e.py").write_text("import json, sqlalchemy, weir.errors, weir_spark\n")
    assert set(pack(["weir_e"]).files) == {"weir_e.py"}


@pytest.mark.parametrize("name", [".env", "nested/.query.sql.swp", ".git/config", "nested/query.sql~"])
def test_hidden_files_and_those_that_editors_leave_do_not_travel(package: Path, name: str) -> None:
    before = pack(["shipped_pipelines"])
    (package / name).parent.mkdir(exist_ok=True)
    (package / name).write_text("secret")
    assert pack(["shipped_pipelines"]) == before


def test_sql_files_of_stages_are_packed_beside_the_modules_under_their_own_names(package: Path) -> None:
    assert top_level(["sql/by_zone.sql", "shipped_pipelines:f"]) == ("shipped_pipelines",)
    packed = pack(["shipped_pipelines"], {"sql/by_zone.sql": "SELECT 'é'"})
    assert packed.files["sql/by_zone.sql"] == "SELECT 'é'".encode()
    assert packed.top_level == {"shipped_pipelines"}
    assert pack([], {"a.sql": "SELECT 1"}).top_level == set()
    with pytest.raises(Misconfigured, check=of_kind("code.sql_file_twice", twice="shipped_pipelines/nested/query.sql")):
        pack(["shipped_pipelines"], {"shipped_pipelines/nested/query.sql": "select 2"})


def test_linked_folders_and_files_travel_as_what_they_lead_to(package: Path, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    (shared / "deep").mkdir(parents=True)
    (shared / "deep" / "a.csv").write_bytes(b"1")
    (package / "rules").symlink_to("../../shared")  # out of the path
    (package / "again").symlink_to(shared / "deep")
    (package / "b.csv").symlink_to(shared / "deep" / "a.csv")
    files = pack(["shipped_pipelines"]).files
    found = {"rules/deep/a.csv", "again/a.csv", "b.csv"}
    assert {name for name in files if name.endswith(".csv")} == {f"shipped_pipelines/{name}" for name in found}
    before = pack(["shipped_pipelines"]).fingerprint
    (shared / "deep" / "a.csv").write_bytes(b"2")
    assert pack(["shipped_pipelines"]).fingerprint != before


@pytest.mark.parametrize(
    ("link", "target"), [("loop", "."), ("nested/up", "../.."), ("gone.csv", "no such"), ("self", "self")]
)
def test_a_link_that_cannot_be_packed_is_refused_by_name(package: Path, link: str, target: str) -> None:
    (package / link).symlink_to(target)
    with pytest.raises(Misconfigured, match=Path(link).name):
        pack(["shipped_pipelines"])


def test_linked_folders_bring_a_limited_number_of_bytes(package: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(archive, "MOST_COPIED", 10)
    (tmp_path / "lake").mkdir()
    (tmp_path / "lake" / "large").write_bytes(b"x" * 11)
    (package / "own").write_bytes(b"x" * 11)
    pack(["shipped_pipelines"])
    (package / "rules").symlink_to(tmp_path / "lake")
    with pytest.raises(Misconfigured, check=of_kind("code.too_large")):
        pack(["shipped_pipelines"])


@pytest.mark.parametrize("name", [".env", ".secrets", "x.pyc", "__pycache__", "draft~", ".#lock"])
def test_what_is_left_out_is_not_looked_at(package: Path, name: str) -> None:
    """Neither what cannot be read nor what leads nowhere; root may read all, so that links stand for both."""
    before = pack(["shipped_pipelines"])
    left_out = package / "nested" / name
    left_out.symlink_to(left_out)
    with pytest.raises(OSError, match="symbolic links"):
        left_out.stat()
    assert pack(["shipped_pipelines"]) == before


def test_a_file_whose_name_is_no_utf_8_is_refused_by_name(package: Path) -> None:
    (package / os.fsdecode(b"caf\xe9.csv")).write_bytes(b"")
    with pytest.raises(Misconfigured, check=of_kind("code.file_name_not_utf8")):
        pack(["shipped_pipelines"])


def test_files_that_are_replaced_while_they_are_packed_are_looked_for_again(package: Path, monkeypatch) -> None:
    expected, read, times = pack(["shipped_pipelines"]), Path.read_bytes, [1]

    def vanishing(path: Path) -> bytes:
        if times[0]:
            times[0] -= 1
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", vanishing)
    assert pack(["shipped_pipelines"]) == expected
    times[0] = 1000
    with pytest.raises(Retryable, check=of_kind("code.file_vanished")):
        pack(["shipped_pipelines"])


def test_modules_that_python_cannot_read_are_packed_all_the_same(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "weir_deep.py").write_text("x = " + "+".join(["a"] * 20_000))
    assert set(pack(["weir_deep"]).files) == {"weir_deep.py"}


READ_BESIDE = {
    "folder": "RULES = Path(__file__).parent / 'rules'",
    "file in a folder": "RULES = os.path.join(os.path.dirname(__file__), 'rules', 'a.csv')",
    "path": "RULES = open(os.path.dirname(__file__) + '/rules/a.csv')",
    "pattern": "RULES = Path(__file__).parent.glob('rul*/*.csv')",
    "text with a value": "def f(x):\n    return (Path(__file__).parent / f'{x}les').read_text()",
    "formatted text": "NAME = 'ru{}s/%s.csv'\nRULES = Path(__file__).parent / NAME.format('le') % 'a'",
    "resource": "RULES = pkgutil.get_data(__name__, 'rules/a.csv')",
    "constant of another module": "from weir_names import RULES\nRULES = Path(__file__).with_name(RULES)",
    "list": "RULES = list(Path(__file__).parent.iterdir())",
    "every": "RULES = glob.glob(os.path.dirname(__file__) + '/**/*.csv', recursive=True)",
}


@pytest.fixture
def path(tmp_path: Path, monkeypatch) -> Path:
    """Make a folder of the path, with data and a module of names."""
    folder = tmp_path / "m"
    (folder / "rules" / ".git").mkdir(parents=True)
    (folder / "rules" / "a.csv").write_bytes(b"1")
    (folder / "rules" / "b.py").write_bytes(b"")
    (folder / "rules" / ".git" / "config").write_bytes(b"")
    (folder / "weir_names.py").write_text("RULES = 'rules'")
    (folder / "weir_other.py").write_text("")
    (folder / "notes.txt").write_text("")
    monkeypatch.syspath_prepend(str(folder))
    return folder


@pytest.mark.parametrize("text", READ_BESIDE.values(), ids=READ_BESIDE)
def test_data_that_a_module_reads_beside_itself_travels_and_is_part_of_its_version(path: Path, text: str) -> None:
    (path / "weir_reader.py").write_text(text)
    before = pack(["weir_reader"]).files
    data = {name for name in before if not name.endswith(".py")}
    assert data - {"notes.txt"} == {"rules/a.csv"}
    assert "weir_other.py" not in before
    assert "rules/b.py" not in before
    (path / "rules" / "a.csv").write_bytes(b"2")
    after = pack(["weir_reader"]).files
    assert code_version(after, ["weir_reader:f"]) != code_version(before, ["weir_reader:f"])


@pytest.mark.parametrize(
    "text", ["RULES = open('rules')", "print(__file__)", "print(__file__, '/lake/rules', 's3://b/rules', 'x rules')"]
)
def test_other_files_beside_a_module_stay(path: Path, text: str) -> None:
    (path / "weir_reader.py").write_text(text)
    assert set(pack(["weir_reader"]).files) == {"weir_reader.py"}


@pytest.mark.parametrize(
    ("text", "travels"),
    [
        ("RULES = Path(__file__).parent / 'rules'", False),
        ("RULES = Path(__file__).parent.parent / 'rules'", True),
        ("RULES = Path(__file__).parents[1].joinpath('rules')", True),
        ("RULES = os.path.dirname(os.path.dirname(__file__)) + '/' + 'rules'", True),
        ("RULES = os.path.join(os.path.dirname(__file__), '../rules/a.csv')", True),
    ],
)
def test_a_package_has_its_own_files_and_those_that_it_names_beside_itself(path: Path, text: str, travels) -> None:
    (path / "weir_package").mkdir()
    (path / "weir_package" / "own.csv").write_text("")
    (path / "weir_package" / "reader.py").write_text(text)
    files = pack(["weir_package"], {"rules/a.csv": "SELECT 1"} if not travels else {}).files
    own = {"weir_package/__init__.py", "weir_package/reader.py", "weir_package/own.csv"}
    assert set(files) == own | {"rules/a.csv"}
    assert (files["rules/a.csv"] == b"1") == travels


def test_a_file_that_is_only_named_like_an_application_is_no_application(package: Path) -> None:
    (package / "rules.application").write_text("1")
    found = pack(["shipped_pipelines"], applications={"jobs/x.py": b"", "y.jar": b""})
    assert {"shipped_pipelines/rules.application", "jobs/x.py.application", "y.jar.application"} <= found.files.keys()
    assert {name for name in found.modules.files if name.endswith(".application")} == {
        "shipped_pipelines/rules.application"
    }
