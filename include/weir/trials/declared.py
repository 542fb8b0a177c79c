"""What a person asks to try, and the dataflow that a DAG file declares.

Invariant: the file is imported in a process of its own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from weir.code.archive import pack, top_level
from weir.coordination.values import DeclaredCode
from weir.dataflow import Dataflow, Stage
from weir.dataflow.stage import StageKind
from weir.doctor.problems import Problem, answers_about
from weir.errors import Misconfigured
from weir.wording import did_you_mean

NEWEST, AS_IT_WAS = "newest", "as_it_was"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a person asks for: a stage of a DAG file, on a run or on samples, with which code, of which subtasks."""

    file: Path
    stage: str
    epoch: str | None = None
    until: str | None = None
    samples: Path | None = None
    dataflow: str | None = None
    code: str = NEWEST
    subtask: int | None = None
    shown: int = 20


@dataclass(frozen=True, slots=True)
class Declared:
    """A dataflow as a DAG file declares it now, a stage of it, and the folder of the suites.

    `sql` has the texts of SQL files, by the paths that stages name, `zone` is the time zone of its schedule.
    """

    file: Path
    flow: Dataflow
    stage: Stage
    expectations: str
    sql: Mapping[str, str] = field(default_factory=dict)
    zone: str = "UTC"


def declared_in(
    file: Path, stage: str, dataflow: str | None = None, environ: Mapping[str, str] = os.environ
) -> Declared:
    """Return the stage of this name that a DAG file declares; `dataflow` says in which, where several have it.

    Raises Misconfigured for a file that cannot be imported, and for a name that is none of a stage with a function.
    """
    found, expectations = _declared(file, environ)
    flows = [flow for flow, _ in found]
    if dataflow is not None:
        flows = [_named(file, found, dataflow)[0]]
    flow = _flow(file, flows, stage)
    other = next(other for each, other in found if each is flow)
    return Declared(file, flow, _stage(flow, stage), expectations, other["sql"], other["zone"])


def code_below(
    path: Path, dataflow: str | None = None, environ: Mapping[str, str] = os.environ
) -> tuple[DeclaredCode, ...]:
    """Return the dataflows, or the one of this name, that a DAG file declares, or the files of a folder of them.

    Raises Misconfigured for a file that cannot be imported, a name that is none of a dataflow, and a module that is not
    found.
    """
    found, _ = _declared(path, environ)
    wanted = found if dataflow is None else [_named(path, found, dataflow)]
    return tuple(_packed(flow, other) for flow, other in wanted)


def _packed(flow: Dataflow, other: Mapping[str, Any]) -> DeclaredCode:
    file = Path(other["file"])
    with modules_beside(file):
        applications = {name: Path(path).read_bytes() for name, path in other["applications"].items()}
        functions = [stage.function for stage in flow.stages]
        return DeclaredCode(file, flow, pack(top_level(functions), other["sql"], applications))


@contextmanager
def modules_beside(file: Path) -> Iterator[None]:
    """Find modules also beside a DAG file meanwhile, as Airflow does."""
    folder = str(file.resolve().parent)
    sys.path.append(folder)
    try:
        yield
    finally:
        sys.path.remove(folder)


_Found = list[tuple[Dataflow, Mapping[str, Any]]]
"""Dataflows, and what else their files say of each."""


def _declared(file: Path, environ: Mapping[str, str]) -> tuple[_Found, str]:
    """Return what a DAG file declares, or the files of a folder; and the folder of the suites.

    Raises Misconfigured if there is nothing.
    """
    if not file.exists():
        raise Misconfigured.of("trials.no_dag_file", file=file)
    found: _Found = []
    expectations = ""
    for answer in answers_about(["--declare", str(file)], environ):
        if "ended" in answer:
            raise Misconfigured.of("trials.import_ended", file=file, answer=answer["ended"])
        for problem in answer.get("problems", ()):
            raise Misconfigured(str(Problem.from_json(problem)))
        found += [
            (Dataflow.from_json(each["flow"]), {**each, "file": answer["file"]}) for each in answer.get("dataflows", ())
        ]
        expectations = answer.get("expectations", expectations)
    if not found:
        raise Misconfigured.of("trials.no_dataflow", file=file)
    return found, expectations


def _named(file: Path, found: _Found, dataflow: str) -> tuple[Dataflow, Mapping[str, Any]]:
    for flow, other in found:
        if flow.name == dataflow:
            return flow, other
    known = ", ".join(flow.name for flow, _ in found)
    raise Misconfigured.of("trials.dataflow_unknown", file=file, dataflow=dataflow, known=known)


def _flow(file: Path, flows: list[Dataflow], stage: str) -> Dataflow:
    known = ", ".join(each.name for each in flows)
    having = [each for each in flows if stage in [one.name for one in each.stages]]
    if len(having) > 1:
        raise Misconfigured.of("trials.stage_ambiguous", file=file, stage=stage, dataflows=len(having), known=known)
    return having[0] if having else flows[0]


def _stage(flow: Dataflow, name: str) -> Stage:
    known = [each.name for each in flow.stages if each.function]
    if name not in [each.name for each in flow.stages]:
        hint = did_you_mean(name, known, f"it has {', '.join(known)}")
        raise Misconfigured.of("trials.stage_unknown", flow=flow, name=name, hint=hint)
    stage = flow.stage(name)
    if stage.application is not None:
        raise Misconfigured.of("trials.stage_is_an_application", name=name, function=stage.function)
    if stage.function:
        return stage
    producer = next(iter(stage.exchanges.values())).stage
    what = "the state of" if stage.kind is StageKind.STATE else "a sink, which publishes the rows of"
    raise Misconfigured.of("trials.stage_computes_nothing", name=name, what=what, producer=producer)
