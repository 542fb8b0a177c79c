"""Probes whether the files of result partitions exist and whether their bytes match their digests.

Invariant: a loss is reported only if the store answered so twice and its marker could be read before and after. Any
less definite answer raises `Retryable` and nothing is lost: an unmounted disk must not cause a recomputation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TypeVar

from weir.errors import Fault, Loss
from weir.formats.codec import from_json
from weir.formats.manifest import DataFile, Manifest, Segment
from weir.formats.paths import manifest_path
from weir.store.errors import NotFound
from weir.store.segments import sha256_of
from weir.store.store import Store
from weir.store.worker_threads import in_parallel

KeyGroups = tuple[int, int] | None
"""An inclusive range of key groups; None means all."""
_Part = tuple[int, str, DataFile, Segment]
R = TypeVar("R")
A = TypeVar("A")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRef:
    """A committed result partition as the ledger has it; `manifest_sha256` is in hex."""

    run: str
    stage: str
    subtask: int
    layout: str
    attempt: str
    folder: str
    manifest_sha256: str


@dataclass(frozen=True, slots=True)
class StoreFinding:
    """A fault of a partition or a stage copy."""

    fault: Fault
    detail: str


def probe(store: Store, expected_store_id: str, refs: Sequence[PartitionRef]) -> dict[PartitionRef, Manifest | Loss]:
    """Check of each partition that its manifest and all files exist, with their sizes, indexes and footers.

    Reads a manifest per partition and a tail per file. Raises Retryable if an answer is not definite.
    """
    unique = list(dict.fromkeys(refs))
    answers = probe_twice(store, expected_store_id, unique, partial(_probe_all, store), _is_finding)
    return {
        ref: loss_of(ref, answer) if isinstance(answer, StoreFinding) else answer
        for ref, answer in zip(unique, answers, strict=True)
    }


def read_manifest(store: Store, folder: str) -> Manifest:
    """Read the manifest of a result. Raises NotFound, Retryable, and Misconfigured for one of another Weir."""
    return from_json(Manifest, store.read(manifest_path(folder)))


def verify_segments(
    store: Store, expected_store_id: str, manifests: Sequence[tuple[Manifest, str, KeyGroups]]
) -> tuple[Loss, ...]:
    """Compare the SHA-256 of all segments that a reader of the key groups reads; at most one loss per partition.

    `manifests` are (manifest, folder, key groups); it reads the row groups that overlap the key groups, and every tail.
    Raises Retryable if an answer is not definite.
    """
    found = _broken(store, expected_store_id, [_parts_of(*each) for each in manifests])
    return tuple(loss_of(manifests[number][0], finding) for number, finding in found.items())


def verify_files(
    store: Store, expected_store_id: str, folders: Mapping[str, Sequence[DataFile]]
) -> dict[str, StoreFinding]:
    """Compare the files of folders without a manifest, and return the fault of each folder that has one.

    Raises Retryable if an answer is not definite.
    """
    found = _broken(
        store,
        expected_store_id,
        [[(f"{folder}/{file.name}", file, None) for file in files] for folder, files in folders.items()],
    )
    names = list(folders)
    return {names[number]: finding for number, finding in found.items()}


_Parts = Sequence[tuple[str, DataFile, KeyGroups]]
"""Files by path, with the key groups that are read of each."""


def _parts_of(manifest: Manifest, folder: str, key_groups: KeyGroups) -> _Parts:
    """Return the files that a reader of the key groups reads, with shared files of keyed state."""
    if manifest.state is None:
        return [(f"{folder}/{file.name}", file, key_groups) for file in manifest.files]
    return [
        (each.path, each.file, _both(each.key_groups, key_groups))
        for each in manifest.state.files
        if _overlap(each.key_groups, key_groups)
    ]


def files_of(manifest: Manifest, folder: str) -> list[tuple[str, DataFile]]:
    """Return all files of a result by path, each once, with shared files of keyed state."""
    return list({path: file for path, file, _ in _parts_of(manifest, folder, None)}.items())


def _both(some: tuple[int, int], others: KeyGroups) -> tuple[int, int]:
    return some if others is None else (max(some[0], others[0]), min(some[1], others[1]))


def _broken(store: Store, store_id: str, results: Sequence[_Parts]) -> dict[int, StoreFinding]:
    """Return the worst fault of each result with a segment that does not match, by its place in the list."""
    parts = [
        (number, path, file, segment)
        for number, files in enumerate(results)
        for path, file, key_groups in files
        for segment in _needed(file, key_groups)
    ]
    answers = probe_twice(store, store_id, parts, partial(_compare_all, store), lambda answer: answer is not None)
    found: dict[int, list[StoreFinding]] = {}
    for (number, *_), answer in zip(parts, answers, strict=True):
        if answer is not None:
            found.setdefault(number, []).append(answer)
    return {number: worst_of(findings) for number, findings in found.items()}


def probe_twice(
    store: Store, store_id: str, questions: list[A], ask_all: Callable[[list[A]], list[R]], is_loss: Callable[[R], bool]
) -> list[R]:
    """Ask all questions, and those with a loss as the answer a second time, between two reads of the marker.

    Raises Retryable if an answer is not definite.
    """
    store.check_marker(store_id)
    answers = ask_all(questions)
    doubtful = [number for number, answer in enumerate(answers) if is_loss(answer)]
    if doubtful:
        store.check_marker(store_id)
        again = ask_all([questions[number] for number in doubtful])
        store.check_marker(store_id)
        for number, answer in zip(doubtful, again, strict=True):
            answers[number] = answer
    return answers


def _is_finding(answer: Manifest | StoreFinding) -> bool:
    return isinstance(answer, StoreFinding)


def _probe_all(store: Store, refs: list[PartitionRef]) -> list[Manifest | StoreFinding]:
    """Probe all manifests in parallel, then all files in parallel, since a request may take long."""
    answers = in_parallel(partial(_probe_manifest, store), refs, store.workers)
    files = [
        (number, path, file)
        for number, (ref, manifest) in enumerate(zip(refs, answers, strict=True))
        if isinstance(manifest, Manifest)
        for path, file, _ in _parts_of(manifest, ref.folder, None)
    ]
    findings = in_parallel(lambda each: _probe_file(store, *each[1:]), files, store.workers)
    for (number, *_), finding in zip(files, findings, strict=True):
        if finding and isinstance(answers[number], Manifest):
            answers[number] = finding
    return answers


def _probe_manifest(store: Store, ref: PartitionRef) -> Manifest | StoreFinding:
    path = manifest_path(ref.folder)
    try:
        data = store.read(path)
    except NotFound:
        return StoreFinding(Fault.MISSING, f"expected the manifest {path}, found no such file")
    found = hashlib.sha256(data).hexdigest()
    if found != ref.manifest_sha256:
        return StoreFinding(
            Fault.DAMAGED, f"the manifest {path}: expected SHA-256 {ref.manifest_sha256}, found {found}"
        )
    return _manifest_of(data)


@lru_cache(maxsize=128)
def _manifest_of(data: bytes) -> Manifest:
    """Decode a manifest; cached, since an attempt probes the same manifests several times."""
    return from_json(Manifest, data)


def _probe_file(store: Store, path: str, file: DataFile) -> StoreFinding | None:
    for tail in (segment for segment in file.segments if segment.is_tail):
        return _compare(store, path, file, tail)
    return size_differs(store, path, file)


def _compare_all(store: Store, parts: list[_Part]) -> list[StoreFinding | None]:
    return in_parallel(lambda part: _compare(store, *part[1:]), parts, store.workers)


def _compare(store: Store, path: str, file: DataFile, segment: Segment) -> StoreFinding | None:
    """Compare a segment; if the size of the file differs too, report that, which says more.

    Of a tail one byte more is read, so that a single request shows that the file ends there.
    """
    try:
        found = sha256_of(store, path, segment.offset, segment.length + segment.is_tail)
    except NotFound:
        return missing(path, file)
    return None if found == segment.sha256 else difference(store, path, file, segment, found)


def difference(store: Store, path: str, file: DataFile, segment: Segment, found: str) -> StoreFinding:
    """Return the fault of a file with a segment whose SHA-256 is not the recorded one."""
    differs = size_differs(store, path, file)
    if differs:
        return differs
    what = "indexes and footer" if segment.is_tail else "row group"
    return StoreFinding(
        Fault.DAMAGED,
        f"{path}, {what} (bytes {segment.offset} to {segment.offset + segment.length - 1}): "
        f"expected SHA-256 {segment.sha256}, found {found}",
    )


def size_differs(store: Store, path: str, file: DataFile) -> StoreFinding | None:
    """Return the fault of a file that is missing or does not have the recorded size; None for any other."""
    try:
        found = store.size(path)
    except NotFound:
        return missing(path, file)
    if found == file.bytes:
        return None
    return StoreFinding(Fault.DAMAGED, f"{path}: expected {file.bytes} bytes, found {found}")


def missing(path: str, file: DataFile) -> StoreFinding:
    """Return the fault of a missing file."""
    return StoreFinding(Fault.MISSING, f"{path}: expected {file.bytes} bytes, found no such file")


def _needed(file: DataFile, key_groups: KeyGroups) -> Iterator[Segment]:
    for segment in file.segments:
        if segment.is_tail or _overlap(segment.key_groups, key_groups):
            yield segment


def _overlap(some: KeyGroups, others: KeyGroups) -> bool:
    return some is None or others is None or (some[0] <= others[1] and others[0] <= some[1])


def worst_of(findings: Sequence[StoreFinding]) -> StoreFinding:
    """Return the fault to report of all faults of a partition."""
    first = min(findings, key=lambda finding: finding.fault is not Fault.MISSING)
    distinct = len({finding.detail for finding in findings})
    more = f" (and {distinct - 1} more)" if distinct > 1 else ""
    return StoreFinding(first.fault, first.detail + more)


def loss_of(whose: PartitionRef | Manifest, finding: StoreFinding) -> Loss:
    """Return a fault as the loss of a partition."""
    return Loss(whose.run, whose.stage, whose.subtask, whose.layout, whose.attempt, finding.fault, finding.detail)
