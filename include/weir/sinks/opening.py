"""Makes targets of their declarations, and gives them what they reach.

Invariant: a library of a target is imported only where the target is used.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import BinaryIO, Final, cast

from weir.code.functions import load
from weir.connections import Connection
from weir.coordination.services import Services
from weir.dataflow.targets import Target
from weir.errors import Misconfigured
from weir.sinks.protocol import SinkTarget, VersionFile
from weir.store.local import is_local
from weir.store.verification import StoreFile

BUILT_IN: Final = {
    "delta": "weir.sinks.targets.delta:DeltaTarget",
    "files": "weir.sinks.targets.files:FilesTarget",
    "files_on_s3": "weir.sinks.targets.files_on_s3:S3FilesTarget",
    "iceberg": "weir.sinks.targets.iceberg:IcebergTarget",
    "kafka": "weir.sinks.targets.kafka:KafkaTarget",
    "postgres": "weir.sinks.targets.postgres:PostgresTarget",
}

_BUFFER_BYTES: Final = 2**20


@dataclass(frozen=True, slots=True)
class ServicesReach:
    """What targets reach by the services of a deployment."""

    services: Services

    def open(self, file: VersionFile) -> BinaryIO:
        """Open a file of a version, seekable. Raises Retryable, also while reading."""
        source = StoreFile(self.services.store, file.path, file.bytes)
        return cast("BinaryIO", io.BufferedReader(source, _BUFFER_BYTES))

    def local_path(self, file: VersionFile) -> str | None:
        """Return where a file is on a local disk; None where the store is elsewhere."""
        url = self.services.store.url
        return f"{url.removeprefix('file://')}/{file.path}" if is_local(url) else None

    def url(self, file: VersionFile) -> str:
        """Return the canonical URL of a file."""
        return f"{self.services.store.url}/{file.path}"

    def connection(self, conn_id: str) -> Connection:
        """Look up an Airflow connection. Raises Misconfigured or Retryable."""
        return self.services.connections(conn_id)


def open_target(target: Target, services: Services) -> SinkTarget:
    """Make the target that a sink declares. Raises Misconfigured where its class cannot be imported."""
    return class_of(target)(target.options, ServicesReach(services))


def class_of(target: Target) -> type[SinkTarget]:
    """Import the class of a target. Raises Misconfigured where that is not possible, or where it is none."""
    reference = BUILT_IN.get(target.kind, target.kind)
    found = load(reference, f"the target {target}")
    if not (isinstance(found, type) and issubclass(found, SinkTarget)):
        raise Misconfigured.of("sinks.not_a_target_class", reference=reference)
    return found
