"""The checks of the store.

Invariant: test files are in one folder with a unique name, which is deleted. The name starts with a dot, so that Weir
never takes it for a dataflow or an unknown folder. The marker and the results are only read.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from typing import Final

from weir.doctor import table
from weir.doctor.examination import Check, Enough, Finding
from weir.errors import WeirError
from weir.store.catalogue import ledgers_of
from weir.store.errors import AlreadyExists, NotFound
from weir.store.local import is_local
from weir.store.store import MARKER, Store, marker_id
from weir.store.worker_threads import in_parallel

_CONTENT: Final = b"written by weir doctor"


def store_checks(store: Store, known_ids: Callable[[], tuple[str, ...]]) -> list[Check]:
    """Return the checks of a store; `known_ids` returns the ids of the ledger's stores, and may raise."""
    checks = [
        table.STORE_MARKER.check(lambda: _check_marker(store, known_ids)),
        table.STORE_FILES.check(lambda: _check_files(store)),
    ]
    if store.url.startswith("hdfs:"):
        from weir.doctor.hdfs import hdfs_checks  # noqa: PLC0415  httpx is slow to import
        from weir.store.hdfs import HdfsFiles  # noqa: PLC0415

        if isinstance(store.files, HdfsFiles):
            checks += hdfs_checks(store, store.files, scratch)
    return checks


def ledgers_check(store: Store, known: Callable[[], tuple[str, Mapping[str, Set[str]]]]) -> Check:
    """Return the check that no other ledger has a dataflow of this one; see `LedgerExam.epochs`."""
    return table.ONE_LEDGER.check(lambda: _check_ledgers(store, *known()))


def _check_ledgers(store: Store, own: str, epochs: Mapping[str, Set[str]]) -> Iterator[Finding]:
    found = in_parallel(lambda name: ledgers_of(store, name, epochs[name]) - {own}, epochs, store.workers)
    shared = [(name, other) for name, others in zip(epochs, found, strict=True) for other in sorted(others)]
    for name, other in shared:
        what = f"dataflow {name} is in this ledger, {own}, and in another one with the same store, {other}"
        yield table.ONE_LEDGER.problem(what, dataflow=name)
    if not shared:
        yield table.ONE_LEDGER.ok(f"all dataflows of this ledger, {own}, are in no other" if own else "none yet")


@contextmanager
def scratch(store: Store) -> Iterator[str]:
    """Yield a new folder in the store, which is deleted at the end."""
    folder = f".weir-doctor-{uuid.uuid4().hex}"
    try:
        yield folder
    finally:
        store.delete_folder(folder)


def marker_finding(found: str | None, known: tuple[str, ...] | None, url: str) -> Finding:
    """Compare the marker's id, None without a marker, with the ids in the ledger, None if it does not answer."""
    if known is None:
        text = "no marker" if found is None else f"id {found}"
        return table.STORE_MARKER.unknown(f"{text}; the ledger, which has the expected id, does not answer")
    if not known:
        text = "none yet; the first run writes it" if found is None else f"id {found}; the ledger knows no run yet"
        return table.STORE_MARKER.ok(text)
    if found in known:
        return table.STORE_MARKER.ok(f"id {found}, as the ledger knows it")
    if found is None:
        return table.STORE_MARKER.problem(f"{url} has no {MARKER}", marker=MARKER, id=known[0])
    return table.OTHER_STORE.problem(f"{url} is another store: its id is {found}", marker=MARKER, id=known[0])


def _check_marker(store: Store, known_ids: Callable[[], tuple[str, ...]]) -> Iterator[Finding]:
    """Check that the store is the one that the ledger knows."""
    yield table.STORE_PLACE.ok(store.url)
    marker, known = _marker(store), _known(known_ids)
    yield marker_finding(marker, known, store.url)
    if marker is None and known == () and is_local(store.url) and not _exists(store):
        raise Enough  # the first run creates the folder


def _check_files(store: Store) -> Iterator[Finding]:
    """Check that this process may write, read, list and delete, and that a name can be created only once."""
    try:
        with scratch(store) as folder:
            path = f"{folder}/file"
            store.create(path, _CONTENT)
            read, listed = store.read(path), store.list(folder)
            is_exclusive = not _can_create(store, path)
            store.replace(path, _CONTENT)
    except (WeirError, NotImplementedError) as error:
        yield table.STORE_FILES.problem(str(error), url=store.url)
        return
    if read != _CONTENT or listed != [("file", len(_CONTENT))]:
        found = f"wrote {len(_CONTENT)} bytes, read {len(read)}, listed {listed}"
        yield table.STORE_FILES.problem(found, url=store.url)
        return
    yield table.STORE_FILES.ok("a file was written, read, listed and deleted")
    if is_exclusive:
        yield table.EXCLUSIVE_CREATE.ok("an existing name is refused")
    else:
        yield table.EXCLUSIVE_CREATE.problem("an existing file was overwritten")


def _can_create(store: Store, path: str) -> bool:
    try:
        store.create(path, b"a second writer")
    except AlreadyExists:
        return False
    return True


def _exists(store: Store) -> bool:
    try:
        store.list("")
    except NotFound:
        return False
    return True


def _marker(store: Store) -> str | None:
    try:
        return str(marker_id(store.read(MARKER), store.url))
    except NotFound:
        return None


def _known(known_ids: Callable[[], tuple[str, ...]]) -> tuple[str, ...] | None:
    try:
        return known_ids()
    except Exception:  # noqa: BLE001  the ledger's own checks report it
        return None
