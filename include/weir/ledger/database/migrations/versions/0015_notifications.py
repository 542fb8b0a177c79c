"""Notifications, and what their receivers were told."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    """Create the tables."""
    large = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "notification",
        sa.Column("id", large, primary_key=True, autoincrement=True),
        sa.Column("event", sa.Text(), nullable=False, unique=True),
        sa.Column("dataflow", sa.String(length=60), nullable=False),
        sa.Column("kind", sa.String(length=40), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("document", sa.JSON(), nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("notifications_of_dataflow", "notification", ["dataflow", "id"])
    op.create_table(
        "receiver",
        sa.Column("id", sa.Integer(), primary_key=True, autoincrement=True),
        sa.Column("dataflow", sa.String(length=60), nullable=False),
        sa.Column("name", sa.String(length=250), nullable=False),
        sa.Column("told", large, nullable=False),
        sa.Column("told_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("holder", sa.String(length=40), nullable=True),
        sa.Column("held_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("problem", sa.Text(), nullable=True),
        sa.Column("problem_since", sa.DateTime(timezone=True), nullable=True),
        sa.Column("retry_at", sa.DateTime(timezone=True), nullable=True),
        sa.UniqueConstraint("dataflow", "name"),
    )
