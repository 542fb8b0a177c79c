"""Indexes for ledgers with the results of years, and jobs of upkeep that go on where they were stopped."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"

INDEXES = (
    ("runs_by_predecessor", "run", ["dataflow", "predecessor"]),
    ("attempts_by_begin", "attempt", ["began_at"]),
    ("attempts_by_end", "attempt", ["ended_at"]),
    ("failovers_of_run", "failover", ["run"]),
)

PUBLISHED = "expired_at IS NULL AND published_at IS NOT NULL"
UNSETTLED = "expired_at IS NULL AND (version > 1 OR published_at IS NULL OR expiring_at IS NOT NULL)"

PARTIAL = (
    ("open_runs", "run", ["dataflow", "epoch"], "closed_at IS NULL", "closed_at IS NULL"),
    ("runs_to_release", "run", ["dataflow", "epoch"], "released_at IS NULL", "released_at IS NULL"),
    ("records_due", "run", ["dataflow"], "is_record_due", "is_record_due = 1"),
    ("old_results", "result", ["state", "run"], "is_current IS false", "is_current IS 0"),
    ("live_publications", "publication", ["published_at"], PUBLISHED, PUBLISHED),
    ("unsettled_publications", "publication", ["run"], UNSETTLED, UNSETTLED),
    ("undeleted_checkpoints", "checkpoint", ["dataflow", "number"], "deleted_at IS NULL", "deleted_at IS NULL"),
)
"""Of few rows each: the condition on PostgreSQL, and that on SQLite."""


def upgrade() -> None:
    """Add the indexes, and how far a job of upkeep has come."""
    op.add_column("housekeeping", sa.Column("reached", sa.String(length=32), nullable=True))
    for name, table, columns in INDEXES:
        op.create_index(name, table, columns)
    for name, table, columns, where, on_sqlite in PARTIAL:
        op.create_index(name, table, columns, postgresql_where=sa.text(where), sqlite_where=sa.text(on_sqlite))
