"""Files of a state folder: the record, the secrets, Airflow's database."""

from __future__ import annotations

import json
import sqlite3
import stat
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from tests.messages.kinds import of_kind

from weir.errors import Misconfigured
from weir_dev.commands.stack import not_ready, stack_of_project
from weir_dev.stack import airflow_database
from weir_dev.stack.airflow_components import COMPONENTS, SCHEDULERS, airflow_programs
from weir_dev.stack.airflow_environment import (
    API_SERVERS,
    airflow_home,
    base_environment,
    component_environment,
    database_of,
    stack_ports,
    write_local_settings,
)
from weir_dev.stack.credentials import FILE_NAME as SECRETS
from weir_dev.stack.credentials import load_or_create
from weir_dev.stack.keeper import EXIT_BUSY, take_lock
from weir_dev.stack.processes import ProcessRecord
from weir_dev.stack.stack import Stack
from weir_dev.stack.state import FILE_NAME, Database, Phase, StackRequest, StackState, read_state, write_state

BALANCER = Path(__file__).parents[1] / "servers" / "balancer.py"


@pytest.fixture
def request_of(tmp_path):
    def make(folder="a", database=Database.SQLITE):
        return StackRequest(
            folder=tmp_path / folder,
            dags=(tmp_path / "dags",),
            plugins=tmp_path / "p",
            cache=tmp_path / "cache",
            database=database,
        )

    return make


def test_a_record_comes_back_as_it_was_written(tmp_path):
    state = StackState(
        phase=Phase.UP,
        message="m",
        processes=(ProcessRecord("spark", 7, "x:1"),),
        ready=("spark",),
        starts={"spark": 2},
        ports={"api": 8080},
    )
    write_state(tmp_path, state)
    assert read_state(tmp_path) == state


def test_a_folder_without_a_record_was_never_started(tmp_path):
    assert read_state(tmp_path) == StackState()


@pytest.mark.parametrize("text", ["{", '{"version": 2}'])
def test_a_record_that_cannot_be_read_is_refused(tmp_path, text):
    (tmp_path / FILE_NAME).write_text(text)
    with pytest.raises(Misconfigured, check=of_kind("dev.record_unreadable")):
        read_state(tmp_path)


def test_a_process_that_is_started_again_is_counted_and_not_ready():
    state = StackState(ready=("spark", "scheduler")).with_process(ProcessRecord("spark", 1, "a"))
    again = state.with_process(ProcessRecord("spark", 2, "b"))
    assert again.process("spark").pid == 2
    assert again.starts == {"spark": 2}
    assert again.ready == ("scheduler",)


@pytest.mark.parametrize(("ready", "missing"), [(("api-server",), "spark"), (("api-server", "spark"), "")])
def test_a_stack_that_was_up_names_what_does_not_answer(ready, missing):
    processes = tuple(ProcessRecord(name, 1, "a") for name in ("keeper", "api-server", "spark"))
    state = StackState(phase=Phase.UP, processes=processes, ready=ready)
    assert not_ready(state).partition(" but ")[2].partition(" ")[0] == missing
    assert not_ready(replace(state, phase=Phase.STARTING)) == ""


@pytest.mark.parametrize("database", Database)
def test_a_request_reaches_the_keeper_as_it_is(request_of, database):
    request = replace(request_of(database=database), parent=ProcessRecord("p", 1, "a"), environment={"A": "b c"})
    assert StackRequest.from_json(request.to_json()) == request


def test_secrets_are_made_once_and_are_their_owners_alone(tmp_path):
    first = load_or_create(tmp_path)
    assert load_or_create(tmp_path) == first
    assert stat.S_IMODE((tmp_path / SECRETS).stat().st_mode) == 0o600
    (tmp_path / SECRETS).chmod(0o644)
    load_or_create(tmp_path)
    assert stat.S_IMODE((tmp_path / SECRETS).stat().st_mode) == 0o600


def test_two_folders_have_different_secrets(tmp_path):
    assert load_or_create(tmp_path / "a") != load_or_create(tmp_path / "b")


@pytest.mark.parametrize("text", ["{", "[]", "{}"])
def test_damaged_secrets_are_named(tmp_path, text):
    (tmp_path / SECRETS).write_text(text)
    with pytest.raises(Misconfigured, check=of_kind("dev.secrets_unreadable")):
        load_or_create(tmp_path)


