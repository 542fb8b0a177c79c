"""Reading results again, every byte of them, to see whether they are as they were written.

Invariant: as in `probe`: what is not found twice, of a store whose marker can be read, is not lost. However large a
file is, only a few chunks of it are in memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import partial

from weir.errors import Fault, Loss
from weir.results.manifest import DataFile, Manifest
from weir.store.errors import NotFound
from weir.store.hands import in_parallel
from weir.store.probe import Finding, PartitionRef, asked_twice, difference, loss_of, missing, probe, worst_of
from weir.store.segments import chunks
from weir.store.store import Store

Watch = Callable[[int], None]
"""Is told, from any thread, how many bytes more have been read."""

_File = tuple[int, str, DataFile]
"""The place of its result in the list, its path, and what is recorded of it."""


def compare_results(
    store: Store, store_id: str, refs: Sequence[PartitionRef], watch: Watch
) -> dict[PartitionRef, Manifest | Loss]:
    """Compare manifests, sizes, all segments and whole files with what was recorded; the manifest of what is right.

    Raises Retryable if anything cannot be answered definitely.
    """
    answers = probe(store, store_id, refs)
    whole = [(ref, found) for ref, found in answers.items() if isinstance(found, Manifest)]
    files = [
        (number, f"{ref.folder}/{file.name}", file)
        for number, (ref, manifest) in enumerate(whole)
        for file in manifest.files
    ]
    found = asked_twice(store, store_id, files, partial(_read_all, store, watch), lambda answer: answer is not None)
    findings: dict[PartitionRef, list[Finding]] = {}
    for (number, *_), finding in zip(files, found, strict=True):
        if finding is not None:
            findings.setdefault(whole[number][0], []).append(finding)
    return answers | {ref: loss_of(ref, worst_of(each)) for ref, each in findings.items()}


def _read_all(store: Store, watch: Watch, files: list[_File]) -> list[Finding | None]:
    return in_parallel(lambda each: _read(store, watch, *each[1:]), files, store.workers)


def _read(store: Store, watch: Watch, path: str, file: DataFile) -> Finding | None:
    """Read a file once, from its first byte to its last and one more."""
    whole = hashlib.sha256()
    try:
        for segment in file.segments:
            part = hashlib.sha256()
            for data in chunks(store, path, segment.offset, segment.length + segment.is_tail):
                part.update(data)
                whole.update(data)
                watch(len(data))
            if part.hexdigest() != segment.sha256:
                return difference(store, path, file, segment, part.hexdigest())
    except NotFound:
        return missing(path, file)
    if whole.hexdigest() == file.sha256:
        return None
    return Finding(Fault.DAMAGED, f"{path}: expected SHA-256 {file.sha256}, found {whole.hexdigest()}")
