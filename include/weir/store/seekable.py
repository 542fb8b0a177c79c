"""Files that are read at places of the reader's choice, as Python's own. Invariant: only a read asks the store."""

from __future__ import annotations

import io


class Seekable(io.RawIOBase):
    """A file of a known size; who inherits from it reads on at `_at`."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size, self._at = size, 0

    def readable(self) -> bool:
        """It can be read."""
        return True

    def seekable(self) -> bool:
        """It can be read from anywhere."""
        return True

    def tell(self) -> int:
        """Where the next read begins."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Let the next read begin elsewhere; answers where."""
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at
