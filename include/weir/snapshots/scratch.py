"""Provide a place for a restore test: a ledger of its own, and a folder of the store that only it writes.

Invariant: nothing that existed before is changed, whatever the test writes, replaces or deletes; all else is read where
it is. What a test has written is deleted with its place. A process that was killed renews its heartbeat no more: the
next restore test or sweep removes the place.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from weir.coordination.read_leases import RENEWAL, reader
from weir.coordination.services import Services
from weir.errors import Internal, WeirError
from weir.formats.paths import name_of
from weir.ledger.leases import LEASE
from weir.ledger.ledger import Ledger
from weir.store.errors import NotFound
from weir.store.files import Files, ForwardedFiles, R
from weir.store.store import WORKERS, Store
from weir.store.walk import folders_in
from weir.topology.ids import AttemptId, AttemptKind, new_attempt_id

RESTORE_TESTS = "_drills"
"""The folder of the store for restore tests: not a valid name of a dataflow."""

HEARTBEAT = "sign_of_life.txt"
"""The file in the folder of a restore test with the time of its last heartbeat, and the process."""

_LOCAL = "weir-drill-"
"""The prefix of the local folder of the ledger; the id of the restore test follows."""

_TIME = "%Y%m%dT%H%M%SZ"


@dataclass(frozen=True, slots=True)
class RestoreTestPlace:
    """A place for a restore test: `services` with a ledger of their own, in which `dataflow` can be restored.

    `folder` is relative to the store. `id` is the attempt id of what is computed there.
    """

    services: Services
    dataflow: str
    folder: str
    id: AttemptId


@contextmanager
def restore_test_place(services: Services) -> Iterator[RestoreTestPlace]:
    """Provide a place and delete it at the end; places of killed processes are removed first. Raises Retryable."""
    remove_abandoned(services)
    own = services.new_uuid().hex[:12]
    folder, dataflow = f"{RESTORE_TESTS}/{services.now():{_TIME}}-{own}", f"drill_{own}"
    services.store.create(f"{folder}/{HEARTBEAT}", _heartbeat(services))
    ended = threading.Event()
    renewing = threading.Thread(target=_renew, args=(services, folder, ended), name=f"weir: {folder}", daemon=True)
    renewing.start()
    local = Path(tempfile.mkdtemp(prefix=f"{_LOCAL}{own}-"))
    try:
        ledger = Ledger.open(f"sqlite:///{local / 'ledger.db'}")
        try:
            store = ScratchStore(services.store, dataflow, folder)
            attempt = new_attempt_id(AttemptKind.SYNTHETIC, own)
            yield RestoreTestPlace(replace(services, ledger=ledger, store=store), dataflow, folder, attempt)
        finally:
            ledger.close()
    finally:
        ended.set()
        renewing.join()
        shutil.rmtree(local, ignore_errors=True)
        services.store.delete_folder(folder)


def remove_abandoned(services: Services) -> tuple[str, ...]:
    """Remove the places of restore tests without a heartbeat; return their folders. Raises Retryable."""
    abandoned = abandoned_places(services)
    for each in abandoned:
        services.store.delete_folder(each)
        for local in Path(tempfile.gettempdir()).glob(f"{_LOCAL}{each.rpartition('-')[2]}-*"):
            shutil.rmtree(local, ignore_errors=True)
    return abandoned


def abandoned_places(services: Services) -> tuple[str, ...]:
    """Return the folders of restore tests without a heartbeat for the time of a lease. Raises Retryable."""
    places = [f"{RESTORE_TESTS}/{name}" for name in folders_in(services.store, RESTORE_TESTS)]
    return tuple(each for each in places if _last_heartbeat(services, each) + LEASE <= services.now())


def _last_heartbeat(services: Services, folder: str) -> datetime:
    """Return the time of the last heartbeat, or of the begin where the removal of the place was interrupted."""
    try:
        text = services.store.read(f"{folder}/{HEARTBEAT}").decode().partition(" ")[0]
        return datetime.fromisoformat(text)
    except (NotFound, ValueError):
        began = name_of(folder).partition("-")[0]
    with suppress(ValueError):
        return datetime.strptime(f"{began}+0000", f"{_TIME}%z")
    return services.now()  # an unknown folder


def _heartbeat(services: Services) -> bytes:
    return f"{services.now().isoformat()} {reader('weir verify')}\n".encode()


def _renew(services: Services, folder: str, ended: threading.Event) -> None:
    while not ended.wait(RENEWAL):
        with suppress(WeirError):  # the next heartbeat is in time
            services.store.replace(f"{folder}/{HEARTBEAT}", _heartbeat(services))


class ScratchStore(Store):
    """A store in which the folder `name` is stored at `place`, and all other folders are read-only."""

    __slots__ = ()

    def __init__(self, store: Store, name: str, place: str) -> None:
        super().__init__(_ScratchFiles(store.files, name, place))

    def spark_url(self, path: str) -> str:
        """Return the URL for Spark and Hadoop of the place where the path is stored."""
        assert isinstance(self.files, _ScratchFiles)  # noqa: S101  # by the constructor
        return super().spark_url(self.files.placed(path))


class _ScratchFiles(ForwardedFiles):
    def __init__(self, files: Files, name: str, place: str) -> None:
        super().__init__(files)
        self._name, self._place = name, place

    @property
    def workers(self) -> int:
        return int(getattr(self._files, "workers", WORKERS))

    def placed(self, path: str) -> str:
        """Return the path in the underlying store."""
        return f"{self._place}/{path}" if self._is_own(path) else path

    def make_root(self) -> None:
        """Do nothing: the root of the underlying store exists."""

    def _do(self, operation: Callable[..., R], path: str, *more: Any) -> R:
        reads = (self._files.read, self._files.size, self._files.modified, self._files.entries)
        if operation not in reads and not self._is_own(path):
            action = getattr(operation, "__name__", "change").partition("_")[0]
            raise Internal.of("snapshots.outside_of_scratch", action=action, url=self.url, path=path)
        return operation(self.placed(path), *more)

    def _is_own(self, path: str) -> bool:
        return path == self._name or path.startswith(f"{self._name}/")
