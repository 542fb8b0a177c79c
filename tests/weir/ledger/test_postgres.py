"""A ledger on PostgreSQL: isolation of transactions, locks, and the ledger after a failure of the server."""

import multiprocessing
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from datetime import UTC, datetime

import pytest
from sqlalchemy import create_engine, inspect, select, text
from sqlalchemy.engine import make_url
from sqlalchemy.pool import NullPool
from tests.messages.kinds import of_kind
from tests.servers.postgres import new_postgres_url, running_postgres
from tests.servers.postgres_pair import running_pair

from weir.errors import Internal, Misconfigured, Retryable
from weir.ledger.database import postgres as postgres_module
from weir.ledger.database.tables import DataflowRow, FailoverRow, RunRow
from weir.ledger.ledger import HEAD, Ledger
from weir.ledger.runs import ensure_dataflow

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def url(new_postgres_url):
    return new_postgres_url()


@pytest.fixture
def ledger(url):
    return Ledger.open(url)


@pytest.fixture
def empty_url(postgres):
    name = "nothing_in_it"
    postgres.drop_database(name)
    yield postgres.url(name)
    postgres.drop_database(name)


def database_of(url):
    return make_url(url).database


def count_up(session, name="ladder"):
    ensure_dataflow(session, name, "s").lineage += 1


def count(ledger, name="ladder"):
    """How often was counted up, when all who are at it have ended."""
    with ledger.transaction(name) as session:
        row = session.get(DataflowRow, name)
        return 0 if row is None else row.lineage - 1


# Who waits for whom, and who sees what


def together(processes, work, *args):
    """Run `work` in forked processes, which share what is open here."""
    require_end(start(processes, work, *args))


def start(processes, work, *args):
    context = multiprocessing.get_context("fork")
    started = [context.Process(target=work, args=(*args, number)) for number in range(processes)]
    for each in started:
        each.start()
    return started


def require_end(started):
    for each in started:
        each.join()
    assert [each.exitcode for each in started] == [0] * len(started)


def first_begin(ledger, _number=0):
    with ledger.transaction("ladder") as session:
        count_up(session)


def test_sixteen_first_begins_of_a_dataflow_come_one_after_the_other(ledger):
    """There is no row yet that they could lock. The ledger was opened before the processes forked."""
    together(16, first_begin, ledger)
    assert count(ledger) == 16


def test_transactions_of_one_dataflow_wait_for_each_other_and_others_do_not(ledger):
    began, done = threading.Event(), []

    def work(name):
        began.set()
        with ledger.transaction(name) as session:
            count_up(session, name)
            done.append(name)

    with ThreadPoolExecutor() as pool:
        with ledger.transaction("ladder") as session:
            count_up(session)
            same = pool.submit(work, "ladder")
            began.wait()
            pool.submit(work, "river").result(timeout=60)
            assert done == ["river"]
        same.result(timeout=60)
    assert (count(ledger), count(ledger, "river")) == (2, 1)


def test_a_reader_sees_one_instant_and_waits_for_nobody(ledger):
    first_begin(ledger)
    with ledger.transaction() as reader:
        assert reader.scalar(select(DataflowRow.lineage)) == 2
        with ledger.transaction("ladder") as session:
            count_up(session)
            assert reader.scalar(select(DataflowRow.lineage)) == 2
        assert reader.scalar(select(DataflowRow.lineage)) == 2
    assert count(ledger) == 2


def test_a_transaction_that_names_no_dataflow_changes_nothing(ledger):
    with (
        pytest.raises(Internal, check=of_kind("ledger.write_while_reading", what="write")),
        ledger.transaction() as session,
    ):
        count_up(session)
    with pytest.raises(Retryable, check=of_kind("ledger.read_only")), ledger.transaction() as session:
        session.execute(text("DELETE FROM dataflow"))
    assert count(ledger) == 0


