"""The note beside the manifest of a released result.

Invariant: it is written before any of the data files goes, so that whoever finds a manifest without its files and has
no ledger knows that they were deleted on purpose.
"""

from __future__ import annotations

import json
from typing import Final

RELEASED_NOTE: Final = "released.json"
"""Its name."""


def reason_told(data: bytes) -> str:
    """Why the result was released, by its note; a note that cannot be read still says that it was."""
    try:
        return str(json.loads(data)["reason"])
    except (ValueError, KeyError, TypeError):
        return "nobody needed it any more"
