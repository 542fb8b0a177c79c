"""What a trial has computed beside what its run has stored: the pair that `weir try --compare` compares.

Invariant: what the run has stored is leased until the end, unless its digests say that it is equal.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from weir.coordination.services import Services
from weir.dataflow.digest_rule import PLAIN_RULE
from weir.dataflow.stage import StageKind
from weir.errors import Misconfigured
from weir.formats.manifest import parsed_digest
from weir.ledger.runs import run_by_id
from weir.reading.availability import Unreadable
from weir.reading.choosing import written_stages
from weir.reading.comparison_rules import Key, are_equal, declared_keys
from weir.reading.opening import WantedStage, open_stage
from weir.reading.pairs import ComparedResult, Pair, WantedComparison, rows_of, to_compare
from weir.trials.declared import Wanted
from weir.trials.trial import Trial
from weir.trials.trying import Outcome

BY = "weir try"


def require_comparable(wanted: Wanted) -> None:
    """Raise Misconfigured for a trial whose rows no run has stored: of samples, or of a single subtask."""
    if wanted.samples is not None or wanted.subtask is not None:
        raise Misconfigured.of("trials.not_comparable")


def stored_as(services: Services, trial: Trial) -> str:
    """Return the stage under whose name the run stores the rows of the tried one: itself, or a sink that publishes it.

    Raises Misconfigured for a trial without a run, and for a stage whose rows its run does not store.
    """
    if not trial.run:
        raise Misconfigured.of("trials.not_comparable")
    with services.ledger.transaction() as session:
        run = run_by_id(session, trial.run)
    stage, written = trial.request.stage, written_stages(run.topology)
    if stage in written:
        return stage
    for each in run.dataflow.stages:
        if each.kind is StageKind.SINK and stage in (exchange.stage for exchange in each.exchanges.values()):
            return each.name
    raise Misconfigured.of("trials.not_stored", stage=stage, run_id=run.id, written=written)


@contextmanager
def opened_pair(services: Services, outcome: Outcome, stored: str, key: Key, shown: int) -> Iterator[Pair]:
    """Pair what the run stores as `stored`, of a sink the newest version, with what was computed.

    Where that cannot be read, the pair says why. Raises Misconfigured for a key that is not in common, and Retryable.
    """
    trial, digests = outcome.trial, outcome.content_digests
    with services.ledger.transaction() as session:
        run = run_by_id(session, trial.run)
    rule = run.dataflow.stage(stored).digest
    if any(each.rule != rule.fingerprint for each in digests):
        rule = PLAIN_RULE
    tried = ComparedResult(run=trial.run, stage=trial.request.stage, rows=outcome.rows)
    pair = Pair(a=ComparedResult(run=trial.run, stage=stored), b=tried, rule=rule)
    if outcome.is_as_recorded and len(trial.recorded) == len(digests):
        yield replace(pair, a=replace(pair.a, rows=outcome.rows), is_equal=True)
        return
    with ExitStack() as closing:
        try:
            wanted = WantedStage(run.dataflow.name, trial.run, stored, by=BY)
            opened = closing.enter_context(open_stage(services, wanted, ExitStack()))
        except (Unreadable, Misconfigured) as error:
            yield replace(pair, problem=str(error))
            return
        known = [parsed_digest(each.digest) for each in opened.partitions]
        a = replace(pair.a, version=opened.version, rows=opened.rows)
        pair = replace(pair, a=a, is_equal=are_equal(known, digests))
        if not pair.is_equal:
            asked = WantedComparison(a=trial.run, b="", key=key, shown=shown)
            keys = list(declared_keys(run.topology, stored))
            pair = to_compare(pair, rows_of(opened), outcome.rows_to_compare, keys, asked)
        yield pair
