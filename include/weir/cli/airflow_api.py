"""Airflow's API as the command line reaches it: with the address and the account in `WEIR_API`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Final
from urllib.parse import unquote, urlsplit

from weir.code.generation_rules import RepairCode
from weir.coordination.airflow import AirflowStates, ClearAnswer
from weir.coordination.airflow_client import AirflowClient
from weir.coordination.clearing import EndpointClearer
from weir.coordination.services import Services
from weir.environment import API_VARIABLE, command_environment
from weir.errors import Misconfigured, WeirError
from weir.execution.airflow_words import NOT_IN_AIRFLOW
from weir.recovery.pending_clears import deliver, what_was_cleared
from weir.recovery.run_plans import ClearPlan, FreedRun, clear_by_hand, record_clears
from weir.recovery.standing import Asked
from weir.wording import first_few

SHOWN: Final = 5
"""The largest number of tasks that are named of those that were not cleared."""


def airflow_api(environ: Mapping[str, str]) -> AirflowClient | None:
    """Return Airflow's API if its address is known: `WEIR_API`, or the local stack while it is up.

    Raises Misconfigured for an invalid address or a refused account, and Retryable if the server does not answer.
    """
    given = command_environment(environ).get(API_VARIABLE)
    if not given:
        return None
    url = urlsplit(given)
    if url.scheme not in {"http", "https"} or not url.hostname or url.username is None:
        raise Misconfigured.of("cli.api_variable_malformed", api_variable=API_VARIABLE)
    address = f"{url.scheme}://{url.hostname}" + (f":{url.port}" if url.port else "") + url.path.rstrip("/")
    client = AirflowClient(address, unquote(url.username), unquote(url.password or ""), source=API_VARIABLE)
    client.log_in()
    return client


def deliver_pending(services: Services, owed: int, dataflows: Iterable[str]) -> str:
    """Deliver the pending clears of some dataflows if Airflow can be reached; return what was done, and what is left.

    `owed` is the number of those that the command has recorded.
    """
    left = f"{owed} clear(s) are pending; the DAG weir_upkeep delivers them (is it unpaused?)"
    return deliver_or_tell(
        left,
        lambda clearer: what_was_cleared(
            services, clearer, [each for name in dataflows for each in deliver(services, clearer, name)], owed
        ),
    )


@contextmanager
def airflow_if_reached(what: str = "") -> Iterator[Asked]:
    """Yield Airflow's API, or why it cannot be asked, with `what` it would be asked."""
    not_asked = f"Airflow was not asked {what}".rstrip()
    try:
        api = airflow_api(os.environ)
    except WeirError as error:
        yield Asked(airflow=None, why_not=f"{not_asked}: {error}" if what else f"Airflow: {error}")
        return
    if api is None:
        yield Asked(airflow=None, why_not=f"{not_asked} ({API_VARIABLE}=http://LOGIN:PASSWORD@HOST:PORT)")
        return
    with closing(api):
        yield Asked(airflow=EndpointClearer(api))


@contextmanager
def airflow_to_clear() -> Iterator[AirflowStates]:
    """Yield Airflow's API. Raises Misconfigured where it cannot be reached."""
    with airflow_if_reached("to clear them") as asked:
        if asked.airflow is None:
            raise Misconfigured.of("cli.airflow_not_reached", why=asked.why_not)
        yield asked.airflow


def cleared_as_planned(
    services: Services,
    plans: Sequence[ClearPlan],
    freed: Sequence[FreedRun],
    code: RepairCode | None,
    command: str,
) -> str:
    """Clear as a person does in Airflow; with other code than what follows from that, by Weir's own clears.

    Returns what was done. Raises Misconfigured where Airflow cannot be asked, and as the clears do.
    """
    if code is not None:
        owed = record_clears(services, plans)
        return deliver_pending(services, owed, [plans[0].answer.run.dataflow.name])
    with airflow_to_clear() as airflow:
        answers = clear_by_hand(services, plans, airflow, f"weir: cleared by `{command}`")
        whole = sum(airflow.clear_run(each.dag_id, each.run_id) for each in freed)
    done = [answer for _, _, answer in answers if answer.cleared]
    left = [f"{region} of {run.id} ({_why_not(answer)})" for run, region, answer in answers if not answer.cleared]
    others = f" Not cleared: {first_few(left, SHOWN)}." if left else ""
    return f"{len(done) + whole} task instance(s) of {len(plans) + len(freed)} run(s) are cleared.{others}"


def _why_not(answer: ClearAnswer) -> str:
    return "Airflow has no such task instance" if answer.state in NOT_IN_AIRFLOW else answer.state or "waits to run"


def deliver_or_tell(left: str, deliver: Callable[[AirflowStates], str]) -> str:
    """Return what `deliver` says of the clears that it delivers; else `left`, what is left to do, and why."""
    try:
        api = airflow_api(os.environ)
        if api is None:
            return f"{left}. (With {API_VARIABLE}=http://LOGIN:PASSWORD@HOST:PORT this command delivers them at once.)"
        with closing(api):
            return deliver(EndpointClearer(api))
    except WeirError as error:
        return f"{left}. Airflow: {error}"