def test_the_isolation_does_not_depend_on_the_servers_default(postgres, ledger, url):
    with postgres.connect() as connection:
        connection.exec_driver_sql(
            f"ALTER DATABASE {database_of(url)} SET default_transaction_isolation = serializable"
        )
    for dataflow, expected in (("ladder", "read committed"), (None, "repeatable read")):
        with ledger.transaction(dataflow) as session:
            assert session.scalar(text("SHOW transaction_isolation")) == expected


def test_between_transactions_no_connection_is_held(postgres, ledger, url):
    first_begin(ledger)
    assert count(ledger) == 1
    query = text("SELECT count(*) FROM pg_stat_activity WHERE datname = :name AND state <> 'idle'")
    with postgres.connect() as connection:
        assert connection.scalar(query, {"name": database_of(url)}) == 0


# What is stored


def test_large_results_odd_texts_and_odd_parameters_come_back(ledger):
    odd = {"nul": "\0", "half": "\ud800", "text": "Käse 🧀", "long": "x" * 100_000}
    with ledger.transaction("ladder") as session:
        ensure_dataflow(session, "ladder", "s")
        run = RunRow(id="r", dataflow="ladder", epoch="e", interval_start=NOW, interval_end=NOW, dag_id="d", run_id="r")
        run.task_prefix, run.pinned, run.parameters, run.created_at = "", odd, odd, NOW
        session.add(run)
        session.flush()
        cause = "a\0b\ud800c"
        of = {"run": "r", "attempt": "", "region": "", "subtask": 0, "kind": "loss"}
        session.add(FailoverRow(**of, decided_at=NOW, cause=cause, plan=odd))
    with ledger.transaction() as session:
        assert session.scalar(select(RunRow.parameters)) == odd
        assert session.scalar(select(FailoverRow.cause)) == "a\N{REPLACEMENT CHARACTER}b?c"


def test_there_is_room_for_large_results_and_long_addresses(postgres, url):
    with create_engine(url, poolclass=NullPool).connect() as connection:
        types = {column["name"]: str(column["type"]) for column in inspect(connection).get_columns("result")}
        assert (types["rows"], types["bytes"]) == ("BIGINT", "BIGINT")
        types = {column["name"]: str(column["type"]) for column in inspect(connection).get_columns("attempt")}
        assert types["session_url"] == "TEXT"


def open_ledger(url, _number):
    Ledger.open(url).close()


def test_processes_that_migrate_at_once_make_one_ledger(postgres, empty_url):
    together(4, open_ledger, empty_url)
    with postgres.connect(database_of(empty_url)) as connection:
        assert connection.scalars(text("SELECT version_num FROM alembic_version")).all() == [HEAD]


# What a person has to mend


def changed(url, **parts):
    return make_url(url).set(**parts).render_as_string(hide_password=False)


def test_a_wrong_password_is_named_but_not_shown(url):
    with pytest.raises(Misconfigured, check=of_kind("ledger.unusable")) as raised:
        Ledger.open(changed(url, password="secret"))
    assert "secret" not in str(raised.value)


def test_an_unknown_database_is_named(url):
    with pytest.raises(Misconfigured, check=of_kind("ledger.unusable")):
        Ledger.open(changed(url, database="nowhere"))


@pytest.mark.parametrize("has_tables", [False, True])
def test_a_role_without_rights_is_told_what_it_needs(postgres, empty_url, has_tables):
    if has_tables:
        Ledger.open(empty_url)
    with postgres.connect() as connection:
        connection.exec_driver_sql("DROP ROLE IF EXISTS guest")
        connection.exec_driver_sql("CREATE ROLE guest LOGIN PASSWORD 'g'")
    with pytest.raises(Misconfigured, check=of_kind("ledger.unusable")):
        Ledger.open(changed(empty_url, username="guest", password="g"))


