"""`weir results`: the results of runs, their states and their history.

Invariants: it changes nothing; `--json` has everything that the tables leave out.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weir.cli.tables import key, number, print_line, print_rows, text
from weir.code.generation_rules import short
from weir.environment import opened_services
from weir.errors import Misconfigured
from weir.execution.partition_state import PartitionState
from weir.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    from weir.coordination.services import Services
    from weir.retention.result_history import Consumer, ResultHistory, RunHistory, StageHistory, Unfinished

    Reasons = Mapping[tuple[str, str, int, str, str], str]
    """Why a stored result is retained, or will be released next: by run, stage, subtask, layout and attempt."""


VERSION = 1
_SHOWN_CONSUMERS = 3
_THERE = (PartitionState.FINISHED.value, PartitionState.QUARANTINED.value, PartitionState.RELEASED.value)


def results(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[RUN|DATAFLOW]", help="Only this run, or dataflow.", show_default=False),
    ] = None,
    stage: Annotated[str | None, typer.Option("--stage", help="Only this stage.")] = None,
    story: Annotated[bool, typer.Option("--story", help="The history of each result, in order.")] = False,  # noqa: FBT002  Typer's
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,  # noqa: FBT002  Typer's
) -> None:
    """Show results: attempt, state, rows, bytes, digest, readers, and why each is retained.

    A run is shown by result, a dataflow by run and stage.
    """
    from weir.integrity.verification_queries import runs_named  # noqa: PLC0415
    from weir.ledger.database.tables import RunRow  # noqa: PLC0415
    from weir.ledger.names import similar  # noqa: PLC0415
    from weir.retention.result_history import run_history, stages_written  # noqa: PLC0415  SQLAlchemy is slow to import

    with opened_services() as services:
        with services.ledger.transaction() as session:
            runs = runs_named(session, name)
            found = [run_history(session, session.get_one(RunRow, run), stage, services.now()) for run in runs]
            if stage is not None and not any(each.stages for each in found):
                known = similar(stage, stages_written(session, runs), "writes")
                raise Misconfigured(f"no run of {name or 'any dataflow'} writes a stage {stage}: {known}")
        is_one_run = len(found) == 1 and name is not None and name != found[0].run.dataflow
        kept = _kept(services, runs) if as_json or is_one_run or story else {}
    if as_json:
        print(json.dumps(results_json(found, kept)))
    elif is_one_run or story:
        for each in found:
            print_run(each, kept, with_story=story)
    else:
        print_runs(found)


def _kept(services: Services, runs: Iterable[str]) -> Reasons:
    """Return why each stored result is retained, or will be released next."""
    from weir.ledger.runs import dataflow_of  # noqa: PLC0415
    from weir.retention.release import release  # noqa: PLC0415

    said = (each for run in runs for each in release(services, dataflow_of(run), [run], is_dry=True))
    return {
        (each.run, each.stage, each.subtask, each.layout, each.attempt): (
            f"goes next: {each.reason}" if each.is_released else f"kept: {each.reason}"
        )
        for each in said
    }


def results_json(histories: Iterable[RunHistory], kept: Reasons) -> dict[str, Any]:
    """Return the whole history as JSON values; times are in UTC, ISO 8601, sizes in bytes."""
    return {"version": VERSION, "runs": [_run_json(each, kept) for each in histories]}


def print_run(history: RunHistory, kept: Reasons, *, with_story: bool) -> None:
    """Print each result of a run."""
    print_line(_headline(history))
    for stage in history.stages:
        print_line(f"  {_stage_line(stage)}")
        if stage.chosen is not None:
            print_line(f"    written as {', '.join(stage.chosen.ids)}: {stage.chosen.reason}")
        for result in stage.results:
            for line in _result_lines(result, kept, with_story=with_story):
                print_line(f"    {line}")
        for unfinished in stage.unfinished:
            print_line(f"    {_unfinished_line(unfinished)}")


def print_runs(histories: Iterable[RunHistory]) -> None:
    """Print a line for each stage of each run."""
    found = [_cells(history, stage) for history in histories for stage in history.stages]
    if not found:
        print_line("No result is there: no region has committed yet. `weir runs` lists the runs")
        return
    print_rows(_COLUMNS, found)


_COLUMNS = (
    *(key("epoch"), key("dataflow"), key("stage"), number("partitions"), number("attempts"), text("states")),
    *(number("rows"), number("bytes at rest"), text("released")),
)


def _cells(history: RunHistory, stage: StageHistory) -> list[str]:
    current = [each.row for each in stage.results if each.row.is_current]
    attempts = {each.row.attempt for each in stage.results} | {each.attempt.id for each in stage.unfinished}
    return [
        history.run.epoch,
        history.run.dataflow,
        stage.stage,
        str(len({(row.subtask, row.layout) for row in current})),
        str(len(attempts)),
        _states(stage),
        f"{sum(row.rows for row in _rows_once(stage)):,}",
        format_size(_at_rest(stage)),
        _released(stage),
    ]


def _headline(history: RunHistory) -> str:
    run = history.run
    marks = {
        "closed": run.closed_at,
        "deleted in Airflow": run.deleted_at,
        "expired": run.expired_at,
    }
    said = [f"{name} {_at(at)}" for name, at in marks.items() if at is not None] or ["not closed"]
    at_rest = sum(_at_rest(stage) for stage in history.stages)
    return f"{run.id} ({run.run_id} of {run.dag_id}): {', '.join(said)}; {format_size(at_rest)} at rest"


def _stage_line(stage: StageHistory) -> str:
    rows = sum(row.rows for row in _rows_once(stage))
    compacted = f", {format_size(stage.compacted)} of that compacted" if stage.compacted else ""
    states = _states(stage) or "nothing yet"
    return f"{stage.stage}: {states}; {rows:,} rows, {format_size(_at_rest(stage))} at rest{compacted}"


def _rows_once(stage: StageHistory) -> list[Any]:
    """Return the current results of one layout: each layout has all rows."""
    current = [each.row for each in stage.results if each.row.is_current]
    return [row for row in current if row.layout == current[0].layout]


def _states(stage: StageHistory) -> str:
    states = [_state(each) for each in stage.results] + [each.state.value for each in stage.unfinished]
    return ", ".join(f"{count} {state}" for state, count in Counter(states).items())


_NEVER_CURRENT = (PartitionState.SUPERSEDED.value, PartitionState.QUARANTINED.value)


def _state(result: ResultHistory) -> str:
    """Return the state of the files, and whether the content is stale or was recomputed."""
    if not result.row.is_current and result.row.state not in _NEVER_CURRENT:
        return f"{result.row.state}, recomputed"
    return f"{result.row.state}, stale" if result.is_valid is False else result.row.state


def _released(stage: StageHistory) -> str:
    released = [each.row for each in stage.results if each.row.state == PartitionState.RELEASED.value]
    if not released:
        return "-"
    newest = max(released, key=lambda row: row.state_at)
    return f"{_at(newest.state_at)}: {newest.state_reason}"


def _at_rest(stage: StageHistory) -> int:
    """Return the stored bytes; a released state keeps the files that other results share, and those of compactions."""
    results = sum(each.row.bytes for each in stage.results if each.row.deleted_at is None and _has_bytes(each))
    return results + stage.compacted


def _has_bytes(result: ResultHistory) -> bool:
    return result.row.state in _THERE


def _result_lines(result: ResultHistory, kept: Reasons, *, with_story: bool) -> list[str]:
    row = result.row
    what = f"{row.rows:,} rows, {format_size(row.bytes)}, digest {_short(row.digest)}"
    lines = [f"{row.stage}[{row.subtask}] ({row.layout}) of {row.attempt}: {_state(result)}; {what}"]
    lines += [f"  {each}" for each in _details(result, kept)]
    if with_story:
        lines += [f"  {_at(at)}  {text}" for at, text in _story(result)]
        lines.append(f"  in {row.folder}")
    return lines


def _story(result: ResultHistory) -> list[tuple[datetime, str]]:
    """Return the state transitions of a result, oldest first."""
    events = [(each.at, f"{each.state.value}: {each.reason}") for each in result.story]
    if result.row.deleted_at is not None:
        events.append((result.row.deleted_at, "its data files are deleted"))
    if result.row.verified_at is not None:
        events.append((result.row.verified_at, "verified last, byte for byte"))
    return sorted(events, key=lambda event: event[0])


def _details(result: ResultHistory, kept: Reasons) -> Iterable[str]:
    row = result.row
    if result.consumers:
        shown = [_reader(each, row.run) for each in result.consumers]
        more = f" and {len(shown) - _SHOWN_CONSUMERS} more" if len(shown) > _SHOWN_CONSUMERS else ""
        yield f"read by {', '.join(shown[:_SHOWN_CONSUMERS])}{more}"
    if result.published:
        yield f"published in {', '.join(result.published)}"
    if result.readers:
        yield f"being read by {', '.join(result.readers)}"
    if row.versions:
        by = "" if result.attempt.generation is None else f" (generation {result.attempt.generation})"
        yield f"code {' = '.join(map(short, row.versions))}{by}"
    if row.differs_from:
        yield f"differs from {row.differs_from}, which was computed from equal inputs"
    if row.state != PartitionState.FINISHED.value:
        yield f"{row.state} on {_at(row.state_at)}: {row.state_reason}"
    elif (reason := kept.get(_key(result))) is not None:
        yield reason


def _reader(consumer: Consumer, run: str) -> str:
    elsewhere = "" if consumer.run == run else f" of {consumer.run}"
    return f"{consumer.region}[{consumer.subtask}]{elsewhere} ({consumer.attempt})"


def _unfinished_line(unfinished: Unfinished) -> str:
    row = unfinished.attempt
    if unfinished.state is PartitionState.WRITING:
        return f"{row.region}[{row.subtask}] by {row.id}: writing since {_at(row.began_at)}"
    why = (row.error or "").partition("\n")[0]
    ended = "" if row.ended_at is None else f" on {_at(row.ended_at)}"
    return f"{row.region}[{row.subtask}] by {row.id}: abandoned{ended}{f': {why}' if why else ''}"


def _key(result: ResultHistory) -> tuple[str, str, int, str, str]:
    row = result.row
    return row.run, row.stage, row.subtask, row.layout, row.attempt


def _run_json(history: RunHistory, kept: Reasons) -> dict[str, Any]:
    run = history.run
    return {
        "run": run.id,
        "dag_id": run.dag_id,
        "run_id": run.run_id,
        "closed_at": _iso(run.closed_at),
        "released_at": _iso(run.released_at),
        "deleted_at": _iso(run.deleted_at),
        "expired_at": _iso(run.expired_at),
        "stages": [
            {
                "stage": stage.stage,
                "bytes_at_rest": _at_rest(stage),
                "bytes_compacted": stage.compacted,
                "written_as": None
                if stage.chosen is None
                else {"layouts": list(stage.chosen.ids), "reason": stage.chosen.reason},
                "results": [_result_json(each, kept) for each in stage.results],
                "unfinished": [_unfinished_json(each) for each in stage.unfinished],
            }
            for stage in history.stages
        ],
    }


def _result_json(result: ResultHistory, kept: Reasons) -> dict[str, Any]:
    row = result.row
    plain = ("subtask", "layout", "attempt", "is_current", "state", "rows", "bytes", "digest", "folder", "fault")
    return {
        **{name: getattr(row, name) for name in plain},
        "try_number": result.attempt.try_number,
        "code": result.attempt.code,
        "archive": result.attempt.archive,
        "generation": result.attempt.generation,
        "versions": row.versions,
        "is_valid": result.is_valid,
        "since": _iso(row.state_at),
        "reason": row.state_reason,
        "kept": kept.get(_key(result)),
        "differs_from": row.differs_from,
        "data_deleted_at": _iso(row.deleted_at),
        "verified_at": _iso(row.verified_at),
        "consumers": [asdict(each) for each in result.consumers],
        "read_now_by": list(result.readers),
        "published": list(result.published),
        "story": [{"state": each.state.value, "at": _iso(each.at), "reason": each.reason} for each in result.story],
    }


def _unfinished_json(unfinished: Unfinished) -> dict[str, Any]:
    row = unfinished.attempt
    return {
        "region": row.region,
        "subtask": row.subtask,
        "attempt": row.id,
        "try_number": row.try_number,
        "state": unfinished.state.value,
        "began_at": _iso(row.began_at),
        "ended_at": _iso(row.ended_at),
        "error": row.error,
    }


def _short(digest: str) -> str:
    """Return a short form of a digest: its beginning, and its end, which has the xor of the rows."""
    return digest if len(digest) <= 24 else f"{digest[:10]}..{digest[-12:]}"


def _iso(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()


def _at(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"
