"""A durable copy of a stage's rows beside a pipelined exchange: `cached(x)`, a resume point inside a region.

Invariant: a copy is described last, and by the job that wrote it; one without a description, or whose description is
not what was written, is no copy. Its file is never named as a manifest: no catalogue takes a copy for a result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from weir.results.manifest import ContentDigest, DataFile

COPY: Final = "copy"
"""Where a layout's id stands in the paths of results."""

COPY_NAME: Final = "copy.json"


@dataclass(frozen=True, slots=True)
class StageCopy:
    """What one attempt copied of one subtask of a stage; `digest` is that of all values, whatever the stage's rule.

    `made_from` is a fingerprint of all that the coordinator knows the rows to be made from (inputs' digests, slices,
    parameters, settings, the stages before it). `code` fingerprints the functions and `session` holds the settings, as
    in a manifest: only the job knows these.
    """

    dataflow: str
    epoch: str
    region: str
    stage: str
    subtask: int
    attempt: str
    made_from: str
    code: str
    session: dict[str, str]
    spark_schema: str
    digest: ContentDigest
    files: tuple[DataFile, ...]
    inputs: tuple[str, ...]
    copies: tuple[str, ...]

    @property
    def bytes(self) -> int:
        """The size of all data files."""
        return sum(file.bytes for file in self.files)