def test_the_database_of_another_program_is_refused_and_left_as_it_is(postgres, empty_url):
    with postgres.connect(database_of(empty_url)) as connection:
        connection.exec_driver_sql("CREATE TABLE alembic_version AS SELECT 'd2f4e1b3c5a7' AS version_num")
    with pytest.raises(Misconfigured, check=of_kind("ledger.of_other_program", found="d2f4e1b3c5a7")):
        Ledger.open(empty_url)
    with postgres.connect(database_of(empty_url)) as connection:
        assert inspect(connection).get_table_names() == ["alembic_version"]


@pytest.mark.parametrize("bad", ["mysql://u:secret@h/weir", "postgresql+asyncpg://u:secret@h/weir", "weir:secret"])
def test_another_kind_of_database_is_refused_without_its_password(bad):
    with pytest.raises(Misconfigured, match=r"expected sqlite:.* or postgresql\+psycopg2:") as raised:
        Ledger.open(bad)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("scheme", ["postgres", "postgresql"])
def test_a_url_without_a_driver_is_understood(url, scheme):
    Ledger.open(changed(url, drivername=scheme)).close()


# What passes by itself


def test_a_standby_is_no_reason_to_give_up(postgres, ledger, url):
    with postgres.connect() as connection:
        connection.exec_driver_sql(f"ALTER DATABASE {database_of(url)} SET default_transaction_read_only = on")
    with pytest.raises(Retryable, check=of_kind("ledger.read_only")), ledger.transaction("ladder") as session:
        count_up(session)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    with running_pair(tmp_path_factory.mktemp("pair")) as started:
        yield started


def test_a_transaction_waits_until_a_replica_is_promoted(pair):
    """The URL has both hosts, and need not say that the primary is wanted."""
    ledger = Ledger.open(pair.url("weir").replace("&target_session_attrs=read-write", ""))
    first_begin(ledger)
    pair.primary.freeze()
    with ThreadPoolExecutor() as pool:
        promoting = pool.submit(pair.fail_over)
        first_begin(ledger)
        promoting.result()
    assert count(ledger) == 2
    pair.add_replica()


def test_a_replica_that_is_not_promoted_is_named_without_the_password(pair, monkeypatch):
    monkeypatch.setattr(postgres_module, "LOCK_SECONDS", 1)
    url = pair.url("weir")
    ledger = Ledger.open(url)
    pair.primary.kill()
    password = make_url(url).password
    with (
        pytest.raises(Retryable, match=f"{pair.replica.port}", check=of_kind("ledger.read_only")) as raised,
        ledger.transaction(),
    ):
        pass
    assert password not in str(raised.value)


def test_a_server_that_is_not_there_is_retryable_when_the_ledger_is_opened(postgres, url):
    postgres.stop()
    try:
        with pytest.raises(Retryable, check=of_kind("ledger.silent")):
            Ledger.open(url)
    finally:
        postgres.start()


def test_a_transaction_waits_for_a_server_that_is_restarted(postgres, ledger):
    postgres.stop()
    with ThreadPoolExecutor() as pool:
        starting = pool.submit(postgres.start)
        first_begin(ledger)
        starting.result()
    assert count(ledger) == 1


def test_a_transaction_that_lost_its_server_has_changed_nothing(postgres, ledger):
    def lose():
        with ledger.transaction("ladder") as session:
            count_up(session)
            session.flush()
            postgres.restart()

    with pytest.raises(Retryable, check=of_kind("ledger.silent")):
        lose()
    assert count(ledger) == 0


def test_what_is_performed_is_done_even_if_its_server_is_lost(postgres, ledger):
    tries = []

    def work(session):
        count_up(session)
        session.flush()
        tries.append(1)
        if len(tries) == 1:
            postgres.restart()
        return "done"

    assert ledger.perform("ladder", work) == "done"
    assert (len(tries), count(ledger)) == (2, 1)


