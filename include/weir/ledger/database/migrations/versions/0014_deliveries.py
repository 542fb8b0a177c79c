"""Versions of sinks that are committed into targets."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "delivery",
        sa.Column("id", sa.Integer(), primary_key=True, autoincrement=True),
        sa.Column("run", sa.String(length=120), sa.ForeignKey("run.id"), nullable=False),
        sa.Column("sink", sa.String(length=60), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("place", sa.Integer(), nullable=False),
        sa.Column("delivery", sa.JSON(), nullable=False),
        sa.Column("outcome", sa.String(length=20), nullable=True),
        sa.Column("delivered_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("copied_bytes", sa.BigInteger(), nullable=True),
        sa.Column("problem", sa.Text(), nullable=True),
        sa.Column("problem_since", sa.DateTime(timezone=True), nullable=True),
        sa.UniqueConstraint("run", "sink", "version", "place"),
    )
    pending = sa.text("outcome IS NULL")
    op.create_index("pending_deliveries", "delivery", ["run"], postgresql_where=pending, sqlite_where=pending)
