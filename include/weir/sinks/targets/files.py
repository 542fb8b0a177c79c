"""Parquet files in folders `<partition>=<epoch>`, which any reader of a local path takes: an epoch is a symbolic link.

Invariant 12: a version is a folder of its own, outside of what readers list, with its marker in it; a link is replaced
by one rename. So a reader that has opened an epoch's folder sees one version, whole; rows and marker change at once.

Invariant: links of a sink are changed by one process at a time, under a lock of the file system, which looks first: an
older version never takes the place of a newer one.

Invariant: what is deleted was made for this sink, as its marker says, or its name where it has no marker yet, and no
link shows it. No sink's folder is below another's, in the store, or below a table.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from weir.errors import Misconfigured
from weir.sinks.folders import LocalFolder, reached, require_alone, require_apart, require_writable, versions_of
from weir.sinks.protocol import (
    ROLLED_BACK,
    Held,
    Outcome,
    SinkTarget,
    TargetAway,
    TargetConflict,
    Token,
    Version,
    outcome_of,
)
from weir.store.local import fsync

MARKER: Final = "_weir.json"
"""The file of a version that says which it is; readers skip names with an underscore."""

LOCK_SECONDS: Final = 60.0
"""How long another process is waited for, which may be suspended with the lock."""

_PAUSE: Final = 0.05

LEAVE_SECONDS: Final = 3600.0
"""How long readers of a replaced version may continue, by the clock of the file system."""


class FilesTarget(SinkTarget):
    """A local folder, or one of a network file system with locks and symbolic links."""

    def prepare(self, version: Version, held: Held | None) -> Token:  # noqa: ARG002  the link tells
        """Check names of columns, that the folder can be written, and that the epoch's name there is ours or free."""
        require_free_name(version, self.options["partition"])
        require_apart(self.options["path"], self.reach)
        with reached(str(self._root)):
            require_alone(self._root)
        with self._locked():
            self._require_own(version)
            with reached(str(self._root)):
                require_writable(self._root)
        return {"folder": f"{self._value(version)}-{version.number}-{version.attempt}"}

    def commit(self, version: Version, token: Token) -> Outcome:
        """Link or copy the files into the version's own folder, then put the link in place."""
        with self._locked():
            found = self._seen(version)
            if found is not Outcome.ABSENT:
                return found
            self._require_own(version)
            if self._is_confirmed(version):
                return Outcome.COMMITTED
            folder = self._new_folder(version, token)
            with reached(str(folder)):
                self._fill(folder, version)
                self._switch(folder, version)
                self._clean(version)
        return Outcome.COMMITTED

    def recover(self, version: Version, token: Token) -> Outcome:  # noqa: ARG002
        """Read the marker behind the link."""
        with self._locked():
            return self._seen(version)

    def rollback(self, version: Version, token: Token) -> bool:
        """Put a folder in place that has nothing but a marker."""
        with self._locked():
            marker = self._marker(version)
            is_own = marker is not None and marker["owner"] == version.owner
            if marker is None or not is_own or not version.is_marked_by(marker["number"], marker["digest"]):
                return False
            if marker["digest"] != ROLLED_BACK:
                folder = self._versions / f"{token['folder']}-{self._mark(version)}-out"
                with reached(str(folder)):
                    self._fill(folder, replace(version, digest=ROLLED_BACK, files=()))
                    self._switch(folder, version)
        return True

    def _seen(self, version: Version) -> Outcome:
        marker = self._marker(version)
        if marker is None or marker["owner"] != version.owner:
            return Outcome.ABSENT
        found = outcome_of(version, marker["number"], marker["digest"])
        is_held = found in (Outcome.COMMITTED, Outcome.EQUAL)
        return Outcome.ABSENT if is_held and not self._is_whole(version, marker) else found

    def _is_confirmed(self, version: Version) -> bool:
        """Have the marker of provisional rows with equal rows be that of the version, by a rename."""
        marker, folder = self._marker(version), self._link(version).resolve()
        if marker is None or not version.confirms(marker["number"], marker["digest"]):
            return False
        if not self._is_whole(version, marker):
            return False
        with reached(str(folder)):
            new = folder / f"{MARKER}.new"
            _write(new, {**marker, "number": version.number, "digest": version.digest})
            new.replace(folder / MARKER)
            fsync(folder)
        return True

    def _is_whole(self, version: Version, marker: dict[str, Any]) -> bool:
        """Compare the files behind the link with their digests: a hard link shares the damage of the store's file."""
        try:
            return all(_sha256(self._link(version) / each["name"]) == each["sha256"] for each in marker["files"])
        except FileNotFoundError:
            return False

    def _marker(self, version: Version) -> dict[str, Any] | None:
        return self._marker_of(self._link(version))

    @staticmethod
    def _marker_of(link: Path) -> dict[str, Any] | None:
        with reached(str(link)):
            try:
                found: dict[str, Any] = json.loads((link / MARKER).read_text())
            except (FileNotFoundError, NotADirectoryError, ValueError):  # damaged: the version is put there again
                return None
            return found

    def _require_own(self, version: Version) -> None:
        """Require that no other sink publishes the epoch into this folder, by whatever name of its folders."""
        link = self._link(version)
        for each in {link, *self._root.glob(f"*={self._value(version)}")}:
            marker = self._marker_of(each)
            if marker is not None and marker["owner"] != version.owner:
                raise Misconfigured.of(
                    "sinks.files_owned_by_another", each=each, marker=marker["owner"], owner=version.owner
                )
            if each == link and marker is None and link.exists() and not link.is_symlink():
                raise TargetConflict.of("sinks.files_link_in_the_way", link=link, owner=version.owner)

    def _new_folder(self, version: Version, token: Token) -> Path:
        """Return the version's folder, or another one where readers see that, with a file damaged or gone."""
        folder: Path = self._versions / f"{token['folder']}-{self._mark(version)}"
        is_seen = self._link(version).resolve() == folder.resolve()
        return folder.with_name(f"{folder.name}-again") if is_seen else folder

    def _fill(self, folder: Path, version: Version) -> None:
        """Make a folder that no reader sees, anew where a process was killed while it did."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        files = []
        place = LocalFolder(folder, self.reach, self.put_bytes)
        for number, file in enumerate(version.files):
            name = f"part-{number:05}-{version.number}-{version.attempt}.parquet"
            place.put(name, file)
            files.append({"name": name, "bytes": file.bytes, "sha256": file.sha256})
        said = {
            "owner": version.owner,
            "partition": self.options["partition"],
            "epoch": version.epoch,
            "number": version.number,
            "digest": version.digest,
            "rows": version.rows,
            "files": files,
        }
        _write(folder / MARKER, said)
        fsync(folder)

    def _switch(self, folder: Path, version: Version) -> None:
        link = self._link(version)
        before = link.resolve() if link.is_symlink() else None
        new = self._versions / f"{folder.name}.link"
        new.unlink(missing_ok=True)
        new.symlink_to(os.path.relpath(folder, link.parent.resolve()), target_is_directory=True)
        new.replace(link)
        fsync(link.parent)
        if before is not None and before.exists():
            os.utime(before)  # since when it is replaced

    def _clean(self, version: Version) -> None:
        """Remove the epoch's earlier versions of this sink that no reader has had for a while."""
        value = self._value(version)
        shown = {each.resolve() for each in self._root.glob(f"*={value}")}
        lock = self._versions / "lock"
        os.utime(lock)
        now = lock.stat().st_mtime
        for folder in self._versions.glob(f"{value}-*"):
            is_old = folder.is_dir() and folder.stat().st_mtime + LEAVE_SECONDS < now
            if is_old and folder not in shown and self._is_own(folder, version):
                shutil.rmtree(folder, ignore_errors=True)

    def _is_own(self, folder: Path, version: Version) -> bool:
        """Report whether a folder was made for this sink; its marker comes last, so that a killed process leaves none.

        A marker that names no partition is of a time when two sinks could have one path: no link shows the folder.
        """
        try:
            marker = json.loads((folder / MARKER).read_text())
        except FileNotFoundError:
            return f"-{self._mark(version)}" in folder.name
        except ValueError:
            return False
        of_partition = marker.get("partition", self.options["partition"])
        return bool((marker["owner"], of_partition) == (version.owner, self.options["partition"]))

    def _mark(self, version: Version) -> str:
        """Return by what the names of this sink's folders differ from those of any other."""
        return hashlib.sha256(f"{version.owner}/{self.options['partition']}".encode()).hexdigest()[:8]

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with reached(str(self._root)):
            try:
                self._root.mkdir(exist_ok=True)
            except FileNotFoundError as error:  # folders above are not made: they may be on a disk that is not mounted
                raise TargetAway.of("sinks.files_parent_missing", root=self._root, parent=self._root.parent) from error
            self._versions.mkdir(exist_ok=True)
            lock = (self._versions / "lock").open("a")
        with lock:
            with reached(str(self._root)):
                self._lock(lock.fileno())
            yield

    def _lock(self, lock: int) -> None:
        until = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > until:
                    raise TargetAway.of("sinks.files_locked", versions=self._versions / "lock") from None
                time.sleep(_PAUSE)
            else:
                return

    @property
    def _root(self) -> Path:
        return Path(self.options["path"])

    @property
    def _versions(self) -> Path:
        return versions_of(Path(os.path.realpath(self._root)))

    def _link(self, version: Version) -> Path:
        return self._root / f"{self.options['partition']}={self._value(version)}"

    @staticmethod
    def _value(version: Version) -> str:
        return partition_value(version.epoch)


def require_free_name(version: Version, partition: str) -> None:
    """Require that the folders have a name of their own: pandas refuses a column of that name, DuckDB hides it."""
    columns = [each["name"] for each in json.loads(version.spark_schema)["fields"]]
    found = [name for name in columns if name.casefold() == partition.casefold()]
    if found:
        raise Misconfigured.of("sinks.files_column_taken", sink=version.sink, found=found[0], partition=partition)


def partition_value(epoch: str) -> str:
    """Return the value of an epoch in a folder's name: its day, or its time with colons as Hive escapes them."""
    at = datetime.strptime(epoch, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    return f"{at:%Y-%m-%d}" if (at.hour, at.minute, at.second) == (0, 0, 0) else f"{at:%Y-%m-%d %H%%3A%M%%3A%S}"


def _write(path: Path, marker: dict[str, Any]) -> None:
    with path.open("w") as file:
        json.dump(marker, file, indent=1)
        file.flush()
        os.fsync(file.fileno())


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
