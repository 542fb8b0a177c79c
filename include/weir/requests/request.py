"""A request of a person, as it stands in the configuration of a DagRun of `weir_requests`.

Invariant: a request does not say who asks, Airflow does; and it has the hash of what the person saw that it would do.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Final

from weir.errors import Misconfigured

REQUESTS: Final = "weir_requests"
"""The DAG whose runs are requests."""

LATELY: Final = timedelta(days=1)
"""How long a request is good for, and is shown after it is over."""

LONGEST: Final = 1000
"""The largest number of characters of a field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is asked for: a verb, the DAG of the page, and the name of a run, or of a dataflow.

    `what` is the task, or whatever else the verb is about. With `looked`, the person saw a plan for which each result
    was looked for in the store.
    """

    verb: str
    dag_id: str
    name: str
    hash: str
    what: str = ""
    looked: bool = False

    @classmethod
    def of(cls, found: object) -> Request:
        """Read the configuration of a DagRun, which anybody may have written. Raises Misconfigured."""
        if not isinstance(found, Mapping):
            raise Misconfigured.of("requests.not_an_object")
        fields = cls.__dataclass_fields__.keys()
        unknown = sorted(str(each) for each in found.keys() - fields)
        if unknown:
            raise Misconfigured.of("requests.field_unknown", unknown=unknown, known=list(fields))
        for field in ("verb", "dag_id", "name", "hash", "what"):
            value = found.get(field, "" if field == "what" else None)
            is_text = isinstance(value, str) and len(value) <= LONGEST and "\0" not in value
            if not is_text or not (value or field == "what"):
                raise Misconfigured.of("requests.field_not_text", field=field, longest=LONGEST)
        if not isinstance(found.get("looked", False), bool):
            raise Misconfigured.of("requests.field_not_text", field="looked", longest=LONGEST)
        return cls(**found)

    def to_conf(self) -> dict[str, str | bool]:
        """Return it as the configuration of a DagRun."""
        return asdict(self)

    def is_about(self, name: str, what: str | None = None) -> bool:
        """Report whether it is about a run or a dataflow, and if that is asked, about this of it."""
        return self.name == name and what in (None, self.what)

    @property
    def key(self) -> str:
        """The beginning of the ids of its DagRuns, which is the same for the same request: so it is made once."""
        digest = hashlib.sha256(json.dumps(self.to_conf(), sort_keys=True).encode()).hexdigest()[:12]
        named = re.sub(r"[^A-Za-z0-9_~:+-]+", ".", f"{self.verb}__{self.name}")[:150]
        return f"{named}__{digest}-"
