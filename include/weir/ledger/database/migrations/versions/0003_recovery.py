"""Adds the records of recovery: labels, incidents, faults, a result's inputs; and stores consumption by sets."""

import hashlib
import json
from itertools import groupby

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

_KEY = ("attempt", "argument", "run", "stage", "layout")


def upgrade() -> None:
    """Add the columns, and write each input's partitions into one row for all who read the same."""
    op.add_column("attempt", sa.Column("labels", sa.JSON(), nullable=True))
    op.add_column("result", sa.Column("made_from", sa.String(length=64), nullable=True))
    op.add_column("result", sa.Column("differs_from", sa.String(length=40), nullable=True))
    op.add_column("result", sa.Column("fault", sa.String(length=20), nullable=True))
    op.add_column("failover", sa.Column("kind", sa.String(length=20), nullable=True))
    op.add_column("failover", sa.Column("labels", sa.JSON(), nullable=True))
    op.add_column("failover", sa.Column("incident", sa.Integer(), nullable=True))
    _gather_consumption()


def _gather_consumption() -> None:
    connection = op.get_bind()
    order = "attempt, argument, run, stage, layout, subtask"
    rows = connection.execute(sa.text(f"SELECT * FROM consumption ORDER BY {order}")).mappings().all()  # noqa: S608  no input
    op.drop_table("consumption")
    sets = op.create_table(
        "read_set",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("members", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    consumption = op.create_table(
        "consumption",
        sa.Column("attempt", sa.String(length=40), nullable=False),
        sa.Column("argument", sa.String(length=200), nullable=False),
        sa.Column("run", sa.String(length=120), nullable=False),
        sa.Column("stage", sa.String(length=60), nullable=False),
        sa.Column("layout", sa.String(length=120), nullable=False),
        sa.Column("read_set", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(["attempt"], ["attempt.id"]),
        sa.ForeignKeyConstraint(["read_set"], ["read_set.id"]),
        sa.PrimaryKeyConstraint(*_KEY),
    )
    op.create_index("consumers_of", "consumption", ["run", "stage", "layout"], unique=False)
    found: dict[str, list[list[object]]] = {}
    consumed = []
    for key, group in groupby(rows, key=lambda row: tuple(row[name] for name in _KEY)):
        members = [[row["subtask"], row["input_attempt"], row["digest"]] for row in group]
        name = hashlib.sha256(json.dumps(members, separators=(",", ":")).encode()).hexdigest()
        found[name] = members
        consumed.append({**dict(zip(_KEY, key, strict=True)), "read_set": name})
    if consumed:
        op.bulk_insert(sets, [{"id": name, "members": members} for name, members in found.items()])
        op.bulk_insert(consumption, consumed)
