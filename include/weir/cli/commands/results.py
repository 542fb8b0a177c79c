"""`weir results`: the results of runs, their states and their history.

Invariants: it changes nothing; `--json` has everything that the tables leave out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from typing import Annotated

import typer

from weir.cli.documents import AsJson, Listing, OnlyRunOrDataflow, print_document
from weir.cli.tables import at, key, number, print_line, size, text
from weir.code.generation_rules import short
from weir.environment import opened_services
from weir.execution.partition_state import PartitionState
from weir.ledger.attempts import said_of_taken
from weir.units import format_size
from weir.views.results import Consumer, ResultView, RunResults, StageResults, UnfinishedAttempt, results_of
from weir.wording import first_few

_SHOWN_CONSUMERS = 3


def results(
    name: OnlyRunOrDataflow = None,
    stage: Annotated[str | None, typer.Option("--stage", help="Only this stage.")] = None,
    story: Annotated[bool, typer.Option("--story", help="The history of each result, in order.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show results: attempt, state, rows, bytes, digest, readers, and why each is retained.

    A run is shown by result, a dataflow by run and stage.
    """
    with opened_services() as services:
        found = results_of(services, name, stage, with_reasons=as_json or story)
    if as_json:
        print_document(runs=found.runs)
    elif found.is_one_run or story:
        for run in found.runs:
            _print_run(run, with_story=story)
    else:
        _STAGES.show([(run.run, stage) for run in found.runs for stage in run.stages], as_json=False)


def _print_run(run: RunResults, *, with_story: bool) -> None:
    print_line(_headline(run))
    for stage in run.stages:
        print_line(f"  {_stage_line(stage)}")
        if stage.written_as is not None:
            print_line(f"    written as {', '.join(stage.written_as.layouts)}: {stage.written_as.reason}")
        for result in stage.results:
            for line in _result_lines(run.run, stage.stage, result, with_story=with_story):
                print_line(f"    {line}")
        for unfinished in stage.unfinished:
            print_line(f"    {_unfinished_line(unfinished)}")


def _headline(run: RunResults) -> str:
    marks = {"closed": run.closed_at, "deleted in Airflow": run.deleted_at, "expired": run.expired_at}
    said = [f"{name} {at(time)}" for name, time in marks.items() if time is not None] or ["not closed"]
    at_rest = sum(stage.bytes_at_rest for stage in run.stages)
    return f"{run.run} ({run.run_id} of {run.dag_id}): {', '.join(said)}; {format_size(at_rest)} at rest"


def _stage_line(stage: StageResults) -> str:
    compacted = f", {format_size(stage.bytes_compacted)} of that compacted" if stage.bytes_compacted else ""
    states = _states(stage) or "nothing yet"
    return f"{stage.stage}: {states}; {_rows(stage):,} rows, {format_size(stage.bytes_at_rest)} at rest{compacted}"


def _current(stage: StageResults) -> list[ResultView]:
    return [each for each in stage.results if each.is_current]


def _rows(stage: StageResults) -> int:
    """Return the rows of the current results of one layout: each layout has all rows."""
    current = _current(stage)
    return sum(each.rows for each in current if each.layout == current[0].layout)


def _states(stage: StageResults) -> str:
    states = [_state(each) for each in stage.results] + [each.state.value for each in stage.unfinished]
    return ", ".join(f"{count} {state}" for state, count in Counter(states).items())


_NEVER_CURRENT = (PartitionState.SUPERSEDED.value, PartitionState.QUARANTINED.value)


def _state(result: ResultView) -> str:
    """Return the state of the files, and whether the content is stale or was recomputed."""
    if not result.is_current and result.state not in _NEVER_CURRENT:
        return f"{result.state}, recomputed"
    return f"{result.state}, stale" if result.is_valid is False else result.state


def _released(stage: StageResults) -> str:
    released = [each for each in stage.results if each.state == PartitionState.RELEASED.value]
    newest = max(released, key=lambda each: each.since, default=None)
    return "-" if newest is None else f"{at(newest.since)}: {newest.reason}"


_STAGES = Listing(
    "stages",
    (
        *(key("epoch", lambda row: row[0].partition("@")[2]), key("dataflow", lambda row: row[0].partition("@")[0])),
        key("stage", lambda row: row[1].stage),
        number("partitions", lambda row: len({(each.subtask, each.layout) for each in _current(row[1])})),
        number("attempts", lambda row: len({each.attempt for each in (*row[1].results, *row[1].unfinished)})),
        *(text("states", lambda row: _states(row[1])), number("rows", lambda row: _rows(row[1]))),
        size("bytes at rest", lambda row: row[1].bytes_at_rest),
        text("released", lambda row: _released(row[1])),
    ),
    "No result is there: no region has committed yet. `weir runs` lists the runs",
)


def _result_lines(run: str, stage: str, result: ResultView, *, with_story: bool) -> list[str]:
    what = f"{result.rows:,} rows, {format_size(result.bytes)}, digest {_short(result.digest)}"
    lines = [f"{stage}[{result.subtask}] ({result.layout}) of {result.attempt}: {_state(result)}; {what}"]
    lines += [f"  {each}" for each in _details(run, result)]
    if with_story:
        lines += [f"  {at(time)}  {event}" for time, event in _story(result)]
        lines.append(f"  in {result.folder}")
    return lines


def _story(result: ResultView) -> list[tuple[datetime, str]]:
    """Return the state transitions of a result, oldest first."""
    events = [(each.at, f"{each.state.value}: {each.reason}") for each in result.story]
    if result.data_deleted_at is not None:
        events.append((result.data_deleted_at, "its data files are deleted"))
    if result.verified_at is not None:
        events.append((result.verified_at, "verified last, byte for byte"))
    return sorted(events, key=lambda event: event[0])


def _details(run: str, result: ResultView) -> Iterable[str]:
    if result.taken_from:
        yield said_of_taken(result.taken_from)
    if result.consumers:
        yield f"read by {first_few([_reader(each, run) for each in result.consumers], _SHOWN_CONSUMERS)}"
    if result.published:
        yield f"published in {', '.join(result.published)}"
    if result.read_now_by:
        yield f"being read by {', '.join(result.read_now_by)}"
    if result.versions:
        by = "" if result.generation is None else f" (generation {result.generation})"
        yield f"code {' = '.join(map(short, result.versions))}{by}"
    if result.differs_from:
        yield f"differs from {result.differs_from}, which was computed from equal inputs"
    if result.invalid_because is not None and result.state != PartitionState.QUARANTINED.value:
        yield f"not valid: {result.invalid_because}"
    if result.state != PartitionState.FINISHED.value:
        yield f"{result.state} on {at(result.since)}: {result.reason}"
    elif result.kept is not None:
        yield result.kept


def _reader(consumer: Consumer, run: str) -> str:
    elsewhere = "" if consumer.run == run else f" of {consumer.run}"
    return f"{consumer.region}[{consumer.subtask}]{elsewhere} ({consumer.attempt})"


def _unfinished_line(row: UnfinishedAttempt) -> str:
    if row.state is PartitionState.WRITING:
        return f"{row.region}[{row.subtask}] by {row.attempt}: writing since {at(row.began_at)}"
    why = (row.error or "").partition("\n")[0]
    ended = "" if row.ended_at is None else f" on {at(row.ended_at)}"
    return f"{row.region}[{row.subtask}] by {row.attempt}: abandoned{ended}{f': {why}' if why else ''}"


def _short(digest: str) -> str:
    """Return a short form of a digest: its beginning, and its end, which has the xor of the rows."""
    return digest if len(digest) <= 24 else f"{digest[:10]}..{digest[-12:]}"
