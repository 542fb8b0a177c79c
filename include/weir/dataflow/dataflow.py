"""A dataflow: stages joined by exchanges, with its choices for recovery and retention.

Invariants: a dataflow that has been constructed is valid and can be run. What `to_json` writes, `from_json` reads back
equal.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field, fields, replace
from datetime import timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any, cast

from weir.code.application_rules import Application
from weir.code.generation_rules import RepairCode
from weir.dataflow.arguments import answering, choice, require, shown
from weir.dataflow.digest_rule import DigestRule
from weir.dataflow.notifications import EventKind, Receiver, sound_receivers
from weir.dataflow.quality import Gate
from weir.dataflow.retention import RetentionPolicy
from weir.dataflow.stage import DeliveryGuarantee, Exchange, Reuse, Stage, StageKind, TaskSettings
from weir.dataflow.state import OnReprocess, Replay, State
from weir.dataflow.state_rules import states_of
from weir.dataflow.targets import Target
from weir.dataflow.validation import require_no_secrets, require_sound_states, sound_stages
from weir.errors import Misconfigured
from weir.typed_json import plain, typed
from weir.units import size_from_text, time_from_text


class FailoverStrategy(Enum):
    """The regions that restart after a failure: Flink's `jobmanager.execution.failover-strategy`, and `individual`."""

    REGION = "region"
    """The failed region, the producers of unavailable results, and the consumers of results that have changed."""
    FULL = "full"
    """All regions of the run that have started."""
    INDIVIDUAL = "individual"
    """The failed region alone: Weir clears no other task, and names those that a person may clear."""


class Consumers(Enum):
    """The rule for the consumers of a recomputed result."""

    IF_CHANGED = "if_changed"
    """They restart if its digest has changed: Weir's default."""
    ALWAYS = "always"
    """They always restart: Flink's rule."""


VERSION = 1
"""The version of the JSON that a run is pinned to."""

FAILOVER = "failover"
"""The field with the failover strategy; None leaves it to the deployment."""

NOTIFY = "notify"
"""The field with the receivers of notifications, which the ledger reads by itself."""

PUBLISH_BY = "publish_by"
"""The field with the seconds after the end of an epoch in which it is to be published; the ledger reads it, too."""

LONGEST_PUBLISH_BY = timedelta(days=36_500)

_RECORDED = (
    *("name", "max_parallelism", "parameters", FAILOVER, "consumers"),
    *("keep", "keep_failed", "keep_published", "quota", "retained_checkpoints", "savepoint_every"),
    *("retained_savepoints", "on_reprocess", "repair_code", "reuse", "replay", "shadow_of", "tolerable_failed_epochs"),
)
"""The fields that the constructor takes as the record of a run has them."""


