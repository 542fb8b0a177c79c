"""The ledger as it began."""

import sqlalchemy as sa
from alembic import op

from weir.ledger.database.columns import UtcDateTime

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create all tables."""
    op.create_table(
        "dataflow",
        sa.Column("name", sa.String(length=60), nullable=False),
        sa.Column("lineage", sa.Integer(), nullable=False),
        sa.Column("store_id", sa.String(length=64), nullable=False),
        sa.Column("first_epoch", sa.String(length=32), nullable=True),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "run",
        sa.Column("id", sa.String(length=120), nullable=False),
        sa.Column("dataflow", sa.String(length=60), nullable=False),
        sa.Column("epoch", sa.String(length=32), nullable=False),
        sa.Column("interval_start", UtcDateTime(), nullable=False),
        sa.Column("interval_end", UtcDateTime(), nullable=False),
        sa.Column("dag_id", sa.String(length=250), nullable=False),
        sa.Column("run_id", sa.String(length=250), nullable=False),
        sa.Column("task_prefix", sa.String(length=250), nullable=False),
        sa.Column("pinned", sa.JSON(), nullable=True),
        sa.Column("parameters", sa.JSON(), nullable=False),
        sa.Column("predecessor", sa.String(length=32), nullable=True),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("closed_at", UtcDateTime(), nullable=True),
        sa.ForeignKeyConstraint(
            ["dataflow"],
            ["dataflow.name"],
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("dataflow", "epoch"),
    )
    op.create_index("run_in_airflow", "run", ["dag_id", "run_id"], unique=False)
    op.create_table(
        "attempt",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("run", sa.String(length=120), nullable=False),
        sa.Column("region", sa.String(length=250), nullable=False),
        sa.Column("subtask", sa.Integer(), nullable=False),
        sa.Column("task_id", sa.String(length=250), nullable=False),
        sa.Column("map_index", sa.Integer(), nullable=False),
        sa.Column("try_number", sa.Integer(), nullable=False),
        sa.Column("max_tries", sa.Integer(), nullable=False),
        sa.Column("clear_number", sa.Integer(), nullable=False),
        sa.Column("ti_id", sa.String(length=64), nullable=False),
        sa.Column("lineage", sa.Integer(), nullable=False),
        sa.Column("origin", sa.String(length=20), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("session_id", sa.String(length=64), nullable=False),
        sa.Column("session_url", sa.String(length=250), nullable=False),
        sa.Column("began_at", UtcDateTime(), nullable=False),
        sa.Column("ended_at", UtcDateTime(), nullable=True),
        sa.Column("waits", sa.Integer(), nullable=False),
        sa.Column("failure", sa.String(length=20), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("metrics", sa.JSON(), nullable=True),
        sa.ForeignKeyConstraint(
            ["run"],
            ["run.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("run", "region", "subtask", "try_number"),
    )
    op.create_table(
        "failover",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("run", sa.String(length=120), nullable=False),
        sa.Column("attempt", sa.String(length=40), nullable=False),
        sa.Column("region", sa.String(length=250), nullable=False),
        sa.Column("subtask", sa.Integer(), nullable=False),
        sa.Column("decided_at", UtcDateTime(), nullable=False),
        sa.Column("cause", sa.Text(), nullable=False),
        sa.Column("plan", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(
            ["run"],
            ["run.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "publication",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("run", sa.String(length=120), nullable=False),
        sa.Column("sink", sa.String(length=60), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.String(length=40), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("pointer", sa.String(length=500), nullable=False),
        sa.Column("published_at", UtcDateTime(), nullable=True),
        sa.ForeignKeyConstraint(
            ["run"],
            ["run.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("run", "sink", "version"),
    )
    op.create_table(
        "source_slice",
        sa.Column("run", sa.String(length=120), nullable=False),
        sa.Column("stage", sa.String(length=60), nullable=False),
        sa.Column("slices", sa.JSON(), nullable=False),
        sa.Column("attempt", sa.String(length=40), nullable=False),
        sa.Column("resolved_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["run"],
            ["run.id"],
        ),
        sa.PrimaryKeyConstraint("run", "stage"),
    )
    op.create_table(
        "consumption",
        sa.Column("attempt", sa.String(length=40), nullable=False),
        sa.Column("argument", sa.String(length=200), nullable=False),
        sa.Column("run", sa.String(length=120), nullable=False),
        sa.Column("stage", sa.String(length=60), nullable=False),
        sa.Column("subtask", sa.Integer(), nullable=False),
        sa.Column("layout", sa.String(length=120), nullable=False),
        sa.Column("input_attempt", sa.String(length=40), nullable=False),
        sa.Column("digest", sa.String(length=200), nullable=False),
        sa.ForeignKeyConstraint(
            ["attempt"],
            ["attempt.id"],
        ),
        sa.PrimaryKeyConstraint("attempt", "argument", "run", "stage", "subtask", "layout"),
    )
    op.create_index("consumers_of", "consumption", ["run", "stage", "subtask", "layout"], unique=False)
    op.create_table(
        "owed_clear",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("dataflow", sa.String(length=60), nullable=False),
        sa.Column("run", sa.String(length=120), nullable=False),
        sa.Column("region", sa.String(length=250), nullable=False),
        sa.Column("subtask", sa.Integer(), nullable=False),
        sa.Column("dag_id", sa.String(length=250), nullable=False),
        sa.Column("run_id", sa.String(length=250), nullable=False),
        sa.Column("task_id", sa.String(length=250), nullable=False),
        sa.Column("map_index", sa.Integer(), nullable=False),
        sa.Column("expected_try", sa.Integer(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("failover", sa.Integer(), nullable=True),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("settled_at", UtcDateTime(), nullable=True),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.Column("found_try", sa.Integer(), nullable=True),
        sa.Column("is_void", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(
            ["failover"],
            ["failover.id"],
        ),
        sa.ForeignKeyConstraint(
            ["run"],
            ["run.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("owed_of_region", "owed_clear", ["run", "region", "subtask"], unique=False)
    op.create_table(
        "result",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("run", sa.String(length=120), nullable=False),
        sa.Column("stage", sa.String(length=60), nullable=False),
        sa.Column("subtask", sa.Integer(), nullable=False),
        sa.Column("layout", sa.String(length=120), nullable=False),
        sa.Column("attempt", sa.String(length=40), nullable=False),
        sa.Column("is_current", sa.Boolean(), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("state_reason", sa.Text(), nullable=False),
        sa.Column("state_at", UtcDateTime(), nullable=False),
        sa.Column("folder", sa.String(length=500), nullable=False),
        sa.Column("manifest_sha256", sa.String(length=64), nullable=False),
        sa.Column("digest", sa.String(length=200), nullable=False),
        sa.Column("rows", sa.Integer(), nullable=False),
        sa.Column("bytes", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["attempt"],
            ["attempt.id"],
        ),
        sa.ForeignKeyConstraint(
            ["run"],
            ["run.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("attempt", "stage", "subtask", "layout"),
    )
    op.create_index(
        "one_current_result",
        "result",
        ["run", "stage", "subtask", "layout"],
        unique=True,
        sqlite_where=sa.text("is_current = 1"),
        postgresql_where=sa.text("is_current"),
    )
    op.create_table(
        "lease",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("result", sa.Integer(), nullable=False),
        sa.Column("holder", sa.String(length=120), nullable=False),
        sa.Column("expires_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["result"],
            ["result.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
    )
