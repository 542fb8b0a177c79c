"""What parsing a DAG file cannot find in a dataflow: functions, classes and suites that do not exist or do not fit.

Invariants: nothing is computed, and no stack, ledger or Spark is asked. Functions and suites are found and judged by
the same code as in a run. What a module of the user raises when it is imported is a problem of the report.
"""

from __future__ import annotations

import inspect
import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from weir.code.application_rules import name_in_archive
from weir.code.archive import pack, top_level
from weir.code.functions import check_call, import_module, load
from weir.connections import Connections
from weir.dataflow import Dataflow, Receiver, Stage, Target
from weir.dataflow.notifications import Channel
from weir.dataflow.sources import connections_of
from weir.doctor.problems import Problem, texts_of
from weir.doctor.topics import topic_problems
from weir.errors import Misconfigured, WeirError
from weir.formats.suite import Suite
from weir.notifications.delivery import imported
from weir.quality.rules import suite_problems
from weir.quality.suites import suite_in
from weir.sinks.opening import class_of

_OF_LIBRARIES = re.compile(r"site-packages|dist-packages|<frozen|/lib/python3\.\d+/")

Registry = Callable[[], Any]
"""Imports Great Expectations, which takes seconds, and returns its registry of expectations; None if it has none."""


def problems_of(
    file: str,
    flow: Dataflow,
    expectations: str,
    enrichers: Iterable[str] = (),
    registry: Registry = lambda: None,
) -> list[Problem]:
    """Return the problems of a dataflow that a DAG file declares.

    `expectations` is the folder of the suites, `enrichers` are the failure enrichers of its DAG.
    """
    check = _Check(flow, expectations, registry)
    found: dict[str, dict[str, None]] = {}  # by text, the stages in their order
    for stage in flow.stages:
        for text in check.stage(stage):
            found.setdefault(text, {})[stage.name] = None
    for text in (*check.code(), *check.people(enrichers)):
        found.setdefault(text, {})[""] = None
    return [
        Problem(file=file, dataflow=flow.name, stage=first, text=text + _also(others))
        for text, (first, *others) in found.items()
    ]


def connection_problems(file: str, flow: Dataflow, look_up: Connections) -> Iterator[Problem]:
    """Yield a problem for each connection that a stage or a receiver names, and that does not exist or answer.

    And for each topic of Kafka that is not as its stage needs it.
    """
    named = [(stage.name, *each) for stage in flow.stages for each in connections_of(stage).items()]
    named += [(each.name, each.task.spark_conn_id, "its Spark") for each in flow.stages if each.task.spark_conn_id]
    named += [("", each.address, each.name) for each in flow.notify if each.channel is Channel.WEBHOOK]
    known = {each.name for each in flow.stages}
    for stage, conn_id, who in named:
        try:
            look_up(conn_id)
        except WeirError as error:
            yield Problem(file=file, dataflow=flow.name, stage=stage, text=f"{who}: {error}")
            known.discard(stage)
    for each in flow.stages:
        if each.name in known:
            for text in topic_problems(each, look_up):
                yield Problem(file=file, dataflow=flow.name, stage=each.name, text=text)


def of_gx(flow: Dataflow, expectations: str) -> list[str]:
    """Return the types of expectations in the suites of a dataflow that only Great Expectations can judge."""
    suites: list[Suite] = []
    for name in {gate.suite for stage in flow.stages for gate in stage.gates}:
        with suppress(Misconfigured):
            suites.append(suite_in(expectations, name))
    return sorted({each.type for suite in suites for each in suite.of_gx.values()})


def _also(stages: list[str]) -> str:
    named = [repr(stage) for stage in stages if stage]
    return f" (also stage {', '.join(named)})" if named else ""


