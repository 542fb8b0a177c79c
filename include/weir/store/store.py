"""The store: a folder on any file system that holds all results.

Invariant: only a definite "not found" of the file system becomes `NotFound`; permissions, timeouts, broken mounts and
every other failure become `Retryable`, so that a store that does not answer is never taken for one that lost data.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final, NewType

from weir.errors import Internal, Misconfigured, OtherBuild, Retryable, StoreFull, is_disk_full, is_for_person
from weir.extras import needed_for
from weir.store.errors import AlreadyExists, NotFound
from weir.store.files import Files, FreeSpace
from weir.store.local import LocalFiles, is_local
from weir.store.remote import RemoteFiles
from weir.store.time_limit import OPTION, TimeLimitedFiles, time_limit
from weir.store.urls import canonical, http_addresses, spark_root

StoreId = NewType("StoreId", str)
"""The unique id of a store, in its marker."""

MARKER = "weir-store.json"
_MARKER_VERSION = 1

FORMATS: Final = "28998e285e59"
"""The fingerprint of the formats of all files in the store: one with files of other formats is refused."""

_NOT_DATA = ("lost+found",)

REQUEST_SECONDS = 60.0
"""How long a request to S3 or HDFS is retried: longer than the restart or overload of a server takes."""

LEAST_FREE_SPACE = 16 * 2**20
"""In bytes. With less free space a disk counts as full."""

WORKERS = 16
"""The number of parallel requests, unless the adapter sets its own."""

_FREE_SPACE = "Make room there, and the task goes on by itself; nothing is marked lost"


class Store:
    """Files below one root, by relative "/"-separated paths. Safe to use from many threads."""

    __slots__ = ("files",)

    def __init__(self, files: Files) -> None:
        self.files = files

    @classmethod
    def open(cls, url: str, storage_options: Mapping[str, Any] | None = None) -> Store:
        """Open a store by URL: a folder ("file:///...", a plain path), "s3://", "hdfs://", "webhdfs://", "gs://", ...

        `storage_options` are those of the fsspec file system or of `HdfsFiles`, and `timeout` in seconds.
        Touches nothing yet. Raises Misconfigured if the URL cannot be used.
        """
        return cls(_files_at(url, storage_options or {}))

    @property
    def url(self) -> str:
        """The root, with its scheme and without a slash at the end."""
        return self.files.url

    @property
    def workers(self) -> int:
        """The number of parallel requests that are useful."""
        return getattr(self.files, "workers", WORKERS)

    def spark_url(self, path: str) -> str:
        """Return the path as a URL for Spark and Hadoop."""
        return f"{spark_root(self.url)}/{_checked(path)}".rstrip("/")

    def path_of(self, url: str) -> str | None:
        """Return the path in this store that a URL names; None if it is a place elsewhere."""
        root, path = url[: len(self.url) + 1], url[len(self.url) + 1 :]
        return path if root == f"{self.url}/" else None

    def create(self, path: str, data: bytes) -> None:
        """Write a new file, whole or not at all, durably; of many writers exactly one wins.

        Raises AlreadyExists if the name is taken.
        """
        with self._translated_errors("create", path):
            try:
                self.files.create(_checked(path), data)
            except FileExistsError as error:
                raise AlreadyExists.of("store.exists_already", url=self.url, path=path) from error

    @property
    def has_private_files(self) -> bool:
        """Whether a file can be made that only its user may read."""
        return hasattr(self.files, "create_private")

    def create_private(self, path: str, data: bytes) -> None:
        """Create a file, as `create` does, that only its user may read, where there are such files."""
        with self._translated_errors("create", path):
            self.files.create_private(_checked(path), data)  # type: ignore[attr-defined]  # see above

    def replace(self, path: str, data: bytes) -> None:
        """Write a file in the place of any earlier one; a reader sees the old or the new one, whole."""
        with self._translated_errors("replace", path):
            self.files.replace(_checked(path), data)

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """Read at most `length` bytes (None: all) from `offset`; fewer only where the file ends.

        Raises NotFound if there is definitely no such file.
        """
        with self._translated_errors("read", path):
            return self.files.read(_checked(path), offset, length)

    def size(self, path: str) -> int:
        """Ask for the size of a file in bytes. Raises NotFound if there is definitely no such file."""
        with self._translated_errors("ask the size of", path):
            return self.files.size(_checked(path))

    def modified(self, path: str) -> datetime:
        """Ask when a file was last written, by the clock of the store itself. Raises NotFound."""
        with self._translated_errors("ask the time of", path):
            return self.files.modified(_checked(path))

    def list(self, path: str) -> list[tuple[str, int]]:
        """List names and sizes of the files directly in a folder, by name; folders are left out.

        Raises NotFound if there is definitely no such folder.
        """
        return [(name, size) for name, size in self.entries(path) if size is not None]

    def entries(self, path: str) -> tuple[tuple[str, int | None], ...]:
        """List names and sizes of all that is directly in a folder, by name; the size of a folder is None.

        Raises NotFound if there is definitely no such folder.
        """
        with self._translated_errors("list", path):
            return tuple(sorted(self.files.entries(_checked(path)), key=lambda entry: entry[0]))

    def folders(self, path: str) -> list[str]:  # type: ignore[valid-type]  # `list` is the method above here
        """List the names of the folders directly in a folder. Raises NotFound if there is definitely no such folder."""
        return [name for name, size in self.entries(path) if size is None]

    def delete(self, path: str) -> None:
        """Delete one file; that it is gone already is fine."""
        try:
            with self._translated_errors("delete", path):
                self.files.delete(_checked(path))
        except NotFound:
            return

    def delete_folder(self, path: str) -> None:
        """Delete a folder and all that is in it; that it is gone already is fine. The root is refused."""
        if not path:
            raise Internal.of("store.root_deleted", url=self.url)
        try:
            with self._translated_errors("delete", path):
                self.files.delete_folder(_checked(path))
        except NotFound:
            return

    def prune(self, path: str) -> None:
        """Remove empty folders below a folder, and itself, where the file system has folders; no writer may use it."""
        prune = getattr(self.files, "prune", None)
        if prune is not None:
            with self._translated_errors("tidy", path):
                prune(_checked(path))

    def flush(self, path: str) -> None:
        """Make the files that other processes wrote into a folder durable."""
        with self._translated_errors("flush", path):
            self.files.flush(_checked(path))

    def free_space(self) -> FreeSpace | None:
        """Return how much can still be written; None where that is unknown. Raises Retryable."""
        with self._translated_errors("ask the free space of", ""):
            return self.files.free_space()

    def require_free_space(self) -> None:
        """Raise StoreFull if the disk is full, so that a failed write may be due to that. Raises Retryable."""
        free = self.free_space()
        if free is not None and (free.free_bytes < LEAST_FREE_SPACE or free.free_files == 0):
            raise StoreFull.of("store.disk_full", url=self.url, free=free, free_space=_FREE_SPACE)

    def initialise(self) -> StoreId:
        """Write the marker if the store is empty, and return its id.

        Record the id and pass it to `check_marker` from then on: an empty folder may be a disk that is not mounted.
        Raises Misconfigured if the folder is refused or holds other things but no marker, and Retryable if the store
        does not answer.
        """
        try:
            self.files.make_root()
            return self._initialised()
        except OSError as error:
            if is_for_person(error) or isinstance(error, FileNotFoundError | PermissionError):
                raise Misconfigured.of("store.unusable", url=self.url, error=error) from error
            raise self._error_of("initialise", MARKER, error) from error

    def check_marker(self, expected_id: str) -> None:
        """Check that the store answers and has the expected id. Raises Retryable if not, and OtherBuild."""
        try:
            found = marker_id(self.read(MARKER), self.url)
        except NotFound as error:
            raise Retryable.of("store.marker_missing", url=self.url, marker=MARKER, expected_id=expected_id) from error
        except OtherBuild:
            raise
        except Misconfigured as error:
            raise Retryable(str(error)) from error
        if found != expected_id:
            raise Retryable.of("store.marker_of_another", url=self.url, expected_id=expected_id, found=found)

    def _initialised(self) -> StoreId:
        names = [name for name, _ in self.files.entries("")]
        unexpected = sorted(name for name in names if not name.startswith(".") and name not in _NOT_DATA)
        if MARKER not in names:
            if unexpected:
                raise Misconfigured.of("store.folder_not_empty", url=self.url, marker=MARKER, unexpected=unexpected[:5])
            self._write_marker()
        return marker_id(self.files.read(MARKER, 0, None), self.url)

    def _write_marker(self) -> None:
        found = {"id": str(uuid.uuid4()), "version": _MARKER_VERSION, "formats": FORMATS}
        marker = json.dumps(found, sort_keys=True).encode() + b"\n"
        try:
            self.files.create(MARKER, marker)
        except FileExistsError:
            return  # another process was faster: its marker counts
        try:
            self.files.create(MARKER, marker)
        except FileExistsError:
            return  # as it must be
        self.files.delete(MARKER)
        raise Misconfigured.of("store.creates_twice", url=self.url)

    @contextmanager
    def _translated_errors(self, action: str, path: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise NotFound.of("store.not_found", url=self.url, path=path) from error
        except OSError as error:
            raise self._error_of(action, path, error) from error

    def _error_of(self, action: str, path: str, error: OSError) -> Retryable:
        failed = f"could not {action} {self.url}/{path}"
        if not is_disk_full(error):
            return Retryable.of("store.failed", failed=failed, name=type(error).__name__, error=error)
        try:
            free = self.files.free_space()
        except OSError:
            free = None
        found = "" if free is None else f", {free}"
        return StoreFull.of(
            "store.write_hit_full_disk", failed=failed, reason=error.strerror, found=found, free_space=_FREE_SPACE
        )


def opener(own: str, storage_options: Mapping[str, Any]) -> Callable[[str], Store]:
    """Return what opens stores beside the one at `own`: those with the same URL scheme with the same options."""
    kind = own.partition("://")[0]

    def open_store(url: str) -> Store:
        return Store.open(url, storage_options if url.partition("://")[0] == kind else None)

    return open_store


def _files_at(url: str, storage_options: Mapping[str, Any]) -> Files:
    if is_local(url):
        return TimeLimitedFiles(LocalFiles.open(url), time_limit(storage_options))
    place = canonical(url, storage_options)
    options = {key: value for key, value in storage_options.items() if key != OPTION}
    if place.startswith("s3:"):
        with needed_for(f"the store {place}", "Weir runs"):
            from weir.store.s3 import S3Files  # noqa: PLC0415  s3fs is slow to import
        return S3Files.open(place, options, time_limit(storage_options, REQUEST_SECONDS))
    if place.startswith("hdfs:"):
        from weir.store.hdfs import HdfsFiles  # noqa: PLC0415  httpx is slow to import

        return HdfsFiles.open(place, {**http_addresses(url), **options}, time_limit(storage_options, REQUEST_SECONDS))
    files = RemoteFiles.open(place, options)
    return files if place.startswith("memory:") else TimeLimitedFiles(files, time_limit(storage_options))


def _checked(path: str) -> str:
    if path and any(part in ("", ".", "..") for part in path.split("/")):
        raise Internal.of("store.path_malformed", path=path)
    return path


def marker_id(data: bytes, url: str) -> StoreId:
    """Read the marker of the store at `url`. Raises Misconfigured if it is not one, and OtherBuild."""
    try:
        marker = json.loads(data)
        version, formats, found = marker["version"], marker.get("formats"), marker["id"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Misconfigured.of("store.marker_unreadable", url=url, marker=MARKER, error=error) from error
    if (version, formats) != (_MARKER_VERSION, FORMATS):
        raise OtherBuild.of(
            "store.marker_of_other_version",
            url=url,
            marker=MARKER,
            version=version,
            formats=formats,
            marker_version=_MARKER_VERSION,
            read=FORMATS,
        )
    return StoreId(str(found))
