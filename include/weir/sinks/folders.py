"""Folders of targets that own their files: those of versions are put there by a hard link or as a copy.

Invariant: a file under its final name is whole. So what a process that was killed has put there, the next one keeps.

What a target deletes there never harms the store, and the other way round: links are names of their own.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from weir.connections import S3Account
from weir.errors import Misconfigured, Retryable, is_for_person
from weir.extras import needed_for
from weir.sinks.protocol import PutBytes, Reach, TargetAway, VersionFile
from weir.store.local import fsync

if TYPE_CHECKING:
    from weir.store.s3 import S3Files

LINK_SECONDS: Final = 86_400.0
"""The greatest age of a file that is linked. A link has the age of the store's file, and whoever cleans the target's
folder deletes old files that it does not know: an older one is copied, and is new."""

PART_BYTES: Final = 16 * 2**20
"""The bytes of a file that are in memory while it is copied through this process."""

S3_SECONDS: Final = 60.0
"""How long a request to S3 is retried."""


_TEMPORARY: Final = 37
"""By how many bytes the name of a file is longer while it is copied."""

_LONGEST_KEY: Final = 1024


def open_folder(url: str, account: S3Account, reach: Reach, counted: PutBytes) -> TargetFolder:
    """Open a local folder by its absolute path, or one of S3 by its URL; nothing is reached yet.

    The bytes of files that are put there are added to `counted`.
    """
    is_s3 = url.startswith("s3://")
    return S3Folder(url, account, reach, counted) if is_s3 else LocalFolder(Path(url), reach, counted)


class LocalFolder:
    """A folder on a local disk, or on a network file system that is mounted."""

    def __init__(self, root: Path, reach: Reach, counted: PutBytes) -> None:
        self._root, self._reach, self._counted = root, reach, counted

    def require(self) -> None:
        """Require the folder above, which may be on a disk that is not mounted."""
        with reached(str(self._root)):
            self._root.parent.stat()

    def require_alone(self) -> None:
        """Look at the folders above, and at those in it."""
        with reached(str(self._root)):
            require_alone(self._root)

    def make(self) -> None:
        """Make the folder, with those above."""
        with reached(str(self._root)):
            self._root.mkdir(parents=True, exist_ok=True)

    def require_room(self, names: Sequence[str]) -> None:
        """Require the right to write, and names that are not too long."""
        with reached(str(self._root)):
            there = next(each for each in (self._root, *self._root.parents) if each.exists())
            require_writable(there)
            longest = max((len(os.fsencode(part)) for name in names for part in name.split("/")), default=0)
            if longest + _TEMPORARY > os.pathconf(there, "PC_NAME_MAX"):
                raise OSError(errno.ENAMETOOLONG, f"its files need names of {longest + _TEMPORARY} bytes")
            for folder in sorted({name.rpartition("/")[0] for name in names if (self._root / name).parent.exists()}):
                require_writable(self._root / folder)

    def has(self, name: str, size: int) -> bool:
        """Ask for a file's size."""
        with reached(str(self._root)):
            try:
                return (self._root / name).stat().st_size == size
            except (FileNotFoundError, NotADirectoryError):
                return False

    def put(self, name: str, file: VersionFile) -> None:
        """Link it where the store is on the same file system, else copy it."""
        made = self._root / name
        with reached(str(self._root)):
            if self.has(name, file.bytes):
                return
            made.parent.mkdir(exist_ok=True)
            if not self._is_linked(made, file):
                self._copy(made, file)
            fsync(made.parent)

    def flush(self, name: str) -> None:
        """Fsync a file and its folder."""
        made = self._root / name
        with reached(str(made)):
            fsync(made)
            fsync(made.parent)

    def _is_linked(self, made: Path, file: VersionFile) -> bool:
        source = self._reach.local_path(file)
        try:
            found = None if source is None else Path(source).stat()
            if source is None or found is None or found.st_size != file.bytes:
                return False
            if time.time() - found.st_mtime > LINK_SECONDS:
                return False
            os.link(source, made)
        except OSError:  # another file system, one without hard links, or no right to link; or another process did it
            return self.has(made.relative_to(self._root).as_posix(), file.bytes)
        self._counted.linked += file.bytes
        return True

    def _copy(self, made: Path, file: VersionFile) -> None:
        # No hidden name: what a kill leaves, the table's own clean-up removes.
        temporary = made.with_name(f"{made.name}.{uuid.uuid4().hex}.tmp")
        try:
            with temporary.open("xb") as written:
                for part in parts_of(self._reach, file):
                    written.write(part)
                written.flush()
                os.fsync(written.fileno())
            temporary.replace(made)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        self._counted.copied += file.bytes


