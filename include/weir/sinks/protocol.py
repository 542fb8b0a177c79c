"""The protocol by which a version of a data set gets into a target exactly once.

`prepare` checks everything that can fail and shows nothing. What it returns, the token, is recorded before the version
is published; from then on `commit` is called until it succeeds, by any process, at any time, also after a success.

Invariant 12: the marker of a version lies in the target, in the same atomic change as its rows. So the target alone
tells what it holds, and an answer that was lost, a process that was killed or a ledger that was rebuilt changes
nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, BinaryIO, Final, Protocol

from weir.connections import Connection
from weir.dataflow.targets import Target
from weir.errors import Misconfigured, Retryable, WeirError
from weir.topology.ids import AttemptId, Epoch
from weir.typed_json import AsJson

Token = dict[str, Any]
"""What `prepare` planned: plain JSON values, without secrets."""

ROLLED_BACK: Final = ""
"""The digest in the marker of a version whose rows were taken out: no version has it."""

PROVISIONAL: Final = "provisional "
"""How the digest of provisional rows begins, in the marker, too; a version that has the rest of it confirms them."""


@dataclass(frozen=True, slots=True)
class VersionFile:
    """A Parquet file of a version: its path in the store, its size in bytes, its rows, and the SHA-256 of its bytes."""

    path: str
    bytes: int
    rows: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One version of one epoch of a sink; `number` counts up within the epoch.

    Equal digests mean equal rows. `spark_schema` is Spark's JSON of the schema. `attempt` is that of the closing task.
    """

    dataflow: str
    sink: str
    epoch: Epoch
    number: int
    attempt: AttemptId
    digest: str
    spark_schema: str
    files: tuple[VersionFile, ...]

    @property
    def rows(self) -> int:
        """The number of rows."""
        return sum(file.rows for file in self.files)

    @property
    def owner(self) -> str:
        """The name by which a target tells the sinks of a deployment apart."""
        return f"{self.dataflow}.{self.sink}"

    def is_marked_by(self, number: int, digest: str | None) -> bool:
        """Report whether a marker is that of this version, or of an earlier one with equal rows."""
        return number == self.number or (number < self.number and digest == self.digest)

    @property
    def is_provisional(self) -> bool:
        """Report whether these are provisional rows."""
        return self.digest.startswith(PROVISIONAL)

    def confirms(self, number: int, digest: str | None) -> bool:
        """Report whether a marker is that of provisional rows to which this version is equal."""
        return number < self.number and digest == f"{PROVISIONAL}{self.digest}"

    def __str__(self) -> str:
        """Name it for people."""
        what = "provisional rows" if self.is_provisional else "version"
        return f"{what} {self.number} of {self.sink}@{self.epoch}"


class Outcome(Enum):
    """What a target holds of a version. The values are stored in the ledger."""

    ABSENT = "absent"
    """An older version, or none."""
    COMMITTED = "committed"
    """This version."""
    EQUAL = "equal"
    """An older version with equal rows: the target is left as it is."""
    SUPERSEDED = "superseded"
    """A newer version."""
    ROLLED_BACK = "rolled back"
    """This version, whose rows a person has taken out again: they stay out until a newer one comes."""


def outcome_of(version: Version, number: int, digest: str | None) -> Outcome:
    """Tell by number and digest in the marker of an epoch (0: there is none) what a target holds of a version."""
    if number > version.number:
        return Outcome.SUPERSEDED
    if number == version.number:
        return Outcome.ROLLED_BACK if digest == ROLLED_BACK else Outcome.COMMITTED
    return Outcome.EQUAL if digest == version.digest else Outcome.ABSENT


@dataclass(frozen=True, slots=True)
class Held:
    """The version that a target holds of an epoch, by the ledger, and the token by which it was committed."""

    number: int
    digest: str
    token: Mapping[str, Any]


