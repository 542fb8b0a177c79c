"""SHA-256 over parts of files. Invariant: however large a segment is, only one chunk of it is in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from weir.store.store import Store

CHUNK_BYTES = 4 * 2**20


def chunks(store: Store, path: str, offset: int, length: int) -> Iterator[bytes]:
    """Read `length` bytes from `offset` chunk by chunk; ends early where the file ends."""
    end = offset + length
    while offset < end:
        wanted = min(CHUNK_BYTES, end - offset)
        data = store.read(path, offset, wanted)
        if data:
            yield data
        if len(data) < wanted:
            return
        offset += wanted


def sha256_of(store: Store, path: str, offset: int, length: int) -> str:
    """Digest a part of a file. Raises NotFound and Retryable as the store does."""
    digest = hashlib.sha256()
    for data in chunks(store, path, offset, length):
        digest.update(data)
    return digest.hexdigest()
