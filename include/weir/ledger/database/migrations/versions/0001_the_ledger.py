"""The ledger: the tables that the models say.

Until a release is tagged, a change of the models changes this migration, and HEAD with it (docs/upgrading.md). With the
release it is written out, and each later change is a migration of its own.
"""

import uuid

from alembic import op
from sqlalchemy import insert

from weir.ledger.database import code_tables, outbox_tables  # noqa: F401  # their tables are known once they are imported
from weir.ledger.database.dataset_tables import LedgerRow
from weir.ledger.database.tables import Table
from weir.ledger.ledger import HEAD

revision = HEAD
down_revision = None


def upgrade() -> None:
    """Create all tables and indexes, and give the ledger its id."""
    Table.metadata.create_all(op.get_bind())
    op.get_bind().execute(insert(LedgerRow).values(id=str(uuid.uuid4())))
