"""Default recovery settings of a deployment, for DAGs that set none: options of Airflow's section `[weir]`.

Invariant: an unknown option that resembles one of these is refused, never ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from weir.dataflow.dataflow import FAILOVER, FailoverStrategy
from weir.errors import Misconfigured
from weir.execution.labels import checked_enrichers
from weir.restarts.answer import OPTION_PREFIX, Budgets
from weir.restarts.options import PER_RUN, PER_TASK, normalised_key, suggestion
from weir.restarts.strategy import RestartChoice

LARGEST_PLAN = "largest_plan"
FAILURE_ENRICHERS = "failure_enrichers"
DEFAULT_SHARE = 0.5
_MAXIMA = (
    *(OPTION_PREFIX + each.name for each in fields(Budgets)),
    normalised_key(PER_TASK),
    normalised_key(PER_RUN),
)


@dataclass(frozen=True, slots=True)
class RecoverySettings:
    """Restarts where a DAG does not set them, budgets, failure enrichers, and the largest failover without approval.

    `failure_enrichers` are written "module:function". `largest_plan` is the share of a run's regions, from 0 to 1, that
    may restart because of the losses of one probe without a person's approval. `failover` is the failover strategy of
    the runs of those dataflows that declare none.
    """

    restart: RestartChoice = field(default_factory=RestartChoice)
    budgets: Budgets = field(default_factory=Budgets)
    failure_enrichers: tuple[str, ...] = ()
    largest_plan: float = DEFAULT_SHARE
    failover: FailoverStrategy = FailoverStrategy.REGION

    @staticmethod
    def from_options(options: Mapping[str, Any]) -> RecoverySettings:
        """Read the options of the section [weir]; empty and other options are ignored. Raises Misconfigured."""
        given = {key: value for key, value in options.items() if str(value).strip()}
        plain = {normalised_key(key): value for key, value in given.items()}
        for key in plain:
            if key.startswith(OPTION_PREFIX) and key not in _MAXIMA:
                raise Misconfigured.of("restarts.option_unknown", key=key, suggestion=suggestion(key, _MAXIMA))
        return RecoverySettings(
            RestartChoice.from_options(given),
            Budgets.from_options(plain),
            checked_enrichers(_listed(str(plain.get(FAILURE_ENRICHERS, "")))),
            _largest_plan(plain.get(LARGEST_PLAN, DEFAULT_SHARE)),
            _failover(plain.get(FAILOVER, FailoverStrategy.REGION.value)),
        )


def _listed(text: str) -> list[str]:
    return [name for each in text.split(",") if (name := each.strip())]


def _largest_plan(value: Any) -> float:
    try:
        share = float(value)
    except (TypeError, ValueError):
        share = -1.0
    if not 0 <= share <= 1:
        raise Misconfigured.of("restarts.largest_plan_wrong", option=LARGEST_PLAN, value=value)
    return share


def _failover(value: Any) -> FailoverStrategy:
    strategies = {strategy.value: strategy for strategy in FailoverStrategy}
    found = strategies.get(str(value).strip().lower())
    if found is None:
        hint = suggestion(value, strategies)
        raise Misconfigured.of("restarts.failover_unknown", option=FAILOVER, value=value, hint=hint)
    return found