def test_foreign_settings_do_not_reach_the_stack():
    given = base_environment(
        {
            "AIRFLOW_HOME": "/x",
            "AIRFLOW__CORE__X": "1",
            "SPARK_HOME": "/x",
            "PYTHONPATH": "/x",
            "LANG": "C",
            "PATH": "/x",
        }
    )
    assert set(given) == {"LANG", "PATH", "NO_PROXY", "no_proxy", "PYTHONUNBUFFERED"}


def test_connections_of_the_person_do_reach_the_stack():
    assert base_environment({"AIRFLOW_CONN_MINE": "x"})["AIRFLOW_CONN_MINE"] == "x"


def test_the_loopback_needs_no_proxy():
    assert base_environment({"no_proxy": "corp"})["NO_PROXY"] == "corp,127.0.0.1,localhost"


def test_the_service_account_is_in_the_connection(request_of, tmp_path):
    credentials = load_or_create(tmp_path)
    ports = dict.fromkeys(("api", "spark", "spark-ui", "worker-logs", "trigger-logs"), 1)
    given = component_environment(request_of(), ports, credentials, {})
    connection = json.loads(given["AIRFLOW_CONN_WEIR_API"])
    assert (connection["login"], connection["password"]) == ("weir", credentials.service_password)
    assert credentials.person_password not in json.dumps(given)


def test_a_redundant_stack_has_two_schedulers_and_two_servers_that_all_but_tasks_know(request_of, tmp_path):
    request = replace(request_of(), balancer=BALANCER)
    ports = {name: number for number, name in enumerate(stack_ports(request), 1)}
    given = component_environment(request, ports, load_or_create(tmp_path), {})
    assert given["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"] == f"http://127.0.0.1:{ports['api']}/execution/"
    servers = [str(ports[name]) for name in ("api-server", "api-server-2")]
    assert json.loads(given["AIRFLOW_CONN_WEIR_API"])["host"].split(",") == [f"http://127.0.0.1:{p}" for p in servers]
    programs = {each.name: each.command[1:] for each in airflow_programs(request, tmp_path, ports, given)}
    assert set(programs) == {*API_SERVERS, *SCHEDULERS, "balancer", "dag-processor", "triggerer"}
    assert programs["balancer"] == ("-P", str(BALANCER), str(ports["api"]), *servers)
    assert [programs[name] for name in API_SERVERS] == [
        ("-m", "airflow", "api-server", "--port", port) for port in servers
    ]
    assert len({programs[name] for name in SCHEDULERS}) == 1


@pytest.mark.parametrize("has_triggerer", [True, False])
def test_a_plain_stack_has_one_of_each(request_of, tmp_path, has_triggerer):
    request = replace(request_of(), has_triggerer=has_triggerer)
    names = [each.name for each in airflow_programs(request, tmp_path, {"api": 1}, {})]
    assert names == [name for name in COMPONENTS if has_triggerer or name != "triggerer"]


def migrate(request):
    """Stands for `airflow db migrate`."""
    airflow_home(request.folder).mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(airflow_home(request.folder) / "airflow.db")) as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("create table if not exists migrated (x)")
        database.execute("insert into migrated values (1)")
        database.commit()
    airflow_database.finish_migration(request)


def rows(request):
    with closing(sqlite3.connect(airflow_home(request.folder) / "airflow.db")) as database:
        return database.execute("select count(*) from migrated").fetchone()[0]


def test_the_first_database_is_migrated_and_the_next_copied(request_of, tmp_path):
    first, second = request_of("a"), request_of("b")
    assert airflow_database.migration(first, {}, tmp_path / "log").command[0] == sys.executable
    migrate(first)
    assert airflow_database.migration(second, {}, tmp_path / "log") is None
    assert rows(second) == 1


def test_a_database_in_use_never_becomes_the_template(request_of, tmp_path):
    request = request_of("a")
    migrate(request)
    for path in request.cache.iterdir():
        path.unlink()
    migrate(request)
    assert list(request.cache.iterdir()) == []