@dataclass(frozen=True, slots=True)
class _Check:
    """The checks of one dataflow; `modules` are those that were imported, each with its problem or an empty text."""

    flow: Dataflow
    expectations: str
    registry: Registry
    modules: dict[str, str] = field(default_factory=dict)

    def stage(self, stage: Stage) -> Iterator[str]:
        """Yield the problems of a stage."""
        if stage.function and not name_in_archive(stage.function):
            first = ("ctx",) if stage.resolve is None else ("ctx", "split")
            yield from self._call("function", stage.function, first, tuple(stage.exchanges))
        if stage.resolve is not None:
            yield from self._call("resolve", stage.resolve, ("ctx",))
        for target in stage.targets:
            if ":" in target.kind:
                yield from self._said(target.kind, partial(_require_target, target))
        for gate in stage.gates:
            yield from self._said("", partial(self._require_suite, stage, gate.suite))

    def code(self) -> Iterator[str]:
        """Yield why the modules of the stages cannot travel to Spark, once all of them can be imported."""
        if any(self.modules.values()):
            return
        try:
            pack(top_level(stage.function for stage in self.flow.stages))
        except WeirError as error:
            yield str(error)

    def people(self, enrichers: Iterable[str]) -> Iterator[str]:
        """Yield the problems of receivers and enrichers."""
        for receiver in self.flow.notify:
            if receiver.channel is not Channel.WEBHOOK:
                yield from self._said(receiver.address, partial(_require_receiver, receiver))
        for name in enrichers:
            yield from self._call("failure_enrichers", name, ("failure",))

    def _require_suite(self, stage: Stage, name: str) -> None:
        suite = suite_in(self.expectations, name)
        file = f"{self.expectations}/{name}.json"
        for problem in suite_problems(self.flow, stage.name, suite):
            raise Misconfigured.of("doctor.suite_wrong", file=file, name=name, problem=problem)
        registry = self.registry() if suite.of_gx else None
        if registry is not None:
            try:
                suite.require_known(registry)
            except Misconfigured as error:
                raise Misconfigured.of("doctor.suite_unreadable", file=file, error=error) from error

    def _call(self, what: str, name: str, positional: tuple[str, ...], named: tuple[str, ...] = ()) -> list[str]:
        owner = f"{what} {name!r}"
        return self._said(name, lambda: check_call(load(name, owner), owner, positional, named))

    def _said(self, reference: str, check: Callable[[], object]) -> list[str]:
        """Return what a check says of a reference, or why its module cannot be imported."""
        unfit = self._import_problem(reference.partition(":")[0]) if reference else ""
        if unfit:
            return [unfit]
        try:
            check()
        except WeirError as error:
            return [str(error)]
        return []

    def _import_problem(self, module: str) -> str:
        if module not in self.modules:
            self.modules[module] = ""
            try:
                import_module(module, f"module {module}")
            except WeirError as error:
                self.modules[module] = str(error)
            except (Exception, SystemExit) as error:  # noqa: BLE001  a module of the user may raise anything
                self.modules[module] = f"module {module}: importing it failed: {texts_of(error)[0]} ({_place(error)})"
        return self.modules[module]


def _place(error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [each for each in frames if not _OF_LIBRARIES.search(each.filename)]
    last = (own or frames)[-1]
    return f"{last.filename}:{last.lineno}"


def _require_target(target: Target) -> None:
    _require_call(f"target {target.kind!r}", class_of(target), ({}, None), {})


def _require_receiver(receiver: Receiver) -> None:
    positional: tuple[Any, ...] = ({},) if receiver.channel is Channel.CALLBACK else ()
    owner = f"{receiver.channel.value}({receiver.address!r}) in notify"
    _require_call(owner, imported(receiver), positional, receiver.options)


def _require_call(
    owner: str, function: Callable[..., Any], positional: tuple[Any, ...], named: Mapping[str, Any]
) -> None:
    try:
        signature = inspect.signature(function)
    except ValueError:  # a function of C may not tell its parameters
        return
    try:
        signature.bind(*positional, **named)
    except TypeError as error:
        given = ", ".join((*("a value" for _ in positional), *(f"{name}=" for name in named)))
        raise Misconfigured.of(
            "doctor.call_does_not_fit", owner=owner, given=given, signature=signature, error=error
        ) from error