@answering
@dataclass(frozen=True, slots=True)
class Dataflow:
    """Stages in topological order (in the order of declaration where that leaves a choice), validated as a whole.

    `max_parallelism` is the number of key groups of every stage that does not set its own; `parameters` are JSON
    values that each stage finds in its context. `failover` selects the regions that a failure restarts ("region",
    "full", "individual"; None: the deployment's `[weir] failover`, which a run keeps as it was when the run began).
    `consumers` selects when the consumers of a recomputed result restart ("if_changed", "always").
    `keep` is the retention policy of intermediate results that no task needs ("2 runs", "end_of_run", "on_consumed",
    "7 days"), `keep_failed` the retention of results of a run that never closed, `keep_published` that of published
    versions ("forever", "90 days"). `quota` is how many bytes the dataflow may store ("500 GB"), `retained_checkpoints`
    how many checkpoints and savepoints of its state are retained. None leaves the choice to the deployment.
    With `savepoint_every`, upkeep creates a savepoint of the newest checkpoint each time that this many epochs were
    closed, and keeps the newest `retained_savepoints` of these; None creates none.
    `on_reprocess` decides about later epochs when the result of an epoch that they continue from changes: "cascade"
    runs them again, in order, until a result does not change; "mark" leaves them stale until they are needed.
    `replay` decides about a state that is needed and no longer retained: with "automatic" it is recomputed as a lost
    result is, with as many epochs before it as that takes; with "manual" a person restores or replays.
    `tolerable_failed_epochs` is how many epochs in a row upkeep seals by itself once their restarts are used up: later
    ones go on without them (docs/restoring.md). 0: none.
    `repair_code` is the code that a task runs which a person clears: "newest", or "as_it_was" for that which has
    computed its result before. With `reuse` "equal" a task takes a copy of what another one has made of the same, in
    any run, instead of computing ("never").
    `shadow_of` names a dataflow beside which this one runs, to be compared (docs/compare.md): its epochs wait for those
    of that one and read the same splits; it writes into no target, and tells no receiver and no asset.
    `notify` are the receivers of notifications: callback(...), webhook(...), notifier(...).
    `publish_by` is how long after the end of its data interval an epoch is to be published; receivers are told of those
    that are not.
    What looks like a secret in parameters or in Spark settings is refused, but for a record that `from_json` reads.
    Raises Misconfigured, which lists all problems and what to write instead.
    """

    name: str
    stages: Sequence[Stage]
    max_parallelism: int = field(default=128, kw_only=True)
    parameters: Mapping[str, Any] = field(default_factory=dict, kw_only=True)
    failover: FailoverStrategy | None = field(default=None, kw_only=True)
    consumers: Consumers = field(default=Consumers.IF_CHANGED, kw_only=True)
    keep: str | None = field(default=None, kw_only=True)
    keep_failed: str | None = field(default=None, kw_only=True)
    keep_published: str | None = field(default=None, kw_only=True)
    quota: str | None = field(default=None, kw_only=True)
    retained_checkpoints: int | None = field(default=None, kw_only=True)
    savepoint_every: int | None = field(default=None, kw_only=True)
    retained_savepoints: int = field(default=3, kw_only=True)
    on_reprocess: OnReprocess = field(default=OnReprocess.CASCADE, kw_only=True)
    replay: Replay = field(default=Replay.MANUAL, kw_only=True)
    repair_code: RepairCode = field(default=RepairCode.NEWEST, kw_only=True)
    reuse: Reuse = field(default=Reuse.NEVER, kw_only=True)
    shadow_of: str = field(default="", kw_only=True)
    tolerable_failed_epochs: int = field(default=0, kw_only=True)
    notify: Sequence[Receiver] = field(default=(), kw_only=True)
    publish_by: timedelta | None = field(default=None, kw_only=True)
    is_record: InitVar[bool] = field(default=False, kw_only=True)

    if TYPE_CHECKING:
        # The constructor accepts texts, the fields hold enums: a dataclass's annotations cannot express both.
        def __init__(
            self,
            name: str,
            stages: Sequence[Stage],
            *,
            max_parallelism: int = 128,
            parameters: Mapping[str, Any] = ...,
            failover: FailoverStrategy | str | None = None,
            consumers: Consumers | str = Consumers.IF_CHANGED,
            keep: str | None = None,
            keep_failed: str | None = None,
            keep_published: str | None = None,
            quota: str | None = None,
            retained_checkpoints: int | None = None,
            savepoint_every: int | None = None,
            retained_savepoints: int = 3,
            on_reprocess: OnReprocess | str = OnReprocess.CASCADE,
            replay: Replay | str = Replay.MANUAL,
            repair_code: RepairCode | str = RepairCode.NEWEST,
            reuse: Reuse | str = Reuse.NEVER,
            shadow_of: str = "",
            tolerable_failed_epochs: int = 0,
            notify: Sequence[Receiver] = (),
            publish_by: timedelta | None = None,
            is_record: bool = False,
        ) -> None: ...

    def __post_init__(self, is_record: bool) -> None:
        require("Dataflow(...)", "name", self.name, str, 'Dataflow("name_of_dataflow", [stages])')
        if isinstance(self.stages, str | Mapping) or not isinstance(self.stages, Iterable):
            raise Misconfigured.of("dataflow.stages_not_a_list", name=self.name, stages=shown(self.stages))
        if self.failover is not None:
            object.__setattr__(self, "failover", choice(str(self), "failover", self.failover, FailoverStrategy))
        object.__setattr__(self, "consumers", choice(str(self), "consumers", self.consumers, Consumers))
        object.__setattr__(self, "on_reprocess", choice(str(self), "on_reprocess", self.on_reprocess, OnReprocess))
        object.__setattr__(self, "replay", choice(str(self), "replay", self.replay, Replay))
        object.__setattr__(self, "repair_code", choice(str(self), "repair_code", self.repair_code, RepairCode))
        object.__setattr__(self, "reuse", choice(str(self), "reuse", self.reuse, Reuse))
        require("Dataflow(...)", "shadow_of", self.shadow_of, str, 'shadow_of="name_of_the_dataflow"')
        if self.shadow_of:
            self._publish_nowhere()
        object.__setattr__(self, "notify", sound_receivers(self.name, self.notify))
        self._check_retention()
        self._check_publish_by()
        object.__setattr__(self, "parameters", _as_json(self.name, self.parameters))
        object.__setattr__(self, "stages", sound_stages(self.name, self.max_parallelism, tuple(self.stages)))
        if self.savepoint_every is not None and not self.keeps_state:
            raise Misconfigured.of("dataflow.nothing_to_save", name=self.name, every=self.savepoint_every)
        if not is_record:
            require_no_secrets(self.name, self.stages, self.parameters)
            require_sound_states(self.name, self.stages)

    def __str__(self) -> str:
        """Return what it is and its name: `dataflow 'delays'`."""
        return f"dataflow {self.name!r}"

    def reuses(self, stage: Stage) -> bool:
        """Report whether the task of a stage may take what another one has made of the same."""
        return (stage.reuse or self.reuse) is Reuse.EQUAL

    @property
    def publishes_early(self) -> bool:
        """Report whether a sink publishes before its run is closed; a shadow publishes nothing."""
        return not self.shadow_of and any(stage.is_early for stage in self.stages)

    @property
    def reuses_any(self) -> bool:
        """Report whether there is a stage whose task may take what another one has made of the same."""
        return any(map(self.reuses, self.stages))

    def _publish_nowhere(self) -> None:
        if self.shadow_of == self.name:
            raise Misconfigured.of("dataflow.shadow_of_itself", name=self.name)
        object.__setattr__(
            self, "stages", [replace(each, targets=()) if isinstance(each, Stage) else each for each in self.stages]
        )
        object.__setattr__(self, "notify", ())
        object.__setattr__(self, "publish_by", None)

    def _check_retention(self) -> None:
        try:
            if self.keep is not None:
                RetentionPolicy.from_text(self.keep)
            for what in ("keep_failed", "keep_published"):
                if getattr(self, what) is not None:
                    time_from_text(what, getattr(self, what))
            if self.quota is not None:
                size_from_text("quota", self.quota)
        except Misconfigured as error:
            raise Misconfigured.of("dataflow.retention_wrong", name=self.name, error=error) from error
        for what in ("retained_checkpoints", "savepoint_every", "retained_savepoints"):
            given: object = getattr(self, what)
            if (given is not None or what == "retained_savepoints") and (type(given) is not int or given < 1):
                raise Misconfigured.of("dataflow.count_wrong", name=self.name, what=what, given=given)
        given = self.tolerable_failed_epochs
        if type(given) is not int or given < 0:
            raise Misconfigured.of("dataflow.tolerable_wrong", name=self.name, given=shown(given))

    def _check_publish_by(self) -> None:
        given: object = self.publish_by
        if given is None:
            return
        if not isinstance(given, timedelta) or not timedelta() < given <= LONGEST_PUBLISH_BY:
            raise Misconfigured.of("dataflow.publish_by_wrong", name=self.name, given=shown(given))
        if not any(receiver.wants(EventKind.DEADLINE_MISSED) for receiver in self.notify):
            raise Misconfigured.of("dataflow.publish_by_tells_nobody", name=self.name)

    def stage(self, name: str) -> Stage:
        """Return the stage of that name. Raises Misconfigured where there is none."""
        for stage in self.stages:
            if stage.name == name:
                return stage
        known = ", ".join(stage.name for stage in self.stages)
        raise Misconfigured.of("dataflow.stage_unknown", name=self.name, stage=name, known=known)

    def max_parallelism_of(self, stage: str) -> int:
        """Return the number of key groups that the stage's keyed inputs are divided into."""
        own = self.stage(stage).max_parallelism
        return self.max_parallelism if own is None else own

    @property
    def failover_strategy(self) -> FailoverStrategy:
        """The declared failover strategy, else the default one. The record of a run always declares one."""
        return FailoverStrategy.REGION if self.failover is None else self.failover

    @property
    def keeps_state(self) -> bool:
        """Report whether any stage keeps state from epoch to epoch."""
        return any(stage.states for stage in self.stages)

    @property
    def goes_on(self) -> bool:
        """Report whether an epoch goes on from the one before: from its state, or from where its sources ended."""
        return self.keeps_state or any(stage.goes_on for stage in self.stages)

    def state(self, name: str) -> State:
        """Return the state of that name. Raises Misconfigured where there is none."""
        states = states_of(self.stages)
        if name not in states:
            known = ", ".join(states) or "none"
            raise Misconfigured.of("dataflow.state_unknown", name=self.name, state=name, known=known)
        return states[name]

    def to_json(self) -> dict[str, Any]:
        """Return the record that a run is pinned to as plain JSON values; `executor_config` is left out."""
        return {
            "version": VERSION,
            **plain({each: getattr(self, each) for each in (*_RECORDED, NOTIFY)}),
            PUBLISH_BY: None if self.publish_by is None else self.publish_by.total_seconds(),
            "stages": [stage_to_json(stage) for stage in self.stages],
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Dataflow:
        """Read the record that `to_json` wrote. Raises Misconfigured for another version."""
        version = document.get("version")
        if version != VERSION or isinstance(version, bool):
            raise Misconfigured.of(
                "dataflow.record_of_other_version", document=document.get("name"), version=version, expected=VERSION
            )
        return cls(
            stages=tuple(stage_from_json(stage) for stage in document["stages"]),
            notify=tuple(Receiver.from_json(receiver) for receiver in document[NOTIFY]),
            publish_by=None if document[PUBLISH_BY] is None else timedelta(seconds=document[PUBLISH_BY]),
            **{each: document[each] for each in _RECORDED},
            is_record=True,
        )


def _as_json(dataflow: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(parameters, Mapping) or not all(isinstance(key, str) for key in parameters):
        raise Misconfigured.of("dataflow.parameters_not_a_dict", dataflow=dataflow, parameters=parameters)
    try:
        copied: dict[str, Any] = json.loads(json.dumps(dict(parameters), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise Misconfigured.of("dataflow.parameters_not_json", dataflow=dataflow, error=error) from error
    return copied


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    """The fields of a stage, in the form that its constructor gives them."""

    name: str
    function: str
    inputs: dict[str, Exchange]
    parallelism: int
    max_parallelism: int | None
    resolve: str | None
    kind: StageKind
    task: TaskSettings
    spark: dict[str, Any]
    deterministic: bool
    digest: DigestRule
    state: tuple[State, ...]
    quality: tuple[Gate, ...]
    targets: tuple[Target, ...]
    options: dict[str, Any]
    application: Application | None
    goes_on: bool
    moved_from: str
    asset: str
    delivery: DeliveryGuarantee
    reuse: Reuse | None


_FIELDS = tuple(field.name for field in fields(_Record))


def stage_to_json(stage: Stage) -> dict[str, Any]:
    """Return the stage as plain JSON values; times are ISO 8601's.

    `executor_config` is left out: it holds Airflow objects, which only the DAG file can make.
    """
    task = replace(stage.task, executor_config={})
    return cast("dict[str, Any]", plain({name: getattr(stage, name) for name in _FIELDS} | {"task": task}))


def stage_from_json(document: Mapping[str, Any]) -> Stage:
    """Read the JSON values that `stage_to_json` returned. Raises ValueError for others."""
    record = typed(f"stage {document.get('name')!r}", _Record, document)
    return Stage(**{name: getattr(record, name) for name in _FIELDS})
