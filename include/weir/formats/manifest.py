"""The manifest of a result partition: what the data is and what it was made from.

Invariant 6: a manifest is written once, last, and names only files of its own attempt; that of keyed state also names
those of earlier attempts that it shares.
A manifest alone is a candidate; the ledger says whether it is the current one.

A fingerprint of all that a result was made from.

Invariant: two results of one stage with equal fingerprints and unlike digests were made by a stage that is not
deterministic.

The note beside the manifest of a released result.

Invariant: it is written before any of the data files goes, so that whoever finds a manifest without its files and has
no ledger knows that they were deleted on purpose.

A durable copy of a stage's rows beside a pipelined exchange: `cached(x)`, a resume point inside a region.

Invariant: a copy is described last, and by the job that wrote it; one without a description, or whose description is
not what was written, is no copy. Its file is never named as a manifest: no catalogue takes a copy for a result.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Final

from weir.formats.checks import GateResult, Outcome
from weir.topology.ids import AttemptId, Digest, Epoch, RunId
from weir.topology.regions import PartitionId

RULE = ":rule-"
"""What comes before the rule's fingerprint in the text of a digest that does not count all values as they are."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of bytes of a file and their SHA-256; together the segments cover the file without a gap.

    All but the last are row groups; `key_groups` is their inclusive range (None where the layout is plain).
    The last one is everything behind the last row group: indexes and footer (`is_tail`).
    """

    offset: int
    length: int
    sha256: str
    is_tail: bool = False
    key_groups: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class DataFile:
    """One Parquet file, by its name in the partition's folder."""

    name: str
    rows: int
    bytes: int
    sha256: str
    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentDigest:
    """What the rows are, whatever their order and files: equal digests mean equal content.

    `rows`, and over a 64-bit hash of each row: xor, and the sums of its low and high 32 bits.
    `schema` is a fingerprint of column names and types (not of nullability). `version` is that of the definition of
    all this: digests of different versions differ, and say nothing about whether the content does. `rule` is the
    fingerprint of the stage's own rule of what counts (empty: every value counts as it is); it is part of the text, so
    that digests under different rules are never equal.
    """

    schema: str
    rows: int
    xor: int
    low_sum: int
    high_sum: int
    version: int = 1
    rule: str = ""

    def __str__(self) -> str:
        parts = (self.rows, self.xor & (2**64 - 1), self.low_sum, self.high_sum)
        # The first version was written without its number.
        number = "" if self.version == 1 else f"v{self.version}:"
        rule = f"{RULE}{self.rule}" if self.rule else ""
        return f"{number}{self.schema}:{parts[0]}:{parts[1]:016x}:{parts[2]:x}:{parts[3]:x}{rule}"


def parsed_digest(text: str) -> ContentDigest:
    """The digest whose text this is."""
    plain, _, rule = text.partition(RULE)
    version = digest_version(plain)
    schema, rows, xor, low_sum, high_sum = plain.removeprefix(f"v{version}:").rsplit(":", 4)
    return ContentDigest(
        schema=schema,
        rows=int(rows),
        xor=int(xor, 16),
        low_sum=int(low_sum, 16),
        high_sum=int(high_sum, 16),
        version=version,
        rule=rule,
    )


def digest_version(digest: str) -> int:
    """The version of the definition by which a digest, as text, was made."""
    number, colon, _ = digest.partition(":")
    return int(number[1:]) if colon and number[:1] == "v" and number[1:].isdigit() else 1


def digest_schema(digest: str) -> str:
    """The fingerprint of column names and types in a digest, as text."""
    number, colon, rest = digest.partition(":")
    is_version = bool(colon) and number[:1] == "v" and number[1:].isdigit()
    return (rest if is_version else digest).partition(":")[0]


def digest_rule(digest: str) -> str:
    """The fingerprint of the rule by which a digest, as text, was made; empty if every value counted as it was."""
    return digest.rpartition(RULE)[2] if RULE in digest else ""


@dataclass(frozen=True, slots=True)
class StateFile:
    """A file of keyed state, as one partition of it uses the file.

    `folder` is where it is, relative to the store: that of the attempt that wrote it, perhaps in an earlier epoch.
    `epoch` is the newest whose changes it has; of two rows of a key the one of the later epoch counts. Of the file only
    the rows of the inclusive range `key_groups` are meant.
    """

    folder: str
    file: DataFile
    epoch: Epoch
    key_groups: tuple[int, int]

    @property
    def path(self) -> str:
        """Where it is, relative to the store: its name in the registry, and never another file's."""
        return f"{self.folder}/{self.file.name}"


