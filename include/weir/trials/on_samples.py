"""A trial without a run: on samples of the inputs, or of a stage that reads nothing stored. There is no ledger.

Invariants: with samples, each input of the stage has one, except those of the epoch before, which are empty without.
States are empty, as in the first epoch. A subtask reads of a sample the rows that it would read of a result.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from weir.code.archive import archived, pack, top_level
from weir.code.generation_rules import short
from weir.connections import FROM_ENVIRONMENT
from weir.dataflow import Dataflow, Stage
from weir.dataflow.graph import spark_conf
from weir.dataflow.resolving import ResolveContext
from weir.dataflow.stage import SKIP, Exchange, StageKind
from weir.dataflow.state import State, StateKind
from weir.dataflow.state_rules import states_of
from weir.errors import Misconfigured
from weir.formats.manifest import OF_RESULT
from weir.formats.paths import attempt_record_folder
from weir.formats.programs import FORMATS, Sample, TrialRequest
from weir.formats.region_job import InputToRead, RegionJob, StageToRun, StateToRead
from weir.intervals import interval_of as as_given
from weir.ledger.runs import epoch_of
from weir.recovery.resolving import resolve
from weir.state.file_rules import epoch_seconds, expired_until
from weir.store.store import Store
from weir.topology.key_groups import key_group_range
from weir.topology.layouts import declared_layout, declared_layouts
from weir.topology.partitions import PLAIN, InputPartitions
from weir.trials.declared import Declared, Wanted
from weir.trials.on_run import subtasks_of
from weir.trials.trial import Trial, Trimming, keeper_of, new_attempt, plan_of, stored_code


def reads_stored(flow: Dataflow, stage: str) -> bool:
    """Report whether a stage, or a stage in its plan, reads results or states from the store."""
    exchanges = (exchange for each in plan_of(flow, stage) for exchange in each.exchanges.values())
    return any(not exchange.joins_plan for exchange in exchanges)


def trial_on_samples(declared: Declared, wanted: Wanted, scratch: Store) -> Trial:
    """Describe a trial on the samples of a folder; None: of a stage that reads nothing stored, with its plan.

    Raises Misconfigured for an input without a sample, and what the resolver of a source raises.
    """
    flow, stage, subtask = declared.flow, declared.stage, wanted.subtask
    states = states_of(flow.stages)
    interval = interval_of(wanted.epoch, wanted.until)
    samples = () if wanted.samples is None else tuple(_samples(stage, states, wanted.samples))
    plan = (stage,) if samples else plan_of(flow, stage.name)
    functions = archived(each.function for each in plan)
    archive = pack(top_level(functions), declared.sql)
    code = stored_code(scratch, flow.name, archive, functions)
    described = _Described(flow, plan, frozenset(each.argument for each in samples), interval, declared.zone)
    written = declared_layouts(flow)
    trimming = Trimming(
        flow=flow,
        stage=stage,
        layouts={each: written[each] for each in (stage.name, *(state.name for state in stage.states))},
        digest_version=OF_RESULT,
        expectations=declared.expectations,
        scratch=scratch,
        code=code,
    )
    subtasks = subtasks_of(stage, subtask)
    is_whole = subtask is None and any(
        exchange.joins_plan or exchange.pointwise
        for argument, exchange in stage.exchanges.items()
        if argument in described.sampled
    )
    jobs = tuple(trimming.trimmed(described.job(each)) for each in ([0] if is_whole else subtasks))
    notes = ["no run is read: parameters are those of the dataflow, connections those of the environment"]
    read = [exchange.stage for exchange in stage.exchanges.values() if exchange.stage in states]
    notes += [f"the state {name} is empty, as in the first epoch" for name in read]
    if is_whole and len(subtasks) > 1:
        notes.append("subtask 0 reads all rows of the samples: only in a run they are divided index to index")
    return Trial(
        request=TrialRequest(stage.name, jobs, samples, wanted.shown),
        dataflow=flow.name,
        run="",
        code=f"{short(code.version)}, newest",
        interval=jobs[0].interval,
        notes=tuple(notes),
    )


def interval_of(epoch: str | None, until: str | None) -> tuple[datetime, datetime]:
    """Return the data interval that a person names, in UTC: a day from the epoch on, or until another time."""
    start = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) if epoch is None else _time(epoch)
    end = start + timedelta(days=1) if until is None else _time(until)
    if end < start:
        raise Misconfigured.of("trials.until_too_early", until=until, start=start)
    return start, end


def _time(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text.rpartition("@")[2])
    except ValueError:
        raise Misconfigured.of("trials.time_malformed", text=text) from None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


def _samples(stage: Stage, states: Container[str], folder: Path) -> Iterator[Sample]:
    if not folder.is_dir():
        raise Misconfigured.of("trials.no_samples", folder=folder)
    for argument, exchange in stage.exchanges.items():
        if exchange.is_previous and exchange.stage in states:
            continue
        found = _sample(folder, argument)
        if found is not None:
            yield found
        elif not ((exchange.is_previous or exchange.missing == SKIP) and exchange.schema):
            names = ", ".join(sorted(each.name for each in folder.iterdir())) or "nothing"
            raise Misconfigured.of(
                "trials.sample_missing", folder=folder, argument=argument, stage=stage.name, names=names
            )


def _sample(folder: Path, argument: str) -> Sample | None:
    for ending, kind in FORMATS.items():
        file = folder / f"{argument}.{ending}"
        if file.exists():
            return Sample(argument, str(file.resolve()), kind)
    inside = folder / argument
    for ending, kind in FORMATS.items():
        if inside.is_dir() and next(inside.rglob(f"*.{ending}"), None) is not None:
            return Sample(argument, str(inside.resolve()), kind)
    return None


@dataclass(slots=True)
class _Described:
    """The description of the jobs; `sampled` are the arguments of the stage that have samples."""

    flow: Dataflow
    plan: Sequence[Stage]
    sampled: frozenset[str]
    interval: tuple[datetime, datetime]
    zone: str
    splits: dict[str, list[Any]] = field(default_factory=dict)

    @property
    def epoch(self) -> str:
        return epoch_of(self.interval[0])

    def job(self, subtask: int) -> RegionJob:
        attempt, name = new_attempt(), self.plan[-1].name
        own = {state.name for stage in self.plan for state in stage.states}
        stages = [*self.plan, *(each for each in self.flow.stages if each.name in own)]
        return RegionJob(
            attempt=attempt,
            dataflow=self.flow.name,
            epoch=epoch_of(self.interval[0]),
            interval=(self.interval[0].isoformat(), self.interval[1].isoformat()),
            region=name,
            subtask=subtask,
            store="",
            report=attempt_record_folder(self.flow.name, epoch_of(self.interval[0]), name, subtask, attempt)
            + "/report.json",
            stages=tuple(self._stage(stage, subtask) for stage in stages),
            parameters=dict(self.flow.parameters),
            spark_conf=spark_conf(self.plan),
            zone=self.zone,
        )

    def _stage(self, stage: Stage, subtask: int) -> StageToRun:
        pipelined = {
            argument: exchange.stage
            for argument, exchange in stage.exchanges.items()
            if exchange.joins_plan and not (self.sampled and stage is self.plan[-1])
        }
        return StageToRun(
            name=stage.name,
            function=stage.function,
            is_source=stage.kind is StageKind.SOURCE,
            subtask=subtask,
            parallelism=stage.parallelism,
            pipelined=pipelined,
            inputs=tuple(
                self._input(stage, argument, exchange, subtask)
                for argument, exchange in stage.exchanges.items()
                if argument not in pipelined
            ),
            outputs=(),
            split=None if stage.resolve is None else self._splits(stage)[subtask],
            digest=stage.digest,
            keeps_state_of=keeper_of(stage),
        )

    def _input(self, stage: Stage, argument: str, exchange: Exchange, subtask: int) -> InputToRead:
        """Describe an input without rows; those of a sample are added when it has been read."""
        declared = declared_layout(self.flow, stage.name, exchange) if exchange.keys else PLAIN
        groups = key_group_range(declared.max_parallelism, stage.parallelism, subtask) if declared.keys else None
        kept = states_of(self.flow.stages).get(exchange.stage)
        read = InputPartitions(
            argument=argument,
            stage=stage.name,
            producer=exchange.stage,
            layout=PLAIN if kept is None else declared,
            partitions=(),
            declared=declared,
            assigned=groups,
        )
        return InputToRead(
            argument=argument,
            layout=read.layout,
            spark_schema="",
            partitions=(),
            key_groups=read.key_groups,
            filter=read.filter,
            declared_schema=exchange.schema,
            state=None if kept is None else self._empty(kept, is_own=kept in stage.states),
        )

    def _empty(self, kept: State, *, is_own: bool) -> StateToRead:
        """Describe a state that starts empty, to the stage that keeps it or to one that only reads it."""
        epoch = epoch_of(self.interval[0]) if is_own else None
        if kept.kind is not StateKind.KEYED:
            return StateToRead(state=kept, epoch=epoch)
        until = expired_until(kept, self.epoch)
        return StateToRead(
            state=kept,
            tallies=(),
            updated=0 if until is None else epoch_seconds(self.epoch),
            expired_until=until,
            epoch=epoch,
        )

    def _splits(self, stage: Stage) -> Sequence[Any]:
        if stage.name not in self.splits:
            context = ResolveContext(
                dataflow=self.flow.name,
                epoch=self.epoch,
                interval=as_given(*self.interval),
                zone=self.zone,
                parallelism=stage.parallelism,
                parameters=self.flow.parameters,
                options=stage.options,
                connection=FROM_ENVIRONMENT.connection,
                variable=FROM_ENVIRONMENT.variable,
            )
            self.splits[stage.name] = resolve(stage, context)
        return self.splits[stage.name]
