"""A fingerprint of all that a result was made from.

Invariant: two results of one stage with equal fingerprints and unlike digests were made by a stage that is not
deterministic.
"""

from __future__ import annotations

import hashlib
import json

from weir.results.manifest import Manifest


def made_from(manifest: Manifest) -> str:
    """SHA-256, in hex, of the digests that were read, what sources read, parameters, code and session settings."""
    read = sorted(
        [each.argument, each.stage, each.subtask, each.layout, each.run, each.digest] for each in manifest.inputs
    )
    content = [read, manifest.source, manifest.parameters, manifest.code, manifest.session]
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()
