"""Files on local disks.

Invariant: a file appears whole under its name or not at all, exactly one creator wins, and a write that has returned
is durable. fsspec's `mode="create"` checks and then writes, and let 4 of 20 racing writers win; `os.link` is atomic.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from weir.errors import Misconfigured
from weir.store.files import FreeSpace
from weir.store.worker_threads import is_abandoned

_SCHEMES = ("file", "local")
_GLOB = set("{}[]*?\\")
_EFFECTIVE = os.access in os.supports_effective_ids
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


def is_local(url: str) -> bool:
    """Report whether a URL names a local folder: a plain path, or one with the scheme `file`."""
    scheme, separator, _ = url.partition(":")
    return not separator or scheme in _SCHEMES or "/" in scheme


class LocalFiles:
    """A folder on a local disk, or on a network file system that is mounted and has hard links."""

    __slots__ = ("root",)

    def __init__(self, root: Path) -> None:
        self.root = root

    @classmethod
    def open(cls, url: str) -> LocalFiles:
        """Open a folder by "file:///path", "file:/path" or a plain path (taken from the working directory)."""
        path = _path_of(url)
        unusable = sorted(_GLOB & set(path))
        if unusable:
            raise Misconfigured.of("store.path_is_a_pattern", url=url, unusable="".join(unusable))
        return cls(Path(os.path.abspath(path)))  # noqa: PTH100  # Path.resolve would follow links, which may move

    @property
    def url(self) -> str:
        """The root, as `file:///path`, unquoted as Hadoop has it."""
        return f"file://{self.root}".rstrip("/")

    def make_root(self) -> None:
        """Make the root folder unless it is there, and make sure that it can be written."""
        self.root.mkdir(parents=True, exist_ok=True)
        if not os.access(self.root, os.R_OK | os.W_OK | os.X_OK, effective_ids=_EFFECTIVE):
            raise PermissionError(errno.EACCES, "no right to read and write", str(self.root))
        _fsync_folder(self.root.parent)

    def create(self, path: str, data: bytes) -> None:
        """Write a new file by a temporary name and a hard link."""
        target = self.root / path
        self._make_parents(target.parent)
        with _temporary(target, data) as temporary:
            _link(temporary, target)

    def replace(self, path: str, data: bytes) -> None:
        """Write a file by a temporary name and a rename."""
        target = self.root / path
        self._make_parents(target.parent)
        with _temporary(target, data) as temporary:
            temporary.replace(target)

    def read(self, path: str, offset: int, length: int | None) -> bytes:
        """Read a part of a file."""
        with self._definite(path), (self.root / path).open("rb") as file:
            file.seek(offset)
            return file.read(-1 if length is None else length)

    def size(self, path: str) -> int:
        """Ask for the size of a file."""
        target = self.root / path
        with self._definite(path):
            found = target.stat()
            if stat.S_ISDIR(found.st_mode):
                raise IsADirectoryError(errno.EISDIR, "is a folder, not a file", str(target))
            if not stat.S_ISREG(found.st_mode):
                raise OSError(errno.EIO, "is a pipe or a device, expected a file", str(target))
            return found.st_size

    def modified(self, path: str) -> datetime:
        """Ask when a file was last written; of a network file system by its server's clock."""
        with self._definite(path):
            return datetime.fromtimestamp((self.root / path).stat().st_mtime, UTC)

    def entries(self, path: str) -> list[tuple[str, int | None]]:
        """List names and sizes directly below a folder."""
        with self._definite(path), os.scandir(self.root / path) as found:
            return [(entry.name, size) for entry in found for size in _sizes(entry)]

    def delete(self, path: str) -> None:
        """Delete one file."""
        (self.root / path).unlink()

    def delete_folder(self, path: str) -> None:
        """Delete a folder and all that is in it; what vanishes meanwhile is fine."""
        shutil.rmtree(self.root / path, onerror=_unless_gone)

    def prune(self, path: str) -> None:
        """Remove empty folders below a folder, and the folder itself; a folder that is filled meanwhile stays."""
        for folder, _, _ in os.walk(self.root / path, topdown=False):
            with suppress(OSError):
                Path(folder).rmdir()

    def flush(self, path: str) -> None:
        """Fsync the files of a folder, the folder, and the folders above it up to the root."""
        folder = self.root / path
        for name, size in self.entries(path):
            if size is not None:
                fsync(folder / name)
        for each in (folder, *folder.parents):
            _fsync_folder(each)
            if each == self.root:
                return

    def free_space(self) -> FreeSpace:
        """Return how much this user may still write, by the file system."""
        found = os.statvfs(self.root)
        free, total = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
        return FreeSpace(free, total, found.f_favail if found.f_files else None)

    def _make_parents(self, folder: Path) -> None:
        """Make folders below the root, never the root itself: it may be a disk that is not mounted."""
        if folder == self.root or folder.is_dir():
            return
        self._make_parents(folder.parent)
        try:
            folder.mkdir()
        except FileExistsError:
            if not folder.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, "is a file, expected a folder", str(folder)) from None
        except FileNotFoundError as error:
            raise OSError(errno.EIO, "the folder above is gone (is the store mounted?)", str(folder)) from error
        _fsync_folder(folder.parent)

    @contextmanager
    def _definite(self, path: str) -> Iterator[None]:
        """Let "not found" through, unless the cause is a dangling link: it may lead to a disk that is not mounted."""
        try:
            yield
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            target = self.root / path
            for each in (target, *target.parents):
                if each.is_symlink() and not each.exists():
                    raise OSError(errno.EIO, "is a link that leads nowhere (a disk not mounted?)", str(each)) from error
            raise FileNotFoundError(errno.ENOENT, error.strerror, str(target)) from error


def _path_of(url: str) -> str:
    scheme, separator, rest = url.partition(":")
    if not separator or scheme not in _SCHEMES:
        return url
    path = rest.removeprefix("//")
    if not path.startswith("/"):
        raise Misconfigured.of("store.path_not_absolute", url=url)
    return path


@contextmanager
def _temporary(target: Path, data: bytes) -> Iterator[Path]:
    """Write a durable, uniquely named file beside the target; remove it afterwards, and make the folder durable."""
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if is_abandoned():
            raise OSError(errno.ECANCELED, "this write was abandoned after its time limit", str(target))
        yield temporary
    except FileNotFoundError as error:
        raise OSError(errno.EIO, "the folder is gone (is the store mounted?)", str(target.parent)) from error
    finally:
        temporary.unlink(missing_ok=True)
    _fsync_folder(target.parent)


def _link(temporary: Path, target: Path) -> None:
    try:
        os.link(temporary, target)
    except FileExistsError:
        # NFS: the answer to a link that was made may be lost, and the repeated request finds it.
        if temporary.stat().st_nlink != 2:
            _fsync_folder(target.parent)  # the caller may rely on "it exists"
            raise
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        raise Misconfigured.of("store.no_hard_links", parent=target.parent, reason=error.strerror) from error


def _sizes(entry: os.DirEntry[str]) -> list[int | None]:
    """Return the entry's size in a list, which is empty if the entry has vanished since the listing."""
    try:
        return [None if entry.is_dir() else entry.stat().st_size]
    except FileNotFoundError:
        return []


def _unless_gone(_function: object, _path: str, failure: tuple[type[BaseException], BaseException, object]) -> None:
    if not isinstance(failure[1], FileNotFoundError):
        raise failure[1]


def fsync(path: Path) -> None:
    """Make a file, or the names in a folder, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _fsync_folder(folder: Path) -> None:
    try:
        fsync(folder)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EACCES):  # folders that can't be synced, or not be opened
            raise
