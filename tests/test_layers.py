"""Arrows point one way: dags -> weir_airflow -> weir <- weir_spark <- pipelines; a package stands on those before it.

The order of weir's packages is that of `LAYERS`. What is pure does no I/O: it imports the standard library, msgspec,
errors and what is pure below it.
"""

import ast
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = {"weir": "include", "weir_dev": "include", "weir_airflow": "plugins", "weir_spark": "spark_jobs"}
TOOLS_OF_TESTS = ("tests/chaos", "tests/servers", "tests/simulator")
OURS = {*PACKAGES, "pipelines"}
LAYERS = (
    "errors",
    *("wording", "extras", "preloading", "secret_forms", "secrecy", "units", "intervals", "refusals", "typed_json"),
    *("code", "dataflow", "topology", "execution", "formats", "restarts"),
    *("store", "settings", "connections", "catalogs", "delta_rs", "kafka", "ledger", "coordination"),
    *("local_stack", "environment"),
    *("recovery", "advice", "state", "snapshots", "attempts", "quality", "retention"),
    *(
        "rebuild",
        "sinks",
        "state_tables",
        "integrity",
        "notifications",
        "settling",
        "assembly",
        "upkeep",
        "telemetry",
        "requests",
        "reading",
        "java",
        "doctor",
        "trials",
        "views",
        "serving",
        "cli",
        "testing",
    ),
)
"""What a module may import stands before it; what stands on most of the others comes last."""
ROOMS_OF_AIRFLOW = (
    *("assets", "metrics", "connections", "engines", "api", "pages", "dags"),
    *("tasks", "recovery", "dag", "upkeep", "doctor", "plugin", "provider"),
)
"""In order, as LAYERS: what a task runs stands on how it is declared; the retry policy stands on a task's context."""
ROOMS_OF_SPARK = ("results", "files", "state", "checks", "region", "sources", "transport")
PURE = {
    *(
        "errors",
        "wording",
        "secret_forms",
        "secrecy",
        "units",
        "intervals",
        "typed_json",
        "dataflow",
        "topology",
        "execution",
        "formats",
    ),
    *("restarts", "rules"),
}
DOING = {"os", "io", "socket", "subprocess", "pathlib", "shutil", "tempfile", "time", "random", "secrets", "threading"}
"""Modules of the standard library that reach out of the process, or that tell another thing at each call."""
BY_NAME = {"import_module", "find_spec", "__import__", "run_module", "resolve_name"}
"""Functions that import a module, or look for one, by its name."""
BY_NAME_FROM_WEIR = {
    ("include/weir/preloading.py", "weir_spark"),  # it imports what the tasks will
    ("include/weir/reading/opened_state.py", "weir_spark"),  # a state as a DataFrame of the reader's session
}
"""What is of the Spark side and imported by its name alone, so that nothing in weir depends on it."""
KNOWN_IN_PURE = {("weir.typed_json", "threading"), ("weir.execution.cadence", "croniter")}
"""What single modules of the pure part import besides: a lock, and the arithmetic of cron expressions."""
FAR_FROM_TASKS = {
    *("weir.advice", "weir.cli", "weir.doctor", "weir.environment", "weir.local_stack", "weir.reading", "weir.testing"),
    *("weir.trials", "weir.views", "weir_airflow.doctor", "weir_airflow.pages", "weir_airflow.plugin", "weir_dev"),
}
"""What answers people, and what reads from outside: no task needs it."""
MOST_MODULES = 20
MOST_LINES = 600


def files_below(folder):
    return sorted((ROOT / folder).rglob("*.py"))


@cache
def imports_of(file):
    """All modules that a file imports, at its top or later, by a statement or by name."""
    nodes = list(ast.walk(ast.parse(file.read_text())))
    found = []
    for node in nodes:
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: write absolute imports"
            found += [name_of_module(f"{node.module}.{alias.name}") or node.module for alias in node.names]
    return tuple(dict.fromkeys([*found, *named_in(nodes)]))


def named_in(nodes):
    """The modules of ours whose names stand in a file that imports by name, as `PACKAGE.MODULE` or with `:NAME`."""
    if not BY_NAME & {getattr(node, "id", getattr(node, "attr", "")) for node in nodes}:
        return []
    texts = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return [name for text in texts if "." in text and (name := name_of_module(text.partition(":")[0]))]


def modules_below(folder):
    return [module_of(file) for file in files_below(folder)]


def file_of(name):
    path = ROOT / PACKAGES[name.partition(".")[0]] / name.replace(".", "/")
    return path.with_suffix(".py") if path.with_suffix(".py").exists() else path / "__init__.py"


