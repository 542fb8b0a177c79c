"""The code version of a task changes with what its functions reach, and with nothing else."""

import pytest

from weir.code.version import code_version, lacking_functions

TRIPS = b"""
from pipelines.shared import rates
from . import units


def totals(ctx, rows):
    return rows.filter(rows.fare > rates.LEAST)
"""

FILES = {
    "pipelines/__init__.py": b"",
    "pipelines/trips.py": TRIPS,
    "pipelines/units.py": b"METRE = 1\n",
    "pipelines/weather.py": b"def rain(ctx):\n    return 1\n",
    "pipelines/shared/__init__.py": b"",
    "pipelines/shared/rates.py": b"from ..money import CENT\n\nLEAST = 2 * CENT\n",
    "pipelines/shared/other.py": b"X = 1\n",
    "pipelines/money.py": b"CENT = 100\n",
    "pipelines/sql/totals.sql": b"SELECT 1",
    "unrelated/jobs.py": b"Y = 1\n",
    "unrelated/notes.txt": b"...",
}
TASK = ("pipelines.trips:totals",)


def version(changes=(), functions=TASK):
    files = {**FILES, **dict(changes)}
    return code_version({name: content for name, content in files.items() if content is not None}, functions)


@pytest.mark.parametrize(
    "changes",
    [
        {"pipelines/trips.py": TRIPS.replace(b"return rows", b"return  rows").replace(b"\n\n\n", b"\n# a comment\n")},
        {"pipelines/trips.py": b'"""What trips are."""' + TRIPS},
        {"pipelines/trips.py": TRIPS.replace(b"rows):\n", b'rows):\n    """Say what it does."""\n')},
        {"pipelines/weather.py": b"def rain(ctx):\n    return 2\n"},
        {"pipelines/shared/other.py": b"X = 2\n"},
        {"pipelines/units.py": b"METRE = 1.0\n"},
        {"pipelines/trips.py": TRIPS + b"\n\ndef others(ctx):\n    return 1\n"},
        {"pipelines/new.py": b"Z = 1\n"},
        {"unrelated/jobs.py": b"Y = 2\n", "unrelated/notes.txt": b"other"},
    ],
    ids=[
        "layout",
        "docstring",
        "docstring of a function",
        "pipeline",
        "module beside",
        "new module",
        "package",
        "unused",
        "beside",
    ],
)
def test_what_is_not_reached_and_what_does_not_run_is_no_other_code(changes):
    assert version(changes) == version()


@pytest.mark.parametrize(
    "changes",
    [
        {"pipelines/trips.py": TRIPS.replace(b">", b">=")},
        {"pipelines/money.py": b"CENT = 101\n"},
        {"pipelines/money.py": b"CENT = 100.0\n"},
        {"pipelines/units.py": b"METRE = print(1)\n"},
        {"pipelines/__init__.py": b"import requests\n"},
        {"pipelines/sql/totals.sql": b"SELECT 2"},
        {"pipelines/sql/more.sql": b""},
        {"pipelines/sql/__init__.py": b"", "pipelines/sql/totals.sql": b"SELECT 2"},
        {"pipelines/shared/rates.py": b"from ..money import CENT\n\nLEAST = '2'\n"},
    ],
    ids=[
        "function",
        "two imports away",
        "type of a constant",
        "call when it is imported",
        "package",
        "SQL",
        "new SQL",
        "SQL in a package",
        "text for a number",
    ],
)
def test_what_the_functions_reach_is_other_code(changes):
    assert version(changes) != version()


@pytest.mark.parametrize(
    ("text", "reached"),
    [
        (b"import pipelines.money\n", "pipelines/money.py"),
        (b"from pipelines import money\n", "pipelines/money.py"),
        (b"from pipelines import *\n", "pipelines/money.py"),
        (b"def late():\n    from pipelines.shared.rates import LEAST\n", "pipelines/money.py"),
        (b"from .shared import other\n", "pipelines/shared/other.py"),
        (b"import pipelines.shared.other as other\n", "pipelines/shared/__init__.py"),
    ],
)
def test_each_way_to_import_is_followed(text, reached):
    task = {"pipelines/trips.py": text}
    assert version({**task, reached: b"print(1)\n"}) != version(task)


@pytest.mark.parametrize(
    "text",
    [
        b"import importlib\n\nfound = importlib.import_module('pipelines.' + 'money')\n",
        b"from importlib import import_module\n",
        b"exec('x = 1')\n",
        b"import pkgutil\n\nfound = pkgutil.resolve_name('pipelines.money')\n",
        b"import builtins\n\nfound = builtins.__import__('pipelines.money')\n",
        b"def totals():\n    'SELECT 1'\n\nQUERY = totals.__doc__\n",
        b"def broken(:\n",
    ],
)
def test_where_imports_cannot_be_followed_all_of_the_archive_counts(text):
    task = {"pipelines/trips.py": text}
    assert version({**task, "unrelated/jobs.py": b"Y = 2\n"}) != version(task)
    assert version(task).startswith("archive:")


