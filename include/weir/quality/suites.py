"""The suites of the deployment, read when an attempt begins.

Invariant: what is checked is what the files say at that instant; one that is missing or bad is a person's to mend.
"""

from __future__ import annotations

from pathlib import Path

from weir.coordination.services import Services
from weir.errors import Misconfigured
from weir.formats.suite import Suite, suite_from_json


def read_suite(services: Services, name: str) -> Suite:
    """The suite `name`. Raises Misconfigured."""
    path = Path(services.expectations) / f"{name}.json"
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise Misconfigured(f"there is no suite {name}: {_what_there_is(path)}. Nothing was computed") from None
    except OSError as error:
        raise Misconfigured(f"the suite {name} cannot be read: {error}. Nothing was computed") from error
    return suite_from_json(name, data)


def _what_there_is(path: Path) -> str:
    known = sorted(each.stem for each in path.parent.glob("*.json"))
    if not known:
        return f"{path} is missing, and the folder has none (set WEIR_EXPECTATIONS to the one that has)"
    return f"{path} is missing, and the folder has {', '.join(known)}"
