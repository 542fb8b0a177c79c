"""docs/architecture.md is true: its drawing and its table are made from the code, and what it names is there."""

import re

from tests.architecture.rooms import BANDS, BESIDE, ENGINE, FIGURE, PAGE, ROOT, drawing, folder_of, with_table
from tests.test_layers import files_below, imports_of, name_of_module

import weir

AGAIN = "write it anew: .venv/bin/python -m tests.architecture.rooms"


def test_drawing_and_table_are_as_the_rooms_are():
    assert drawing() == FIGURE.read_text(), AGAIN
    assert with_table(PAGE.read_text()) == PAGE.read_text(), AGAIN


def test_each_room_of_the_engine_is_drawn_once():
    drawn = [room for rooms in BANDS.values() for room in rooms if "/" not in room]
    there = {path.parent.name for path in (ROOT / ENGINE).glob("*/__init__.py")}
    assert sorted(drawn) == sorted(there)
    assert all(folder_of(room).is_dir() for room in BESIDE)


def test_a_room_imports_only_rooms_of_its_own_band_and_of_those_below():
    above, upwards = set(), []
    for rooms in BANDS.values():
        for room in rooms:
            for file in files_below(folder_of(room)):
                names = [name for name in imports_of(file) if name.startswith("weir.")]
                upwards += [f"{file.relative_to(ROOT)} imports {name}" for name in names if name.split(".")[1] in above]
        above |= set(rooms)
    assert upwards == []


def test_each_module_that_the_page_names_is_there():
    named = set(re.findall(r"`((?:weir|weir_airflow|weir_spark)\.[\w.]+)`", PAGE.read_text()))
    assert len(named) > 40
    public = {f"weir.{name}" for name in weir.__all__}
    assert {name for name in named if name_of_module(name) is None} <= public
