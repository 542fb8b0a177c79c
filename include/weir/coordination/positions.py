"""Stores the positions of sources that go on: small ones in the rows themselves, large ones in a file that rows name.

Invariant: a file is written before anything names it, and what was read back is what was written, by its digest.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Mapping
from typing import Any, Final

from weir.coordination.services import Services
from weir.errors import Misconfigured
from weir.formats.paths import position_path
from weir.formats.run_record import RecordedRange
from weir.store.errors import NotFound

_LARGEST_VALUE: Final = 4096
"""The characters of JSON up to which a position is in the rows themselves: they are read whenever a run is."""


def stored_position(services: Services, dataflow: str, value: Any, known: RecordedRange | None) -> dict[str, Any]:
    """Return a position as rows have it; a large one is written, unless it is that of the range `known`.

    Raises Retryable and DiskFull.
    """
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    if len(text) <= _LARGEST_VALUE:
        return {"value": value}
    data = text.encode()
    sha256 = hashlib.sha256(data).hexdigest()
    if known is not None and known.position.get("sha256") == sha256:
        return known.position
    path = position_path(dataflow, sha256, services.new_uuid().hex[:12])
    services.store.create(path, gzip.compress(data, mtime=0))
    return {"file": path, "sha256": sha256, "bytes": len(data)}


def loaded_position(services: Services, position: Mapping[str, Any]) -> Any:
    """Return a position that rows have. Raises Retryable, and Misconfigured where its file is gone or damaged."""
    if "file" not in position:
        return position["value"]
    path = str(position["file"])
    try:
        data = gzip.decompress(services.store.read(path))
    except NotFound as error:
        services.store_id()  # the disk may not be mounted
        raise Misconfigured.of("coordination.position_gone", path=path) from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise Misconfigured.of("coordination.position_damaged", path=path) from error
    if hashlib.sha256(data).hexdigest() != position["sha256"]:
        raise Misconfigured.of("coordination.position_damaged", path=path)
    return json.loads(data)
