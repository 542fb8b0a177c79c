"""Column types that behave the same on SQLite and PostgreSQL, and values that are made of rows."""

from __future__ import annotations

from dataclasses import fields
from datetime import UTC, datetime
from typing import Any, TypeVar

from sqlalchemy import BigInteger, DateTime, Dialect, Integer, String, Text, TypeDecorator

V = TypeVar("V")


class UtcDateTime(TypeDecorator[datetime]):
    """An aware datetime in UTC: SQLite forgets zones, and PostgreSQL answers in the server's."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002 - SQLAlchemy's signature
        """Store in UTC."""
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002 - SQLAlchemy's signature
        """Return the time with its zone, UTC."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Prose(TypeDecorator[str]):
    """Text from anywhere: what no database can hold of it (NUL, half of a surrogate pair) is replaced."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:  # noqa: ARG002 - SQLAlchemy's signature
        """Replace."""
        if value is None:
            return None
        return value.replace("\0", "\N{REPLACEMENT CHARACTER}").encode(errors="replace").decode()


LARGE = BigInteger().with_variant(Integer, "sqlite")
"""Above two billion; SQLite's integers have no size."""

ADDRESS = Text().with_variant(String(250), "sqlite")
"""Of any length: a Spark master may be a list of hosts. SQLite's texts have no length."""


def taken(kind: type[V], row: Any, /, **others: Any) -> V:
    """Return a value with these fields, and all others as the row has them, whose columns have their names."""
    names = (each.name for each in fields(kind) if each.name not in others)  # type: ignore[arg-type]
    return kind(**{name: getattr(row, name) for name in names}, **others)
