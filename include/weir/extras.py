"""The packages that the extras of the distribution bring.

Invariant: they are imported where they are used, and a missing one is answered with the extra that brings it.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from weir.errors import Misconfigured

if TYPE_CHECKING:
    from collections.abc import Iterator


EXTRAS: Final = {
    "pyspark": "connect",
    "grpc": "connect",
    "grpc_status": "connect",
    "pandas": "connect",
    "airflow.providers.apache": "submit",
    "great_expectations": "quality",
    "psycopg2": "postgres",
    "botocore": "s3",
    "s3fs": "s3",
    "deltalake": "delta",
    "pyiceberg": "iceberg",
    "confluent_kafka": "kafka",
    "starlette": "serve",
    "uvicorn": "serve",
}
"""The extra that brings a module. Where Spark runs on the machine itself, `local` does in the place of `connect`."""


@contextmanager
def needed_for(what: str, where: str = "Airflow's tasks run") -> Iterator[None]:
    """Answer an import that lacks a package with the extra that brings it. Raises Misconfigured."""
    try:
        yield
    except ImportError as error:
        command = command_for(error)
        if command is None:
            raise
        raise Misconfigured.of(
            "extras.package_missing", what=what, error=error, command=command, where=where
        ) from error


def command_for(error: ImportError) -> str | None:
    """Return the command that installs what an import has lacked; None if no extra brings it."""
    missing = error.name or ""
    extra = next((extra for module, extra in EXTRAS.items() if f"{missing}.".startswith(f"{module}.")), None)
    if extra is None or not isinstance(error, ModuleNotFoundError):
        return None
    return f"pip install 'weir[{extra}]'"
