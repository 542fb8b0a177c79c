"""Results of more than 2 GiB or two billion rows, and long addresses, on databases whose types have a size."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Make rows and bytes of results long integers, and addresses texts. SQLite's are."""
    if op.get_bind().dialect.name == "sqlite":
        return
    for column in ("rows", "bytes"):
        op.alter_column("result", column, type_=sa.BigInteger(), existing_type=sa.Integer(), existing_nullable=False)
    op.alter_column("attempt", "session_url", type_=sa.Text(), existing_type=sa.String(250), existing_nullable=False)
