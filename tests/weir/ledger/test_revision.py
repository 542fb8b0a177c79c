"""The revision of a dataflow, by which transactions find out that the ledger has lost commits."""

import shutil
from contextlib import suppress

import pytest
from sqlalchemy import event, make_url, select, text
from sqlalchemy.exc import OperationalError
from tests.messages.kinds import of_kind
from tests.servers.postgres import running_postgres
from tests.weir.late_ledger import LateLedger

from weir.errors import LedgerBehind, Retryable
from weir.ledger.database.tables import DataflowRow
from weir.ledger.ledger import Ledger
from weir.ledger.runs import ensure_dataflow
from weir_dev.stack.postgres import hand_over

on_both = pytest.mark.parametrize("database", ["sqlite", "postgresql"])


@pytest.fixture
def url(request, tmp_path, database):
    return request.getfixturevalue("new_postgres_url")() if database == "postgresql" else f"sqlite:///{tmp_path}/l.db"


@pytest.fixture
def ledger(url):
    found = Ledger.open(url)
    work(found)
    yield found
    found.close()


def work(ledger, name="ladder"):
    with ledger.transaction(name) as session:
        ensure_dataflow(session, name, "s")


def row_of(ledger, name="ladder"):
    with ledger.transaction() as session:
        return session.scalar(select(DataflowRow).where(DataflowRow.name == name))


def go_back(ledger, revision):
    """As a backup has it."""
    with ledger._engine.begin() as connection:
        connection.execute(text("UPDATE dataflow SET revision = :to"), {"to": revision})


@on_both
def test_each_transaction_that_commits_raises_the_revision_of_its_dataflow(ledger):
    work(ledger, "other")
    before = row_of(ledger).revision
    work(ledger)
    with suppress(ZeroDivisionError), ledger.transaction("ladder"):
        raise ZeroDivisionError
    work(ledger)
    assert row_of(ledger).revision == ledger.seen("ladder") == before + 2
    assert row_of(ledger, "other").revision == 1


@on_both
def test_a_commit_whose_answer_is_lost_is_not_seen(url, ledger):
    late = LateLedger(ledger._engine)
    work(late)
    seen = late.seen("ladder")
    late.lose(commits=False)
    with suppress(Retryable):
        work(late)
    late.settle()
    assert late.seen("ladder") == seen == row_of(ledger).revision
    work(late)


@on_both
@pytest.mark.parametrize("left", [3, 5])
def test_a_process_that_has_seen_more_stops_all_until_the_ledger_has_caught_up(url, ledger, left):
    for _ in range(5):
        work(ledger)
    go_back(ledger, left)
    with pytest.raises(LedgerBehind, match=f"{left}", check=of_kind("ledger.behind")):
        work(ledger)
    other = Ledger.open(url)
    with pytest.raises(LedgerBehind, check=of_kind("ledger.behind")):
        work(other)
    work(other, "another")
    with ledger.transaction() as session, pytest.raises(LedgerBehind):
        ledger.require_not_behind(session, "ladder")
    with ledger.catching_up(), ledger.transaction("ladder") as session:
        ledger.end_behind(session, "ladder")
    work(other)
    work(ledger)
    assert row_of(ledger).revision > 6
    other.close()


@on_both
def test_a_file_tells_what_was_committed(ledger):
    ledger.saw("ladder", 40)
    ledger.saw("ladder", 30)
    with pytest.raises(LedgerBehind, check=of_kind("ledger.behind")):
        work(ledger)
    ledger.saw("new", 7)
    with pytest.raises(LedgerBehind, check=of_kind("ledger.behind", why="revision 7 was committed, and it has none")):
        work(ledger, "new")


@on_both
def test_work_is_not_repeated_in_a_ledger_that_is_behind(ledger):
    ledger.saw("ladder", 40)
    tried = []
    with pytest.raises(LedgerBehind):
        ledger.perform("ladder", tried.append)
    assert tried == []


@on_both
def test_a_transaction_costs_one_statement_to_enter(ledger):
    statements = []

    def note(_connection, _cursor, statement, *_more):
        statements.append(statement.split()[0])

    event.listen(ledger._engine, "before_cursor_execute", note)
    with ledger.transaction("ladder"):
        pass
    assert [each for each in statements if each not in ("SET", "PRAGMA", "BEGIN")] == ["UPDATE"]


@pytest.mark.parametrize("database", ["postgresql"])
def test_a_login_that_may_not_see_the_timeline_goes_by_revisions_alone(url, ledger, postgres):
    role = "blind"
    with postgres.connect(make_url(url).database) as connection:
        with suppress(OperationalError):
            connection.execute(text(f"CREATE ROLE {role} LOGIN PASSWORD '{postgres.password}'"))
        connection.execute(text(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}"))
        connection.execute(text("REVOKE EXECUTE ON FUNCTION pg_walfile_name(pg_lsn) FROM PUBLIC"))
    blind = Ledger.open(make_url(url).set(username=role).render_as_string(hide_password=False))
    work(blind)
    work(blind)
    blind.saw("ladder", 40)
    with pytest.raises(LedgerBehind, check=of_kind("ledger.behind")):
        work(blind)
    blind.close()
    with postgres.connect(make_url(url).database) as connection:
        connection.execute(text("GRANT EXECUTE ON FUNCTION pg_walfile_name(pg_lsn) TO PUBLIC"))
        connection.execute(text(f"DROP OWNED BY {role}"))
        connection.execute(text(f"DROP ROLE {role}"))


def test_a_server_that_was_promoted_without_the_last_commits_is_recognised_by_its_timeline(tmp_path):
    with running_postgres(tmp_path) as server:
        ledger = Ledger.open(server.url("weir"))
        for _ in range(2):
            work(ledger)
        data, replica = server._home / "data", server._home / "replica"
        server.stop()
        shutil.copytree(data, replica)
        server.start()
        for _ in range(3):
            work(ledger)
        server.stop()
        shutil.rmtree(data)
        replica.rename(data)
        (data / "recovery.signal").touch()  # it replays what it has, and is promoted
        with (data / "postgresql.auto.conf").open("a") as settings:
            settings.write("restore_command = 'false'\nhot_standby = off\n")  # and takes no connection before
        hand_over(server._home)
        server.start()
        other = Ledger.open(server.url("weir"))
        for _ in range(5):  # it has counted past what was lost, and knows of nothing
            with other.catching_up():
                work(other)
        new = Ledger.open(server.url("weir"))
        with pytest.raises(LedgerBehind, check=of_kind("ledger.behind")):
            work(new)
        with new.catching_up(), new.transaction("ladder") as session:
            new.end_behind(session, "ladder")
        for each in (ledger, other, new):
            work(each)
        assert row_of(new).timeline == "00000002"
