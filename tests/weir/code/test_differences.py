"""What differs between two archives for a function is what makes its code version differ, by file and by name."""

import pytest
from tests.weir.code.test_version import FILES, TASK, TRIPS

from weir.code.differences import FileDifference, differences, unified
from weir.code.version import code_version

ZONES = b"""import json
from pipelines import units as lengths

LEAST, MOST = 1, 2
RATES: dict = {}


@cached
def by_zone(ctx, trips):
    \"\"\"Sum.\"\"\"
    return trips.where(LEAST, RATES, Zone)


class Zone:
    pass


register(by_zone)
"""
BY_ZONE = ("pipelines.zones:by_zone",)


def differing(old, new, functions=BY_ZONE):
    return differences({"pipelines/zones.py": old}, {"pipelines/zones.py": new}, functions)


@pytest.mark.parametrize(
    ("old", "new", "names"),
    [
        (b"where(LEAST", b"where(MOST", ("by_zone",)),
        (b"@cached", b"@kept", ("by_zone",)),
        (b"MOST = 1, 2", b"MOST = 1, 3", ("LEAST", "MOST")),
        (b"RATES: dict = {}", b"RATES: dict = {1: 2}", ("RATES",)),
        (b"    pass", b"    least = 1", ("Zone",)),
        (b"units as lengths", b"miles as lengths", ("lengths",)),
        (b"import json", b"import json, csv", ("json", "csv")),
        (b"register(by_zone)", b"register(Zone)", ("other statements",)),
        (b"class Zone", b"@cached\ndef added():\n    pass\n\n\nclass Zone", ("added",)),
        (b"class Zone", b"class Zone(A)", ("Zone",)),
    ],
)
def test_names_of_the_top_level_that_differ_are_told_in_the_order_of_the_module(old, new, names):
    assert old in ZONES
    (found,) = differing(ZONES, ZONES.replace(old, new))
    assert (found.file, found.names) == ("pipelines/zones.py", names)
    assert str(found) == f"pipelines/zones.py ({', '.join(names)})"


@pytest.mark.parametrize(
    ("old", "new"),
    [(b"Sum.", b"All."), (b"import json", b'"""Zones."""\nimport json'), (b"\n\n\n", b"\n\n\n\n# here\n")],
)
def test_texts_for_people_are_no_difference_and_are_not_told_beside_one(old, new):
    assert old in ZONES
    edited = ZONES.replace(old, new)
    assert differing(ZONES, edited) == ()
    (found,) = differing(ZONES, edited.replace(b"where(LEAST", b"where(MOST"))
    assert found.names == ("by_zone",)


CHANGES = [
    {"pipelines/trips.py": TRIPS.replace(b">", b">=")},
    {"pipelines/money.py": b"CENT = 101\n"},
    {"pipelines/sql/totals.sql": b"SELECT 2"},
    {"pipelines/shared/rates.py": None},
    {"pipelines/weather.py": b"def rain(ctx):\n    return 2\n"},
    {"unrelated/jobs.py": b"Y = 2\n"},
    {"pipelines/units.py": b"exec('x')\n", "unrelated/notes.txt": b"other"},
]


@pytest.mark.parametrize("changes", CHANGES)
@pytest.mark.parametrize("functions", [TASK, ("pipelines.weather:rain",)])
def test_a_file_differs_exactly_if_the_version_does(changes, functions):
    new = {name: content for name, content in {**FILES, **changes}.items() if content is not None}
    found = differences(FILES, new, functions)
    assert bool(found) == (code_version(FILES, functions) != code_version(new, functions))
    assert {each.file for each in found} <= changes.keys()


def test_a_sql_file_in_a_package_counts_as_the_stage_s_query_and_as_a_file_of_the_package():
    files = {"jobs/__init__.py": b"", "jobs/raw.py": b"def raw(ctx): ...\n", "jobs/q.sql": b"SELECT 1"}
    new = {**files, "jobs/q.sql": b"SELECT 1 -- one"}
    for functions in (["jobs/q.sql"], ["jobs/q.sql", "jobs.raw:raw"]):
        found = differences(files, new, functions)
        assert bool(found) == (code_version(files, functions) != code_version(new, functions))


def test_files_that_are_new_or_gone_say_so():
    old = {"jobs.py": b"import rates\n", "rates.py": b"A = 1\n"}
    new = {"jobs.py": b"import money\n", "money.py": b"A = 1\n"}
    found = differences(old, new, ["jobs:raw"])
    assert [str(each) for each in found] == ["jobs.py (money, rates)", "money.py (is new)", "rates.py (is gone)"]
    assert found[1] == FileDifference("money.py", is_new=True)
    assert list(unified("money.py", old, new))[:2] == ["--- /dev/null", "+++ new/money.py"]


def test_a_file_that_is_no_text_has_no_lines():
    assert list(unified("a.bin", {"a.bin": b"\xff"}, {"a.bin": b"a"})) == ["a.bin differs, and is no text"]
