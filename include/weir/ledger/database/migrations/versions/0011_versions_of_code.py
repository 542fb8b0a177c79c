"""The code of runs, attempts and results; and which clears somebody else had done before."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    """Add the columns and tables; of what was computed before, no version is known, and its clears were Weir's."""
    op.add_column("run", sa.Column("archive", sa.String(length=64), nullable=True))
    op.add_column("attempt", sa.Column("code", sa.String(length=80), nullable=True))
    op.add_column("attempt", sa.Column("archive", sa.String(length=64), nullable=True))
    op.add_column("attempt", sa.Column("generation", sa.Integer(), nullable=True))
    op.add_column("result", sa.Column("versions", sa.JSON(), nullable=True))
    op.add_column("owed_clear", sa.Column("sends", sa.Integer(), nullable=False, server_default="0"))
    op.execute("UPDATE owed_clear SET sends = 1 WHERE settled_at IS NOT NULL")
    op.add_column("owed_clear", sa.Column("code", sa.String(length=20), nullable=True))
    op.create_table(
        "archive",
        sa.Column("dataflow", sa.String(length=60), sa.ForeignKey("dataflow.name"), primary_key=True),
        sa.Column("fingerprint", sa.String(length=64), primary_key=True),
        sa.Column("path", sa.String(length=250), nullable=False),
        sa.Column("bytes", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("stored_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("deleting_at", sa.DateTime(timezone=True), nullable=True),
    )
    op.create_table(
        "same_code",
        sa.Column("id", sa.Integer(), primary_key=True, autoincrement=True),
        sa.Column("dataflow", sa.String(length=60), sa.ForeignKey("dataflow.name"), nullable=False),
        sa.Column("stage", sa.String(length=60), nullable=False),
        sa.Column("one", sa.String(length=80), nullable=False),
        sa.Column("other", sa.String(length=80), nullable=False),
        sa.Column("declared_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("declared_by", sa.String(length=250), nullable=False),
        sa.UniqueConstraint("dataflow", "stage", "one", "other"),
    )