class S3Folder:
    """A key prefix of S3."""

    def __init__(self, url: str, account: S3Account, reach: Reach, counted: PutBytes) -> None:
        self._url, self._account, self._reach, self._counted = url, account, reach, counted

    def require(self) -> None:
        """Require that there is a bucket, and that it may be listed."""
        with reached(self._url):
            self._files.make_root()

    def require_alone(self) -> None:
        """Do nothing: no target deletes there what it has not put there."""

    def make(self) -> None:
        """Do nothing: S3 has no folders."""

    def require_room(self, names: Sequence[str]) -> None:
        """Require keys that are not too long; what the account may write, S3 says when it is done."""
        prefix = self._url.removeprefix("s3://").partition("/")[2]
        longest = max((len(f"{prefix}/{name}".encode()) for name in names), default=0)
        if longest > _LONGEST_KEY:
            raise Misconfigured.of("sinks.key_too_long", url=self._url, longest=longest)

    def has(self, name: str, size: int) -> bool:
        """Ask for an object's size."""
        with reached(self._url):
            try:
                return self._files.size(name) == size
            except FileNotFoundError:
                return False

    def put(self, name: str, file: VersionFile) -> None:
        """Let S3 copy it where it has the store's object, too; else copy it in parts."""
        if self.has(name, file.bytes):
            return
        with reached(self._url):
            if not self._is_copied_by_server(name, file):
                self._copy(name, file)

    def flush(self, name: str) -> None:
        """Do nothing: what S3 has acknowledged is durable."""

    def _is_copied_by_server(self, name: str, file: VersionFile) -> bool:
        source = self._reach.url(file)
        if not source.startswith("s3://"):
            return False
        try:
            self._files.copy(source, name)
        except TimeoutError:
            raise
        except OSError:  # the store is in another S3, the account may not read it, or the object is too large
            return False
        if not self.has(name, file.bytes):
            return False
        self._counted.copied_by_server += file.bytes
        return True

    def _copy(self, name: str, file: VersionFile) -> None:
        try:
            if file.bytes <= PART_BYTES:
                self._files.replace(name, b"".join(parts_of(self._reach, file)))
            else:
                self._files.upload(name, parts_of(self._reach, file))
        except OSError:
            if not self.has(name, file.bytes):  # else the answer was lost
                raise
        self._counted.copied += file.bytes

    @cached_property
    def _files(self) -> S3Files:
        return s3_files(self._url, self._account)


TargetFolder = LocalFolder | S3Folder
"""A folder of a target, with files by their "/"-separated names. Raises TargetAway or Misconfigured.

A file is put there under a name that no other one ever has; that raises Retryable, too.
"""


def s3_files(url: str, account: S3Account) -> S3Files:
    """Open a key prefix of S3; nothing is reached yet."""
    with needed_for(f"the folder {url}"):
        from weir.store.s3 import S3Files  # noqa: PLC0415  s3fs is slow to import
    return S3Files.open(url, account.for_s3fs(), S3_SECONDS)


def parts_of(reach: Reach, file: VersionFile) -> Iterator[bytes]:
    """Read a file, and compare it with its digest before its last byte is given away."""
    digest, left = hashlib.sha256(), file.bytes
    with reach.open(file) as source:
        while left:
            part = _read(source, min(PART_BYTES, left))
            digest.update(part)
            left -= len(part)
            if not part or (not left and digest.hexdigest() != file.sha256):
                raise Retryable.of("sinks.file_damaged", file_path=file.path, bytes=file.bytes, sha256=file.sha256)
            yield part


def _read(source: BinaryIO, size: int) -> bytes:
    try:
        return source.read(size)
    except OSError as error:  # the store's, not the target's
        raise Retryable.of("sinks.store_unreadable", error=error) from error


def versions_of(root: Path) -> Path:
    """Return the folder beside a sink's with its versions."""
    return root.with_name(f".{root.name}.versions")


def require_alone(root: Path) -> None:
    """Require that a sink's folder is below no other sink's and no table, nor has a sink's below it.

    What is below a table, its maintenance deletes; what is below a version's folder, the next version. Raises
    Misconfigured.
    """
    own = Path(os.path.realpath(root))
    other = next((each for each in own.parents if _owner_of(each)), None)
    if other is not None:
        raise Misconfigured.of("sinks.folder_below_another", root=root, other=other, owner_of=_owner_of(other))
    below = next((each for each in own.glob(".*.versions") if (each / "lock").exists()), None)
    if below is not None:
        name = below.name.removeprefix(".").removesuffix(".versions")
        raise Misconfigured.of("sinks.folder_above_a_sink", own=own / name, root=root)


def _owner_of(folder: Path) -> str:
    """Return whose a folder is, as what is in it or beside it says; empty for no one's."""
    if folder.name and (versions_of(folder) / "lock").exists():
        return "a sink's folder"
    if folder.name.startswith(".") and folder.name.endswith(".versions") and (folder / "lock").exists():
        return "a folder of a sink's versions"
    if (folder / "_delta_log").is_dir():
        return "a Delta table"
    if any((folder / "metadata").glob("*.metadata.json")):
        return "an Iceberg table"
    return ""


_NOTHING: Final = VersionFile("", 0, 0, "")


def require_apart(place: str, reach: Reach) -> None:
    """Require that a target's folder and the store are in no part one: each deletes what it does not know.

    A store that is a whole bucket has others beside its folders. Raises Misconfigured.
    """
    store, own = _spelled(reach.url(_NOTHING)), _spelled(place)
    if "://" in store and "/" not in store.partition("://")[2]:
        return
    if (own + "/").startswith(store + "/") or (store + "/").startswith(own + "/"):
        raise Misconfigured.of("sinks.folder_is_the_store", place=place, store=store)


def _spelled(place: str) -> str:
    """Return the one spelling of a folder, links resolved, without a slash at the end."""
    path = re.sub("^file:/+", "/", place).rstrip("/")
    return path if "://" in path else os.path.realpath(path)


def require_writable(folder: Path) -> None:
    """Require the right to make and replace files. Raises OSError."""
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "it is no folder", str(folder))
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, "it may not be written", str(folder))


@contextmanager
def reached(place: str) -> Iterator[None]:
    """Translate what a file system says: a right, a name or what is in the way needs a person, all else may pass."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM):
            raise Misconfigured.of("sinks.folder_refused", place=place, error=error) from error
        if is_for_person(error):
            in_the_way = isinstance(error, FileExistsError | NotADirectoryError)
            problem = "a file of that name is in the way" if in_the_way else error.strerror or error
            raise Misconfigured.of("sinks.folder_unusable", place=place, problem=problem) from error
        raise TargetAway.of("sinks.folder_away", place=place, error=error) from error
