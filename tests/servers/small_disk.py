"""A small file system, for tests of what a full disk does.

Invariant: nothing stays mounted, whatever ends the process that asked for it: a watchdog outlives it and unmounts.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from weir.errors import Misconfigured

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


_BLOCKS: Final = (64 * 2**10, 4 * 2**10)
"""Bytes of one write of the filler: first fast, then to the last page."""

_WATCHDOG: Final = """
mount -t tmpfs -o "size=$2m" weir-small-disk "$1" || exit 1
echo mounted
cat > /dev/null
umount --lazy "$1"
"""
"""`cat` ends when the last writer of its input is gone: at the end of the block, or with the process."""

_CAP_SYS_ADMIN: Final = 21
_OWN_NAMESPACES: Final = ("unshare", "--user", "--map-root-user", "--mount")


@dataclass(frozen=True, slots=True)
class SmallDisk:
    """A mounted file system at `path`."""

    path: Path

    @property
    def free_bytes(self) -> int:
        """How much can still be written."""
        return shutil.disk_usage(self.path).free

    def fill(self, leave: int = 0) -> None:
        """Write until nothing fits, then give back at most `leave` bytes, in whole pages."""
        with self._filler.open("ab", buffering=0) as file:
            for block in _BLOCKS:
                _write_all(file.fileno(), block)
            size = file.tell()
        os.truncate(self._filler, max(0, size - leave))

    def make_room(self) -> None:
        """Delete what `fill` has written."""
        self._filler.unlink(missing_ok=True)

    @property
    def _filler(self) -> Path:
        return self.path / ".weir-filler"


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[SmallDisk]:
    """Mount a file system in memory at `folder`, which is made, and unmount it at the end.

    Raises Misconfigured where this process may not mount: start it by `with_own_mounts` then.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with subprocess.Popen(
        ["sh", "-c", _WATCHDOG, "weir-small-disk", str(folder), str(megabytes)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C is for the tests, which then end the block
    ) as watchdog:
        assert watchdog.stdout is not None  # a pipe was asked for
        if watchdog.stdout.readline() != "mounted\n":
            raise Misconfigured(_refusal(folder, watchdog.communicate()[1]))
        try:
            yield SmallDisk(folder)
        finally:
            watchdog.communicate()
    if os.path.ismount(folder):
        raise Misconfigured(f"{folder} is still mounted: type `umount --lazy {folder}`")


def may_mount() -> bool:
    """Report whether `small_disk` works in this process: it may mount, at least in namespaces of its own."""
    status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return bool(int(status["CapEff"], 16) >> _CAP_SYS_ADMIN & 1)


def with_own_mounts(command: Sequence[str]) -> list[str]:
    """The command that runs `command` where `small_disk` works, without any right to do so here."""
    return [*_OWN_NAMESPACES, *command]


@cache
def why_no_own_mounts() -> str:
    """Return why this machine refuses mounts in namespaces of their own to this process; empty if it allows them.

    Containers and hardened hosts refuse them to users who are not root.
    """
    mount = ["mount", "-t", "tmpfs", "weir-small-disk", tempfile.gettempdir()]
    try:
        run = subprocess.run(with_own_mounts(mount), check=False, capture_output=True, text=True)
    except FileNotFoundError as error:
        return str(error)
    return run.stderr.strip() or f"status {run.returncode}" if run.returncode else ""


def _refusal(folder: Path, said: str) -> str:
    return (
        f"a small file system cannot be mounted at {folder}: {said.strip() or 'no reason was given'}. Tests of full "
        f"disks need root, or user namespaces: `{' '.join(with_own_mounts(['python', '-m', 'pytest']))} ...`"
    )


def _write_all(descriptor: int, block: int) -> None:
    data = b"\0" * block
    try:
        while True:
            os.write(descriptor, data)
    except OSError:
        return
