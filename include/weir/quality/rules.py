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
from weir.formats.checks import CheckOutcome, CheckReport, ExpectationResult, GateResult
from weir.formats.suite import Suite

SHOWN = 5
"""How many violated expectations a message names, and how many violating values of each."""


def policy_of(reports: Iterable[CheckReport]) -> Policy | None:
    """Return the policy that applies to the checks together; None if nothing is violated."""
    found = {_policy(report, each) for report in reports for each in report.violated}
    return next((each for each in (Policy.FAIL, Policy.BACKTRACK, Policy.RETRY) if each in found), None)


def _policy(report: CheckReport, violated: ExpectationResult) -> Policy:
    return Policy.FAIL if report.policy is Policy.BACKTRACK and not violated.blames else report.policy


def suspected_names(report: CheckReport) -> frozenset[str]:
    """Return the inputs that the violated expectations of a check blame."""
    return frozenset(name for each in report.violated for name in each.blames)


def gate_results(reports: Iterable[CheckReport], stage: str) -> tuple[GateResult, ...]:
    """Return the checks for a stage's manifest: those of its own rows, and failed ones elsewhere in its region."""
    own = [each for each in reports if not each.attempt and each.stage == stage]
    others = [each for each in reports if each not in own and each.outcome is CheckOutcome.FAILED]
    found: dict[str, GateResult] = {}
    for report in (*own, *others):
        known = found.get(report.suite)
        if known is None or known.outcome is not CheckOutcome.FAILED:
            found[report.suite] = GateResult(report.suite, report.fingerprint, report.outcome)
    return tuple(found.values())


def described(report: CheckReport, results: Sequence[ExpectationResult]) -> str:
    """Describe in a sentence what is violated of a suite."""
    shown = "; ".join(_with_examples(each) for each in results[:SHOWN])
    more = f"; and {len(results) - SHOWN} more" if len(results) > SHOWN else ""
    return f"the rows of {report.stage}[{report.subtask}] violate {report.suite}: {shown}{more}"


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


def unknown_inputs(dataflow: Dataflow, stage: str, suite: Suite) -> Iterator[str]:
    """Yield the expectations of a suite that blame what is no input of the stage."""
    known = input_names(dataflow, stage)
    for each in suite.expectations:
        unknown = [name for name in each.blames if name not in known]
        if unknown:
            yield (
                f"{each.type} blames {', '.join(unknown)}, which is no input of it; it reads "
                f"{', '.join(known) or 'nothing'}"
            )


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
        else:
            yield f"{reader.name}.{argument}"
