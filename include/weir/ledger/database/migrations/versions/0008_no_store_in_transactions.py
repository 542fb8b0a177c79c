"""What the store still owes to the ledger is recorded, so that no transaction waits for the store; and indexes.

Without them each commit, and the deletion of each result, read all results of all runs.
"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"

_INDEXES = (
    ("results_of_run", "result", ["run", "state"]),
    ("results_to_delete", "result", ["state", "deleted_at"]),
    ("attempts_in_state", "attempt", ["state"]),
    ("runs_by_age", "run", ["dataflow", "created_at"]),
    ("readers_of_set", "consumption", ["read_set"]),
    ("owed_of_failover", "owed_clear", ["failover"]),
    ("owed_now", "owed_clear", ["settled_at", "dataflow"]),
)


def upgrade() -> None:
    """Add the columns, of which a ledger that is migrated owes nothing, and the indexes."""
    op.add_column("run", sa.Column("abandoned", sa.JSON(), nullable=True))
    op.add_column("run", sa.Column("is_record_due", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.add_column("publication", sa.Column("expiring_at", sa.DateTime(timezone=True), nullable=True))
    for name, table, columns in _INDEXES:
        op.create_index(name, table, columns, unique=False)
