"""`weir results`: what became of what was computed. Invariant: looking changes nothing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from weir.cli.results_report import results_json, tell_run, tell_runs
from weir.cli.services import opened_services
from weir.errors import Misconfigured

if TYPE_CHECKING:
    from collections.abc import Iterable

    from weir.coordinator.services import Services


def results(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[RUN|DATAFLOW]", help="Only this run, or dataflow.", show_default=False),
    ] = None,
    stage: Annotated[str | None, typer.Option("--stage", help="Only this stage.")] = None,
    story: Annotated[bool, typer.Option("--story", help="All that has become of each, in order.")] = False,  # noqa: FBT002  Typer's
    as_json: Annotated[bool, typer.Option("--json", help="Answer as JSON.")] = False,  # noqa: FBT002  Typer's
) -> None:
    """Tell what runs have made: each result with its attempt, state, rows, bytes, digest, readers, and why it stays.

    Of a run each result, of a dataflow a line for each stage of each run.
    """
    from weir.ledger.memory import run_memory  # noqa: PLC0415  SQLAlchemy is slow to import
    from weir.ledger.models import RunRow  # noqa: PLC0415
    from weir.ledger.verification import runs_named  # noqa: PLC0415

    with opened_services() as services:
        with services.ledger.transaction() as session:
            runs = runs_named(session, name)
            found = [run_memory(session, session.get_one(RunRow, run), stage, services.now()) for run in runs]
        is_one_run = len(found) == 1 and name is not None and name != found[0].run.dataflow
        kept = _kept(services, runs) if as_json or is_one_run or story else {}
    if stage is not None and not any(each.stages for each in found):
        raise Misconfigured(f"no run of {name or 'any dataflow'} writes a stage {stage}: `weir results` lists them all")
    if as_json:
        print(json.dumps(results_json(found, kept)))
    elif is_one_run or story:
        for each in found:
            tell_run(each, kept, with_story=story)
    else:
        tell_runs(found)


def _kept(services: Services, runs: Iterable[str]) -> dict[tuple[str, str, int, str, str], str]:
    """Why each result that is there is kept, or goes next."""
    from weir.coordinator.release import release  # noqa: PLC0415
    from weir.ledger.runs import dataflow_of  # noqa: PLC0415

    said = (each for run in runs for each in release(services, dataflow_of(run), [run], is_dry=True))
    return {
        (each.run, each.stage, each.subtask, each.layout, each.attempt): (
            f"goes next: {each.reason}" if each.is_released else f"kept: {each.reason}"
        )
        for each in said
    }
