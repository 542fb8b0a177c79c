"""`weir verify`: results are read again, every byte of them, before somebody needs them.

Invariant: what is found bad is written down, so that nobody reads it; nothing is made again without --repair.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from weir.cli.byte_progress import byte_progress
from weir.cli.services import opened_services
from weir.cli.verify_expectations import verify_expectations
from weir.cli.verify_report import VerifyReport, tell
from weir.errors import Misconfigured, WeirError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from weir.coordinator.repair import Repair
    from weir.coordinator.services import Services
    from weir.results.content_check import ResultToCheck

EXIT_BAD = 1


def verify(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[RUN|DATAFLOW]", help="Only this run, or dataflow.", show_default=False),
    ] = None,
    content: Annotated[bool, typer.Option("--content", help="Digest all rows again, by Spark.")] = False,  # noqa: FBT002  Typer's
    remote: Annotated[
        str | None,
        typer.Option(
            help="For --content and --expectations: a Spark Connect server, sc://host:port.", show_default=False
        ),
    ] = None,
    expectations: Annotated[  # noqa: FBT002  Typer's
        bool, typer.Option("--expectations", help="Check rows by the suites of their stages, by Spark.")
    ] = False,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            metavar="N|newest", help="For --expectations: restore this checkpoint to try it out.", show_default=False
        ),
    ] = None,
    savepoint: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|URL", help="For --expectations: restore this savepoint to try it out.", show_default=False
        ),
    ] = None,
    repair: Annotated[bool, typer.Option("--repair", help="Have made again what is bad and needed.")] = False,  # noqa: FBT002  Typer's
    as_json: Annotated[bool, typer.Option("--json", help="Answer as JSON.")] = False,  # noqa: FBT002  Typer's
) -> None:
    """Read results again: sizes, digests of all bytes, checksums of pages, manifests and what is published.

    Exit code 1 says that something is bad.
    """
    if expectations or checkpoint is not None or savepoint is not None:
        if content or repair or not expectations:
            raise Misconfigured(
                "--expectations is a question of its own, without --content and --repair; --checkpoint and --savepoint "
                "go with it"
            )
        is_right = verify_expectations(name, checkpoint, savepoint, remote, as_json=as_json)
        if not is_right:
            raise typer.Exit(EXIT_BAD)
        return
    if remote is not None and not content:
        raise Misconfigured("only --content and --expectations need a Spark: leave --remote out, or add one of them")
    with opened_services() as services:
        report = _verified(services, name)
        if content:
            report = _with_contents(services, report, remote)
        repairs = _repaired(services, report) if repair else ()
        said = _settled(services, repairs) if any(each.owed for each in repairs) else ""
    tell(report, repairs, said, as_json=as_json)
    if not report.is_right:
        raise typer.Exit(EXIT_BAD)


def _verified(services: Services, name: str | None) -> VerifyReport:
    from weir.coordinator.verify import VERIFIED, verify_results  # noqa: PLC0415  SQLAlchemy is slow to import
    from weir.coordinator.verify_checkpoints import checkpoint_misfits  # noqa: PLC0415
    from weir.coordinator.verify_records import published_misfits, released_misfits  # noqa: PLC0415
    from weir.ledger.verification import results_to_verify, runs_named  # noqa: PLC0415

    with services.ledger.transaction() as session:
        runs = runs_named(session, name)
        rows = results_to_verify(session, runs, VERIFIED)
    total = sum(row.bytes for row in rows)
    with byte_progress(f"verifying {len(rows)} result(s) of {len(runs)} run(s)", total) as watch:
        found = tuple(verify_results(services, rows, "weir verify", watch))
    misfits = (
        *published_misfits(services, runs),
        *released_misfits(services, runs),
        *checkpoint_misfits(services, runs),
    )
    return VerifyReport(tuple(runs), found, misfits)


def _with_contents(services: Services, report: VerifyReport, remote: str | None) -> VerifyReport:
    from weir.cli.content_program import recomputed  # noqa: PLC0415  pyspark is slow to import
    from weir.coordinator.reading import leased_reading, reader  # noqa: PLC0415
    from weir.coordinator.verify_content import contents_to_check, with_contents  # noqa: PLC0415
    from weir.coordinator.verify_states import state_copies, state_misfits  # noqa: PLC0415
    from weir.ledger.runs import dataflow_of  # noqa: PLC0415

    there: set[int] = set()
    with ExitStack() as leases:
        for dataflow in sorted({dataflow_of(each.run) for each in report.verified}):
            numbers = [each.result for each in report.verified if dataflow_of(each.run) == dataflow]
            lease = leases.enter_context(leased_reading(services, dataflow, numbers, reader("weir verify --content")))
            there |= lease.results
        found = [each for each in report.verified if each.result in there]
        results = contents_to_check(services, found)
        copies = state_copies(services, report.runs, found, results)
        asked = (*results, *(each.asked for each in copies))
        sizes = _sizes(report, asked)
        answers = []
        with byte_progress(f"digesting the rows of {len(asked)} result(s)", sum(sizes.values())) as watch:
            for answer in recomputed(asked, remote, os.environ) if asked else ():
                answers.append(answer)
                watch(sizes[answer.number])
        verified = with_contents(services, report.verified, results, answers)
        misfits = state_misfits(services, copies, answers)
        return replace(report, verified=verified, misfits=(*report.misfits, *misfits))


def _sizes(report: VerifyReport, asked: Iterable[ResultToCheck]) -> dict[int, int]:
    """The bytes that are read for each question: of keyed state those of all files that it consists of."""
    results = {each.result: each.bytes for each in report.verified}
    return {
        each.number: results[each.number] if each.state is None else sum(file.bytes for file in each.state.files)
        for each in asked
    }


def _repaired(services: Services, report: VerifyReport) -> Sequence[Repair]:
    from weir.coordinator.repair import repaired  # noqa: PLC0415

    return repaired(services, report.bad, report.misfits)


def _settled(services: Services, repairs: Sequence[Repair]) -> str:
    """Have Airflow follow, if it can be reached; say what is left to do."""
    from weir.cli.airflow_clearer import VARIABLE, ApiClearer, airflow_api  # noqa: PLC0415
    from weir.coordinator.settle import settle  # noqa: PLC0415

    owed = sum(each.owed for each in repairs)
    left = f"{owed} clear(s) are owed, and whoever comes by carries them out: the DAG weir_upkeep (is it unpaused?)"
    try:
        api = airflow_api(os.environ)
    except WeirError as error:
        return f"{left}. Airflow: {error}"
    if api is None:
        return f"{left}. (This command does it at once with {VARIABLE}=http://LOGIN:PASSWORD@HOST:PORT.)"
    try:
        done = [each for name in _dataflows(repairs) for each in settle(services, ApiClearer(api), name)]
    except WeirError as error:
        return f"{left}. Airflow: {error}"
    finally:
        api.close()
    return f"{sum(each.is_settled for each in done)} of {owed} task instance(s) are cleared, or about to run"


def _dataflows(repairs: Sequence[Repair]) -> list[str]:
    from weir.ledger.runs import dataflow_of  # noqa: PLC0415

    return sorted({dataflow_of(each.run) for each in repairs})
