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

    @contextmanager
    def modules_on_path(self) -> Iterator[None]:
        """Find modules also beside the DAG file meanwhile, as Airflow does."""
        folder = str(self.file.resolve().parent)
        sys.path.append(folder)
        try:
            yield
        finally:
            sys.path.remove(folder)


def declared_in(
    file: Path, stage: str, dataflow: str | None = None, environ: Mapping[str, str] = os.environ
) -> Declared:
    """Return the stage of this name that a DAG file declares; `dataflow` says in which, where several have it.

    Raises Misconfigured for a file that cannot be imported, and for a name that is none of a stage with a function.
    """
    if not file.is_file():
        raise Misconfigured.of("trials.no_dag_file", file=file)
    flows: list[Dataflow] = []
    others: list[Mapping[str, Any]] = []
    expectations = ""
    for answer in answers_about(["--declare", str(file)], environ):
        if "ended" in answer:
            raise Misconfigured.of("trials.import_ended", file=file, answer=answer["ended"])
        for problem in answer.get("problems", ()):
            raise Misconfigured(str(Problem.from_json(problem)))
        flows += [Dataflow.from_json(each["flow"]) for each in answer.get("dataflows", ())]
        others += answer.get("dataflows", ())
        expectations = answer.get("expectations", expectations)
    flow = _flow(file, [each for each in flows if dataflow in (None, each.name)] or flows, stage, dataflow)
    other = others[flows.index(flow)]
    return Declared(file, flow, _stage(flow, stage), expectations, other["sql"], other["zone"])


def _flow(file: Path, flows: list[Dataflow], stage: str, dataflow: str | None) -> Dataflow:
    if not flows:
        raise Misconfigured.of("trials.no_dataflow", file=file)
    known = ", ".join(each.name for each in flows)
    if dataflow is not None and dataflow not in [each.name for each in flows]:
        raise Misconfigured.of("trials.dataflow_unknown", file=file, dataflow=dataflow, known=known)
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