@dataclass(slots=True)
class PutBytes:
    """The bytes that a target has put in place: linked, copied by the server of both, or copied by this process."""

    linked: int = 0
    copied_by_server: int = 0
    copied: int = 0

    @property
    def again(self) -> int | None:
        """The bytes that were written once more; None for a target that keeps no files."""
        again = self.copied_by_server + self.copied
        return again if again or self.linked else None


@dataclass(frozen=True, slots=True)
class Delivery(AsJson):
    """A version on its way into a target: all that any process needs to commit it."""

    target: Target
    version: Version
    token: Token


class TargetAway(Retryable):
    """The target does not answer: nothing is known to be wrong, and the same call is made again later."""


class TargetUnknown(TargetAway):
    """No host has the name of the target, or it answers a login with what only a person can read.

    A server that is started again may have no name for a while: it is waited for, for ten minutes, as for a target that
    fails. Raised by who calls a target, not by targets.
    """


class TargetConflict(Misconfigured):
    """The target is not as it has to be: somebody else has changed it, and a person must decide.

    The message says what was found and what to do.
    """


class TargetFailed(WeirError):
    """A target has raised an error that it does not know: what became of the call is unknown, and it is made again.

    Not without end, as for one that does not answer: `prepare` is tried again as the task's restart strategy has it,
    `commit` for ten minutes; then the task fails with the error.
    Raised by who calls a target, not by targets.
    """


class Reach(Protocol):
    """What a target can reach: the files of versions, and Airflow's connections."""

    def open(self, file: VersionFile) -> BinaryIO:
        """Open a file of a version, seekable. Raises Retryable, also while reading."""
        ...

    def local_path(self, file: VersionFile) -> str | None:
        """Return where a file of a version is on a local disk; None where the store is elsewhere."""
        ...

    def url(self, file: VersionFile) -> str:
        """Return the canonical URL of a file of a version, such as `s3://bucket/folder/file`."""
        ...

    def connection(self, conn_id: str) -> Connection:
        """Look up an Airflow connection. Raises Misconfigured or Retryable."""
        ...


class SinkTarget(ABC):
    """A target. One is made for a call or two, with the options of its declaration; nothing is reached before.

    Any method raises TargetAway where the target does not answer: it is waited for, without end. It raises
    TargetConflict or Misconfigured where the target has answered that it does not take the version, so that a person
    has to act: the task fails at once. Any other error of `commit` means "unknown": `commit` is called again, and it
    looks first; if it is unknown each time, the task fails with the error (`TargetFailed`), and upkeep goes on trying.
    A lost connection or a time-out of Python or of a common client library counts as TargetAway.
    """

    def __init__(self, options: Mapping[str, Any], reach: Reach) -> None:
        self.options, self.reach, self.put_bytes = options, reach, PutBytes()

    @abstractmethod
    def prepare(self, version: Version, held: Held | None) -> Token:
        """Check that the version can be committed, and plan it. Shows nothing to readers of the target.

        Raises Misconfigured for rows, columns or settings that the target would refuse.
        """

    @abstractmethod
    def commit(self, version: Version, token: Token) -> Outcome:
        """Make the version visible, whole, in place of the epoch's earlier one, unless it is (or a newer one).

        Idempotent, and safe beside another process that commits the same or another version: never ABSENT.
        """

    @abstractmethod
    def recover(self, version: Version, token: Token) -> Outcome:
        """Tell by the target alone what it holds of the version."""

    def rollback(self, version: Version, token: Token) -> bool:  # noqa: ARG002  those that can need both
        """Take the rows of the version's epoch out, in one atomic change, for a target that can.

        The marker gets the version's number, with the digest `ROLLED_BACK`, so that only a newer version follows it;
        from then on `commit` and `recover` answer ROLLED_BACK. Idempotent. False if the target holds neither the
        version nor an earlier one with equal rows (EQUAL). Raises Misconfigured where it cannot.
        """
        raise Misconfigured.of("sinks.rollback_impossible", version=version)
