"""What a person may ask for: each verb with the right that it needs, its plan, and how that is carried out.

Invariant: a request is planned by the functions of the command that does it: on the page, when it is made, and when it
is carried out; so the three hashes are equal where the same would be done.

A verb is added by a line in `VERBS` and the function that plans it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Final

from weir.code.generation_rules import RepairCode
from weir.coordination.airflow import AirflowStates, UserRights
from weir.coordination.services import Services
from weir.errors import Conflict, Message, Misconfigured, WeirError
from weir.integrity.repair import repair_runs
from weir.integrity.verification import VerifyReport, verify_runs
from weir.ledger.clears import task_of
from weir.ledger.database.tables import RunRow
from weir.ledger.runs import dag_ids_of, run_by_id, topology_of
from weir.recovery.pending_clears import deliver, what_was_cleared
from weir.recovery.questions import Question, apply_answer, region_named
from weir.recovery.run_plans import (
    Reach,
    clear_by_hand,
    have_go_on,
    plan_of,
    plan_of_clear,
    plans_of_clear,
    record_clears,
)
from weir.requests.request import Request
from weir.snapshots.restore import RestoreRequest, restore
from weir.snapshots.savepoint import SavepointRequest, checkpoint_to_save, create, displaced
from weir.snapshots.seal import seal_plan, seal_preview, seal_run

VERIFIES: Final = "verify"
"""The hash of a verification, which restarts nothing, whatever the plan is."""

SAVES: Final = "savepoint"
"""The hash of a savepoint of a checkpoint, which is the same as long as it is there."""

SHOWN: Final = 3
"""The largest number of things that are wrong that an answer names; the ledger, and so the page, has all."""


class Right(Enum):
    """What the user must be allowed to, in each DAG that the request is about."""

    READ = "read"
    """To read its task instances."""
    EDIT = "edit"
    """To edit them."""
    OPERATE = "operate"
    """To edit them, and the user is one of `[weir] operators`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What a request would do now: its hash, the DAGs whose task instances it is about, and how it is carried out.

    `nothing` says why there is nothing to do; empty if there is. `carry_out` takes Airflow and the name of the person,
    and returns what was done. `at` is what the address of the page has of it, `says` what its button tells before.
    """

    hash: str
    dags: tuple[str, ...]
    at: Mapping[str, str | int]
    carry_out: Callable[[AirflowStates, str], str]
    nothing: str = ""
    says: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """A verb: the right that it needs, its page (run, task or state), and the command that does the same."""

    right: Right
    page: str
    command: str
    plan: Callable[[Services, Request, Reach], Planned]

    def as_command(self, request: Request) -> str:
        """Return the command that does what is asked for."""
        return self.command.format(name=request.name, what=request.what)


def verb_of(request: Request) -> Verb:
    """Return the verb of a request. Raises Misconfigured for one that there is not, and names those that there are."""
    if request.verb not in VERBS:
        raise Misconfigured.of("requests.verb_unknown", verb=request.verb, known=list(VERBS))
    return VERBS[request.verb]


def plan_request(services: Services, request: Request, reach: Reach) -> Planned:
    """Plan a request; it changes nothing. The DAG that it names is among those that it is about.

    Raises Misconfigured for what there is not, and as planning does.
    """
    found = verb_of(request).plan(services, request, reach)
    return replace(found, dags=tuple(sorted({request.dag_id, *found.dags})))


def require_same(request: Request, planned: Planned) -> None:
    """Raise Conflict if a request would not do what its person saw, or if there is nothing to do."""
    if planned.hash != request.hash:
        raise Conflict.of("requests.plan_changed", name=request.name)
    if planned.nothing:
        raise Conflict.of("requests.nothing_to_do", nothing=planned.nothing)


def refusal(request: Request, user: str, rights: Mapping[str, UserRights], operators: Collection[str]) -> str:
    """Return why a user may not have a request carried out, given the rights in each DAG; empty if the user may."""
    verb = verb_of(request)
    for dag_id, found in rights.items():
        if found.unknown:
            return Message("requests.user_unknown", user=user, why=found.unknown)
        if not (found.reads if verb.right is Right.READ else found.edits):
            needed = "read" if verb.right is Right.READ else "edit"
            return Message("requests.right_missing", user=user, needed=needed, dag_id=dag_id)
    if verb.right is Right.OPERATE and user not in operators:
        return Message("requests.no_operator", user=user)
    return ""


def _run(services: Services, request: Request, *used: str) -> RunRow:
    """Return the run of a request, by its id and of the DAG that it names, which is all that its person may know of.

    `used` are the fields that its verb has a use for. Others would make another request that does the same: who may
    only read could have everything read again and again.
    """
    for field in ("what", "looked"):
        if getattr(request, field) and field not in used:
            raise Misconfigured.of("requests.field_unused", field=field, verb=request.verb)
    with services.ledger.transaction() as session:
        row = session.get(RunRow, request.name)
    if row is None or row.dag_id != request.dag_id:
        raise Misconfigured.of("requests.run_unknown", run=request.name, dag_id=request.dag_id)
    return row


def _apply(services: Services, request: Request, reach: Reach) -> Planned:
    """Plan what `weir plan RUN --apply` does."""
    run = _run(services, request, "looked")
    planned = plan_of(services, Question(run.id, looks=request.looked), reach)

    def carry_out(airflow: AirflowStates, by: str) -> str:
        owed = 0 if planned.answer is None else apply_answer(services, planned.answer, by=by)
        return _or_pending(owed, lambda: have_go_on(services, planned, airflow, by))

    nothing = "" if planned.acts.clears else f"nothing of {planned.run} would run again"
    acts = planned.acts
    return Planned(hash=acts.hash, dags=acts.dags, at=_page_of(run), carry_out=carry_out, nothing=nothing)


def _clear(services: Services, request: Request, reach: Reach) -> Planned:  # noqa: ARG001  every verb may ask Airflow
    """Plan what a clear of one task instance in Airflow restarts."""
    found = _run(services, request, "what")
    with services.ledger.transaction() as session:
        run = run_by_id(session, found.id)
        region = region_named(run, request.what)
        task_id, index = task_of(session, run, region)
    planned = plan_of_clear(services, run.id, [region])

    def carry_out(airflow: AirflowStates, by: str) -> str:
        ((_, _, answer),) = clear_by_hand(services, [planned], airflow, f"weir: {by} cleared it from its page")
        if not answer.cleared:
            raise Conflict.of("requests.not_cleared", region=region, state=answer.state or "waiting to run")
        return f"{region} of {run.id} is cleared, as if in Airflow"

    at: dict[str, str | int] = {"run_id": run.run_id, "task_id": task_id, "map_index": index}
    acts, nothing = planned.acts, planned.plan.impossible
    return Planned(hash=acts.hash, dags=acts.dags, at=at, carry_out=carry_out, nothing=nothing)


def _reuse(services: Services, request: Request, reach: Reach) -> Planned:  # noqa: ARG001  as above
    """Plan what `weir clear RUN --reuse` does: all tasks run again, and take what is made of the same."""
    run = _run(services, request)
    if run.pinned is None or not topology_of(run.pinned).dataflow.reuses_any:
        why = Message("cli.nothing_reused", run=run.id)
        return Planned(hash="", dags=(), at=_page_of(run), carry_out=lambda _airflow, _by: why, nothing=why)
    (planned,) = plans_of_clear(services, run.id, code=RepairCode.NEWEST)

    def carry_out(airflow: AirflowStates, by: str) -> str:
        owed = record_clears(services, [planned], by)
        return " ".join(_delivered(services, airflow, run.dataflow, owed))

    acts, nothing = planned.acts, planned.plan.impossible
    return Planned(hash=acts.hash, dags=acts.dags, at=_page_of(run), carry_out=carry_out, nothing=nothing)


def _seal(services: Services, request: Request, reach: Reach) -> Planned:  # noqa: ARG001  as above
    """Plan what `weir seal RUN --apply` does; that command also tells which tasks of later runs run again."""
    run = _run(services, request)
    plan = seal_preview(services, run.id)

    def carry_out(airflow: AirflowStates, by: str) -> str:
        return "; ".join(seal_run(services, seal_plan(services, run.id), airflow, by))

    hash_ = hashlib.sha256(json.dumps(asdict(plan), sort_keys=True).encode()).hexdigest()
    nothing = f"{run.id} is {plan.sealed_why}" if plan.sealed_why else plan.impossible
    fenced = f", {len(plan.running)} task(s) that run are stopped" if plan.running else ""
    says = f"it publishes nothing{fenced}, and {len(plan.followers)} later run(s) go on from {plan.before}"
    return Planned(
        hash=hash_,
        dags=dags_of(services, run.dataflow),
        at=_page_of(run),
        carry_out=carry_out,
        nothing=nothing,
        says=says if plan.failed and plan.followers and not nothing else "",
    )


def _verify(services: Services, request: Request, reach: Reach) -> Planned:  # noqa: ARG001  as above
    """Plan what `weir verify RUN` does."""
    run = _run(services, request)

    def carry_out(airflow: AirflowStates, by: str) -> str:  # noqa: ARG001  every verb is carried out with them
        return _told(verify_runs(services, run.id, f"request of {by}"))

    return Planned(hash=VERIFIES, dags=(), at=_page_of(run), carry_out=carry_out)


def _repair(services: Services, request: Request, reach: Reach) -> Planned:
    """Plan what `weir verify RUN --repair` does: what it finds may have tasks of any run of the dataflow run again."""
    run = _run(services, request, "looked")
    planned = plan_of(services, Question(run.id, looks=request.looked), reach)
    dags = dags_of(services, run.dataflow)

    def carry_out(airflow: AirflowStates, by: str) -> str:
        report = verify_runs(services, run.id, f"request of {by}")
        repairs = repair_runs(services, report.bad, report.misfits, by)
        owed = sum(each.owed for each in repairs)
        cleared = _delivered(services, airflow, run.dataflow, owed)
        return " ".join([_told(report), *(f"{each}." for each in repairs), *cleared])

    return Planned(hash=planned.acts.hash, dags=dags, at=_page_of(run), carry_out=carry_out)


def _delivered(services: Services, airflow: AirflowStates, dataflow: str, owed: int) -> list[str]:
    """Deliver the clears of a dataflow; return a line of what was cleared, none where none is owed."""
    return (
        [_or_pending(owed, lambda: what_was_cleared(services, airflow, deliver(services, airflow, dataflow), owed))]
        if owed
        else []
    )


def _or_pending(owed: int, delivered: Callable[[], str]) -> str:
    """Deliver; where Airflow does not take clears that are recorded by now, say that, since they will be delivered."""
    try:
        return delivered()
    except WeirError as error:
        if not owed:
            raise
        return f"{owed} clear(s) are pending, and the DAG weir_upkeep delivers them. Airflow: {error}"


def _told(report: VerifyReport) -> str:
    wrong = [*report.bad, *report.misfits]
    return f"{report} {'; '.join(str(each) for each in wrong[:SHOWN])}".strip()


def _page_of(run: RunRow) -> dict[str, str | int]:
    return {"run_id": run.run_id, "dataflow": run.dataflow}


def dags_of(services: Services, dataflow: str) -> tuple[str, ...]:
    """Return the DAGs that have runs of a dataflow."""
    with services.ledger.transaction() as session:
        return dag_ids_of(session, dataflow)


def _snapshot(services: Services, request: Request) -> tuple[int, tuple[str, ...]]:
    """Return the number of the checkpoint or savepoint of a request, and the DAGs of its dataflow."""
    dags = dags_of(services, request.name)
    if request.dag_id not in dags:
        raise Misconfigured.of("requests.dataflow_of_other_dag", dataflow=request.name, dag_id=request.dag_id)
    if not re.fullmatch("[0-9]{1,9}", request.what):
        raise Misconfigured.of("requests.number_malformed", what=request.what)
    return int(request.what), dags


def _savepoint(services: Services, request: Request, reach: Reach) -> Planned:  # noqa: ARG001  as above
    """Plan what `weir savepoint create DATAFLOW --checkpoint NUMBER` does."""
    number, dags = _snapshot(services, request)
    wanted = SavepointRequest(request.name, number)
    with services.ledger.transaction() as session:
        checkpoint_to_save(session, wanted)  # raises where there is none

    def carry_out(airflow: AirflowStates, by: str) -> str:  # noqa: ARG001  as above
        return f"{create(services, wanted)}. {displaced(services, request.name)}."

    return Planned(hash=SAVES, dags=dags, at={}, carry_out=carry_out)


def _restore(services: Services, request: Request, reach: Reach) -> Planned:  # noqa: ARG001  as above
    """Plan what `weir restore DATAFLOW NUMBER` does, by its dry run."""
    number, dags = _snapshot(services, request)
    wanted = RestoreRequest(request.name, str(number), is_dry=True)
    dry_run = restore(services, wanted)

    def carry_out(airflow: AirflowStates, by: str) -> str:  # noqa: ARG001  as above
        done = restore(services, replace(wanted, is_dry=False, expected=dry_run.hash))
        cleared = _delivered(services, airflow, request.name, done.pending_clears)
        return "; ".join(line.strip() for line in (*done.lines(is_dry=False, is_fork=False), *cleared))

    nothing = f"{dry_run.source} is restored already" if dry_run.is_in_effect else ""
    return Planned(hash=dry_run.hash, dags=dags, at={}, carry_out=carry_out, nothing=nothing)


VERBS: Final[Mapping[str, Verb]] = {
    "apply": Verb(right=Right.EDIT, page="run", command="weir plan {name} --apply", plan=_apply),
    "reuse": Verb(right=Right.EDIT, page="run", command="weir clear {name} --reuse --apply", plan=_reuse),
    "seal": Verb(right=Right.OPERATE, page="run", command="weir seal {name} --apply", plan=_seal),
    "repair": Verb(right=Right.EDIT, page="run", command="weir verify {name} --repair", plan=_repair),
    "verify": Verb(right=Right.READ, page="run", command="weir verify {name}", plan=_verify),
    "clear": Verb(right=Right.EDIT, page="task", command="Airflow's button Clear, without Downstream", plan=_clear),
    "savepoint": Verb(
        right=Right.OPERATE,
        page="state",
        command="weir savepoint create {name} --checkpoint {what}",
        plan=_savepoint,
    ),
    "restore": Verb(right=Right.OPERATE, page="state", command="weir restore {name} {what}", plan=_restore),
}
"""The verbs by name. The page, the worker and the docs know no other list."""
