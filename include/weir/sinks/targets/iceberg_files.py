"""Puts files of versions into the location of a table of Apache Iceberg.

Invariant: a path is that of one commit only. A file under it that is not whole is named by no snapshot.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pyiceberg.io import FileIO

from weir.connections import S3Account
from weir.sinks.folders import LocalFolder, S3Folder, TargetFolder, parts_of
from weir.sinks.protocol import PutBytes, Reach, VersionFile

_ACCOUNT: Final = {
    "s3.access-key-id": "key",
    "s3.secret-access-key": "secret",
    "s3.session-token": "token",
    "s3.endpoint": "endpoint",
    "s3.region": "region",
}
"""The properties of PyIceberg that an account has. With any other one (a role, a proxy, encryption), only PyIceberg
writes to the S3."""

_TIMES: Final = {"s3.connect-timeout", "s3.request-timeout"}


def put(io: FileIO, path: str, file: VersionFile, reach: Reach, counted: PutBytes) -> None:
    """Link or copy a file to its path in a table, and count its bytes.

    A local one is linked where it can be; one on S3 is copied by S3 where it can be; any other is streamed through this
    process. Raises TargetAway, Misconfigured, or Retryable if the store's file is damaged.
    """
    above, _, name = path.rpartition("/")
    folder = _folder(io, above, reach, counted)
    if folder is not None:
        folder.make()
        folder.put(name, file)
        return
    with io.new_output(path).create() as written:
        for part in parts_of(reach, file):
            written.write(part)
    counted.copied += file.bytes


def require_room(io: FileIO, path: str, reach: Reach) -> None:
    """Require that a file can be put at a path, as far as that can be told. Raises TargetAway or Misconfigured."""
    above, _, name = path.rpartition("/")
    folder = _folder(io, above, reach, PutBytes())
    if folder is not None:
        folder.require_room([name])


def _folder(io: FileIO, location: str, reach: Reach, counted: PutBytes) -> TargetFolder | None:
    """Return the folder of a location, as PyIceberg takes it; None for one that only PyIceberg reaches."""
    scheme, is_url, _ = location.partition("://")
    if location.startswith("/") or scheme == "file":
        return LocalFolder(Path(location.removeprefix("file://")), reach, counted)
    given = {key: str(value) for key, value in io.properties.items() if key.startswith(("s3.", "client."))}
    found = {_ACCOUNT[key]: value for key, value in given.items() if key in _ACCOUNT}
    if scheme != "s3" or not is_url or "key" not in found or given.keys() - _ACCOUNT.keys() - _TIMES:
        return None
    return S3Folder(location, S3Account(**found), reach, counted)
