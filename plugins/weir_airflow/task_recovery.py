"""What a DAG says about the recovery of a dataflow's tasks.

Invariant: it is checked where the DAG is parsed, and put together with what the deployment says where it is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from weir.errors import Misconfigured
from weir.recovery.labels import checked_enrichers
from weir.recovery.restart import RestartChoice, RestartStrategy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk.definitions.retry_policy import RetryPolicy

DEFAULT_RETRY_DELAY: Final = timedelta(minutes=5)
"""What Airflow takes for `retries` without a `retry_delay`."""

_TAKEN: Final = {
    "retry_exponential_backoff": "use restart={'restart-strategy.type': 'exponential-delay'}",
    "max_retry_delay": "use restart={'restart-strategy.type': 'exponential-delay'}",
}


@dataclass(frozen=True, slots=True)
class TaskRecovery:
    """How tasks restart, a policy of the user's own to be asked too, and functions ("module:function") for labels."""

    restart: RestartChoice = field(default_factory=RestartChoice)
    retry_policy: RetryPolicy | None = None
    failure_enrichers: tuple[str, ...] = ()

    @staticmethod
    def declared(
        default_args: Mapping[str, Any],
        *,
        restart: RestartStrategy | Mapping[str, Any] | None,
        retries: int | None,
        retry_delay: timedelta | None,
        retry_policy: RetryPolicy | None,
        failure_enrichers: Sequence[str],
    ) -> TaskRecovery:
        """Put together what is said of a dataflow and what its tasks would inherit. Raises Misconfigured."""
        for name, advice in _TAKEN.items():
            if default_args.get(name) is not None:
                raise Misconfigured(f"`{name}` in default_args has no effect on the tasks of a dataflow: {advice}")
        policy = default_args.get("retry_policy") if retry_policy is None else retry_policy
        if policy is not None and not callable(getattr(policy, "evaluate", None)):
            raise Misconfigured(f"retry_policy is a {type(policy).__name__}: expected a RetryPolicy of Airflow")
        enrichers = checked_enrichers(failure_enrichers)
        return TaskRecovery(_restart(restart, retries, retry_delay, default_args), policy, enrichers)


def _restart(
    restart: RestartStrategy | Mapping[str, Any] | None,
    retries: int | None,
    delay: timedelta | None,
    default_args: Mapping[str, Any],
) -> RestartChoice:
    choice = RestartChoice.from_options(restart) if isinstance(restart, Mapping) else RestartChoice.of(restart)
    if choice.strategy is not None and retries is not None:
        raise Misconfigured("Give `retries` or a `restart` strategy, not both")
    count = default_args.get("retries") if retries is None else retries
    if choice.strategy is not None or count is None:
        return choice
    given = default_args.get("retry_delay") if delay is None else delay
    pause = DEFAULT_RETRY_DELAY if given is None else given
    pause = pause if isinstance(pause, timedelta) else timedelta(seconds=pause)
    strategy = RestartStrategy.from_retries(int(count), pause)
    return RestartChoice(strategy, choice.limits.filled_from(strategy.limits))
