"""The PostgreSQL server of the tests keeps what was committed, and is gone when its test process is."""

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from tests.servers.postgres import running_postgres

OWNER = """
import sys
from pathlib import Path
from tests.servers.postgres import running_postgres
with running_postgres(Path(sys.argv[1])) as server:
    print(server.port, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with running_postgres(tmp_path_factory.mktemp("a long name " * 8)) as started:
        yield started


@pytest.fixture
def owner(tmp_path):
    """A process with a server, as a test process is one; its guard; and all processes of the server."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path) if os.geteuid() else os.environ.get("TMPDIR", "/tmp")},
    )
    process.stdout.readline()
    (guard,) = psutil.Process(process.pid).children()
    yield process, guard, guard.children(recursive=True)
    process.communicate()  # at the end of its input it ends; killed, it would leave the data of a guard that was killed


def run(server, statement, database="postgres"):
    with server.connect(database) as connection:
        result = connection.exec_driver_sql(statement)
        return result.all() if result.returns_rows else None


def gone(processes):
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if not any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in processes):
            return True
        time.sleep(0.05)
    return False


def test_what_was_committed_is_there_after_a_stop_at_once(server):
    run(server, "CREATE TABLE kept (n int)")
    run(server, "INSERT INTO kept VALUES (1)")
    port = server.port
    server.restart()
    assert run(server, "SELECT n FROM kept") == [(1,)]
    assert server.port == port


def test_a_stopped_server_takes_no_connection_until_it_is_started(server):
    server.stop()
    with pytest.raises(Exception, match="refused"):
        run(server, "SELECT 1")
    server.start()
    assert run(server, "SELECT 1") == [(1,)]


def test_a_database_is_made_when_its_url_is_asked_for_and_only_then(server):
    assert server.url("one of mine") == server.url("one of mine")
    assert run(server, "SELECT current_database()", "one of mine") == [("one of mine",)]
    server.drop_database("one of mine")
    with pytest.raises(Exception, match="does not exist"):
        run(server, "SELECT 1", "one of mine")


def test_a_database_is_a_copy_of_its_template(server):
    server.new_database("template")
    run(server, "CREATE TABLE copied (n int)", "template")
    server.new_database("copy", "template")
    assert run(server, "SELECT count(*) FROM copied", "copy") == [(0,)]


def test_the_rights_of_the_folders_above_stay_as_they_are(tmp_path):
    tmp_path.chmod(0o700)
    with running_postgres(tmp_path / "server"):
        pass
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700
    assert [path.name for path in (tmp_path / "server").iterdir()] == ["postgres.log"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_server_ends_with_the_process_that_started_it(owner, number):
    process, guard, servers = owner
    data = next(part for part in servers[0].cmdline() if "weir-postgres-" in part)
    process.send_signal(number)
    process.wait()
    assert gone([guard, *servers])
    assert not Path(data).parent.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent has gone")
def test_a_server_ends_with_its_guard(owner):
    _, guard, servers = owner
    guard.kill()
    assert gone(servers)
