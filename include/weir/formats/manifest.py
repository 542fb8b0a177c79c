"""The manifest of a result partition (its files, digest and inputs), its release note, and cached stage output.

Invariants (6 of the design): a manifest is written once and last, and names only files of its own attempt; that of
keyed state also names shared files of earlier attempts. A manifest alone is a candidate; the ledger decides whether it
is current. A release note is written before the first data file is deleted, so that a manifest without its files
means a deliberate deletion even without a ledger.
The description of a stage copy (`cached(x)`, a resume point inside a region) is written last, by the job that wrote
the copy; without a valid description there is no copy. Its name is never that of a manifest, so no catalogue lists a
copy as a result. So is the copy of what a source has read; but of that all attempts share one description.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from weir.formats.checks import CheckOutcome, GateResult
from weir.topology.ids import AttemptId, Digest, Epoch, RunId, is_task_try
from weir.topology.regions import PartitionId

OF_STORED_ROWS: Final = 1
"""The version of a digest over the rows as they are stored, in a layout by keys with the key group of each row."""

OF_RESULT: Final = 2
"""The version of a digest over the rows of a result, without key groups: it is the same in every layout."""

OF_CHAIN: Final = 3
"""The version of a digest that is a chain: of the digest that an epoch has read, and of what it changed blindly.

Equal chains of a partition mean equal content; unequal ones say nothing. `rows` is then the most that there can be.
"""

READ_OPTIONS: Final[Mapping[str, str]] = {
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "mergeSchema": "false",
    "parquet.page.verify-checksum.enabled": "true",
}
"""Options of Spark's reader: all files that a manifest names are read as they were written, or the reading fails."""