@dataclass(frozen=True, slots=True)
class StateTally:
    """The rows of keyed state that were last updated at `updated`, and the sums of their hashes.

    `updated` is the start of that epoch in seconds since 1970; 0 for all rows where the state has no time to live.
    Tallies of what is added and taken away add up, so that the digest of a state is known without reading it.
    """

    updated: int
    rows: int
    xor: int
    low_sum: int
    high_sum: int


@dataclass(frozen=True, slots=True)
class StateContent:
    """What a partition of keyed state consists of: its files, oldest epoch first, and the tallies of its live rows.

    `changed` rows were written in its own epoch, deleted keys among them.
    """

    files: tuple[StateFile, ...]
    tallies: tuple[StateTally, ...]
    changed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InputRead:
    """One input partition that a result was made from, with the digest that was read."""

    argument: str
    run: RunId
    stage: str
    subtask: int
    layout: str
    attempt: AttemptId
    digest: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """All that is known of one result partition; `created_at` is in UTC, ISO 8601.

    `spark_schema` is Spark's own JSON of the schema, without Weir's key-group column.
    `source` holds what the sources of the region read, by stage; `code` fingerprints the functions, `session` holds the
    settings.
    """

    dataflow: str
    epoch: Epoch
    run: RunId
    stage: str
    subtask: int
    layout: str
    attempt: AttemptId
    try_number: int
    lineage: int
    keys: tuple[str, ...]
    max_parallelism: int
    spark_schema: str
    digest: ContentDigest
    files: tuple[DataFile, ...]
    inputs: tuple[InputRead, ...]
    code: str
    session: dict[str, str]
    parameters: dict[str, object]
    created_at: str
    source: object = None
    metrics: dict[str, float] = field(default_factory=dict)
    state: StateContent | None = None
    """Of a partition of keyed state: `files` above are what was written for it, these all that it consists of."""
    quality: tuple[GateResult, ...] = ()

    @property
    def rows(self) -> int:
        """The number of rows in all files."""
        return self.digest.rows

    @property
    def bytes(self) -> int:
        """The size of all data files, without the manifest."""
        return sum(file.bytes for file in self.files)

    @property
    def is_quarantined(self) -> bool:
        """Whether a check has failed, so that nobody may make it current, whoever finds it."""
        return any(each.outcome is Outcome.FAILED for each in self.quality)


@dataclass(frozen=True, slots=True)
class Stored:
    """A result partition as it lies in the store: its folder, and the SHA-256 of its manifest in hex.

    `released` says why its data files were deleted, where they were.
    """

    folder: str
    manifest_sha256: str
    manifest: Manifest
    released: str | None = None

    @property
    def partition(self) -> PartitionId:
        """Which partition it is a result of."""
        return PartitionId(self.manifest.stage, self.manifest.subtask, self.manifest.layout)


def made_from(manifest: Manifest) -> str:
    """SHA-256, in hex, of the digests that were read, what sources read, parameters, code and session settings."""
    read = sorted(
        [each.argument, each.stage, each.subtask, each.layout, each.run, each.digest] for each in manifest.inputs
    )
    content = [read, manifest.source, manifest.parameters, manifest.code, manifest.session]
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


RELEASED_NOTE: Final = "released.json"
"""Its name."""


def reason_told(data: bytes) -> str:
    """Why the result was released, by its note; a note that cannot be read still says that it was."""
    try:
        return str(json.loads(data)["reason"])
    except (ValueError, KeyError, TypeError):
        return "nobody needed it any more"


COPY_NAME: Final = "copy.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCopy:
    """What one attempt copied of one subtask of a stage; `digest` is that of all values, whatever the stage's rule.

    `made_from` is a fingerprint of all that the coordinator knows the rows to be made from (inputs' digests, slices,
    parameters, settings, the stages before it). `code` fingerprints the functions and `session` holds the settings, as
    in a manifest: only the job knows these.
    """

    dataflow: str
    epoch: Epoch
    region: str
    stage: str
    subtask: int
    attempt: AttemptId
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