def test_a_database_of_another_airflow_is_migrated_in_place(request_of, tmp_path):
    request = request_of("a")
    migrate(request)
    (airflow_home(request.folder) / "airflow.db.version").write_text("3.0.0")
    assert airflow_database.migration(request, {}, tmp_path / "log") is not None
    assert rows(request) == 1


def test_a_database_without_a_stamp_is_migrated(request_of, tmp_path):
    request = request_of("a")
    migrate(request)
    (airflow_home(request.folder) / "airflow.db.version").unlink()
    assert airflow_database.migration(request, {}, tmp_path / "log") is not None


def test_a_database_elsewhere_is_migrated_at_each_start(request_of, tmp_path):
    request = replace(request_of("a"), environment={airflow_database.CONNECTION: "postgresql://somewhere/airflow"})
    assert airflow_database.migration(request, {}, tmp_path / "log") is not None
    airflow_database.finish_migration(request)
    assert airflow_database.migration(request, {}, tmp_path / "log") is not None
    assert not request.cache.exists()


def test_a_stack_tells_where_its_request_puts_ledger_and_store(request_of, tmp_path):
    elsewhere = {"WEIR_LEDGER": "postgresql://somewhere/ledger", "WEIR_STORE": "s3://bucket/weir"}
    stack = Stack(replace(request_of("a"), environment=elsewhere))
    assert (stack.ledger_url, stack.store_url) == (elsewhere["WEIR_LEDGER"], elsewhere["WEIR_STORE"])
    own = Stack(request_of("a"))
    assert own.ledger_url.startswith("sqlite:///")
    assert own.store_url == str(own.folder / "store")


@pytest.mark.parametrize("file", ["ledger.db", "airflow/airflow.db"])
def test_a_stack_on_sqlite_keeps_its_files(request_of, monkeypatch, file):
    folder = request_of("a").folder
    assert database_of(folder) is None
    (folder / file).parent.mkdir(parents=True)
    (folder / file).touch()
    monkeypatch.setattr("weir_dev.commands.stack.state_folder", lambda: folder)
    assert stack_of_project().request.database is Database.SQLITE
    with pytest.raises(Misconfigured, check=of_kind("dev.database_differs", found="sqlite", wanted="postgres")):
        Stack(request_of("a", Database.POSTGRES)).start()
    assert [path.name for path in folder.iterdir()] == [file.partition("/")[0]]


def test_a_new_stack_has_a_postgresql_server_and_sqlite_if_that_is_asked_for(request_of, monkeypatch):
    monkeypatch.setattr("weir_dev.commands.stack.state_folder", lambda: request_of("a").folder)
    assert stack_of_project().request.database is Database.POSTGRES
    assert stack_of_project(database=Database.SQLITE).request.database is Database.SQLITE


def test_a_stack_with_both_databases_elsewhere_has_no_server_of_its_own(request_of):
    request = request_of("a", Database.POSTGRES)
    assert "postgres" in stack_ports(request)
    elsewhere = {airflow_database.CONNECTION: "postgresql://x/airflow", "WEIR_LEDGER": "postgresql://x/weir"}
    assert "postgres" not in stack_ports(replace(request, environment=elsewhere))


def test_the_folder_of_a_stack_is_closed_to_others_and_its_request_is_on_no_command_line(request_of):
    request = request_of("a")
    request.folder.mkdir(mode=0o755)
    stack = Stack(replace(request, environment={"WEIR_LEDGER": "postgresql://weir:hush-hush@somewhere/weir"}))
    with take_lock(request.folder):
        keeper = stack._start_keeper()
        words = list(map(str, keeper.args))  # it may have ended before its process is asked
        assert keeper.wait(60) == EXIT_BUSY  # it has read its request, and found the folder taken
    assert stat.S_IMODE(request.folder.stat().st_mode) == 0o700
    assert "weir_dev.stack.keeper" in words
    assert "hush-hush" not in " ".join(words)


def test_airflow_of_a_stack_is_told_to_import_ahead(tmp_path):
    airflow_home(tmp_path).mkdir()
    for _ in range(2):  # a stack that is started again
        write_local_settings(tmp_path)
    settings = (airflow_home(tmp_path) / "config" / "airflow_local_settings.py").read_text()
    compile(settings, "settings", "exec")
    assert "preload()" in settings
