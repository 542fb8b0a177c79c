"""Results of more than 2 GiB or two billion rows, on databases whose integers have a size."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Make rows and bytes of results long integers. SQLite's integers are."""
    if op.get_bind().dialect.name == "sqlite":
        return
    for column in ("rows", "bytes"):
        op.alter_column("result", column, type_=sa.BigInteger(), existing_type=sa.Integer(), existing_nullable=False)
