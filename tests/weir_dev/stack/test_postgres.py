"""The PostgreSQL server of a local stack: in a closed folder with a long name, for one user, also as root."""

from __future__ import annotations

import signal
import stat
import subprocess
import sys
import time
from contextlib import closing, suppress

import psutil
import psycopg2
import pytest
from tests.messages.kinds import of_kind

from weir.errors import Misconfigured
from weir_dev.ports import choose_ports
from weir_dev.stack.postgres import LEDGER, REPORTS, SERVICES, PostgresServer, copy_files, database_url, programs
from weir_dev.stack.processes import stop


class Running:
    """A server that is started and stopped as the keeper does."""

    def __init__(self, folder, template):
        self.server = PostgresServer(
            folder=folder,
            log=folder.parent / "postgres.log",
            port=choose_ports(["postgres"], {})["postgres"],
            is_durable=False,
        )
        self.server.prepare(template)
        self.process = None

    def __enter__(self):
        program = self.server.program()
        self.process = program.start()
        deadline = time.monotonic() + 60
        while not program.is_ready():
            assert self.process.is_alive(), self.server.log.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        self.server.make_databases()
        self.server.write_services(self.server.folder.parent / SERVICES)
        return self

    def __exit__(self, *_):
        assert stop([self.process], 20.0, signal.SIGINT) == []

    def run(self, statement):
        url = database_url(self.server.folder, self.server.port, LEDGER).replace("+psycopg2", "")
        connection = psycopg2.connect(url)
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(statement)
            rows = cursor.fetchall() if cursor.description else None
        connection.close()
        return rows


@pytest.fixture
def closed(tmp_path):
    """A folder with a space in its name, deeper than the path of a socket can be, that nobody else can enter."""
    folder = tmp_path / "a folder of mine" / ("deep" * 30)
    folder.mkdir(parents=True, mode=0o700)
    tmp_path.chmod(0o700)
    return folder


@pytest.fixture
def running(closed):
    with Running(closed / "postgres", closed / "no template") as started:
        started.run("CREATE TABLE kept (n int)")
        yield started


def test_what_was_written_is_there_after_a_restart_and_in_a_copy_that_begins_with_it(running, closed):
    running.run("INSERT INTO kept VALUES (7)")
    running.__exit__()
    for _ in range(2):  # as two stacks do that come up at once
        copy_files(running.server.folder, closed / "template")
    assert {each.name for each in closed.iterdir() if "template" in each.name} == {"template"}
    with running, Running(closed / "another" / "postgres", closed / "template") as other:
        other.run("INSERT INTO kept VALUES (8)")
        assert running.run("SELECT n FROM kept") == [(7,)]
        assert other.run("SELECT n FROM kept ORDER BY n") == [(7,), (8,)]


def test_the_database_of_reports_is_found_by_its_service(running, monkeypatch):
    monkeypatch.setenv("PGSERVICEFILE", str(running.server.folder.parent / SERVICES))
    with closing(psycopg2.connect(service=REPORTS)) as connection, connection.cursor() as cursor:
        cursor.execute("select current_database()")
        assert cursor.fetchone() == (REPORTS,)
    assert stat.S_IMODE((running.server.folder.parent / SERVICES).stat().st_mode) == 0o600


def test_a_user_without_the_password_is_refused(running):
    for password in ("", "another"):
        with pytest.raises(psycopg2.OperationalError, match="password"):
            psycopg2.connect(host="127.0.0.1", port=running.server.port, user="weir", password=password, dbname=LEDGER)


def test_a_connection_costs_its_client_no_iterations(running):
    """The password cannot be guessed, and each transaction of the ledger connects."""
    found = running.run("SELECT rolpassword FROM pg_authid WHERE rolname = current_user")
    assert found[0][0].startswith("SCRAM-SHA-256$1:")


def test_the_password_stands_on_no_command_line_and_the_files_are_their_owners_alone(running):
    url = database_url(running.server.folder, running.server.port, LEDGER)
    password = url.partition("://weir:")[2].partition("@")[0]
    leader = psutil.Process(running.process.pid)
    commands = [leader.cmdline()]
    for one in leader.children(recursive=True):
        with suppress(psutil.Error):  # one that has just ended
            commands.append(one.cmdline())
    assert password
    assert password not in str(commands)
    folder = running.server.folder
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "data").stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "password").stat().st_mode) == 0o600
    assert not [each for each in leader.net_connections("unix") if each.laddr]


def test_a_server_that_was_killed_starts_again_though_its_process_id_is_that_of_another_program(closed):
    made = Running(closed / "postgres", closed / "no template")
    with made:
        made.run("CREATE TABLE kept (n int)")
        lock = made.server.folder / "data" / "postmaster.pid"
        _, _, rest = lock.read_text().partition("\n")
        stop([made.process], 0.0, signal.SIGKILL)
        lock.write_text(f"{psutil.Process().pid}\n{rest}")
        made.server.prepare(closed / "no template")
        with made:
            assert made.run("SELECT count(*) FROM kept") == [(0,)]


def test_data_of_a_version_that_has_no_programs_are_refused_with_the_package_to_install():
    with pytest.raises(Misconfigured, check=of_kind("dev.postgres_of_other_version", version="9")):
        programs("9")


WITH_GRPC = """
import subprocess, grpc
from concurrent.futures import ThreadPoolExecutor
from weir_dev.stack.postgres import as_account

server = grpc.server(ThreadPoolExecutor(1))
port = server.add_insecure_port("127.0.0.1:0")
server.start()
with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
    grpc.channel_ready_future(channel).result(30)
    ended = [subprocess.run([*as_account(), "true"]).returncode for _ in range(150)]
server.stop(None)
print(sum(map(bool, ended)))
"""


def test_a_program_under_its_account_begins_also_where_a_process_has_open_connections_of_grpc():
    done = subprocess.run([sys.executable, "-c", WITH_GRPC], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "0"), done.stderr
