"""Adds the records of retention: state transitions, deletions, verifications, expiry, and times of upkeep."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

_TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Add columns and tables; leases get indexes, since each release asks for them."""
    for table, columns in (
        ("run", ("released_at", "deleted_at", "expired_at")),
        ("attempt", ("heard_at",)),
        ("result", ("deleted_at", "verified_at")),
        ("publication", ("expired_at",)),
    ):
        for column in columns:
            op.add_column(table, sa.Column(column, _TIME, nullable=True))
    op.add_column("publication", sa.Column("folders", sa.JSON(), nullable=True))
    op.create_table(
        "result_event",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("result", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("at", _TIME, nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["result"], ["result.id"]),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("events_of_result", "result_event", ["result"], unique=False)
    op.create_table(
        "housekeeping",
        sa.Column("job", sa.String(length=40), nullable=False),
        sa.Column("scope", sa.String(length=60), nullable=False),
        sa.Column("done_at", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("job", "scope"),
    )
    op.create_index("leases_of_result", "lease", ["result"], unique=False)
    op.create_index("leases_of_holder", "lease", ["holder"], unique=False)
