"""`weir code`: the versions of code that have computed results, what differs between them, and which count as equal.

And what a change of code would run again. Invariant: only `same`, and `plan` with --apply or
--forward-only, change anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

from weir.cli.airflow_api import cleared_as_planned
from weir.cli.code_plan_report import kept_as_they_are, print_code_plan
from weir.cli.default_command import with_default
from weir.cli.documents import AsJson, FirstEpoch, LastEpoch, Listing, OnlyDataflow, WithReuse, print_document
from weir.cli.tables import key, number, print_line, value
from weir.code.generation_rules import short
from weir.coordination.read_leases import user_name
from weir.coordination.services import Services
from weir.coordination.values import DeclaredCode
from weir.environment import opened_services
from weir.errors import Misconfigured
from weir.ledger.code import kept_code
from weir.recovery.run_plans import keep_results
from weir.recovery.versions import EqualVersions, declare_equal
from weir.trials.declared import code_below
from weir.trials.other_code import checked_out, code_elsewhere
from weir.views.code import archive_named, declared_equal, difference, versions_of_tasks
from weir.views.code_plan import CodePlan, code_plan, compared

EXIT_DIFFERS: Final = 1
"""That of diff: 2 is an error."""

_DAGS = Path("dags")
_VERSIONS = "versions"
_ARCHIVE = 16
"""The number of characters by which a table names an archive."""

code_app = typer.Typer(
    cls=with_default(_VERSIONS), help="Show the versions of code that have computed results, and what differs."
)


@code_app.command(_VERSIONS)
def versions(dataflow: OnlyDataflow = None, as_json: AsJson = False) -> None:
    """List the versions of code by epoch and region, the default: archive, generation, subtasks, since when.

    The number of subtasks is that of those whose current results this version has computed.
    """
    with opened_services() as services, services.ledger.transaction() as session:
        found, same = versions_of_tasks(session, dataflow), declared_equal(session, dataflow)
        kept = kept_code(session, dataflow)
    _CODE.show(found, as_json=as_json, equal=same, kept=kept)
    for line in () if as_json or not found else (*map(_declared, same), *map(kept_as_they_are, kept)):
        print_line(line)


_CODE = Listing(
    "versions",
    (
        *(key("epoch"), key("dataflow"), key("region"), value("version", lambda row: short(row.version))),
        value("archive", lambda row: row.archive and row.archive[:_ARCHIVE]),
        *(number("generation", form=""), number("subtasks"), value("since")),
    ),
    "No version is recorded: no region has begun yet. `weir runs` lists the runs",
)


@code_app.command()
def diff(
    old: Annotated[str, typer.Argument(help="A version or an archive, or how it begins.", show_default=False)],
    new: Annotated[str, typer.Argument(help="Another one.", show_default=False)],
) -> None:
    """Show the sources that differ between two versions or archives, as a unified diff."""
    with opened_services() as services:
        lines = difference(services, old, new)
    if not lines:
        Console(stderr=True).print("Their sources are equal.")
    for line in lines:
        print_line(line)


@code_app.command()
def plan(
    path: Annotated[
        Path,
        typer.Argument(metavar="DAG", help="A DAG file, or a folder of them: by default, dags.", show_default=False),
    ] = _DAGS,
    dataflow: Annotated[str | None, typer.Option(help="Only this dataflow of it.", show_default=False)] = None,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="PATH|REVISION|ARCHIVE",
            help="Compare with other code than that of the results: a DAG file or folder of another checkout, a "
            "revision in git, or a version or an archive.",
            show_default=False,
        ),
    ] = None,
    first: FirstEpoch = None,
    last: LastEpoch = None,
    reuse: WithReuse = False,
    apply: Annotated[
        bool, typer.Option("--apply", help="Re-run what is shown, the oldest epoch first; with --from or --to.")
    ] = False,
    forward_only: Annotated[
        bool,
        typer.Option(
            "--forward-only",
            help="Record that what is shown stays as it is, until the code changes again: re-run nothing.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show which results other code has made than that of a DAG file, what differs, and what re-running them costs.

    Exits with 1 if anything would run again; with --against, which needs no ledger, if any stage differs.
    """
    if against is not None:
        if first or last or reuse or apply or forward_only:
            raise Misconfigured.of("cli.compared_code_is_not_run", against=against)
        plans = _compared_with(path, against, dataflow)
        _print_plans(plans, as_json=as_json)
        raise typer.Exit(EXIT_DIFFERS if any(each.would_rerun for each in plans) else 0)
    if apply and not first and not last:
        raise Misconfigured.of("cli.apply_to_which_epochs")
    if forward_only and (apply or reuse):
        raise Misconfigured.of("cli.forward_only_re_runs_nothing")
    declared = code_below(path, dataflow)
    with opened_services() as services:
        plans = [code_plan(services, each, first, last, by_weir=reuse) for each in declared]
        if (first or last) and not any(each.runs or each.freed for each in plans):
            raise Misconfigured.of("cli.no_run_of_code", path=path)
        _print_plans(plans, as_json=as_json)
        never = next((each for each in plans if each.would_rerun and not each.can_reuse), None)
        if reuse and never is not None:
            raise Misconfigured.of("cli.nothing_reused", run=never.clears.plans[-1].answer.run.id)
        done: list[str] = []
        if apply:
            done = _carry_out(services, plans)
        elif forward_only:
            done = [line for of, each in zip(declared, plans, strict=True) for line in _keep(services, of, each)]
    would_rerun = any(each.would_rerun for each in plans) and not apply and not forward_only
    for line in [_not_yet(plans)] if would_rerun else done:
        print_line(line, Console(stderr=as_json))
    raise typer.Exit(EXIT_DIFFERS if would_rerun else 0)


