"""Amazon S3, and stores that speak its API.

Invariant: a file is "not found" only where S3 says so of the key itself; a create whose answer was lost knows its own
object again, and no other writer takes it for its own.
"""

from __future__ import annotations

import errno
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final

from weir.errors import Misconfigured
from weir.store.s3_requests import S3Refused, S3Requests

_WRITER: Final = "weir-writer"
"""The metadata that tells by whose call an object was created."""


class S3Files:
    """A bucket, or a key prefix in one; each operation is one request, but for listings of more than 1000 keys."""

    __slots__ = ("_bucket", "_prefix", "_requests", "_url")

    def __init__(self, bucket: str, prefix: str, requests: S3Requests) -> None:
        self._bucket = bucket
        self._prefix = prefix
        self._requests = requests
        self._url = f"s3://{bucket}/{prefix}".rstrip("/")

    @classmethod
    def open(cls, url: str, storage_options: Mapping[str, Any], seconds: float) -> S3Files:
        """Open `s3://bucket/prefix` with options of s3fs; a request is repeated for at most `seconds`."""
        bucket, _, prefix = url.removeprefix("s3://").partition("/")
        return cls(bucket, prefix, S3Requests(storage_options, seconds))

    @property
    def url(self) -> str:
        """The root, as `s3://bucket/prefix`."""
        return self._url

    def make_root(self) -> None:
        """Make sure that there is a bucket: a mistyped name must not become one."""
        try:
            self._requests.call("list_objects_v2", Bucket=self._bucket, Prefix=self._key("weir"), MaxKeys=1)
        except S3Refused as error:
            if error.code == "NoSuchBucket":
                raise OSError(errno.ENODEV, f"there is no bucket {self._bucket}: create it first") from error
            raise

    def create(self, path: str, data: bytes) -> None:
        """Write a new object by a conditional put."""
        writer = uuid.uuid4().hex
        try:
            self._call("put_object", path, Body=data, IfNoneMatch="*", Metadata={_WRITER: writer})
        except S3Refused as error:
            if error.status == 501:
                raise Misconfigured(
                    f"the store {self._url} does not know conditional writes (If-None-Match), which Weir's exclusive "
                    "create needs: upgrade it, or name another store"
                ) from error
            if error.status != 412:
                raise
            # An earlier try of this very call may have been carried out, and its answer lost.
            if self._writer_of(path) != writer:
                raise FileExistsError(errno.EEXIST, "exists already", path) from error

    def replace(self, path: str, data: bytes) -> None:
        """Write an object; S3 replaces whole objects."""
        self._call("put_object", path, Body=data)

    def read(self, path: str, offset: int, length: int | None) -> bytes:
        """Read a part of an object."""
        if length == 0:
            return b""
        end = "" if length is None else offset + length - 1
        part = {} if offset == 0 and length is None else {"Range": f"bytes={offset}-{end}"}
        try:
            with self._missing_key(path):
                return self._requests.get(Bucket=self._bucket, Key=self._key(path), **part)
        except S3Refused as error:
            if error.status == 416:
                return b""  # the object ends before the offset
            raise

    def size(self, path: str) -> int:
        """Ask for the size of an object."""
        return int(self._head(path)["ContentLength"])

    def modified(self, path: str) -> datetime:
        """Ask when an object was last written, by S3's clock, in whole seconds."""
        found: datetime = self._head(path)["LastModified"]
        return found

    def entries(self, path: str) -> list[tuple[str, int | None]]:
        """List names and sizes directly below a key prefix."""
        folder = self._folder(path)
        found: list[tuple[str, int | None]] = []
        is_there = not path
        for page in self._pages(folder, Delimiter="/"):
            is_there = is_there or bool(page.get("Contents") or page.get("CommonPrefixes"))
            found += [(each["Prefix"][len(folder) : -1], None) for each in page.get("CommonPrefixes", ())]
            found += [(each["Key"][len(folder) :], int(each["Size"])) for each in page.get("Contents", ())]
        if not is_there:
            raise FileNotFoundError(errno.ENOENT, "no key begins with this", path)
        return [(name, size) for name, size in found if name]  # Hadoop marks folders by objects of their name

    def delete(self, path: str) -> None:
        """Delete one object."""
        self._call("delete_object", path)

    def delete_folder(self, path: str) -> None:
        """Delete all objects below a key prefix, a page at a time."""
        is_there = False
        for page in self._pages(self._folder(path)):
            keys = [{"Key": each["Key"]} for each in page.get("Contents", ())]
            if keys:
                is_there = True
                self._delete(keys)
        if not is_there:
            raise FileNotFoundError(errno.ENOENT, "no key begins with this", path)

    def flush(self, path: str) -> None:
        """Do nothing: what S3 has acknowledged is durable."""

    def room(self) -> None:
        """Answer nothing: S3 has no end."""

    def _writer_of(self, path: str) -> str | None:
        try:
            found: str | None = self._head(path).get("Metadata", {}).get(_WRITER)
        except FileNotFoundError as error:
            raise OSError(errno.EIO, "the name was taken when it was created, and is free now", path) from error
        return found

    def _head(self, path: str) -> dict[str, Any]:
        try:
            return self._call("head_object", path)
        except S3Refused as error:
            if error.status != 404:
                raise
            # An answer to HEAD has no body, so that a bucket, or an S3, that is gone looks like a missing key.
            self.read(path, 0, 1)
            raise OSError(errno.EIO, "S3 says both that the object is there and that it is not", path) from error

    def _pages(self, prefix: str, **arguments: Any) -> Iterator[dict[str, Any]]:
        page: dict[str, Any] = {"IsTruncated": True}
        while page.get("IsTruncated"):
            token = page.get("NextContinuationToken")
            more = {"ContinuationToken": token} if token else {}
            page = self._requests.call("list_objects_v2", Bucket=self._bucket, Prefix=prefix, **arguments, **more)
            yield page

    def _delete(self, keys: list[dict[str, str]]) -> None:
        answer = self._requests.call("delete_objects", Bucket=self._bucket, Delete={"Objects": keys, "Quiet": True})
        kept = answer.get("Errors") or ()
        if kept:
            first = kept[0]
            raise OSError(
                errno.EIO,
                f"{len(kept)} of {len(keys)} objects were not deleted, the first: {first.get('Code')}",
                first.get("Key"),
            )

    def _call(self, method: str, path: str, **arguments: Any) -> dict[str, Any]:
        with self._missing_key(path):
            return self._requests.call(method, Bucket=self._bucket, Key=self._key(path), **arguments)

    @contextmanager
    def _missing_key(self, path: str) -> Iterator[None]:
        try:
            yield
        except S3Refused as error:
            if error.code != "NoSuchKey":
                raise
            raise FileNotFoundError(errno.ENOENT, "no such key", path) from error

    def _key(self, path: str) -> str:
        return "/".join(part for part in (self._prefix, path) if part)

    def _folder(self, path: str) -> str:
        key = self._key(path)
        return f"{key}/" if key else ""
