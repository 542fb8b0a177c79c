"""A store of which only one folder can be written, and that lies elsewhere: for whoever tries something out.

Invariant: nothing but what is in that folder is ever written, replaced or deleted, whoever asks for it; all else is
read where it is.
"""

from __future__ import annotations

from datetime import datetime

from weir.errors import Internal
from weir.store.files import Files, Room
from weir.store.store import WORKERS, Store


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

    def room(self) -> Room | None:
        return self._files.room()

    def _is_own(self, path: str) -> bool:
        return path == self._name or path.startswith(f"{self._name}/")

    def _own(self, action: str, path: str) -> str:
        if not self._is_own(path):
            raise Internal(f"a drill was about to {action} {self.url}/{path}, which is not its own: nothing was done")
        return self.placed(path)
