"""Until a release is tagged there is one migration, and the ledger of another build is refused."""

import hashlib

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.schema import CreateIndex, CreateTable
from tests.messages.kinds import of_kind

from weir.errors import OtherBuild
from weir.ledger.database import code_tables, outbox_tables  # noqa: F401  # their tables are part of the metadata
from weir.ledger.database.tables import Table
from weir.ledger.ledger import HEAD, Ledger, NotMigrated


def fingerprint():
    """What the two databases are told to create."""
    tables = Table.metadata.sorted_tables
    made = [CreateTable(table) for table in tables]
    made += [CreateIndex(each) for table in tables for each in sorted(table.indexes, key=lambda index: str(index.name))]
    said = [str(each.compile(dialect=of.dialect())) for of in (postgresql, sqlite) for each in made]
    return hashlib.sha256("\n".join(" ".join(each.split()) for each in said).encode()).hexdigest()[:12]


def test_tables_have_a_revision_of_their_own():
    """So that no build takes the ledger of another one for its own (docs/upgrading.md)."""
    assert fingerprint() == HEAD, f'the tables have changed: write HEAD = "{fingerprint()}"'


@pytest.fixture
def of_another_build(tmp_path):
    url = f"sqlite:///{tmp_path}/ledger.db"
    Ledger.open(url).close()
    with create_engine(url).begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '0015'"))
    return url


@pytest.mark.parametrize("opened", [Ledger.open, Ledger.open_as_it_is])
def test_the_ledger_of_another_build_is_refused_with_the_way_out_and_left_as_it_is(of_another_build, opened):
    with pytest.raises(OtherBuild, match=rf"revision 0015, and this Weir needs {HEAD}.*`weir export FOLDER`"):
        opened(of_another_build)
    with create_engine(of_another_build).connect() as connection:
        assert connection.execute(text("SELECT version_num FROM alembic_version")).scalar() == "0015"


def test_a_reader_makes_no_tables(tmp_path):
    (tmp_path / "ledger.db").touch()
    with pytest.raises(NotMigrated, check=of_kind("ledger.without_tables")):
        Ledger.open_as_it_is(f"sqlite:///{tmp_path}/ledger.db")
