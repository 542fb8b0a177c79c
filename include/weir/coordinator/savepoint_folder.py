"""The folder of a savepoint. Invariant: it is claimed before anything is written there; only what is one's own goes."""

from __future__ import annotations

from contextlib import suppress

from weir.coordinator.snapshot_source import Folder, read_savepoint
from weir.errors import Misconfigured
from weir.ledger.checkpoints import CheckpointStatus
from weir.ledger.state_models import CheckpointRow
from weir.results.savepoint import FILES, RESULTS, SAVEPOINT
from weir.store.errors import AlreadyExists, NotFound

CLAIM = "making.txt"
"""In the folder of a savepoint that is being made: whose it is."""


def require_free(folder: Folder) -> None:
    """Make sure that nothing is there. Raises Misconfigured."""
    with suppress(NotFound):
        if folder.store.entries(folder.path):
            raise _taken(folder)


def _taken(folder: Folder) -> Misconfigured:
    return Misconfigured(f"there is something at {folder.url} already: give the savepoint another --name, or drop it")


def claim(folder: Folder, attempt: str) -> None:
    """Say whose it will be. Raises Misconfigured if it is taken."""
    try:
        folder.store.create(folder.at(CLAIM), attempt.encode())
    except AlreadyExists as error:
        raise _taken(folder) from error


def is_own(folder: Folder, row: CheckpointRow) -> bool:
    """Whether what is in a folder was written for this savepoint."""
    try:
        return folder.store.read(folder.at(CLAIM)) == row.attempt.encode()
    except NotFound:
        return is_made(folder, row)


def remove(folder: Folder) -> None:
    """The manifest goes first, without which the files are nobody's, and the claim last, without which they stay."""
    folder.store.delete(folder.at(SAVEPOINT))
    for name, size in folder.store.entries(folder.path):
        if size is None:
            folder.store.delete_folder(folder.at(name))
    folder.store.delete_folder(folder.path)


def is_made(folder: Folder, row: CheckpointRow) -> bool:
    """Whether the savepoint that the ledger knows is there, complete."""
    try:
        found = read_savepoint(folder).checkpoint
    except Misconfigured:
        return False
    return (found.number, found.attempt) == (row.number, row.attempt)


def drop_files(folder: Folder, row: CheckpointRow) -> None:
    """Remove a savepoint, also one of which another drop has removed a part. Raises Misconfigured."""
    try:
        if not folder.store.entries(folder.path):
            return
    except NotFound:
        return
    if row.status == CheckpointStatus.COMPLETED.value and _is_unmade(folder):
        remove(folder)  # an earlier drop has removed its manifest, and was killed
    elif is_own(folder, row):
        remove(folder)
    elif row.status == CheckpointStatus.COMPLETED.value:
        raise Misconfigured(f"what is at {folder.url} is not savepoint {row.number}: nothing was deleted")


def _is_unmade(folder: Folder) -> bool:
    """Whether a folder has files of a savepoint, but neither a manifest nor a claim."""
    names = {name for name, _ in folder.store.entries(folder.path)}
    return not names & {SAVEPOINT, CLAIM} and names <= {FILES, RESULTS}
