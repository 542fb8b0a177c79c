"""Checkpoints, compactions of keyed state, and what dataflows were restored from."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

_TIME = sa.DateTime(timezone=True)
_BYTES = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Add what keyed state needs."""
    op.create_table(
        "checkpoint",
        sa.Column("id", sa.Integer(), primary_key=True, autoincrement=True),
        sa.Column("dataflow", sa.String(length=60), sa.ForeignKey("dataflow.name"), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("epoch", sa.String(length=32), nullable=False),
        sa.Column("run", sa.String(length=120), nullable=False),
        sa.Column("lineage", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.String(length=40), nullable=False),
        sa.Column("content", sa.String(length=64), nullable=False),
        sa.Column("folder", sa.Text().with_variant(sa.String(length=250), "sqlite"), nullable=False),
        sa.Column("triggered_at", _TIME, nullable=False),
        sa.Column("completed_at", _TIME),
        sa.Column("subsumed_at", _TIME),
        sa.Column("subsumed_by", sa.Integer()),
        sa.Column("deleted_at", _TIME),
        sa.Column("full_bytes", _BYTES, nullable=False),
        sa.Column("incremental_bytes", _BYTES, nullable=False),
        sa.Column("new_files", sa.Integer(), nullable=False),
        sa.Column("shared_files", sa.Integer(), nullable=False),
        sa.UniqueConstraint("dataflow", "number"),
    )
    op.create_index("checkpoints_of_run", "checkpoint", ["run"])
    op.create_table(
        "compaction",
        sa.Column("id", sa.Integer(), primary_key=True, autoincrement=True),
        sa.Column("dataflow", sa.String(length=60), nullable=False),
        sa.Column("run", sa.String(length=120), sa.ForeignKey("run.id"), nullable=False),
        sa.Column("state", sa.String(length=60), nullable=False),
        sa.Column("subtask", sa.Integer(), nullable=False),
        sa.Column("of_attempt", sa.String(length=40), nullable=False),
        sa.Column("attempt", sa.String(length=40), nullable=False),
        sa.Column("files", sa.JSON(), nullable=False),
        sa.Column("read_bytes", _BYTES, nullable=False),
        sa.Column("written_bytes", _BYTES, nullable=False),
        sa.Column("made_at", _TIME, nullable=False),
        sa.UniqueConstraint("of_attempt", "state", "subtask"),
    )
    op.create_index("compactions_of_run", "compaction", ["run"])
    op.create_table(
        "restore",
        sa.Column("id", sa.Integer(), primary_key=True, autoincrement=True),
        sa.Column("dataflow", sa.String(length=60), sa.ForeignKey("dataflow.name"), nullable=False),
        sa.Column("epoch", sa.String(length=32), nullable=False),
        sa.Column("lineage", sa.Integer(), nullable=False),
        sa.Column("origin", sa.String(length=60), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("source", sa.String(length=500), nullable=False),
        sa.Column("mode", sa.String(length=20), nullable=False),
        sa.Column("left_out", sa.JSON(), nullable=False),
        sa.Column("restored_at", _TIME, nullable=False),
        sa.Column("unpinned_at", _TIME),
    )
