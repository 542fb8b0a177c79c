"""What stands for a partition of keyed state by now.

Invariant: a compaction is used only while all of its files are there; what was committed is right without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from weir.coordinator.services import Services
from weir.errors import Retryable
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
    missing = missing_files(services, [each for files in found.values() for each in files])
    return {of: files for of, files in found.items() if not any(each.path in missing for each in files)}


def require_present(services: Services, files: Sequence[StateFile]) -> None:
    """Make sure that files are there which an attempt has read. Raises Retryable: the next goes on without them."""
    missing = missing_files(services, files)
    if missing:
        raise Retryable(
            f"{min(missing)} is gone, to which state had been compacted: the next try goes on from what was committed"
        )


def missing_files(services: Services, files: Iterable[StateFile]) -> set[str]:
    """The paths of those that are not there with their sizes, at one look."""
    sizes = {each.path: each.file.bytes for each in files}
    answers = in_parallel(lambda path: _is_there(services, path, sizes[path]), list(sizes), services.store.workers)
    return {path for path, answer in zip(sizes, answers, strict=True) if not answer}


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
