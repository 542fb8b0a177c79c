"""Secrets and passwords of one local stack.

Invariant: made once per state folder, never printed but for the person's password, and readable by their owner only.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING

from weir.errors import Misconfigured
from weir_dev.files import write_atomically

if TYPE_CHECKING:
    from pathlib import Path


FILE_NAME = "secrets.json"

PERSON = "admin"
"""The account for a person: it may do everything."""

SERVICE = "weir"
"""The account of the connection `weir_api`: it may edit task instances and runs, but no connections and no settings."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """The secrets that Airflow's components share, the passwords of its two accounts, and the secrets of Spark.

    `spark_token` is that of the Connect server's clients, `spark_secret` that of all processes of a cluster.
    """

    jwt_secret: str
    fernet_key: str
    api_secret_key: str
    person_password: str
    service_password: str
    spark_token: str
    spark_secret: str

    def passwords(self) -> dict[str, str]:
        """The accounts, as Airflow's simple auth manager reads them."""
        return {PERSON: self.person_password, SERVICE: self.service_password}


def load_or_create(folder: Path) -> Credentials:
    """Read the credentials of a state folder, or make them. Raises Misconfigured for a damaged file."""
    path = folder / FILE_NAME
    if not path.exists():
        _write(path, _new())
    path.chmod(0o600)
    try:
        found = json.loads(path.read_text())
        return Credentials(**{field.name: str(found[field.name]) for field in fields(Credentials)})
    except (ValueError, KeyError, TypeError) as error:
        raise Misconfigured.of("dev.secrets_unreadable", path=path, error=error) from error


def _write(path: Path, credentials: Credentials) -> None:
    write_atomically(path, json.dumps(asdict(credentials), indent=1) + "\n")


def _new() -> Credentials:
    return Credentials(
        jwt_secret=secrets.token_hex(64),
        fernet_key=base64.urlsafe_b64encode(os.urandom(32)).decode(),
        api_secret_key=secrets.token_hex(32),
        person_password=secrets.token_urlsafe(12),
        service_password=secrets.token_urlsafe(24),
        spark_token=secrets.token_hex(32),
        spark_secret=secrets.token_hex(32),
    )