def test_a_lock_that_is_held_too_long_is_retryable(ledger, monkeypatch):
    monkeypatch.setattr(postgres_module, "LOCK_SECONDS", 1)
    first_begin(ledger)
    with (
        ledger.transaction("ladder"),
        pytest.raises(Retryable, check=of_kind("ledger.silent")),
        ledger.transaction("ladder"),
    ):
        pass


def test_a_process_that_stands_still_in_a_transaction_does_not_stop_its_dataflow(ledger, monkeypatch):
    monkeypatch.setattr(postgres_module, "IDLE_SECONDS", 1)

    def stand_still():
        with ledger.transaction("ladder") as session:
            count_up(session)
            session.flush()
            first_begin(ledger)  # has its turn when the server has ended this one

    with pytest.raises(Retryable, check=of_kind("ledger.silent")):
        stand_still()
    assert count(ledger) == 1


def patient_writer(url, _number):
    ledger = Ledger.open(url)
    for _ in range(5):
        first_begin(ledger)


CONNECTED = text("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'")


def test_more_writers_than_connections_all_have_their_turn(tmp_path):
    few = {"max_connections": "4", "superuser_reserved_connections": "0", "max_wal_senders": "0"}
    with running_postgres(tmp_path, few) as server, new_postgres_url(server) as url:
        with ExitStack() as taken:
            first = taken.enter_context(server.connect())
            while first.scalar(CONNECTED) > 1:  # a closed connection counts until its process has ended
                pass
            for _ in range(3):
                taken.enter_context(server.connect())
            started = start(12, patient_writer, url)
            while "too many clients" not in (tmp_path / "postgres.log").read_text():
                assert any(each.is_alive() for each in started)
                started[0].join(0.05)
        require_end(started)
        assert count(Ledger.open(url)) == 60


# A connection that breaks at the commit


COMMIT = b"Q\x00\x00\x00\x0bCOMMIT\x00"


class Cable:
    """Carries bytes between a ledger and its server; `cut` says on which side of the next commit it breaks, once."""

    def __init__(self, port):
        self.cut = None
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        self._listener.close()

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._carry, args=(client,), daemon=True).start()

    def _carry(self, client):
        with closing(client), socket.create_connection(("127.0.0.1", self._port)) as server:
            back = threading.Thread(target=self._pump, args=(server, client), daemon=True)
            back.start()
            while data := self._receive(client):
                cut, self.cut = (self.cut, None) if COMMIT in data else (None, self.cut)
                if cut is not None:
                    client.shutdown(socket.SHUT_RDWR)
                if cut != "before":
                    server.sendall(data)
                if cut is not None:
                    server.shutdown(socket.SHUT_RDWR)
                    return

    def _pump(self, server, client):
        try:
            while data := self._receive(server):
                client.sendall(data)
        except OSError:
            pass

    def _receive(self, end):
        try:
            return end.recv(65536)
        except OSError:
            return b""


@pytest.fixture
def cable(postgres):
    with closing(Cable(postgres.port)) as made:
        yield made


@pytest.fixture
def far_ledger(cable, url):
    return Ledger.open(changed(url, port=cable.port))


@pytest.mark.parametrize(("cut", "counted"), [("before", 0), ("behind", 1)])
def test_whether_a_commit_that_broke_was_one_is_for_a_later_try_to_see(cable, far_ledger, ledger, cut, counted):
    cable.cut = cut
    with pytest.raises(Retryable, check=of_kind("ledger.silent")):
        first_begin(far_ledger)
    assert count(ledger) == counted


@pytest.mark.parametrize("cut", ["before", "behind"])
def test_what_looks_first_is_performed_once_wherever_its_commit_breaks(cable, far_ledger, ledger, cut):
    def work(session):
        if session.get(DataflowRow, "ladder") is None:
            count_up(session)
        return "done"

    cable.cut = cut
    assert far_ledger.perform("ladder", work) == "done"
    assert count(ledger) == 1
