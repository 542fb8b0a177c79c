"""Adds the findings of data quality checks."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Add what checks are kept in."""
    op.create_table(
        "quality_check",
        sa.Column("id", sa.Integer(), primary_key=True, autoincrement=True),
        sa.Column("dataflow", sa.String(length=60), sa.ForeignKey("dataflow.name"), nullable=False),
        sa.Column("run", sa.String(length=120), nullable=False),
        sa.Column("epoch", sa.String(length=32), nullable=False),
        sa.Column("stage", sa.String(length=60), nullable=False),
        sa.Column("subtask", sa.Integer(), nullable=False),
        sa.Column("layout", sa.String(length=120), nullable=False),
        sa.Column("attempt", sa.String(length=40), nullable=False),
        sa.Column("by_attempt", sa.String(length=40), nullable=False),
        sa.Column("suite", sa.String(length=120), nullable=False),
        sa.Column("fingerprint", sa.String(length=64), nullable=False),
        sa.Column("why", sa.String(length=20), nullable=False),
        sa.Column("policy", sa.String(length=20), nullable=False),
        sa.Column("outcome", sa.String(length=20), nullable=False),
        sa.Column("digest", sa.String(length=200), nullable=False),
        sa.Column("rows", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("results", sa.JSON(), nullable=False),
        sa.Column("blamed", sa.JSON(), nullable=False),
        sa.Column("seconds", sa.Float(), nullable=False),
        sa.Column("checked_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("page", sa.String(length=500)),
    )
    op.create_index("checks_of_stage", "quality_check", ["dataflow", "stage", "suite"])
    op.create_index("checks_of_run", "quality_check", ["run"])
    op.create_index("checks_by_attempt", "quality_check", ["by_attempt"])
