"""Tries that failed before they were registered."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "failed_begin",
        sa.Column("id", sa.Integer(), primary_key=True, autoincrement=True),
        sa.Column("dataflow", sa.String(length=60), nullable=False),
        sa.Column("epoch", sa.String(length=32), nullable=True),
        sa.Column("dag_id", sa.String(length=250), nullable=False),
        sa.Column("run_id", sa.String(length=250), nullable=False),
        sa.Column("task_id", sa.String(length=250), nullable=False),
        sa.Column("map_index", sa.Integer(), nullable=False),
        sa.Column("try_number", sa.Integer(), nullable=False),
        sa.Column("failed_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("failure", sa.String(length=20), nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.UniqueConstraint("run_id", "dag_id", "task_id", "map_index"),
    )
