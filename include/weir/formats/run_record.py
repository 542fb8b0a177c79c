"""The record of a run beside its results, from which a lost ledger is rebuilt.

Invariant: the newest record of a run holds the dataflow to which it is pinned, and every abandoned attempt.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from weir.topology.ids import Epoch, RunId, RunRef


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRange:
    """What a source that goes on reads in a run: a split for each subtask, up to a position.

    `position` has the `value` itself, or the `file` in the store that has it, with its `sha256` and `bytes`. `base` is
    the run at whose position the range begins; empty for the first. `pinned_to` is the fingerprint of the pin for whose
    subtasks it is divided.
    """

    splits: tuple[Any, ...]
    position: dict[str, Any]
    base: str
    pinned_to: str
    resolved_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectedSplits:
    """What a source reads in a run since it was corrected, as files had come late: a split for each subtask.

    `generation` counts up from 1, that of the splits that were resolved first. Results of an earlier one do not count.
    """

    splits: tuple[Any, ...]
    generation: int
    resolved_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedDataset:
    """The epochs of a data set of another dataflow that an input reads in a run: `runs`, oldest first.

    `selection` is how the input is declared to choose. `left_out` are epochs that were to exist, and were not
    published.
    """

    stage: str
    argument: str
    dataset: str
    selection: str
    runs: tuple[RunRef, ...]
    left_out: tuple[Epoch, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedSeal:
    """That later epochs go on without a run: since when, why, and how often Airflow had cleared its DagRun then."""

    at: str
    why: str
    clears: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """The facts of a run that no manifest has; times are in UTC, ISO 8601.

    `pinned` is the dataflow's JSON (None: the next begin pins the run). `abandoned` are the attempts from before the
    run was last pinned: their results belong to another topology.
    """

    run: RunId
    dataflow: str
    epoch: Epoch
    interval: tuple[str, str]
    dag_id: str
    run_id: str
    task_prefix: str
    parameters: dict[str, Any]
    pinned: dict[str, Any] | None
    predecessor: Epoch | None
    created_at: str
    abandoned: tuple[str, ...] = field(default=())
    archive: str = ""
    """The fingerprint of the archive of code that the run is pinned to; empty where none is known."""
    restored_in: int = 0
    """The lineage that its last restore began (0: none). The code of attempts of earlier lineages does not count: what
    has to be computed runs what is deployed."""
    revision: int = 0
    """The revision of the dataflow in the ledger that its writer had last seen committed (0: none)."""
    ledger: str = ""
    """The id of the ledger that has the run; a rebuilt one takes over the newest run of each dataflow."""
    ranges: dict[str, RecordedRange] = field(default_factory=dict)
    """What the sources that go on read, by source."""
    corrected: dict[str, CorrectedSplits] = field(default_factory=dict)
    """What sources read that were corrected since they were resolved, by source."""
    datasets: tuple[RecordedDataset, ...] = ()
    """What the inputs read of other dataflows, as far as that is resolved."""
    seal: RecordedSeal | None = None
    """Since when later epochs go on without the run; None where they do not."""
    closed_clears: int = 0
    """How often a person had cleared tasks of the run when it was last closed; -1 if an earlier DagRun was."""
