"""The causes of failures on which later decisions depend: refused rows, and a full disk of the store."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

_REFUSED = "QualityFailed"
_STORE_FULL = "StoreFull"
_ATTEMPT = sa.table(
    "attempt",
    sa.column("id", sa.String()),
    sa.column("error", sa.Text()),
    sa.column("labels", sa.JSON()),
    sa.column("failure_cause", sa.String()),
)


def upgrade() -> None:
    """Add the column, and fill it from revision 0006's source of causes: the error's text and a label."""
    op.add_column("attempt", sa.Column("failure_cause", sa.String(length=20), nullable=True))
    refused = _ATTEMPT.c.error.startswith(_REFUSED)
    op.execute(sa.update(_ATTEMPT).where(refused).values(failure_cause="refused"))
    connection = op.get_bind()
    labelled = connection.execute(sa.select(_ATTEMPT.c.id, _ATTEMPT.c.labels).where(_ATTEMPT.c.labels.is_not(None)))
    full = [{"attempt": name} for name, labels in labelled if labels and labels.get("exception") == _STORE_FULL]
    if full:
        of_attempt = _ATTEMPT.c.id == sa.bindparam("attempt")
        connection.execute(sa.update(_ATTEMPT).where(of_attempt).values(failure_cause="store full"), full)
