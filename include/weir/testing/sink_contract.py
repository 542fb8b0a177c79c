"""The contract of a target of sinks, as tests that run against any target: ours, and one of your own.

    class TestWarehouse(SinkContract):
        def target(self, reach):
            return Warehouse({"table": self.table}, reach)

        def rows(self, epoch):
            return sorted(self.query("select k, s from delays where epoch = ?", epoch))

pytest finds the tests by the class's name. Each test has an instance of its own, and needs a place of its own: make
that in an `autouse` fixture of the class. Invariant: the contract is that of `weir.sinks.protocol`, and nothing more.
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO, ClassVar, Final

import pyarrow as pa
import pyarrow.parquet as pq

from weir.connections import Connection, from_environment
from weir.errors import Misconfigured
from weir.sinks.protocol import PROVISIONAL, Outcome, Reach, SinkTarget, Token, Version, VersionFile
from weir.topology.ids import AttemptId, Epoch

DAY: Final = Epoch("20130101T000000Z")
NEXT: Final = Epoch("20130102T000000Z")

Row = tuple[int, str | None]
"""A row of a version: `k` is a bigint, `s` a string or null."""

SCHEMA: Final = json.dumps(
    {
        "type": "struct",
        "fields": [
            {"name": "k", "type": "long", "nullable": True, "metadata": {}},
            {"name": "s", "type": "string", "nullable": True, "metadata": {}},
        ],
    }
)
_ARROW: Final = pa.schema([("k", pa.int64()), ("s", pa.string())])
AT_ONCE: Final = 4
_TURNS: Final = 10
_MOST_LINES: Final = 2000


class LocalReach:
    """Files of versions below a folder; connections are those of the environment, or the given ones."""

    def __init__(self, folder: Path, *connections: Connection, is_local: bool = True) -> None:
        self.folder, self._is_local = folder, is_local
        self._connections = {each.id: each for each in connections}

    def open(self, file: VersionFile) -> BinaryIO:
        """Open a file."""
        return (self.folder / file.path).open("rb")

    def local_path(self, file: VersionFile) -> str | None:
        """Return the path of a file; None as if the store were elsewhere."""
        return str(self.folder / file.path) if self._is_local else None

    def url(self, file: VersionFile) -> str:
        """Return the URL of a file."""
        return f"file://{self.folder}/{file.path}"

    def connection(self, conn_id: str) -> Connection:
        """Look up a connection."""
        return self._connections.get(conn_id) or from_environment(conn_id)


class Versions:
    """Makes versions of a sink, each in new files of a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._made = 0

    def version(self, number: int, *parts: Sequence[Row], epoch: Epoch = DAY, sink: str = "delays") -> Version:
        """Make a version with a file for each part. Versions of equal rows have equal digests."""
        files = tuple(self._file(part) for part in parts)
        rows = sorted((row for part in parts for row in part), key=repr)
        return Version(
            dataflow="contract",
            sink=sink,
            epoch=epoch,
            number=number,
            attempt=AttemptId(f"t0001-{self._made:012}"),
            digest=hashlib.sha256(repr(rows).encode()).hexdigest(),
            spark_schema=SCHEMA,
            files=files,
        )

    def _file(self, rows: Sequence[Row]) -> VersionFile:
        self._made += 1
        path = self.folder / f"part-{self._made:05}.parquet"
        columns = [[row[at] for row in rows] for at in range(len(_ARROW))]
        pq.write_table(pa.table(columns, schema=_ARROW), path)
        data = path.read_bytes()
        return VersionFile(path.name, len(data), len(rows), hashlib.sha256(data).hexdigest())


