"""A target of a user's: one JSON file an epoch, with the marker in it. What happens to it, tests decide."""

import json
import os
from pathlib import Path

from weir.errors import Misconfigured
from weir.sinks import ROLLED_BACK, Outcome, SinkTarget, TargetAway


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
        found = self.recover(version, token)
        if found is not Outcome.ABSENT:
            return found
        content = [self.reach.open(file).read().hex() for file in version.files]
        made = self._path(version).with_suffix(f".{os.urandom(4).hex()}")
        made.write_text(json.dumps({"number": version.number, "digest": version.digest, "content": content}))
        type(self).step("before the switch")
        made.replace(self._path(version))
        with Path(self.options["folder"], "log").open("a") as log:
            log.write(f"{version.epoch} {version.number}\n")
        type(self).step("behind the switch")
        return Outcome.COMMITTED

    def recover(self, version, token):
        self._reach("recover")
        if not self._path(version).exists():
            return Outcome.ABSENT
        seen = json.loads(self._path(version).read_text())
        if seen["number"] >= version.number:
            return Outcome.COMMITTED if seen["number"] == version.number else Outcome.SUPERSEDED
        return Outcome.EQUAL if seen["digest"] == version.digest else Outcome.ABSENT

    def rollback(self, version, token):
        self._reach("rollback")
        seen = json.loads(self._path(version).read_text())
        if seen["number"] != version.number:
            return False
        self._path(version).write_text(json.dumps({**seen, "digest": ROLLED_BACK, "content": []}))
        return True

    def _reach(self, what):
        type(self).step(what)
        if Path(self.options["folder"], "away").exists():
            raise TargetAway("the server does not answer")

    def _path(self, version):
        return Path(self.options["folder"], f"{version.sink}@{version.epoch}.json")
