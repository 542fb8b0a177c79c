"""Files in object stores that fsspec supports, and a base of seekable Python files.

Invariants: no answer comes from a cache, and every failure is an `OSError`. Of a seekable file only a read sends a
request.
"""

from __future__ import annotations

import errno
import io
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from typing import Any

from weir.errors import Misconfigured, WeirError

_MEMORY = threading.RLock()
"""fsspec's memory file system gives one buffer with one position to all readers."""

_PACKAGES = {"gs": "gcsfs", "abfss": "adlfs"}


class RemoteFiles:
    """A key prefix of an fsspec file system whose `mode="create"` is atomic: Google's, Azure's, and memory."""

    __slots__ = ("_fs", "_root", "_url")

    def __init__(self, fs: Any, root: str, url: str) -> None:
        self._fs = fs
        self._root = root
        self._url = url

    @classmethod
    def open(cls, url: str, storage_options: Mapping[str, Any]) -> RemoteFiles:
        """Open a URL with the options of its fsspec file system."""
        from fsspec.core import url_to_fs  # noqa: PLC0415  slow to import, and a local store needs none of it

        try:
            fs, root = url_to_fs(url, **storage_options)
        except (ImportError, ValueError, TypeError) as error:
            package = _PACKAGES.get(url.partition(":")[0], "its fsspec package")
            raise Misconfigured.of("store.not_opened", url=url, error=error, package=package) from error
        return cls(fs, str(root).rstrip("/"), url.rstrip("/"))

    @property
    def url(self) -> str:
        """The root, with its scheme and without a slash at the end."""
        return self._url

    def make_root(self) -> None:
        """Do nothing: an object store has no folders, and a mistyped name must not become a bucket."""

    def create(self, path: str, data: bytes) -> None:
        """Write a new file by a conditional put."""
        with self._os_errors() as fs, _no_bucket(path):
            fs.pipe_file(self._full(path), data, mode="create")

    def replace(self, path: str, data: bytes) -> None:
        """Write a file; object stores replace whole objects."""
        with self._os_errors() as fs, _no_bucket(path):
            fs.pipe_file(self._full(path), data)

    def read(self, path: str, offset: int, length: int | None) -> bytes:
        """Read a part of a file."""
        if length == 0:
            return b""
        with self._os_errors() as fs:
            end = None if length is None else offset + length
            return bytes(fs.cat_file(self._full(path), start=offset, end=end))

    def size(self, path: str) -> int:
        """Ask for the size of a file."""
        with self._os_errors() as fs:
            info = fs.info(self._full(path))
        if info["type"] != "file":
            raise FileNotFoundError(errno.ENOENT, "is a folder, not a file", path)
        return int(info["size"])

    def modified(self, path: str) -> datetime:
        """Ask when a file was last written."""
        with self._os_errors() as fs:
            found: datetime = fs.modified(self._full(path))
        # fsspec's file systems that answer without a zone mean UTC.
        return found if found.tzinfo is not None else found.replace(tzinfo=UTC)

    def entries(self, path: str) -> list[tuple[str, int | None]]:
        """List names and sizes directly below a folder."""
        folder = self._full(path)
        try:
            with self._os_errors() as fs:
                found = fs.ls(folder, detail=True)
        except FileNotFoundError:
            if path:
                raise
            return []  # a root without files
        named = [(str(item["name"]).rstrip("/").rpartition("/")[2], item) for item in found]
        return [
            (name, int(item["size"]) if item["type"] == "file" else None)
            for name, item in named
            if name and str(item["name"]).strip("/") != folder.strip("/")  # some stores list the folder itself
        ]

    def delete(self, path: str) -> None:
        """Delete one file."""
        with self._os_errors() as fs:
            fs.rm_file(self._full(path))

    def delete_folder(self, path: str) -> None:
        """Delete a folder and all that is in it."""
        with self._os_errors() as fs:
            fs.rm(self._full(path), recursive=True)

    def flush(self, path: str) -> None:
        """Do nothing: what such a store has acknowledged is durable."""

    def free_space(self) -> None:
        """Return None: such a store does not report it."""

    def _full(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root

    @contextmanager
    def _os_errors(self) -> Iterator[Any]:
        try:
            with _MEMORY if self._fs.protocol == "memory" else nullcontext():
                self._fs.invalidate_cache()
                yield self._fs
        except (OSError, WeirError):
            raise
        except Exception as error:  # each client library has errors of its own
            raise OSError(errno.EIO, f"{type(error).__name__}: {error}") from error


@contextmanager
def _no_bucket(path: str) -> Iterator[None]:
    """Translate "not found" of a write: the bucket is missing, which is no answer about the file."""
    try:
        yield
    except FileNotFoundError as error:
        raise OSError(errno.ENODEV, f"the bucket is gone ({error})", path) from error


class Seekable(io.RawIOBase):
    """A read-only file of a known size; subclasses read from `_at`."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size, self._at = size, 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position of the next read."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the position of the next read, and return it."""
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at
