"""What stands for a partition of keyed state by now.

Invariant: a compaction is used only while all of its files are there; what was committed is right without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from weir.coordinator.services import Services
from weir.ledger.compactions import Compacted, compactions_of
from weir.results.manifest import Manifest, StateFile
from weir.store.errors import NotFound
from weir.store.hands import in_parallel

Compactions = Mapping[Compacted, tuple[StateFile, ...]]
"""The files that stand for those in a manifest, by whose they are."""


def present_compactions(services: Services, attempts: Iterable[str]) -> Compactions:
    """The compactions of what these attempts have committed, as far as their files are there.

    Raises Retryable where the ledger or the store does not answer.
    """
    with services.ledger.transaction() as session:
        found = compactions_of(session, attempts)
    sizes = {each.path: each.file.bytes for files in found.values() for each in files}
    answers = in_parallel(lambda path: _is_there(services, path, sizes[path]), list(sizes), services.store.workers)
    there = {path for path, answer in zip(sizes, answers, strict=True) if answer}
    return {of: files for of, files in found.items() if all(each.path in there for each in files)}


def _is_there(services: Services, path: str, size: int) -> bool:
    try:
        return services.store.size(path) == size
    except NotFound:
        return False


def compacted_files(manifest: Manifest, compactions: Compactions) -> tuple[StateFile, ...]:
    """The files of a partition of keyed state, compacted if they have been."""
    if manifest.state is None:
        return ()
    of = Compacted(manifest.attempt, manifest.stage, manifest.subtask)
    return compactions.get(of, manifest.state.files)
