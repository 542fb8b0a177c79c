"""What the task of a driver in a YARN cluster hands to it in secret: by a file of the cluster's own, or not itself.

Settings, arguments and environments of containers can be read by every user of YARN, and stay in logs, launch scripts
and files of its nodes. Invariant: no secret is in any of them; without another way, nothing is submitted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from weir.connections import as_variable
from weir.errors import Misconfigured
from weir.formats.region_job import connections_of
from weir.settings import STORE_OPTIONS_VARIABLE
from weir.store.store import opener

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from weir.connections import LookUps
    from weir.formats.region_job import SparkJob
    from weir.store.store import Store

PROVIDER_EXTRA: Final = "credential-provider"
"""The connection's extra with the path of a Hadoop credential provider: `jceks://hdfs/user/weir/weir.jceks`."""

STAGING_EXTRA: Final = "staging"
"""The connection's extra with a folder in HDFS for files that only their user can read."""

_PROVIDER_SETTING: Final = "spark.hadoop.hadoop.security.credential.provider.path"
_PLAIN: Final = frozenset({"timeout", "endpoint_url", "account_name", "anon", "project"})
"""Options of stores that are no secret; those of HDFS never are."""


class ClusterSecrets:
    """The ways to the drivers that an Airflow connection submits to YARN."""

    def __init__(self, connection: Connection, store: Store, options: Mapping[str, Any], look_ups: LookUps) -> None:
        self._connection, self._store, self._options, self._look_ups = connection, store, options, look_ups
        extra = connection.extra_dejson
        self._provider = str(extra.get(PROVIDER_EXTRA) or "")
        self._staging = str(extra.get(STAGING_EXTRA) or "")

    @property
    def settings(self) -> dict[str, str]:
        """The settings by which a driver, and Spark itself, find the credential provider."""
        return {_PROVIDER_SETTING: self._provider} if self._provider else {}

    @contextmanager
    def handed(self, job: SparkJob) -> Iterator[list[str]]:
        """Yield the arguments by which the driver of a job finds what it needs; a file of them is deleted at the end.

        Raises Misconfigured if there are secrets and no way for them.
        """
        plain = {} if not self._are_plain() else dict(self._options)
        arguments = ["--options", json.dumps(plain)] if plain else []
        if self._provider:
            yield [*arguments, "--provider"]
            return
        secrets = self._secrets_for(job)
        if not secrets:
            yield arguments
            return
        store, path = self._place(job.attempt, job.folder)
        if not store.has_private_files:
            raise Misconfigured.of(
                "engines.secrets_without_a_way",
                region=job.region,
                names=sorted(secrets),
                conn_id=self._connection.conn_id,
                provider=PROVIDER_EXTRA,
                staging=STAGING_EXTRA,
            )
        store.create_private(path, json.dumps(secrets).encode())
        try:
            yield [*arguments, "--secrets", store.spark_url(path)]
        finally:
            store.delete(path)

    def delete_of(self, attempt: str, folder: str) -> None:
        """Delete what an attempt whose task was killed has left."""
        store, path = self._place(attempt, folder)
        if store.has_private_files:
            store.delete(path)

    def _secrets_for(self, job: SparkJob) -> dict[str, str]:
        found = dict(as_variable(self._look_ups.connection(each)) for each in connections_of(job))
        if self._options and not self._are_plain():
            found[STORE_OPTIONS_VARIABLE] = json.dumps(dict(self._options))
        return found

    def _are_plain(self) -> bool:
        of_client = self._options.get("client_kwargs") or {}
        return self._store.url.startswith("hdfs:") or (
            set(self._options) <= _PLAIN | {"client_kwargs"} and set(of_client) <= {"region_name", "endpoint_url"}
        )

    def _place(self, attempt: str, folder: str) -> tuple[Store, str]:
        """Return where the file of an attempt is: in the staging folder, or where none is named, beside its job."""
        if not self._staging:
            return self._store, f"{folder}/secrets.json"
        return opener(self._store.url, self._options)(self._staging), f"{attempt}.json"
