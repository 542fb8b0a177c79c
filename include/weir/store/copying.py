"""Copies a file from store to store. Invariant: a copy has the bytes of its digest, or there is an error."""

from __future__ import annotations

import hashlib

from weir.store.errors import OtherBytes
from weir.store.store import Store


def copy_file(source: Store, path: str, target: Store, to: str, sha256: str) -> int:
    """Copy a file through memory, and return the number of its bytes; `sha256` is theirs, in hex.

    Raises NotFound, OtherBytes, AlreadyExists or Retryable.
    """
    data = source.read(path)
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise OtherBytes.of("store.other_bytes", url=source.url, path=path, sha256=sha256, found=found)
    target.create(to, data)
    return len(data)
