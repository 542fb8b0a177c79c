"""Alembic's entry: runs the migrations on the connection that `weir.ledger.migrate` hands in."""

from alembic import context

from weir.ledger import state_models  # noqa: F401  # its tables are known once it is imported
from weir.ledger.models import Table

context.configure(
    connection=context.config.attributes["connection"], target_metadata=Table.metadata, render_as_batch=True
)
with context.begin_transaction():
    context.run_migrations()
