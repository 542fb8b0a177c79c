"""Rules of violated expectations: the policy that applies, the inputs that are suspected, and the message.

Invariant: of several policies the strictest applies, and a violation without a suspected input is not answered by
recomputing inputs. Suspected inputs are those that were read from the store; an input in the same Spark plan stands for
all that it reads. An expectation names inputs (`blames`) by argument, or by the stage that the argument reads.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from weir.dataflow import Dataflow
from weir.dataflow.quality import Policy
from weir.dataflow.stage import Stage, StageKind
from weir.dataflow.state import StateKind
from weir.dataflow.state_schema import fields_of_ddl
from weir.errors import Message
from weir.formats.checks import CheckReport, ExpectationResult
from weir.formats.expectation_types import meant
from weir.formats.suite import Expectation, Suite

SHOWN = 5
"""How many violated expectations a message names, and how many violating values of each."""


def policy_of(reports: Iterable[CheckReport]) -> Policy | None:
    """Return the policy that applies to the checks together; None if nothing is violated."""
    found = {
        Policy.FAIL if report.policy is Policy.BACKTRACK and not violated.blames else report.policy
        for report in reports
        for violated in report.violated
    }
    return next((each for each in (Policy.FAIL, Policy.BACKTRACK, Policy.RETRY) if each in found), None)


def suspected_names(report: CheckReport) -> frozenset[str]:
    """Return the inputs that the violated expectations of a check blame."""
    return frozenset(name for each in report.violated for name in each.blames)


def described(report: CheckReport, results: Sequence[ExpectationResult]) -> str:
    """Describe in a sentence what is violated of a suite."""
    shown = "; ".join(_with_examples(each) for each in results[:SHOWN])
    more = f"; and {len(results) - SHOWN} more" if len(results) > SHOWN else ""
    return Message(
        "quality.rows_violate_suite",
        stage=report.stage,
        subtask=report.subtask,
        suite=report.suite,
        shown=shown,
        more=more,
    )


def warnings_of(report: CheckReport) -> tuple[ExpectationResult, ...]:
    """Return the violated expectations that only warn."""
    violated = report.violated
    return tuple(each for each in report.results if not each.success and each not in violated)


def _with_examples(result: ExpectationResult) -> str:
    examples = ", ".join(repr(each) for each in result.examples[:SHOWN])
    return f"{result}, such as {examples}" if examples else str(result)


def input_names(dataflow: Dataflow, stage: str) -> tuple[str, ...]:
    """Return the names that an expectation of a stage may blame; for a state, the inputs of the stage that keeps it."""
    exchanges = _reader(dataflow, stage).exchanges
    return tuple(dict.fromkeys((*exchanges, *(each.stage for each in exchanges.values()))))


def suite_problems(dataflow: Dataflow, stage: str, suite: Suite) -> Iterator[str]:
    """Yield the expectations of a suite that blame what is no input of the stage, or name no column of the state."""
    known, columns = input_names(dataflow, stage), _columns_of_state(dataflow, stage)
    for number, each in enumerate(suite.expectations, 1):
        unknown = [name for name in each.blames if name not in known]
        if unknown:
            yield Message(
                "quality.blames_unknown",
                number=number,
                expectation=each.type,
                unknown=unknown,
                known=", ".join(known) or "nothing",
            )
        for name in _columns_named(each) if columns else ():
            if name.casefold() not in (column.casefold() for column in columns):
                yield Message(
                    "quality.column_not_in_stage",
                    number=number,
                    expectation=each.type,
                    name=name,
                    stage=stage,
                    meant=meant(name, columns),
                )


def _columns_of_state(dataflow: Dataflow, stage: str) -> tuple[str, ...]:
    """Return the declared columns of a keyed state; empty for a stage, which declares none."""
    states = (state for each in dataflow.stages for state in each.states)
    return next(
        (tuple(fields_of_ddl(each.schema)) for each in states if each.name == stage and each.kind is StateKind.KEYED),
        (),
    )


def _columns_named(expectation: Expectation) -> Iterator[str]:
    """Yield the columns that an expectation names at the top level; that one exists may be what is expected."""
    if expectation.type == "expect_column_to_exist" or expectation.type.startswith("expect_table_"):
        return
    given = expectation.kwargs
    listed = given.get("column_list")
    names = (
        given.get("column"),
        given.get("column_A"),
        given.get("column_B"),
        *(listed if isinstance(listed, list) else ()),
    )
    yield from (each for each in names if isinstance(each, str) and not {*each} & {*'.`["'})


def suspected_arguments(dataflow: Dataflow, stage: str, names: Collection[str]) -> frozenset[str]:
    """Return the arguments (STAGE.ARGUMENT) by which suspected inputs of `stage` are read from the store."""
    return frozenset(_read(dataflow, _reader(dataflow, stage), names))


def _reader(dataflow: Dataflow, stage: str) -> Stage:
    found = dataflow.stage(stage)
    if found.kind is not StageKind.STATE:
        return found
    (keeper,) = found.exchanges.values()
    return dataflow.stage(keeper.stage)


def _read(dataflow: Dataflow, reader: Stage, names: Collection[str] | None) -> Iterator[str]:
    for argument, exchange in reader.exchanges.items():
        if names is not None and not {argument, exchange.stage} & {*names}:
            continue
        if exchange.joins_plan:
            yield from _read(dataflow, dataflow.stage(exchange.stage), None)
        elif exchange.is_of_results:
            yield f"{reader.name}.{argument}"
