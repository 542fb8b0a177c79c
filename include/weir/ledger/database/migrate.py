"""Bringing a ledger to the newest revision. Invariant: a migration happens in one transaction, or not at all."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Engine


def known_revisions() -> frozenset[str]:
    """Return all revisions that this code has a migration for."""
    return frozenset(script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions())


def upgrade(engine: Engine, revision: str = "head") -> None:
    """Run the missing migrations. Of two processes that come at once the second waits and finds nothing to do."""
    config = _config()
    with engine.begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.exec_driver_sql("SELECT pg_advisory_xact_lock(7390217)")
        config.attributes["connection"] = connection
        command.upgrade(config, revision)


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    return config
