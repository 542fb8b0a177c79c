"""Bringing a ledger to the newest revision. Invariant: a migration happens in one transaction, or not at all."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Engine


def upgrade(engine: Engine) -> None:
    """Run the missing migrations. Of two processes that come at once the second waits and finds nothing to do."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    with engine.begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.exec_driver_sql("SELECT pg_advisory_xact_lock(7390217)")
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
