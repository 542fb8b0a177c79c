"""The store as this machine sees it.

Invariant: what is written for a look lies in one folder of a name that nobody else has and is deleted again. The name
starts with a dot, so that Weir never takes it for a result or a stranger. The marker and the data are only read.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from weir.doctor.clock import clock_difference, judge_clock
from weir.doctor.examination import Check, Enough, Finding, ok, problem, unknown
from weir.errors import WeirError
from weir.store.errors import AlreadyExists, NotFound
from weir.store.local import is_local
from weir.store.store import MARKER, Store, marker_id

AREA = "store"
RACERS = 20
ROUNDS = 3
_CONTENT = b"written by weir doctor"


def store_checks(store: Store, known_ids: Callable[[], tuple[str, ...]]) -> list[Check]:
    """The checks of a store. `known_ids` are the ids of the ledger's stores; what it raises is told at the ledger."""
    return [
        Check(AREA, "marker", lambda: check_marker(store, known_ids), is_gate=True),
        Check(AREA, "reading and writing", lambda: check_files(store), seconds=30.0, is_gate=True),
        Check(AREA, "exclusive create", lambda: check_exclusive(store), seconds=60.0),
        Check(AREA, "clock", lambda: check_clock(store)),
    ]


def check_marker(store: Store, known_ids: Callable[[], tuple[str, ...]]) -> Iterator[Finding]:
    """Whether the store is the one that the ledger knows."""
    yield ok(AREA, "place", store.url)
    marker, known = _marker(store), _known(known_ids)
    yield judge_marker(marker, known, store.url)
    if marker is not None or known != ():
        return
    names = _names(store)
    if names is None and is_local(store.url):
        yield from _check_unmade(Path(store.url.removeprefix("file://")))
        raise Enough
    if names:  # an object store has no root that could be missing
        yield _not_empty(store, names)


def judge_marker(found: str | None, known: tuple[str, ...] | None, url: str) -> Finding:
    """Compare the marker's id, None if there is no marker, with the ids in the ledger, None if it does not answer."""
    if known is None:
        text = "no marker" if found is None else f"id {found}"
        return unknown(AREA, "marker", f"{text}; the ledger, which would know the right one, does not answer")
    if len(known) > 1:
        return problem(
            AREA,
            "marker",
            f"the ledger knows {len(known)} stores: {', '.join(known)}",
            expected="one store for all dataflows of a ledger",
            mend="give each store a ledger of its own, then `weir ledger rebuild --all` with each pair",
        )
    if not known:
        text = "none yet; the first run writes it" if found is None else f"id {found}; the ledger knows no run yet"
        return ok(AREA, "marker", text)
    if found is None:
        return problem(
            AREA,
            "marker",
            f"{url} has no {MARKER}",
            expected=f"{MARKER} with the id {known[0]}, as the ledger knows it",
            mend="mount the store, or correct WEIR_STORE; nothing is marked lost meanwhile. If the store is gone for "
            "good, begin with a new ledger",
        )
    if found != known[0]:
        return problem(
            AREA,
            "marker",
            f"{url} is another store: its id is {found}",
            expected=f"the id {known[0]}, as the ledger knows it",
            mend="mount the right store, or correct WEIR_STORE or WEIR_LEDGER: they belong together",
        )
    return ok(AREA, "marker", f"id {found}, as the ledger knows it")


def check_files(store: Store) -> Iterator[Finding]:
    """Whether this process may write, read, list and delete."""
    name = "reading and writing"
    try:
        with scratch(store) as folder:
            store.create(f"{folder}/file", _CONTENT)
            store.replace(f"{folder}/file", _CONTENT)
            read, listed = store.read(f"{folder}/file"), store.list(folder)
    except (WeirError, NotImplementedError) as error:
        yield _unusable(store, name, str(error))
        return
    if read != _CONTENT or listed != [("file", len(_CONTENT))]:
        yield _unusable(store, name, f"wrote {len(_CONTENT)} bytes, read {len(read)}, listed {listed}")
        return
    yield ok(AREA, name, "a file was written, read, listed and deleted")