def name_of_module(name):
    """The name, if it is that of a module of ours; None else."""
    folder = {**PACKAGES, "tests": ""}.get(name.partition(".")[0])
    path = None if folder is None else ROOT / folder / name.replace(".", "/")
    return name if path and (path.with_suffix(".py").exists() or (path / "__init__.py").exists()) else None


def offences(folder, allowed):
    """Imports below `folder` that `allowed` does not allow, each with its file."""
    return [
        f"{file.relative_to(ROOT)} imports {name}"
        for file in files_below(folder)
        for name in imports_of(file)
        if not allowed(file, name)
    ]


def is_pure(name):
    """Whether a module of weir belongs to the pure part: a pure package, `rules.py`, or `*_rules.py`."""
    parts = name.split(".")[1:]
    return bool(parts) and (parts[0] in PURE or "rules" in parts or parts[-1].endswith("_rules"))


def module_of(file):
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts if parts[0] == "tests" else parts[1:]).removesuffix(".__init__")


@pytest.mark.parametrize("layer", [layer for layer in LAYERS if layer != "preloading"])
def test_a_package_imports_only_what_stands_before_it(layer):
    allowed_layers = set(LAYERS[: LAYERS.index(layer) + 1])

    def allowed(_file, name):
        top, _, rest = name.partition(".")
        return top != "weir" or not rest or rest.split(".")[0] in allowed_layers

    place = f"include/weir/{layer}"
    files = files_below(place) or [ROOT / f"{place}.py"]
    found = [(file, name) for file in files for name in imports_of(file) if not allowed(file, name)]
    assert [f"{file.relative_to(ROOT)} imports {name}" for file, name in found] == []


def test_attempts_ask_other_rooms_by_ports_alone():
    """What gates, deletes, publishes, tells and rebuilds is asked by `weir.attempts.rooms`, whatever the layers are."""
    rooms = {"quality", "retention", "rebuild", "notifications", "sinks", "settling", "assembly", "upkeep", "integrity"}
    assert offences("include/weir/attempts", lambda _file, name: not {*name.split(".")[1:2]} & rooms) == []


def test_every_package_of_weir_has_its_layer():
    there = {path.stem for path in (ROOT / "include/weir").iterdir() if path.is_dir() or path.suffix == ".py"} - {
        "__init__",
        "__pycache__",
    }
    assert there == set(LAYERS)


@pytest.mark.parametrize("room", ROOMS_OF_AIRFLOW)
def test_a_room_of_the_plugin_imports_only_rooms_before_it(room):
    folder = ROOT / "plugins/weir_airflow"
    later = ROOMS_OF_AIRFLOW[ROOMS_OF_AIRFLOW.index(room) + 1 :]

    def later_room(name):
        return name.startswith("weir_airflow.") and name.split(".")[1] in later

    files = files_below(f"plugins/weir_airflow/{room}") or [folder / f"{room}.py"]
    found = [
        f"{file.relative_to(ROOT)} imports {name}" for file in files for name in imports_of(file) if later_room(name)
    ]
    assert found == []


def test_every_module_of_the_plugin_has_its_room():
    there = {
        path.stem for path in (ROOT / "plugins/weir_airflow").iterdir() if path.is_dir() or path.suffix == ".py"
    } - {"__init__", "__pycache__"}
    assert there == set(ROOMS_OF_AIRFLOW)


@pytest.mark.parametrize(("package", "rooms"), [("weir_airflow", ROOMS_OF_AIRFLOW), ("weir_spark", ROOMS_OF_SPARK)])
def test_no_two_rooms_import_each_other(package, rooms):
    """Rooms of the plugin and of the Spark side: no circle between them, whatever their order."""
    folder = ROOT / PACKAGES[package] / package
    arrows = {
        (room, name.split(".")[1])
        for room in rooms
        for file in (folder / room).rglob("*.py")
        for name in imports_of(file)
        if name.startswith(f"{package}.") and name.split(".")[1] in rooms
    }
    assert circle_in({(room, other) for room, other in arrows if room != other}) == []


def test_what_is_pure_imports_only_what_is_pure_and_does_nothing():
    def allowed(file, name):
        top = name.partition(".")[0]
        if top == "weir":
            return is_pure(name)
        is_known = (module_of(file), name) in KNOWN_IN_PURE
        return top == "msgspec" or is_known or (top in sys.stdlib_module_names and top not in DOING)

    found = [
        f"{file.relative_to(ROOT)} imports {name}"
        for file in files_below("include/weir")
        if is_pure(module_of(file))
        for name in imports_of(file)
        if not allowed(file, name)
    ]
    assert found == []


def test_no_module_is_in_a_circle_of_imports():
    arrows = {
        (module_of(file), name)
        for place in (*(f"{folder}/{package}" for package, folder in PACKAGES.items()), *TOOLS_OF_TESTS)
        for file in files_below(place)
        if file.name != "__init__.py"
        for name in imports_of(file)
        if name_of_module(name) and not name.endswith(module_of(file)) and "." in name
    }
    assert circle_in(arrows) == []


