"""`weir try`: what a stage returns, computed on a local Spark, before it is deployed or while it fails.

Invariants: nothing is stored, and the ledger gets read leases only. The exit code is 1 if the stage's code raises an
error, a quality gate fails that fails its task, or what is compared differs.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from weir.cli.commands.compare import answers, columns_of, print_result
from weir.cli.documents import AsJson, print_data, print_document
from weir.cli.tables import print_line
from weir.environment import opened_services
from weir.errors import Misconfigured

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from weir.formats.programs import TrialAnswer
    from weir.trials.trial import Trial
    from weir.trials.trying import Outcome
    from weir.views.comparison import ResultComparison

SHOWN: Final = 5
"""The default number of rows."""

EXIT_FAILED: Final = 1

_LEAST_SECONDS: Final = 0.05
"""A step that takes less is not shown."""


def try_stage(
    file: Annotated[
        Path, typer.Argument(metavar="DAG_FILE", help="The DAG file that declares it.", show_default=False)
    ],
    stage: Annotated[str, typer.Argument(metavar="STAGE", help="The name of a stage or source.", show_default=False)],
    epoch: Annotated[
        str | None,
        typer.Option(
            help="The run whose inputs to read: DATAFLOW@EPOCH, Airflow's run id, an epoch, a day. Default: the newest."
        ),
    ] = None,
    samples: Annotated[
        Path | None,
        typer.Option(
            help="Read no run, but the files of this folder: INPUT.parquet, .csv or .json, or a folder INPUT of them."
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(help="The end of the interval that begins at --epoch, without a run.  [default: a day later]"),
    ] = None,
    code: Annotated[
        str, typer.Option(help="newest: the DAG file and modules of this machine; as_it_was: those of the run.")
    ] = "newest",
    subtask: Annotated[int | None, typer.Option(help="Compute only this subtask.  [default: all]")] = None,
    dataflow: Annotated[str | None, typer.Option(help="The dataflow, if several of the file have the stage.")] = None,
    limit: Annotated[int, typer.Option(min=0, help="How many rows to show.")] = SHOWN,
    compare: Annotated[
        bool, typer.Option("--compare", help="Compare the rows with those that the run stores.")
    ] = False,
    key_columns: Annotated[
        str | None, typer.Option("--key", help="For --compare: the columns that tell a row from others, like zone,day.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compute one stage on a local Spark, and show rows, schema, digest and seconds; nothing is stored.

    It reads what the stage's task would read in a run, or samples. Exits with 1 if the stage fails, or if --compare
    finds other rows or columns.
    """
    from weir.trials.against_run import require_comparable  # noqa: PLC0415  pyarrow and SQLAlchemy are slow to import
    from weir.trials.declared import Wanted  # noqa: PLC0415  likewise
    from weir.trials.trying import Outcome, computed, opened_trial, scratch_in  # noqa: PLC0415

    wanted = Wanted(
        file=file,
        stage=stage,
        epoch=epoch,
        until=until,
        samples=samples,
        dataflow=dataflow,
        code=code,
        subtask=subtask,
        shown=limit,
    )
    if compare:
        require_comparable(wanted)
    elif key_columns is not None:
        raise Misconfigured.of("cli.key_in_vain")
    with tempfile.TemporaryDirectory(prefix="weir-try-") as folder:
        with opened_trial(wanted, scratch_in(Path(folder))) as trial:
            stored = _stored_as(trial) if compare else ""
            answer, rows = computed(trial.request, Path(folder), os.environ)
        outcome = Outcome(trial, answer.reports)
        found = _compared(outcome, stored, key_columns, limit) if compare and not answer.error else None
    if as_json:
        print_document(**_document(outcome, answer, rows), **({"comparison": found} if compare else {}))
    else:
        _print(outcome, answer, rows, found)
    is_failed = bool(answer.error) or any(each.violated for each in outcome.checks)
    differs = found is not None and found.outcome.value != "equal"
    raise typer.Exit(EXIT_FAILED if is_failed or differs else 0)


