"""`weir check`: what is wrong with DAG files, before they are deployed.

Invariants: it needs no stack, ledger, database or Spark, and writes nothing. Only with --connections is Airflow's
database asked. DAG files and the modules that they name
are imported in a process of their own, so that whatever they do there is a line of the report. The exit code is 1 if
there is a problem.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from weir.cli.documents import AsJson, print_document
from weir.doctor.datasets import dataset_problems, undeclared_publishers
from weir.doctor.problems import Problem, answers_about
from weir.views.documents import plain

EXIT_PROBLEM: Final = 1


@dataclass(slots=True)
class Report:
    """What was found in the files that were checked."""

    files: list[str] = field(default_factory=list)
    dataflows: list[dict[str, Any]] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What could not be checked, and why."""

    @property
    def summary(self) -> str:
        """A line that counts what was checked and found."""
        stages = sum(each["stages"] for each in self.dataflows)
        return (
            f"{len(self.files)} file(s), {len(self.dataflows)} dataflow(s), {stages} stage(s): "
            f"{len(self.problems) or 'no'} problem(s)"
        )


def check(
    paths: Annotated[
        list[Path] | None, typer.Argument(help="DAG files, and folders of them: by default, dags.", show_default=False)
    ] = None,
    expectations: Annotated[
        Path | None, typer.Option(help="The folder of the suites, if not that of the settings.", show_default=False)
    ] = None,
    connections: Annotated[
        bool, typer.Option("--connections", help="Look up the connections that are named, as Airflow finds them here.")
    ] = False,
    external: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DATAFLOW",
            help="A dataflow of another project whose data sets are read here: of a folder, all others are declared.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check DAG files: that they import, that functions exist and fit their stages, and that suites can be read.

    Needs no stack and no Spark; --connections asks Airflow's database and secrets backends. Exits with 1 if there is a
    problem, one line for each.
    """
    wanted = paths or [Path("dags")]
    missing = [path for path in wanted if not path.exists()]
    if missing:
        raise typer.BadParameter(f"there is no file or folder {missing[0]}: name DAG files, or folders of them")
    options = [] if expectations is None else ["--expectations", str(expectations)]
    options += ["--connections"] if connections else []
    is_whole = any(path.is_dir() for path in wanted)
    report = report_of([*options, *map(str, wanted)], external=external or (), is_whole=is_whole)
    if as_json:
        print_document(**plain(report))
    else:
        _print(report)
    raise typer.Exit(EXIT_PROBLEM if report.problems else 0)


def report_of(
    arguments: Sequence[str],
    environ: Mapping[str, str] = os.environ,
    external: Collection[str] = (),
    *,
    is_whole: bool = False,
) -> Report:
    """Check DAG files in a process of their own.

    `is_whole`: these are all files of a project, so that what they read is published by them, or by `external` ones.
    """
    report = Report()
    for answer in answers_about(arguments, environ):
        if "begun" in answer:
            report.files.append(answer["begun"])
        elif "ended" in answer:
            report.problems.append(_unfinished(report.files, answer["ended"]))
        else:
            report.dataflows += [{"file": answer["file"], **each} for each in answer["dataflows"]]
            report.problems += [Problem.from_json(each) for each in answer["problems"]]
            report.notes += answer["notes"]
    report.problems += [*_same_names(report.dataflows), *dataset_problems(report.dataflows)]
    unpublished = undeclared_publishers(report.dataflows, external)
    if is_whole:
        report.problems += unpublished
    else:
        report.notes += map(str, unpublished)
    return report


def _unfinished(files: Sequence[str], ended: str) -> Problem:
    if not files:
        return Problem(file="weir check", text=f"Airflow and its plugin for Weir could not be imported, {ended}")
    text = f"the process that imported it, and the modules that it names, ended {ended}. Later files were not checked"
    return Problem(file=files[-1], text=text)


def _same_names(dataflows: Sequence[Mapping[str, Any]]) -> Iterator[Problem]:
    counts = Counter(each["dataflow"] for each in dataflows)
    for name in (name for name, count in counts.items() if count > 1):
        first, *others = (each["file"] for each in dataflows if each["dataflow"] == name)
        for file in others:
            place = "above in this file" if file == first else f"in {first}"
            yield Problem(
                file=file,
                dataflow=name,
                text=f"a dataflow of this name is declared {place}, too: results and state belong to the name, so give "
                "one of them another",
            )


def _print(report: Report) -> None:
    for problem in report.problems:
        print(problem)
    for note in report.notes:
        print(note)
    for each in report.dataflows:
        tasks = ", ".join(f"{name}[{count}]" if count > 1 else name for name, count in each["tasks"].items())
        number = sum(each["tasks"].values())
        print(f"{each['file']}: dataflow {each['dataflow']!r}: {number} task instances a run: {tasks}")
    print(report.summary)