def circle_in(arrows):
    """The nodes of a graph that lie on a circle, sorted: none where its arrows all point one way."""
    left = set(arrows)
    while True:
        sources, targets = {source for source, _ in left}, {target for _, target in left}
        kept = {(source, target) for source, target in left if target in sources and source in targets}
        if kept == left:
            return sorted(sources)
        left = kept


def test_weir_knows_neither_airflow_nor_spark_nor_its_development_tools():
    foreign = (OURS - {"weir"}) | {"airflow", "pyspark", "great_expectations"}

    def allowed(file, name):
        top = name.partition(".")[0]
        return top not in foreign or (str(file.relative_to(ROOT)), top) in BY_NAME_FROM_WEIR

    assert offences("include/weir", allowed) == []


def test_the_product_never_imports_its_fakes():
    def allowed(file, name):
        return "testing" in file.parts or not name.startswith(("weir.testing", "weir_dev"))

    assert [each for folder in ("include/weir", "plugins", "spark_jobs") for each in offences(folder, allowed)] == []


def test_only_the_command_line_and_what_starts_it_import_the_command_line():
    def allowed(file, name):
        return "cli" in file.parts or not name.startswith("weir.cli")

    assert [each for folder in ("include/weir", "plugins", "spark_jobs") for each in offences(folder, allowed)] == []


def test_no_task_reaches_what_answers_people():
    """Not even by an import inside a function."""
    todo = [name for room in ("tasks", "recovery", "upkeep") for name in modules_below(f"plugins/weir_airflow/{room}")]
    reached = {}
    while todo:
        name, *todo = todo
        if name not in reached:
            reached[name] = imports_of(file_of(name))
            todo += filter(name_of_module, reached[name])
    far = {name for name in reached if any(f"{name}.".startswith(f"{each}.") for each in FAR_FROM_TASKS)}
    assert {name: [by for by in reached if name in reached[by]] for name in far} == {}


def test_views_know_neither_tables_nor_json_and_decide_nothing_for_the_engine():
    rendered = {"json", "rich", "typer"}
    assert offences("include/weir/views", lambda _file, name: name.partition(".")[0] not in rendered) == []
    rendering = {"cli", "serving", "views"}
    found = offences("include/weir", lambda file, name: rendering & {*file.parts} or not name.startswith("weir.views"))
    assert found == []


def test_the_spark_side_knows_neither_airflow_nor_the_ledger():
    known = {"errors", "wording", "extras", "secret_forms", "secrecy", "units", "intervals", "refusals", "typed_json"}
    known |= {"code", "dataflow", "topology", "execution", "formats"}
    known |= {"state", "store", "settings", "connections", "catalogs", "delta_rs", "kafka", "quality"}
    examinations = {f"weir.doctor.{each}" for each in ("examination", "spark", "store", "table")}

    def allowed(_file, name):
        top, _, rest = name.partition(".")
        return top not in {"airflow", "weir_airflow", "sqlalchemy"} and (
            top != "weir" or rest.split(".")[0] in known or name in examinations
        )

    assert offences("spark_jobs", allowed) == []


def test_tasks_know_spark_at_one_place_only_and_the_doctor_at_another():
    places = {ROOT / "plugins/weir_airflow" / place for place in ("engines/engines.py", "doctor/connect.py")}

    def allowed(file, name):
        return file in places or name.partition(".")[0] not in {"weir_spark", "pyspark", "pipelines"}

    assert offences("plugins", allowed) == []


def test_pipelines_know_spark_and_nothing_of_the_machinery():
    def allowed(_file, name):
        return name.partition(".")[0] not in {"airflow", "weir_airflow", "weir"}

    assert offences("spark_jobs/pipelines", allowed) == []


def test_dag_files_know_no_spark():
    assert offences("dags", lambda _file, name: name.partition(".")[0] not in {"pyspark", "weir_spark"}) == []


@pytest.mark.parametrize("folder", ["include", "plugins", "spark_jobs", "dags", "tests"])
def test_no_folder_has_more_modules_than_one_looks_through(folder):
    folders = [path for path in [ROOT / folder, *(ROOT / folder).rglob("*")] if path.is_dir()]
    counted = {str(path.relative_to(ROOT)): len(list(path.glob("*.py"))) for path in folders}
    assert {path: count for path, count in counted.items() if count > MOST_MODULES + 1} == {}


def test_no_module_is_longer_than_one_noun_can_be():
    files = [
        file for folder in ("include", "plugins", "spark_jobs", "dags", *TOOLS_OF_TESTS) for file in files_below(folder)
    ]
    assert [str(file) for file in files if len(file.read_text().splitlines()) > MOST_LINES] == []
