"""Files in Amazon S3 and stores with its API, over single requests with retries.

Invariants: a file is "not found" only if S3 answers so about the key itself. A create whose response was lost
recognises its own object, and no other writer takes the object for its own. A request ends within the time limit:
`S3Refused` is a definite answer of the store; transient failures (load, server errors, lost connections, no response)
are retried and become `TimeoutError` at the limit.
"""

from __future__ import annotations

import errno
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from itertools import chain
from typing import Any, Final

from botocore.exceptions import (
    ClientError,
    CredentialRetrievalError,
    InvalidRegionError,
    MetadataRetrievalError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
    ProfileNotFound,
)
from botocore.exceptions import ConnectionError as NotConnectedError
from fsspec.asyn import FSTimeoutError, sync
from s3fs.core import S3_RETRYABLE_ERRORS, S3FileSystem

from weir.errors import Misconfigured, WeirError
from weir.store.files import R
from weir.store.time_limit import FIRST_PAUSE, repeated

_WRITER: Final = "weir-writer"
"""The metadata key with the nonce of the call that created an object."""

_LOOKS: Final = 3
"""How often an object is asked for that is there by the time a missing one is confirmed."""


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
                raise Misconfigured.of("store.no_conditional_writes", url=self._url) from error
            if error.status != 412:
                raise
            # An earlier try of this call may have been executed, and its response lost.
            if self._writer_of(path) != writer:
                raise FileExistsError(errno.EEXIST, "exists already", path) from error

    def replace(self, path: str, data: bytes) -> None:
        """Write an object; S3 replaces whole objects."""
        self._call("put_object", path, Body=data)

    def copy(self, url: str, path: str) -> None:
        """Copy an object of any bucket of the same S3, without reading it here. S3 refuses those above 5 GB."""
        bucket, _, key = url.removeprefix("s3://").partition("/")
        self._call("copy_object", path, CopySource={"Bucket": bucket, "Key": key})

    def upload(
        self, path: str, parts: Iterable[bytes], metadata: Mapping[str, str] | None = None, **condition: str
    ) -> None:
        """Write an object of any size, of which one part is in memory: each has 5 MiB or more, but for the last.

        `condition` is IfMatch or IfNoneMatch; it holds when the object appears, at the end.
        """
        upload = self._call("create_multipart_upload", path, Metadata=dict(metadata or {}))["UploadId"]
        try:
            done = [
                {"PartNumber": number, "ETag": self._part(path, upload, number, part)}
                for number, part in enumerate(parts, 1)
            ]
            done_parts = {"Parts": done}
            self._call("complete_multipart_upload", path, UploadId=upload, MultipartUpload=done_parts, **condition)
        except BaseException:
            with suppress(OSError):
                self._call("abort_multipart_upload", path, UploadId=upload)
            raise

    def head(self, path: str) -> dict[str, Any] | None:
        """Ask for an object's entity tag, size and metadata, as S3 answers; None if there is definitely none."""
        try:
            return self._head(path)
        except FileNotFoundError:
            return None

    def swap(self, path: str, parts: Iterable[bytes], metadata: Mapping[str, str], etag: str | None) -> None:
        """Write an object in place of the one with this entity tag (None: of none), by one request.

        Raises FileExistsError if another one is there, or none: also if an answer was lost, and it is this one.
        """
        condition = {"IfNoneMatch": "*"} if etag is None else {"IfMatch": etag}
        found = iter(parts)
        first, second = next(found, b""), next(found, None)
        try:
            if second is None:
                self._call("put_object", path, Body=first, Metadata=dict(metadata), **condition)
            else:
                self.upload(path, chain((first, second), found), metadata, **condition)
        except FileNotFoundError as error:
            raise FileExistsError(errno.EEXIST, "has been deleted meanwhile", path) from error
        except S3Refused as error:
            if error.status == 412:
                raise FileExistsError(errno.EEXIST, "has been written meanwhile", path) from error
            if error.status == 501:
                raise Misconfigured.of("store.no_conditional_swaps", url=self._url) from error
            raise

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

    def free_space(self) -> None:
        """Return None: S3 has no limit."""

    def _part(self, path: str, upload: str, number: int, part: bytes) -> str:
        answer = self._call("upload_part", path, UploadId=upload, PartNumber=number, Body=part)
        return str(answer["ETag"])

    def _writer_of(self, path: str) -> str | None:
        try:
            found: str | None = self._head(path).get("Metadata", {}).get(_WRITER)
        except FileNotFoundError as error:
            raise OSError(errno.EIO, "the name was taken when it was created, and is free now", path) from error
        return found

    def _head(self, path: str) -> dict[str, Any]:
        for _ in range(_LOOKS):
            try:
                return self._call("head_object", path)
            except S3Refused as error:
                if error.status != 404:
                    raise
            # An answer to HEAD has no body, so that a bucket, or an S3, that is gone looks like a missing key. GET
            # tells them apart. If it finds the object, somebody has written it since.
            self.read(path, 0, 1)
        raise OSError(errno.EIO, f"S3 said {_LOOKS} times that there is no object, and gave it away each time", path)

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


_Seconds = Callable[[], float]
_CONNECTIONS: Final = 32
_CONNECT_SECONDS: Final = 5.0

_SILENCES: Final = 3
"""A connection without a response for the limit divided by this is replaced."""