def _carry_out(services: Services, plans: Sequence[CodePlan]) -> list[str]:
    """Clear what was shown and return what was done. Raises Misconfigured, before the first, if one is impossible."""
    for lost in (each for plan in plans for each in plan.impossible):
        why = lost.plan.impossible
        raise Misconfigured.of("recovery.input_is_lost_for_good", run_id=lost.answer.run.id, impossible=why)
    some = [each.clears for each in plans if each.would_rerun]
    return [cleared_as_planned(services, each.plans, (), each.code, "weir code plan") for each in some]


def _keep(services: Services, of: DeclaredCode, shown: CodePlan) -> list[str]:
    kept = keep_results(services, shown.clears, of.archive.files, user_name())
    return [kept_as_they_are(each) for each in kept]


def _print_plans(plans: Sequence[CodePlan], *, as_json: bool) -> None:
    if as_json:
        print_document(dataflows=[each.fields() for each in plans])
    for each in () if as_json else plans:
        print_code_plan(each)


def _not_yet(plans: Sequence[CodePlan]) -> str:
    if any(plan.impossible for plan in plans):
        return "Nothing is cleared, nor with --apply, where some of it cannot run again: name other epochs."
    clears = [each for plan in plans for each in plan.clears.plans]
    return (
        f"Nothing is cleared. With --apply, {sum(len(each.regions) for each in clears)} task instance(s) of "
        f"{len(clears)} run(s) are, and run what is deployed then: deploy this code first."
    )


@code_app.command()
def same(
    stage: Annotated[str, typer.Argument(help="A stage.", show_default=False)],
    old: Annotated[str, typer.Argument(help="A version of its code, or how it begins.", show_default=False)],
    new: Annotated[str, typer.Argument(help="Another one.", show_default=False)],
    dataflow: Annotated[str | None, typer.Option(help="The stage's dataflow, if several have such a stage.")] = None,
) -> None:
    """Declare two versions equal for a stage: results of the one count as made by the other, too."""
    with opened_services() as services:
        declared, results = declare_equal(services, stage, old, new, user_name(), dataflow)
    print_line(f"{_declared(declared)}. {results} result(s) count as made by both now")


def _declared(each: EqualVersions) -> str:
    return (
        f"{short(each.one)} and {short(each.other)} are equal for stage {each.stage} of {each.dataflow}, as "
        f"{each.declared_by} declared on {each.declared_at:%Y-%m-%d %H:%M:%S} UTC"
    )


def _compared_with(path: Path, against: str, dataflow: str | None = None) -> list[CodePlan]:
    """Compare the dataflows of a DAG file, or of a folder of them, with other code.

    That is a DAG file, folder or checkout elsewhere, else a revision in git, else an archive of the ledger, named by
    its beginning or that of a version. Raises Misconfigured if it is none of them, and as `code_below`.
    """
    declared = code_below(path, dataflow)
    if Path(against).exists():
        return _beside(declared, against, code_elsewhere(Path(against), path))
    with checked_out(against, path) as there:
        if there is not None:
            return _beside(declared, against, code_elsewhere(there, path) if there.exists() else ())
    try:
        with opened_services() as services:
            archive = archive_named(services, against)
    except Misconfigured as error:
        raise Misconfigured.of("views.code_unknown", against=against, error=error) from error
    return [compared(each, against, archive) for each in declared]


def _beside(declared: Iterable[DeclaredCode], against: str, others: Iterable[DeclaredCode]) -> list[CodePlan]:
    there = {each.flow.name: each for each in others}
    return [compared(each, against, there.get(each.flow.name)) for each in declared]