def check_exclusive(store: Store) -> Iterator[Finding]:
    """Whether of many that create one name exactly one wins: every commit relies on it."""
    with scratch(store) as folder:
        rounds = [_race(store, f"{folder}/race-{number}") for number in range(ROUNDS)]
    yield judge_race(rounds)


def judge_race(winners: list[int]) -> Finding:
    """Judge how many of `RACERS` writers won in each round."""
    if all(number == 1 for number in winners):
        return ok(AREA, "exclusive create", f"one of {RACERS} writers won, {len(winners)} times")
    return problem(
        AREA,
        "exclusive create",
        f"{', '.join(map(str, winners))} of {RACERS} writers of one name won",
        expected="exactly one, each time: or two runs could publish the same version",
        mend="use a store that knows conditional writes (If-None-Match: S3, MinIO, Ceph from Squid on), or a file "
        "system with hard links",
    )


def check_clock(store: Store) -> Iterator[Finding]:
    """Compare the times that the store gives its files with this machine's clock."""
    with scratch(store) as folder:
        before = datetime.now(UTC)
        store.create(f"{folder}/clock", _CONTENT)
        after = datetime.now(UTC)
        written = store.modified(f"{folder}/clock")
    yield judge_clock(AREA, "the store's file times", clock_difference(before, written, after))


@contextmanager
def scratch(store: Store) -> Iterator[str]:
    """A folder of its own in the store, which is deleted at the end."""
    folder = f".weir-doctor-{uuid.uuid4().hex}"
    try:
        yield folder
    finally:
        store.delete_folder(folder)


def _race(store: Store, path: str) -> int:
    start = threading.Barrier(RACERS)
    won: list[int] = []
    failed: list[BaseException] = []

    def write(number: int) -> None:
        start.wait()
        try:
            store.create(path, f"writer {number}".encode())
            won.append(number)
        except AlreadyExists:
            return
        except Exception as error:  # noqa: BLE001  told below, by the thread that waits
            failed.append(error)

    threads = [threading.Thread(target=write, args=(number,), daemon=True) for number in range(RACERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return len(won)


def _names(store: Store) -> list[str] | None:
    """What lies in a root without a marker; None if there is no root."""
    try:
        found = [*store.folders(""), *(name for name, _ in store.list(""))]
    except NotFound:
        return None
    return sorted(name for name in found if not name.startswith(".") and name != "lost+found")


def _check_unmade(root: Path) -> Iterator[Finding]:
    """Whether the first run can make a folder that is not there yet."""
    above = next(each for each in root.parents if each.exists())
    if not os.access(above, os.W_OK | os.X_OK):
        yield problem(
            AREA,
            "reading and writing",
            f"{root} is not there, and this user may not make it in {above}",
            expected="a folder that this user may read and write",
            mend=f"mkdir -p {root} && chown USER_OF_THE_WORKERS {root}",
        )


def _not_empty(store: Store, names: list[str]) -> Finding:
    return problem(
        AREA,
        "marker",
        f"{store.url} has no {MARKER}, but {', '.join(names[:5])}",
        expected="an empty folder, or a store: the first run refuses anything else",
        mend="name an empty folder as the store, or bring its marker back from a backup",
    )


def _marker(store: Store) -> str | None:
    try:
        return str(marker_id(store.read(MARKER), store.url))
    except NotFound:
        return None


def _known(known_ids: Callable[[], tuple[str, ...]]) -> tuple[str, ...] | None:
    try:
        return known_ids()
    except Exception:  # noqa: BLE001  the ledger's own check tells what is wrong with it
        return None


def _unusable(store: Store, name: str, found: str) -> Finding:
    return problem(
        AREA,
        name,
        found,
        expected=f"a place that this user may write, read, list and delete in: {store.url}",
        mend="make the folder or bucket, give this user the rights, and check the store's connection or "
        "WEIR_STORE_OPTIONS; every worker needs them",
    )
