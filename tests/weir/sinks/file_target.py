"""A target of a user's: one JSON file an epoch, with the marker in it. What happens to it, tests decide."""

import fcntl
import io
import json
import os
from pathlib import Path

import pyarrow.parquet as pq

from weir.errors import Misconfigured
from weir.sinks import ROLLED_BACK, Outcome, SinkTarget, TargetAway, outcome_of


class FileTarget(SinkTarget):
    """`options["folder"]` is where its files are; a file `away` in it stands for a server that does not answer."""

    step = staticmethod(lambda name: None)
    """Called before each thing that it does, and behind it."""

    def prepare(self, version, held):
        self._reach("prepare")
        if Path(self.options["folder"], "refused").exists():
            raise Misconfigured("the column k has another type there")
        return {"held": None if held is None else held.number}

    def commit(self, version, token):
        self._reach("commit")
        with Path(self.options["folder"], "lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return self._commit(version, token)

    def _commit(self, version, token):
        found = self.recover(version, token)
        if found is not Outcome.ABSENT:
            return found
        type(self).step("before the switch")
        self.write(version, self.made(version))
        with Path(self.options["folder"], "log").open("a") as log:
            log.write(f"{version.epoch} {version.number}\n")
        type(self).step("behind the switch")
        return Outcome.COMMITTED

    def made(self, version):
        content = [self.reach.open(file).read().hex() for file in version.files]
        return {"number": version.number, "digest": version.digest, "content": content}

    def write(self, version, made):
        new = self._path(version).with_suffix(f".{os.urandom(4).hex()}")
        new.write_text(json.dumps(made))
        new.replace(self._path(version))

    def recover(self, version, token):
        self._reach("recover")
        if not self._path(version).exists():
            return Outcome.ABSENT
        seen = json.loads(self._path(version).read_text())
        return outcome_of(version, seen["number"], seen["digest"])

    def rollback(self, version, token):
        self._reach("rollback")
        seen = json.loads(self._path(version).read_text()) if self._path(version).exists() else None
        if seen is None or not version.is_marked_by(seen["number"], seen["digest"]):
            return False
        self.write(version, {**seen, "number": version.number, "digest": ROLLED_BACK, "content": []})
        return True

    def _reach(self, what):
        type(self).step(what)
        away = Path(self.options["folder"], "away")
        if away.exists():
            raise TargetAway(f"the server does not answer {away.read_text()}")

    def _path(self, version):
        return Path(self.options["folder"], f"{version.sink}@{version.epoch}.json")


def rows_of(made):
    """The rows of what the target holds, if its files are Parquet."""
    tables = [pq.read_table(io.BytesIO(bytes.fromhex(each))) for each in made["content"]]
    return [tuple(row.values()) for table in tables for row in table.to_pylist()]