class SinkContract(ABC):
    """What every target promises. A subclass whose name begins with `Test` is what pytest runs."""

    killed_in: ClassVar[tuple[str, ...]] = ()
    """Modules besides that of the target in whose lines a process is killed, too."""

    @abstractmethod
    def target(self, reach: Reach) -> SinkTarget:
        """Make a target on this test's own place; called several times, also by several threads."""

    @abstractmethod
    def rows(self, epoch: Epoch) -> list[Row]:
        """Return the rows that a reader of the target finds of an epoch, sorted; [] where there are none."""

    def write_as_somebody_else(self) -> Callable[[], bool] | None:
        """Add to the target what no sink owns; return whether that is still there. None: nobody else may write."""
        return None

    # Whole versions, once each

    def test_nothing_is_visible_before_the_commit(self, tmp_path: Path) -> None:
        """A version that is prepared shows nothing, and takes the place of nothing."""
        versions, target = self._start(tmp_path)
        version = versions.version(1, [(1, "a")])
        token = target.prepare(version, None)
        self._require_rows(DAY)
        _require(target.recover(version, token) is Outcome.ABSENT, "recover must answer ABSENT before the commit")
        _require(json.loads(json.dumps(token)) == token, "a token must consist of JSON values")

    def test_a_version_is_committed_once(self, tmp_path: Path) -> None:
        """Commits that are repeated, by this target or by another one with the same token, change nothing."""
        versions, target = self._start(tmp_path)
        version = versions.version(1, [(1, "a"), (2, None)], [(3, ""), (4, "ä'\"\\\n")])
        token = _plain(target.prepare(version, None))
        again = self.target(_reach(tmp_path))
        answers = [target.commit(version, token), target.commit(version, token), again.commit(version, token)]
        _require(answers == [Outcome.COMMITTED] * 3, f"each commit must answer COMMITTED, not {answers}")
        _require(again.recover(version, token) is Outcome.COMMITTED, "recover must answer COMMITTED after the commit")
        self._require_rows(DAY, (1, "a"), (2, None), (3, ""), (4, "ä'\"\\\n"))

    def test_an_epoch_is_replaced_as_a_whole_and_others_stay(self, tmp_path: Path) -> None:
        """More rows, fewer, none, and the first ones again; the other epoch keeps its rows."""
        versions, target = self._start(tmp_path)
        self._publish(target, versions.version(1, [(9, "other")], epoch=NEXT))
        contents: list[list[list[Row]]] = [[[(1, "a")]], [[(1, "b")], [(2, "b")]], [[(3, "c")]], [], [[(1, "a")]]]
        for number, parts in enumerate(contents, 1):
            outcome = self._publish(target, versions.version(number, *parts))
            _require(outcome is Outcome.COMMITTED, f"version {number} must be committed, found {outcome}")
            self._require_rows(DAY, *(row for part in parts for row in part))
            self._require_rows(NEXT, (9, "other"))

    def test_equal_rows_leave_the_target_as_it_is(self, tmp_path: Path) -> None:
        """A later version with the digest of the one that is there makes no change."""
        versions, target = self._start(tmp_path)
        self._publish(target, versions.version(1, [(1, "a")]))
        equal = versions.version(2, [(1, "a")])
        token = target.prepare(equal, None)
        answers = [target.commit(equal, token), target.recover(equal, token)]
        _require(answers == [Outcome.EQUAL] * 2, f"equal rows must be answered by EQUAL, not {answers}")
        self._require_rows(DAY, (1, "a"))

    def test_an_older_version_never_replaces_a_newer_one(self, tmp_path: Path) -> None:
        """A process that was suspended commits what has been superseded meanwhile."""
        versions, target = self._start(tmp_path)
        old, new = versions.version(1, [(1, "old")]), versions.version(2, [(1, "new")])
        token = target.prepare(old, None)
        self._publish(target, new)
        answers = [target.commit(old, token), target.recover(old, token)]
        _require(answers == [Outcome.SUPERSEDED] * 2, f"an older version must be SUPERSEDED, found {answers}")
        self._require_rows(DAY, (1, "new"))

    def test_a_version_is_taken_out_until_a_newer_one_comes(self, tmp_path: Path) -> None:
        """For targets with `rollback`: neither a repeated commit nor recover brings the rows back."""
        versions, target = self._start(tmp_path)
        if type(target).rollback is SinkTarget.rollback:
            return
        version = versions.version(1, [(1, "a")])
        self._publish(target, versions.version(1, [(9, "other")], epoch=NEXT))
        token = target.prepare(version, None)
        _require(not target.rollback(version, token), "what is not there cannot be taken out")
        target.commit(version, token)
        answers = [target.rollback(version, token) for _ in range(2)]
        _require(answers == [True, True], f"rollback must be idempotent, found {answers}")
        self._require_rows(DAY)
        found = [target.commit(version, token), target.recover(version, token)]
        _require(found == [Outcome.ROLLED_BACK] * 2, f"what was taken out is answered by ROLLED_BACK, not {found}")
        self._require_rows(DAY)
        self._publish(target, versions.version(2, [(1, "a")]))
        self._require_rows(DAY, (1, "a"))
        self._require_rows(NEXT, (9, "other"))

    def test_a_version_with_equal_rows_is_taken_out_too(self, tmp_path: Path) -> None:
        """For targets with `rollback`: the rows came with an earlier version, and the later one was left out."""
        versions, target = self._start(tmp_path)
        if type(target).rollback is SinkTarget.rollback:
            return
        self._publish(target, versions.version(1, [(1, "a")]))
        equal = versions.version(2, [(1, "a")])
        token = target.prepare(equal, None)
        target.commit(equal, token)
        answers = [target.rollback(equal, token) for _ in range(2)]
        _require(answers == [True, True], f"an EQUAL version must be taken out, found {answers}")
        self._require_rows(DAY)
        _require(target.recover(equal, token) is Outcome.ROLLED_BACK, "the marker must be that of the later version")
        self._publish(target, versions.version(3, [(1, "a")]))
        self._require_rows(DAY, (1, "a"))

    def test_provisional_rows_are_confirmed_replaced_and_taken_back(self, tmp_path: Path) -> None:
        """For targets with `rollback`: by a version with equal rows, by others, and by the version before."""
        versions, target = self._start(tmp_path)
        if type(target).rollback is SinkTarget.rollback:
            return
        early = replace(final := versions.version(1, [(1, "a")]), digest=f"{PROVISIONAL}{final.digest}")
        self._publish(target, early)
        self._require_rows(DAY, (1, "a"))
        confirmed = replace(versions.version(3, [(1, "a")]), digest=final.digest)
        answers = [self._publish(target, confirmed), target.recover(confirmed, {})]
        _require(answers == [Outcome.COMMITTED] * 2, f"an equal version must be COMMITTED, found {answers}")
        self._require_rows(DAY, (1, "a"))
        other = versions.version(4, [(2, "b")])
        self._publish(target, replace(other, digest=f"{PROVISIONAL}{other.digest}"))
        self._require_rows(DAY, (2, "b"))
        answer = self._publish(target, replace(confirmed, number=5))
        _require(answer is Outcome.COMMITTED, f"the version before must be put back, found {answer}")
        self._require_rows(DAY, (1, "a"))

    # Several processes, and some that are killed

    def test_several_processes_with_one_version_commit_it_once(self, tmp_path: Path) -> None:
        """All of them are told that it is committed."""
        versions, target = self._start(tmp_path)
        version = versions.version(1, [(number, "x") for number in range(50)])
        token = target.prepare(version, None)
        answers = _at_once([lambda: self.target(_reach(tmp_path)).commit(version, token) for _ in range(AT_ONCE)])
        _require(answers == [Outcome.COMMITTED] * AT_ONCE, f"each process must be told COMMITTED, found {answers}")
        self._require_rows(DAY, *((number, "x") for number in range(50)))

    def test_of_several_versions_at_once_the_newest_stays(self, tmp_path: Path) -> None:
        """Whatever the order in which they get there."""
        versions, target = self._start(tmp_path)
        made = [versions.version(number, [(number, "x")]) for number in range(1, AT_ONCE + 1)]
        tokens = [target.prepare(each, None) for each in made]

        def committing(version: Version, token: Token) -> Callable[[], Outcome]:
            return lambda: self.target(_reach(tmp_path)).commit(version, token)

        answers = _at_once([committing(*each) for each in zip(reversed(made), reversed(tokens), strict=True)])
        _require(Outcome.ABSENT not in answers, f"commit never answers ABSENT, found {answers}")
        self._require_rows(DAY, (AT_ONCE, "x"))

    def test_a_process_that_is_killed_at_any_line_leaves_the_version_whole_or_absent(self, tmp_path: Path) -> None:
        """And the next commit of the same token completes it."""
        versions, target = self._start(tmp_path)
        before: list[Row] = [(1, "a"), (2, "a")]
        self._publish(target, versions.version(1, before[:1], before[1:]))
        for line in range(1, _MOST_LINES):
            after: list[Row] = [(10 * line, "a"), (10 * line + 1, "b")]
            version = versions.version(line + 1, after[:1], after[1:])
            token = target.prepare(version, None)
            is_killed = self._is_killed(line, tmp_path, version, token)
            seen = self.rows(DAY)
            _require(seen in (before, after), f"killed at line {line}: found {seen}, expected {before} or {after}")
            answer = self.target(_reach(tmp_path)).recover(version, token)
            expected = Outcome.COMMITTED if seen == after else Outcome.ABSENT
            _require(answer is expected, f"killed at line {line}: recover answers {answer}, expected {expected}")
            again = self.target(_reach(tmp_path)).commit(version, token)
            _require(again is Outcome.COMMITTED, f"killed at line {line}: the next commit answers {again}")
            self._require_rows(DAY, *after)
            if not is_killed:
                _require(line > 1, "no line of the target's module was run: is `killed_in` right?")
                return
            before = after
        raise AssertionError(f"a commit took more than {_MOST_LINES} lines")

    def test_an_answer_that_is_lost_changes_nothing(self, tmp_path: Path) -> None:
        """The process dies after the commit; another one begins anew with the next version."""
        versions, target = self._start(tmp_path)
        first = versions.version(1, [(1, "a")])
        target.commit(first, target.prepare(first, None))  # nobody is told
        second = versions.version(2, [(2, "b")])
        _require(self._publish(target, second) is Outcome.COMMITTED, "the next version must be committed")
        self._require_rows(DAY, (2, "b"))

    # Beside others

    def test_a_reader_sees_whole_versions_only(self, tmp_path: Path) -> None:
        """A reader in a loop while versions replace each other."""
        versions, target = self._start(tmp_path)
        self._publish(target, versions.version(1, [(1, "x")], [(-1, "x")]))
        seen: list[list[Row]] = []
        failed: list[Exception] = []
        is_over = threading.Event()

        def read() -> None:
            try:
                while not is_over.is_set():
                    seen.append(self.rows(DAY))
            except Exception as error:  # noqa: BLE001  it is raised below
                failed.append(error)

        reader = threading.Thread(target=read)
        reader.start()
        try:
            for number in range(2, 12):
                self._publish(target, versions.version(number, [(number, "x")], [(-number, "x")]))
        finally:
            is_over.set()
            reader.join()
        for error in failed:
            raise error
        mixed = [rows for rows in seen if len(rows) != 2 or sum(k for k, _ in rows) != 0]
        _require(bool(seen) and not mixed, f"a reader must see one version, whole; found {mixed[:3]} of {len(seen)}")

    def test_what_somebody_else_has_written_stays(self, tmp_path: Path) -> None:
        """For targets that others may write to."""
        versions, target = self._start(tmp_path)
        self._publish(target, versions.version(1, [(1, "a")]))
        is_there = self.write_as_somebody_else()
        if is_there is None:
            return
        self._publish(target, versions.version(2, [(2, "b")]))
        _require(is_there(), "what somebody else has written is gone")
        self._require_rows(DAY, (2, "b"))

    # How

    def _start(self, folder: Path) -> tuple[Versions, SinkTarget]:
        reach = _reach(folder)
        return Versions(reach.folder), self.target(reach)

    def _publish(self, target: SinkTarget, version: Version) -> Outcome:
        return target.commit(version, _plain(target.prepare(version, None)))

    def _require_rows(self, epoch: Epoch, *rows: Row) -> None:
        found, expected = self.rows(epoch), sorted(rows, key=repr)
        _require(sorted(found, key=repr) == expected, f"epoch {epoch}: a reader finds {found}, expected {expected}")

    def _is_killed(self, line: int, folder: Path, version: Version, token: Token) -> bool:
        """Commit in a process that is killed at the n-th line of the target that it comes to."""
        target = self.target(_reach(folder))
        modules = {type(target).__module__, *self.killed_in}
        files = {str(sys.modules[name].__file__) for name in modules}
        return killed_at(line, files, lambda: target.commit(version, token))


