"""URLs of stores: as configured, for fsspec, and for Spark.

Invariant: each location has one canonical URL inside Weir, and only `spark_root` knows Spark's spelling.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from weir.errors import Misconfigured

_SPELLINGS: Final = {
    "s3": "s3",
    "s3a": "s3",
    "s3n": "s3",
    "gs": "gs",
    "gcs": "gs",
    "abfs": "abfss",
    "abfss": "abfss",
    "az": "abfss",
    "wasb": "abfss",
    "wasbs": "abfss",
    "hdfs": "hdfs",
    "webhdfs": "hdfs",
    "memory": "memory",
}
"""File systems on which of many creators of a file one wins: by Weir's requests (S3, HDFS), or by fsspec's package."""
_SPARK: Final = {"s3": "s3a"}
_RPC_PORT: Final = 8020
"""Where the clients of Java reach a NameNode, unless its URL says otherwise."""

_AZURE_HOST: Final = ".dfs.core.windows.net"
_GLOB: Final = set("{}[]*?\\")


def canonical(url: str, storage_options: Mapping[str, Any]) -> str:
    """Return the canonical URL, without a slash at the end; `az://container/path` needs the option `account_name`.

    Raises Misconfigured for a scheme that Weir cannot use, and for a URL that Spark could not read or that holds a
    password.
    """
    scheme, separator, rest = url.partition("://")
    place, _, path = rest.rstrip("/").partition("/")
    if ":" in place.rpartition("@")[0]:
        raise Misconfigured.of("store.password_in_url", scheme=scheme)
    known = _SPELLINGS.get(scheme.lower())
    if not separator or known is None:
        raise _unknown(url, scheme)
    if not place:
        raise Misconfigured.of("store.no_bucket", url=url, scheme=scheme)
    unusable = sorted(_GLOB & set(path))
    if unusable:
        raise Misconfigured.of("store.path_is_a_pattern", url=url, unusable="".join(unusable))
    if any(part in {"", ".", ".."} for part in path.split("/") if path):
        raise Misconfigured.of("store.path_not_plain", url=url)
    if scheme.lower() == "webhdfs":
        place = f"{place.partition(':')[0]}:{_RPC_PORT}"
    if known == "abfss":
        place = _azure_place(url, place, storage_options)
    return f"{known}://{place}/{path}".rstrip("/")


def spark_root(url: str) -> str:
    """Return a canonical URL as Spark and Hadoop spell it."""
    scheme, _, rest = url.partition("://")
    return f"{_SPARK.get(scheme, scheme)}://{rest}"


def http_addresses(url: str) -> dict[str, str]:
    """Return the option of a store in HDFS that a URL with the scheme `webhdfs` says by itself; {} for any other."""
    scheme, _, rest = url.partition("://")
    return {"namenodes": rest.partition("/")[0]} if scheme.lower() == "webhdfs" else {}


def _azure_place(url: str, place: str, storage_options: Mapping[str, Any]) -> str:
    """Return `container@account.dfs.core.windows.net`, which both Hadoop and adlfs understand."""
    container, _, host = place.partition("@")
    account = host.partition(".")[0] or storage_options.get("account_name")
    if not account:
        raise Misconfigured.of("store.no_storage_account", url=url, container=container, azure_host=_AZURE_HOST)
    return f"{container}@{account}{_AZURE_HOST}"


def _unknown(url: str, scheme: str) -> Misconfigured:
    return Misconfigured.of("store.file_system_unknown", url=url, scheme=scheme, azure_host=_AZURE_HOST)
