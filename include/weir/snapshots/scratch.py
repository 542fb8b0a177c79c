"""Where a drill restores to: a ledger of its own, and a folder of the store that is nobody else's.

Invariant: nothing that was there before is changed, and what is written goes with the drill. One that was killed gives
no sign of life any more: whoever comes by, the next drill or a sweep, removes what it has left.

A store of which only one folder can be written, and that lies elsewhere: for whoever tries something out.

Invariant: nothing but what is in that folder is ever written, replaced or deleted, whoever asks for it; all else is
read where it is.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from weir.coordination.read_leases import RENEWAL, reader
from weir.coordination.services import Services
from weir.errors import Internal, WeirError
from weir.ledger.leases import LEASE
from weir.ledger.ledger import Ledger
from weir.store.errors import NotFound
from weir.store.files import Files, FreeSpace
from weir.store.store import WORKERS, Store
from weir.store.walk import folders_in
from weir.topology.ids import AttemptId, AttemptKind, new_attempt_id

RESTORE_TESTS = "_drills"
"""The folder of the store in which drills are: the name of no dataflow."""

HEARTBEAT = "sign_of_life.txt"
"""In the folder of a drill: when its process was last known to be there, and who it is."""

_LOCAL = "weir-drill-"
"""How the folder on this machine begins that has the ledger; the rest of its name is the drill's own."""

_TIME = "%Y%m%dT%H%M%SZ"


@dataclass(frozen=True, slots=True)
class RestoreTestPlace:
    """`services` are those of a world of its own, in which `dataflow` can be made; `folder` is relative to the store.

    `id` is an attempt's, for what is computed there.
    """

    services: Services
    dataflow: str
    folder: str
    id: AttemptId


@contextmanager
def restore_test_place(services: Services) -> Iterator[RestoreTestPlace]:
    """Give a place that goes when it is left; those of drills that were killed go first. Raises Retryable."""
    remove_abandoned(services)
    own = services.new_uuid().hex[:12]
    folder, dataflow = f"{RESTORE_TESTS}/{services.now():{_TIME}}-{own}", f"drill_{own}"
    services.store.create(f"{folder}/{HEARTBEAT}", _sign(services))
    ended = threading.Event()
    renewing = threading.Thread(target=_renew, args=(services, folder, ended), name=f"weir: {folder}", daemon=True)
    renewing.start()
    local = Path(tempfile.mkdtemp(prefix=f"{_LOCAL}{own}-"))
    try:
        ledger = Ledger.open(f"sqlite:///{local / 'ledger.db'}")
        try:
            store = ScratchStore(services.store, dataflow, folder)
            attempt = new_attempt_id(AttemptKind.SYNTHETIC, own)
            yield RestoreTestPlace(
                replace(services, ledger=ledger, store=store),
                dataflow,
                folder,
                attempt,
            )
        finally:
            ledger.close()
    finally:
        ended.set()
        renewing.join()
        shutil.rmtree(local, ignore_errors=True)
        services.store.delete_folder(folder)


def remove_abandoned(services: Services) -> tuple[str, ...]:
    """Remove what drills have left that give no sign of life any more; answers their folders. Raises Retryable."""
    dead = abandoned_places(services)
    for each in dead:
        services.store.delete_folder(each)
        for local in Path(tempfile.gettempdir()).glob(f"{_LOCAL}{each.rpartition('-')[2]}-*"):
            shutil.rmtree(local, ignore_errors=True)
    return dead


def abandoned_places(services: Services) -> tuple[str, ...]:
    """The folders of drills that have given no sign of life for an hour. Raises Retryable."""
    places = [f"{RESTORE_TESTS}/{name}" for name in folders_in(services.store, RESTORE_TESTS)]
    return tuple(each for each in places if _last_sign(services, each) + LEASE <= services.now())


def _last_sign(services: Services, folder: str) -> datetime:
    """When a drill was last known to be at work; one that was killed while it was removed has no sign any more."""
    try:
        said = services.store.read(f"{folder}/{HEARTBEAT}").decode().partition(" ")[0]
        return datetime.fromisoformat(said)
    except (NotFound, ValueError):
        began = folder.rpartition("/")[2].partition("-")[0]
    with suppress(ValueError):
        return datetime.strptime(f"{began}+0000", f"{_TIME}%z")
    return services.now()  # nobody's that Weir knows


def _sign(services: Services) -> bytes:
    return f"{services.now().isoformat()} {reader('weir verify')}\n".encode()


def _renew(services: Services, folder: str, ended: threading.Event) -> None:
    while not ended.wait(RENEWAL):
        with suppress(WeirError):  # the next sign comes in time
            services.store.replace(f"{folder}/{HEARTBEAT}", _sign(services))


class ScratchStore(Store):
    """A store in which the folder `name` is at `place`, another folder of the same store."""

    __slots__ = ()

    def __init__(self, store: Store, name: str, place: str) -> None:
        super().__init__(_ScratchFiles(store.files, name, place))

    def spark_url(self, path: str) -> str:
        """Spell the path as Spark and Hadoop do, where it really is."""
        assert isinstance(self.files, _ScratchFiles)  # noqa: S101  # as it was made
        return super().spark_url(self.files.placed(path))


class _ScratchFiles:
    def __init__(self, files: Files, name: str, place: str) -> None:
        self._files, self._name, self._place = files, name, place

    @property
    def url(self) -> str:
        return self._files.url

    @property
    def workers(self) -> int:
        return int(getattr(self._files, "workers", WORKERS))

    def placed(self, path: str) -> str:
        """Where a path of this store is in the other."""
        return f"{self._place}/{path}" if self._is_own(path) else path

    def make_root(self) -> None:
        """It is that of another store, which is there."""

    def create(self, path: str, data: bytes) -> None:
        self._files.create(self._own("create", path), data)

    def replace(self, path: str, data: bytes) -> None:
        self._files.replace(self._own("replace", path), data)

    def read(self, path: str, offset: int, length: int | None) -> bytes:
        return self._files.read(self.placed(path), offset, length)

    def size(self, path: str) -> int:
        return self._files.size(self.placed(path))

    def modified(self, path: str) -> datetime:
        return self._files.modified(self.placed(path))

    def entries(self, path: str) -> list[tuple[str, int | None]]:
        return self._files.entries(self.placed(path))

    def delete(self, path: str) -> None:
        self._files.delete(self._own("delete", path))

    def delete_folder(self, path: str) -> None:
        self._files.delete_folder(self._own("delete", path))

    def flush(self, path: str) -> None:
        self._files.flush(self._own("flush", path))

    def free_space(self) -> FreeSpace | None:
        return self._files.free_space()

    def _is_own(self, path: str) -> bool:
        return path == self._name or path.startswith(f"{self._name}/")

    def _own(self, action: str, path: str) -> str:
        if not self._is_own(path):
            raise Internal(f"a drill was about to {action} {self.url}/{path}, which is not its own: nothing was done")
        return self.placed(path)