def _stored_as(trial: Trial) -> str:
    from weir.trials.against_run import stored_as  # noqa: PLC0415  pyarrow and SQLAlchemy are slow to import

    with opened_services() as services:
        return stored_as(services, trial)


def _compared(outcome: Outcome, stored: str, key_columns: str | None, limit: int) -> ResultComparison:
    """Compare what was computed with what the run stores, on a local Spark, which reads the files of both."""
    from weir.trials.against_run import opened_pair  # noqa: PLC0415  pyarrow and SQLAlchemy are slow to import
    from weir.views.comparison import result_comparison  # noqa: PLC0415  likewise

    key = columns_of(key_columns)
    with opened_services() as services, opened_pair(services, outcome, stored, key, limit) as pair:
        asked = [] if pair.asked is None else [pair.asked]
        return result_comparison(pair, next(iter(answers(asked, None)), None))


def _document(outcome: Outcome, answer: TrialAnswer, rows: pa.Table | None) -> dict[str, Any]:
    trial = outcome.trial
    head = {
        "dataflow": trial.dataflow,
        "stage": trial.request.stage,
        "run": trial.run or None,
        "interval": trial.interval,
        "code": trial.code,
        "notes": trial.notes,
        "error": answer.error or None,
        "traceback": answer.traceback or None,
    }
    if rows is None:
        return head
    return head | {
        "rows": rows.to_pylist(),
        "count": outcome.rows,
        "schema": outcome.schema,
        "digest": outcome.digest,
        "digests": outcome.digests,
        "as_recorded": outcome.is_as_recorded,
        "states": {name: {"changed": changed, "rows": count} for name, (changed, count) in outcome.changes.items()},
        "quality": [
            {"suite": each.suite, "stage": each.stage, "subtask": each.subtask, "outcome": each.outcome.value}
            for each in outcome.checks
        ],
        "seconds": outcome.seconds,
    }


def _print(outcome: Outcome, answer: TrialAnswer, rows: pa.Table | None, found: ResultComparison | None) -> None:
    trial = outcome.trial
    where = trial.run or f"{trial.dataflow}, without a run"
    print_line(f"{trial.request.stage} of {where} ({trial.code})")
    for note in trial.notes:
        print_line(f"note: {note}")
    if rows is None:
        sys.stdout.flush()
        print(f"{answer.traceback}{answer.error}", file=sys.stderr)
        return
    print_data(rows.to_pylist())
    for line in _lines(outcome, rows.num_rows):
        print_line(line)
    if found is not None:
        print_line(f"A is what the run stores, B what was computed: {found.outcome.value}")
        print_result(found)
    print_line("Nothing was stored.")


def _lines(outcome: Outcome, shown: int) -> Iterator[str]:
    yield f"rows: {outcome.rows:,}" + (f", of which {shown} are shown" if shown < outcome.rows else "")
    yield f"schema: {outcome.schema}"
    stage, recorded = outcome.trial.request.stage, outcome.trial.recorded
    for subtask, digest in outcome.digests.items():
        known = recorded.get(subtask)
        said = "" if known is None else ", as the run has recorded" if known == digest else f", the run has {known}"
        yield f"digest of {stage}[{subtask}]: {digest}{said}"
    for name, (changed, count) in outcome.changes.items():
        yield f"state {name}: " + ("" if changed is None else f"{changed:,} rows changed, ") + f"{count:,} rows in all"
    for check in outcome.checks:
        failed = ", ".join(each.type for each in check.results if not each.success)
        said = f"{check.outcome.value}{failed and f': {failed}'} ({len(check.results)} expectation(s))"
        yield f"quality {check.suite} of {check.stage}[{check.subtask}]: {said}"
    steps = sorted(outcome.seconds.items(), key=lambda step: -step[1])
    yield "seconds: " + ", ".join(f"{step} {seconds:.1f}" for step, seconds in steps if seconds >= _LEAST_SECONDS)