def test_a_method_named_eval_is_followed():
    task = {"pipelines/trips.py": b"def totals(ctx, rows):\n    return rows.eval('a + b')\n"}
    assert version(task).startswith("code:")


def test_a_module_of_its_own_has_no_files_beside_it():
    files = {"single.py": b"def one(ctx):\n    return 1\n", "readme.txt": b"a"}
    changed = {**files, "readme.txt": b"b"}
    assert code_version(files, ["single:one"]) == code_version(changed, ["single:one"])


def test_a_task_of_several_functions_reaches_what_each_of_them_does():
    both = (*TASK, "pipelines.weather:rain")
    changes = {"pipelines/weather.py": b"def rain(ctx):\n    return 2\n"}
    assert version(changes, both) != version((), both)


SYNTAX = b"""
class A(Generic[T]):
    x: int = 3
    def f(self, *a, k=1, **kw):
        return f"{self.x!r:>{k}} a {a[0]:%Y} b" f"c{k=}"
async def g(x, /, y):
    return [i async for i in x if (n := i)] + [1.5e3, 1j, b"x", ..., None, True, -0.0]
match A():
    case A(x=1) | {"k": [1, *r]}:
        pass
try:
    pass
except* ValueError as e:
    lambda q: q
"""


def test_the_version_is_the_same_in_every_version_of_python():
    """Found with 3.11, 3.12 and 3.13."""
    found = code_version({"syntax.py": SYNTAX}, ["syntax:g"])
    assert found == "code:09edda7ab58bf317c219a43336b4b2ffc918a57eb855c1f0927b8d0a5be86104"


BY_ZONE = {"sql/by_zone.sql": b"SELECT zone FROM clean"}


def test_a_sql_file_is_code_of_the_tasks_that_run_it_and_of_no_others():
    tasks = (TASK, ("sql/by_zone.sql",), (*TASK, "sql/by_zone.sql"))
    edited = {"sql/by_zone.sql": b"SELECT zone, 1 AS one FROM clean"}
    alone, query, both = (version(BY_ZONE, task) for task in tasks)
    assert len({alone, query, both}) == 3
    assert version(edited, TASK) == alone == version()
    assert query != version(edited, tasks[1])
    assert both != version(edited, tasks[2])
    assert query == version({"sql/by_zone.sql": b"-- by zone\nSELECT zone\nFROM clean\n"}, tasks[1])


def test_a_sql_file_that_an_archive_lacks_is_named():
    assert lacking_functions(FILES, ["sql/by_zone.sql", *TASK]) == ("sql/by_zone.sql",)
    assert lacking_functions({**FILES, **BY_ZONE}, ["sql/by_zone.sql"]) == ()


LONG = {
    "a chain of calls": ("F" + ".when({}, 1)" * 500, "def f(F, a, b):\n    return {}\n"),
    "a sum": (" + ".join(["{}"] * 1000), "def f(a, b):\n    return {}\n"),
    "nested calls": ("f(" * 150 + "{}" + ")" * 150, "def f(a, b):\n    return {}\n"),
    "a chain of else": ("", "def f(a, b):\n    if a:\n        pass\n" + "    elif {}:\n        pass\n" * 400),
}


def at_depth(depth, call):
    return call() if depth == 0 else at_depth(depth - 1, call)


@pytest.mark.parametrize(("expression", "function"), LONG.values(), ids=LONG)
def test_long_expressions_have_a_version_as_others_have(expression, function):
    texts = [(function.replace("{}", expression) if expression else function).replace("{}", name) for name in "ab"]
    first, other = (code_version({"long.py": text.encode()}, ["long:f"]) for text in texts)
    assert first.startswith("code:")
    assert first != other
    assert at_depth(600, lambda: code_version({"long.py": texts[0].encode()}, ["long:f"])) == first


def test_of_what_is_deeper_than_python_reads_all_of_the_archive_counts():
    files = {"deep.py": ("x = " + "+".join(["a"] * 50_000)).encode(), "other.py": b""}
    found = code_version(files, ["deep:x"])
    assert found.startswith("archive:")
    assert found != code_version({**files, "other.py": b"y = 1"}, ["deep:x"])
    assert lacking_functions(files, ["deep:x"]) == ()


def test_a_number_of_more_digits_than_python_writes_has_a_version():
    files = {"huge.py": b"x = 0x1" + b"0" * 5000}
    assert code_version(files, ["huge:x"]) != code_version({"huge.py": files["huge.py"] + b"0"}, ["huge:x"])
