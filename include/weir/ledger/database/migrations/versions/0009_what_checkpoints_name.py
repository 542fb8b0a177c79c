"""The results that a checkpoint names, and the results that a run had when its closing task committed.

Both are numbers of the ledger: the clocks of two workers are never compared.
"""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"

_RUN = sa.table("run", sa.column("id", sa.String()), sa.column("closed_at"), sa.column("closed_result", sa.Integer()))
_RESULT = sa.table("result", sa.column("id", sa.Integer()), sa.column("run", sa.String()))


def upgrade() -> None:
    """Add the columns. A closed run counts as closed with all of its results; checkpoints are looked at by upkeep."""
    op.add_column("checkpoint", sa.Column("results", sa.JSON(), nullable=True))
    op.add_column("run", sa.Column("closed_result", sa.Integer(), nullable=True))
    newest = sa.select(sa.func.max(_RESULT.c.id)).where(_RESULT.c.run == _RUN.c.id).scalar_subquery()
    op.execute(sa.update(_RUN).where(_RUN.c.closed_at.is_not(None)).values(closed_result=newest))