_PASSING_STATUS: Final = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
_PASSING_CODES: Final = frozenset(
    {"RequestTimeout", "SlowDown", "BadDigest", "IncompleteBody", "XAmzContentSHA256Mismatch"}
)
_RENEWED: Final = frozenset({"NoSuchUpload", "ExpiredToken", "TokenRefreshRequired"})
"""What the same request does not meet with a new token, or another upload."""

_BROKEN: Final = (
    *S3_RETRYABLE_ERRORS,
    ConnectionError,
    NotConnectedError,
    TimeoutError,
    CredentialRetrievalError,
    MetadataRetrievalError,
)

_CONFUSED: Final = (InvalidRegionError, ParamValidationError, ProfileNotFound)


class S3Refused(OSError):
    """S3 has refused a request, with an error code and an HTTP status."""

    def __init__(self, code: str, status: int, message: str) -> None:
        super().__init__(errno.EACCES if status == 403 else errno.EIO, f"{code} ({status}): {message}")
        self.code = code
        self.status = status

    @property
    def may_pass(self) -> bool:
        """Report whether a retry may succeed: load, an error inside S3, a concurrent write."""
        return self.status in _PASSING_STATUS or self.code in _PASSING_CODES

    @property
    def is_final(self) -> bool:
        """Report whether S3 refuses the request for what it asks, as a key that is too long, and does so again."""
        return 400 <= self.status < 500 and not self.may_pass and self.code not in _RENEWED


class S3Requests:
    """Requests with the options of s3fs, each repeated for at most `seconds`. Safe across threads and forks."""

    __slots__ = ("_opened", "_options", "_seconds")

    def __init__(self, options: Mapping[str, Any], seconds: float) -> None:
        self._seconds = seconds
        self._options = _with_limits(options, seconds)
        self._opened: tuple[int, S3FileSystem] | None = None

    def call(self, method: str, **arguments: Any) -> dict[str, Any]:
        """Send a request of botocore's S3 client."""
        answer: dict[str, Any] = self._with_retries(
            method, lambda fs, left: fs.call_s3(method, timeout=left(), **arguments)
        )
        return answer

    def get(self, **arguments: Any) -> bytes:
        """Send a `get_object`, and read the whole response."""

        def ask(fs: S3FileSystem, left: _Seconds) -> bytes:
            answer = fs.call_s3("get_object", timeout=left(), **arguments)
            return sync(fs.loop, _whole, answer["Body"], timeout=left())  # type: ignore[no-any-return]

        return self._with_retries("get_object", ask)

    def _with_retries(self, method: str, ask: Callable[[S3FileSystem, _Seconds], R]) -> R:
        end = time.monotonic() + self._seconds

        def left() -> float:
            return max(end - time.monotonic(), FIRST_PAUSE)

        def asked() -> R:
            try:
                return ask(self._file_system(left()), left)
            except WeirError:
                raise
            except Exception as error:  # each layer below has errors of its own
                failure = _failure(error)
                if isinstance(failure, S3Refused) and failure.may_pass:
                    failure = ConnectionError(errno.EIO, failure.strerror)
                raise failure from error

        return repeated("S3", method, asked, self._seconds, end)

    def _file_system(self, seconds: float) -> S3FileSystem:
        """Return the s3fs of this process, since its event loop and connections do not survive a fork."""
        if self._opened is None or self._opened[0] != os.getpid():
            self._opened = (os.getpid(), _connected(self._options, seconds))
        return self._opened[1]


def _connected(options: Mapping[str, Any], seconds: float) -> S3FileSystem:
    """Make a client; this asks for credentials, but nothing of S3. Raises Misconfigured for unknown options."""
    try:
        fs = S3FileSystem(**options)  # one of this process and thread, if it was asked for with these options before
        fs.connect(timeout=seconds)
    except (TypeError, ValueError, KeyError, *_CONFUSED) as error:
        raise Misconfigured.of("store.options_unusable", name=type(error).__name__, error=error) from error
    fs.retries = 1  # repeated here, and only here: the tries of all layers would multiply
    return fs


async def _whole(body: Any) -> bytes:
    async with body:
        data: bytes = await body.read()
        return data


def _with_limits(options: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    limits = {
        "connect_timeout": min(_CONNECT_SECONDS, seconds / _SILENCES),
        "read_timeout": seconds / _SILENCES,
        "max_pool_connections": _CONNECTIONS,
        "retries": {"total_max_attempts": 1, "mode": "standard"},
    }
    return {**options, "config_kwargs": {**limits, **(options.get("config_kwargs") or {})}}


def _failure(error: Exception) -> OSError:
    """Translate an error of s3fs, botocore or aiohttp."""
    answered = error if isinstance(error, ClientError) else error.__cause__
    if isinstance(answered, ClientError):
        found = answered.response.get("Error", {})
        status = int(answered.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        return S3Refused(str(found.get("Code", "")), status, str(found.get("Message", "")))
    if isinstance(error, (NoCredentialsError, PartialCredentialsError)):
        return PermissionError(errno.EACCES, f"no credentials for S3 ({error}): see the Airflow connection weir_store")
    if isinstance(error, FSTimeoutError):
        return ConnectionError(errno.ETIMEDOUT, "no response")
    if isinstance(error, _BROKEN):
        return ConnectionError(errno.EIO, f"{type(error).__name__}: {error}")
    return OSError(errno.EIO, f"{type(error).__name__}: {error}")
