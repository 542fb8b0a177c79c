"""Whether result partitions are there, and whether their bytes are right.

Invariant: a loss is reported only if the store said so twice, and the store's own marker could be read by this process
before and after. Whatever is less definite raises `Retryable` and nothing is lost: an unmounted disk must not make
everything be computed again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TypeVar

from weir.errors import Fault, Loss
from weir.formats.codec import manifest_from_json
from weir.formats.manifest import DataFile, Manifest, Segment
from weir.formats.paths import MANIFEST
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
    """One committed result partition as the ledger knows it; `manifest_sha256` is in hex."""

    run: str
    stage: str
    subtask: int
    layout: str
    attempt: str
    folder: str
    manifest_sha256: str


@dataclass(frozen=True, slots=True)
class StoreFinding:
    """What is wrong with a partition or a copy."""

    fault: Fault
    detail: str


def probe(store: Store, expected_store_id: str, refs: Sequence[PartitionRef]) -> dict[PartitionRef, Manifest | Loss]:
    """Ask of each partition whether its manifest and all its files are there, with their sizes, indexes and footers.

    Reads one manifest a partition and one tail a file. Raises Retryable if anything cannot be answered definitely.
    """
    unique = list(dict.fromkeys(refs))
    answers = probe_twice(store, expected_store_id, unique, partial(_look_at_all, store), _is_finding)
    return {
        ref: loss_of(ref, answer) if isinstance(answer, StoreFinding) else answer
        for ref, answer in zip(unique, answers, strict=True)
    }


def verify_segments(
    store: Store, expected_store_id: str, manifests: Sequence[tuple[Manifest, str, KeyGroups]]
) -> tuple[Loss, ...]:
    """Compare the SHA-256 of all segments that a reader of the key groups reads; at most one loss a partition.

    `manifests` are (manifest, folder, key groups); the bytes read are those of the row groups that overlap the key
    groups, and of every tail. Raises Retryable if anything cannot be answered definitely.
    """
    found = _broken(store, expected_store_id, [_parts_of(*each) for each in manifests])
    return tuple(loss_of(manifests[number][0], finding) for number, finding in found.items())


def verify_files(
    store: Store, expected_store_id: str, folders: Mapping[str, Sequence[DataFile]]
) -> dict[str, StoreFinding]:
    """Compare all files of folders that no manifest tells of; what is wrong with those that are not whole, by folder.

    Raises Retryable if anything cannot be answered definitely.
    """
    found = _broken(
        store,
        expected_store_id,
        [[(f"{folder}/{file.name}", file, None) for file in files] for folder, files in folders.items()],
    )
    names = list(folders)
    return {names[number]: finding for number, finding in found.items()}


_Parts = Sequence[tuple[str, DataFile, KeyGroups]]
"""Files by their paths, and which key groups of each are meant."""


def _parts_of(manifest: Manifest, folder: str, key_groups: KeyGroups) -> _Parts:
    """The files that a reader of these key groups reads; of keyed state those that earlier attempts wrote, too."""
    if manifest.state is None:
        return [(f"{folder}/{file.name}", file, key_groups) for file in manifest.files]
    return [
        (each.path, each.file, _both(each.key_groups, key_groups))
        for each in manifest.state.files
        if _overlap(each.key_groups, key_groups)
    ]


def files_of(manifest: Manifest, folder: str) -> list[tuple[str, DataFile]]:
    """All files that a result consists of, each once, with their paths: of keyed state also those that it shares."""
    return list({path: file for path, file, _ in _parts_of(manifest, folder, None)}.items())


def _both(some: tuple[int, int], others: KeyGroups) -> tuple[int, int]:
    return some if others is None else (max(some[0], others[0]), min(some[1], others[1]))


def _broken(store: Store, store_id: str, results: Sequence[_Parts]) -> dict[int, StoreFinding]:
    """The worst of each result whose segments of these key groups are not as recorded, by its place in the list."""
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
    """Ask all questions, and ask those again whose answer is a loss, between two looks at the marker.

    Raises Retryable if anything cannot be answered definitely.
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


def _look_at_all(store: Store, refs: list[PartitionRef]) -> list[Manifest | StoreFinding]:
    """Look at all manifests at once, then at the files of all of them at once: a request may take a while."""
    answers = in_parallel(partial(_look_at_manifest, store), refs, store.workers)
    files = [
        (number, path, file)
        for number, (ref, manifest) in enumerate(zip(refs, answers, strict=True))
        if isinstance(manifest, Manifest)
        for path, file, _ in _parts_of(manifest, ref.folder, None)
    ]
    findings = in_parallel(lambda each: _look_at_file(store, *each[1:]), files, store.workers)
    for (number, *_), finding in zip(files, findings, strict=True):
        if finding and isinstance(answers[number], Manifest):
            answers[number] = finding
    return answers


def _look_at_manifest(store: Store, ref: PartitionRef) -> Manifest | StoreFinding:
    path = f"{ref.folder}/{MANIFEST}"
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
    """A manifest is asked for several times an attempt, and what it says follows from its bytes."""
    return manifest_from_json(data)


def _look_at_file(store: Store, path: str, file: DataFile) -> StoreFinding | None:
    for tail in (segment for segment in file.segments if segment.is_tail):
        return _compare(store, path, file, tail)
    return size_differs(store, path, file)


def _compare_all(store: Store, parts: list[_Part]) -> list[StoreFinding | None]:
    return in_parallel(lambda part: _compare(store, *part[1:]), parts, store.workers)


def _compare(store: Store, path: str, file: DataFile, segment: Segment) -> StoreFinding | None:
    """Read a segment; where it differs, a size that does is told, as the better reason.

    The tail stands for the whole file: a byte more is asked for, so that one request tells that the file ends there.
    """
    try:
        found = sha256_of(store, path, segment.offset, segment.length + segment.is_tail)
    except NotFound:
        return missing(path, file)
    return None if found == segment.sha256 else difference(store, path, file, segment, found)


def difference(store: Store, path: str, file: DataFile, segment: Segment, found: str) -> StoreFinding:
    """Say what is wrong with a file, a segment of which has another SHA-256 than was recorded."""
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
    """Say whether a file is not there, or has another size than was recorded."""
    try:
        found = store.size(path)
    except NotFound:
        return missing(path, file)
    if found == file.bytes:
        return None
    return StoreFinding(Fault.MISSING, f"{path}: expected {file.bytes} bytes, found {found}")


def missing(path: str, file: DataFile) -> StoreFinding:
    """Say that a file is not there."""
    return StoreFinding(Fault.MISSING, f"{path}: expected {file.bytes} bytes, found no such file")


def _needed(file: DataFile, key_groups: KeyGroups) -> Iterator[Segment]:
    for segment in file.segments:
        if segment.is_tail or _overlap(segment.key_groups, key_groups):
            yield segment


def _overlap(some: KeyGroups, others: KeyGroups) -> bool:
    return some is None or others is None or (some[0] <= others[1] and others[0] <= some[1])


def worst_of(findings: Sequence[StoreFinding]) -> StoreFinding:
    """What stands for all that is wrong with one partition."""
    first = min(findings, key=lambda finding: finding.fault is not Fault.MISSING)
    distinct = len({finding.detail for finding in findings})
    more = f" (and {distinct - 1} more)" if distinct > 1 else ""
    return StoreFinding(first.fault, first.detail + more)


def loss_of(whose: PartitionRef | Manifest, finding: StoreFinding) -> Loss:
    """What was found, as the loss of a partition."""
    return Loss(whose.run, whose.stage, whose.subtask, whose.layout, whose.attempt, finding.fault, finding.detail)
