"""The revision of a dataflow, by which a ledger is recognised that has lost commits."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    """Add the columns; files that were written before have no revision, so any is above theirs."""
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.add_column("dataflow", sa.Column("revision", number, nullable=False, server_default="1"))
    op.add_column("dataflow", sa.Column("is_behind", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.add_column("dataflow", sa.Column("timeline", sa.String(length=8), nullable=True))
