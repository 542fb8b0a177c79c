"""How the rows of a result are laid out in its files. Invariant: equal layouts have equal ids, and only they do."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

KEY_GROUP_COLUMN = "_weir_key_group"


@dataclass(frozen=True, slots=True)
class Layout:
    """`plain`, or sorted by the key group of `keys` among `max_parallelism` groups."""

    keys: tuple[str, ...] = ()
    max_parallelism: int = 0

    @property
    def id(self) -> str:
        """A name that is safe in paths and never looks like a Hive partition (`a=b`)."""
        if not self.keys:
            return "plain"
        readable = "-".join(re.sub(r"[^A-Za-z0-9_]", "_", key) for key in self.keys)[:60]
        exact = hashlib.sha256(repr(self.keys).encode()).hexdigest()[:6]
        return f"by-{readable}-{self.max_parallelism}-{exact}"


PLAIN = Layout()
