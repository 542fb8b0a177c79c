"""Alembic's entry: runs the migrations on the connection that `weir.ledger.database.migrate` hands in."""

from alembic import context

from weir.ledger.database.tables import Table

context.configure(
    connection=context.config.attributes["connection"], target_metadata=Table.metadata, render_as_batch=True
)
with context.begin_transaction():
    context.run_migrations()