RULE = ":rule-"
"""Separates the fingerprint of a digest rule in the text of a digest; absent for the plain rule."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A byte range of a file and its SHA-256; the segments cover the file without a gap.

    All but the last are row groups; `key_groups` is their inclusive range (None if the layout is plain).
    The last segment is the rest of the file, indexes and footer (`is_tail`).
    """

    offset: int
    length: int
    sha256: str
    is_tail: bool = False
    key_groups: tuple[int, int] | None = None

    @property
    def end(self) -> int:
        """The offset of the first byte behind it."""
        return self.offset + self.length


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
    """A digest of the rows, independent of their order and files: equal digests mean equal content.

    It consists of the number of rows and, over a 64-bit hash of each row, the xor and the sums of the low and high 32
    bits. `schema` is a fingerprint of column names and types (not of nullability). `version` is that of this
    definition: digests of different versions cannot be compared. `rule` is the fingerprint of the stage's digest rule
    (empty: the plain rule); it is part of the text, so that digests under different rules are never equal.
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
    """Parse the text of a digest."""
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


def together(digests: Sequence[ContentDigest]) -> str:
    """Return the digest of all rows of several partitions; the digest of each, where they cannot be combined."""
    first, *others = digests
    for other in others:
        is_sum = first.version != OF_CHAIN
        if not is_sum or (other.schema, other.version, other.rule) != (first.schema, first.version, first.rule):
            return "|".join(str(each) for each in digests)
        first = replace(
            first,
            rows=first.rows + other.rows,
            xor=first.xor ^ other.xor,
            low_sum=first.low_sum + other.low_sum,
            high_sum=first.high_sum + other.high_sum,
        )
    return str(first)


def digest_version(digest: str) -> int:
    """Return the version of the definition of a digest, given as text."""
    number, colon, _ = digest.partition(":")
    return int(number[1:]) if colon and number[:1] == "v" and number[1:].isdigit() else 1


def is_chain(digest: str) -> bool:
    """Report whether a digest, given as text, is a chain."""
    return digest_version(digest) == OF_CHAIN


def digest_schema(digest: str) -> str:
    """Return the fingerprint of column names and types in a digest, given as text."""
    return digest.removeprefix(f"v{digest_version(digest)}:").partition(":")[0]


def digest_rule(digest: str) -> str:
    """Return the fingerprint of the digest rule in a digest, given as text; empty for the plain rule."""
    return digest.rpartition(RULE)[2] if RULE in digest else ""


@dataclass(frozen=True, slots=True)
class StateFile:
    """A file of keyed state, as a partition uses it.

    `folder`, relative to the store, is that of the attempt that wrote it, possibly in an earlier epoch. `epoch` is the
    newest epoch whose changes it contains; of two rows with one key that of the later epoch is valid. The partition
    uses only the rows of the inclusive range `key_groups`.
    """

    folder: str
    file: DataFile
    epoch: Epoch
    key_groups: tuple[int, int]

    @property
    def path(self) -> str:
        """The path relative to the store, which identifies the file in the registry of state files."""
        return f"{self.folder}/{self.file.name}"


@dataclass(frozen=True, slots=True)
class UpdateDigest:
    """The digest of the rows of keyed state that were last updated at `updated`: their number and sums of hashes.

    `updated` is the start of that epoch in seconds since 1970; 0 for all rows where the state has no time to live.
    Digests of added and removed rows add up, so that the digest of a state is known without reading it.
    """

    updated: int
    rows: int
    xor: int
    low_sum: int
    high_sum: int


@dataclass(frozen=True, slots=True)
class RowRange:
    """How many rows a partition of keyed state has, at least and at most, where no epoch has counted them."""

    least: int
    most: int

    @property
    def is_exact(self) -> bool:
        """Report whether there is only one such number."""
        return self.least == self.most


@dataclass(frozen=True, slots=True)
class WriteEstimate:
    """Why an epoch has written all of a state, or its changes only, where the state is `incremental="auto"`: bytes.

    These are those of all of the state, of the changes, and of the compaction that the changes would bring about.
    """

    full: int
    changes: int
    compaction: int

    @property
    def is_full(self) -> bool:
        """Report whether all of the state was written."""
        return self.full <= self.changes + self.compaction


@dataclass(frozen=True, slots=True)
class StateContent:
    """The content of a partition of keyed state: its files, oldest epoch first, and the digests of its live rows.

    `tallies` is None where the old rows of keys were not looked for (a blind upsert): `rows` is given then.
    `changed` counts the rows written in its own epoch, deleted keys included. Rows that were last updated at
    `expired_until` or before have expired (None: without a time to live, or restored). `estimate` is given where it
    has decided how the epoch was written.
    """

    files: tuple[StateFile, ...]
    tallies: tuple[UpdateDigest, ...] | None
    changed: int
    rows: RowRange | None = None
    expired_until: int | None = None
    estimate: WriteEstimate | None = None

    @property
    def is_counted(self) -> bool:
        """Report whether the number of rows is known."""
        return self.rows is None or self.rows.is_exact


@dataclass(frozen=True, slots=True, kw_only=True)
class InputRead:
    """An input partition from which a result was computed, with the digest that was read."""

    argument: str
    run: RunId
    stage: str
    subtask: int
    layout: str
    attempt: AttemptId
    digest: Digest


@dataclass(frozen=True, slots=True)
class RestoredWith:
    """The restore that a result is of: the first of its attempts, and how many partitions it restores."""

    attempt: AttemptId
    partitions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The description of a result partition; `created_at` is in UTC, ISO 8601.

    `spark_schema` is Spark's own JSON of the schema, without Weir's key-group column.
    `source` holds the splits of the region's sources, by stage, and `resolved` the fingerprints of those of all
    subtasks: what was resolved at another time has other rows, though one split may be the same. `session` holds the
    Spark settings. `code` is the version of the code that computed it, `generation` that of its task, and `archive` the
    fingerprint of the archive that the code was imported from. `versions` are all that are known to make this content
    of these inputs. `pinned_to` is the fingerprint of the record that its run was pinned to (empty: it was restored):
    of another one, a partition of the same name may have other rows. `revision` is that of the dataflow in the ledger
    which its writer had last seen committed (0: none).
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
    versions: tuple[str, ...]
    source: object = None
    resolved: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    state: StateContent | None = None
    """The content of a partition of keyed state; `files` above are only those that this attempt wrote."""
    quality: tuple[GateResult, ...] = ()
    archive: str = ""
    generation: int = 0
    pinned_to: str = ""
    revision: int = 0
    clear_number: int = 0
    """How often a person had cleared tasks of the run when its attempt began: half of a correction has a higher one."""
    restored_with: RestoredWith | None = None
    """For a result that was restored. Its restore is not finished while any of these partitions has no manifest."""

    @property
    def rows(self) -> int:
        """The number of rows; the most that there can be, where they were not counted."""
        if self.state is not None and self.state.tallies is not None:
            return sum(each.rows for each in self.state.tallies)
        if self.state is not None and self.state.rows is not None:
            return self.state.rows.most
        return self.digest.rows

    @property
    def bytes(self) -> int:
        """The size of all data files, without the manifest."""
        return sum(file.bytes for file in self.files)

    @property
    def is_quarantined(self) -> bool:
        """Report whether a check has failed, so that the result must never become current."""
        return any(each.outcome is CheckOutcome.FAILED for each in self.quality)

    @property
    def is_restored(self) -> bool:
        """Report whether the result was restored from a checkpoint or savepoint, and not computed by a task."""
        return not is_task_try(self.try_number)


@dataclass(frozen=True, slots=True)
class Stored:
    """A result partition in the store: its folder, and the SHA-256 of its manifest in hex.

    `released` is the reason why its data files were deleted (None: they were not).
    """

    folder: str
    manifest_sha256: str
    manifest: Manifest
    released: str | None = None

    @property
    def partition(self) -> PartitionId:
        """The partition of which it is a result."""
        return PartitionId(self.manifest.stage, self.manifest.subtask, self.manifest.layout)


def inputs_fingerprint(manifest: Manifest) -> str:
    """Return the SHA-256, in hex, of the inputs' digests, splits, parameters, code and session settings.

    Two results of a stage with equal fingerprints and different digests mean that the stage is non-deterministic.
    """
    read = sorted(
        [each.argument, each.stage, each.subtask, each.layout, each.run, each.digest] for each in manifest.inputs
    )
    content = [read, manifest.source, manifest.parameters, manifest.code, manifest.session]
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


def splits_fingerprint(splits: list[Any]) -> str:
    """Return the fingerprint of the splits of all subtasks of a source."""
    return hashlib.sha256(json.dumps(splits, sort_keys=True).encode()).hexdigest()[:16]


RELEASED_NOTE: Final = "released.json"
"""The name of the note beside the manifest of a released result."""


def release_reason(data: bytes) -> str:
    """Return the reason in a release note; an unreadable note still means that the result was released."""
    try:
        return str(json.loads(data)["reason"])
    except (ValueError, KeyError, TypeError):
        return "it was no longer needed"


COPY_NAME: Final = "copy.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCopy:
    """The cached output of a subtask of a stage, written by one attempt; `digest` is by the plain rule.

    `made_from` is a fingerprint of the inputs that the coordinator knows (inputs' digests, splits, parameters,
    settings, the stages before it). `code` is a fingerprint of the functions and `session` holds the settings, as in a
    manifest: only the job knows these.
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
