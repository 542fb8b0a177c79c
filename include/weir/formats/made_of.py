"""The key of what the results of a region are made of: equal keys mean equal rows.

Invariant: all that rows can depend on is in the key, or makes that there is none. What the job alone knows, the version
of its code and the settings of its session, is compared when a result is taken.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, Final

from weir.dataflow.stage import READY_MADE
from weir.formats.manifest import RULE
from weir.formats.region_job import RegionJob, StageToRun, StateToRead

_FORMAT: Final = 1
"""The version of the key, and of how results are written: another one shares nothing."""

Digests = Mapping[tuple[str, str], Sequence[str]]
"""The digests of the partitions of each input, by stage and argument, in the order of the job."""


def made_of(job: RegionJob, declared: Sequence[Mapping[str, Any]], digests: Digests) -> str:
    """Return the key of all that a job's rows are made of, but for what its functions look at in their context.

    `declared` are the stages as their run is pinned to them. Empty where that is not known: rows of another rule than
    that of their digest may have been read, or what a source has read is known by its name, size and time only.
    """
    if job.code is None or any(RULE in digest for found in digests.values() for digest in found):
        return ""
    states = [read.state for stage in job.stages for read in stage.inputs if read.state is not None]
    if not all(map(_is_known_by_content, job.stages)) or any(map(_is_to_be_counted, states)):
        return ""
    document = {
        "format": _FORMAT,
        "stages": list(declared),
        "code": job.code.version,
        "parameters": job.parameters,
        "spark": job.spark_conf,
        "read": [_read(stage, digests) for stage in job.stages],
        "states": [_state(each) for each in states],
        "epoch of states": job.epoch if states else "",
    }
    return _digest(document)


_OF_CONTENT: Final = ("sha256", "ETag", "etag", "md5Hash", "content_md5")
"""The marks of files that are of their content."""


def _is_known_by_content(stage: StageToRun) -> bool:
    """Report whether equal splits of a source mean equal rows; true of what is no source."""
    if not stage.is_source or stage.is_vouched_for:
        return True
    reader = stage.function.removeprefix(READY_MADE)
    if reader == "files:read":
        return all(any(mark in file for mark in _OF_CONTENT) for file in stage.split["files"])
    return reader in ("delta:read", "iceberg:read")  # their files are of one version of a table


def _has_columns_of_all(stage: StageToRun) -> bool:
    """Report whether what a subtask reads has the columns of files that others read."""
    return stage.function == f"{READY_MADE}files:read" and not stage.split.get("schema")


def _split(stage: StageToRun) -> Any:
    """Return what of a split counts: not the sentence in which a ready-made source says what it reads."""
    if not stage.function.startswith(READY_MADE):
        return stage.split
    return {key: value for key, value in stage.split.items() if key != "reads"}


def _read(stage: StageToRun, digests: Digests) -> dict[str, object]:
    return {
        "stage": [stage.name, stage.subtask, stage.parallelism, stage.pipelined],
        "split": _split(stage),
        "splits": stage.resolved if _has_columns_of_all(stage) else "",
        "inputs": [
            {
                "argument": read.argument,
                "columns": [read.spark_schema, read.declared_schema],
                "rows": [read.layout.id, read.key_groups],
                "kept": None if read.filter is None else [read.filter.layout.id, read.filter.key_groups],
                "of": [
                    [part.stage, part.subtask, part.layout, digest]
                    for part, digest in zip(read.partitions, digests[stage.name, read.argument], strict=True)
                ],
            }
            for read in stage.inputs
        ],
        "outputs": [[output.layout.id, output.digest_version] for output in stage.outputs],
    }


def _is_to_be_counted(state: StateToRead) -> bool:
    """Report whether the job alone can say how many rows a state had that may not have fewer."""
    return state.state.grows and state.tallies is None


def _state(state: StateToRead) -> list[object]:
    """Return what counts of the state that a job goes on from, besides the digests of its partitions and the epoch."""
    return [state.state.name, state.digest, state.expired_until, state.is_full]


def with_context(job: RegionJob, looked_at: Collection[str]) -> str:
    """Return the key of what a job's rows are made of where its functions have looked at this of their context."""
    return _digest([job.made_of, {name: job.context[name] for name in sorted(looked_at)}])


def keys_with_contexts(job: RegionJob) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the keys of results that may stand for a job's, each with what those who made them have looked at."""
    names = sorted(job.context)
    for number in range(len(names) + 1):
        for looked_at in combinations(names, number):
            yield with_context(job, looked_at), looked_at


def _digest(document: object) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