def killed_at(line: int, files: Container[str], act: Callable[[], object]) -> bool:
    """Call `act`, and kill it at the n-th line of these files that it comes to; return whether it came to that."""
    left = line

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename not in files:
            return None
        if event == "line":
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        act()
    except KeyboardInterrupt:
        pass
    except Exception:  # a library may have made the kill an error of its own
        if left > 0:
            raise
    finally:
        sys.settrace(before)
    return left <= 0


def _reach(folder: Path) -> LocalReach:
    """Return what a target reaches: a store of its own in a test's folder, since no target is in the store."""
    store = folder / "the store"
    store.mkdir(exist_ok=True)
    return LocalReach(store)


def _plain(token: Token) -> Token:
    """Return the token as another process reads it."""
    found: Token = json.loads(json.dumps(token))
    return found


def _at_once(calls: Sequence[Callable[[], Outcome]]) -> list[Outcome]:
    """Call all at once, each in a thread of its own; a target that raises is called again, as a process would be."""
    answers: list[Outcome] = []
    failed: list[Exception] = []
    start = threading.Barrier(len(calls))

    def run(call: Callable[[], Outcome]) -> None:
        start.wait()
        for turn in range(_TURNS):
            try:
                answers.append(call())
            except Exception as error:  # noqa: BLE001  "unknown": the caller asks again; or it is raised below
                if isinstance(error, Misconfigured) or turn == _TURNS - 1:
                    failed.append(error)
                    return
            else:
                return

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in failed:
        raise error
    return answers


def _require(is_kept: bool, promise: str) -> None:  # noqa: FBT001  a condition and its words
    if not is_kept:
        raise AssertionError(promise)
