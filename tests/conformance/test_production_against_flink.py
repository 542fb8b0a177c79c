"""The engine that decides in production against Flink's algorithms, on random dataflows that can be declared.

tests/conformance/test_conformance.py shows that tests.conformance.flink answers as Flink's own classes do; here it is
the measure of `decide`, of Topology's regions and of the release rule. A seed that fails is printed by hypothesis.
"""

from collections import Counter, defaultdict
from dataclasses import replace
from datetime import UTC, datetime
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conformance.flink.job_graph import JobEdge, JobGraph, JobVertex, PartitionType, Pattern, pipelined_regions
from tests.conformance.flink.region_release import RegionRelease
from tests.conformance.flink.restart_set import JobPartition, restart_set, tasks_to_restart

from weir.dataflow import Dataflow, Stage, blocking, cached, pipelined, sink, source
from weir.dataflow.dataflow import Consumers, FailoverStrategy
from weir.dataflow.retention import RetentionPolicy
from weir.dataflow.retention_settings import RetentionSettings
from weir.errors import Fault, Loss, Misconfigured
from weir.execution.partition_state import PartitionState
from weir.execution.run_state import CLOSE, AttemptState, CurrentResult, ReadResult, ReadSet, RegionState, RunState
from weir.recovery.rules.backtrack import Occasion
from weir.recovery.rules.committed_run import committed_run
from weir.recovery.rules.decision import Failure, NeedsProbe, decide
from weir.recovery.rules.plan import StepKind
from weir.retention.deletion_rules import RunRetention, StoredResult, release_decisions
from weir.topology.regions import Topology

SEEDS = st.integers(0, 2**32)
THOUSANDS = settings(max_examples=2000, deadline=None)
HUNDREDS = settings(max_examples=500, deadline=None)

NOW = datetime(2026, 1, 10, tzinfo=UTC)
ON_CONSUMED = RetentionSettings(keep=RetentionPolicy.from_text("on_consumed"))


# Random dataflows


def random_dataflow(random, **options):
    """Two to eight stages of parallelism 1 to 4 that read up to three others over any exchange within a run."""
    deterministic = options.pop("deterministic", 0.9)
    while True:
        stages = []
        for number in range(random.randint(2, 8)):
            stages.append(random_stage(random, f"s{number}", stages, deterministic))
        read = {exchange.stage for stage in stages for exchange in stage.exchanges.values()}
        published = [each for each in stages if each.name not in read or random.random() < 0.15]
        try:
            return Dataflow("random", [*stages, *(sink(each, f"set_{each.name}") for each in published)], **options)
        except Misconfigured:
            continue  # regions that would wait for each other


def random_stage(random, name, before, deterministic):
    is_deterministic = random.random() < deterministic
    if not before or random.random() < 0.2:
        parallelism = random.choice([1, 2, 2, 3, 4])
        return source(name, "m:f", parallelism=parallelism, deterministic=is_deterministic)
    read = [random.choice(before[-3:]) for _ in range(random.choice([1, 1, 2, 2, 3]))]
    parallelism = random.choice([read[0].parallelism, read[0].parallelism, 1, 2, 3, 4])
    inputs = {f"a{place}": random_exchange(random, each, parallelism) for place, each in enumerate(read)}
    return Stage(name, "m:f", inputs, parallelism, deterministic=is_deterministic)


def random_exchange(random, producer, parallelism):
    possible = [blocking(producer, by="k"), blocking(producer, by="j")]
    possible.append(blocking(producer, broadcast=True) if parallelism > 1 else blocking(producer))
    if producer.parallelism == parallelism:
        join = random.choice([pipelined, pipelined, cached, lambda read: cached(read, durable=False)])
        possible += [blocking(producer, pointwise=True), join(producer)] * 2
    return random.choice(possible)


class FlinkJob:
    """The job graph of a dataflow, sinks included, with Flink's regions.

    In Flink each exchange has partitions of its own. Exchanges that read one stage in one layout share them in Weir:
    `partitions` has Flink's of each of Weir's.
    """

    def __init__(self, topology):
        flow = topology.dataflow
        exchanges = [(stage, each) for stage in flow.stages for each in stage.exchanges.values()]
        self.graph = JobGraph(
            [JobVertex(stage.name, stage.parallelism) for stage in flow.stages],
            [JobEdge(each.stage, stage.name, pattern(each), kind(each)) for stage, each in exchanges],
        )
        self.regions = pipelined_regions(self.graph)
        self.vertices = {
            region: [self.graph.subtasks[stage][region.subtask] for stage in topology.region(region.name).stages]
            for region in topology.region_ids()
        }
        self.region_of = {vertex: region for region, vertices in self.vertices.items() for vertex in vertices}
        self.partitions = defaultdict(set)
        for place, (stage, each) in enumerate(exchanges):
            if not each.joins_plan:
                for partition in topology.partitions_of(each.stage, topology.layout_read(stage.name, each).id):
                    self.partitions[partition].add(JobPartition(place, partition.subtask))

    def of(self, vertices):
        """The regions of some vertices; whole regions restart."""
        count = Counter(self.region_of[vertex] for vertex in vertices)
        assert all(count[region] == len(self.vertices[region]) for region in count)
        return set(count)


def pattern(exchange):
    return Pattern.POINTWISE if exchange.pointwise or exchange.joins_plan else Pattern.ALL_TO_ALL


def kind(exchange):
    return PartitionType.PIPELINED if exchange.joins_plan else PartitionType.BLOCKING


# Regions


@given(SEEDS)
@HUNDREDS
def test_the_regions_of_a_dataflow_are_flinks_pipelined_regions(seed):
    job = FlinkJob(Topology(random_dataflow(Random(seed))))
    assert sorted(tuple(sorted(each)) for each in job.vertices.values()) == sorted(job.regions.members)


# Restarts


class Scene:
    """A dataflow of which all has committed, results that are gone, and a region that fails."""

    def __init__(self, random, **options):
        self.topology = Topology(random_dataflow(random, **options))
        self.job = FlinkJob(self.topology)
        state = committed_run(self.topology)
        is_closed = random.random() < 0.5
        """Weir's closing task, which no job graph of Flink's has, looks after the published results."""
        possible = [each for each in state.results if each in self.job.partitions or not is_closed]
        share = random.choice([0, 0.1, 0.1, 0.3, 0.6])
        self.gone = {each for each in possible if random.random() < share}
        if possible and random.random() < 0.7:
            self.gone.add(random.choice(possible))
        results = dict(state.results)
        for each in self.gone:
            if random.random() < 0.3:
                results[each] = replace(results[each], state=PartitionState.RELEASED)
        closing = (
            {CLOSE: RegionState(region=CLOSE, newest_try=1, newest_state=AttemptState.COMMITTED, ended_try=1)}
            if is_closed
            else {}
        )
        self.state = RunState(run=state.run, topology=self.topology, results=results, regions=state.regions | closing)
        self.failed = random.choice(self.topology.region_ids())

    @property
    def failed_vertex(self):
        return self.job.vertices[self.failed][0]

    @property
    def missing(self):
        return {each for partition in self.gone for each in self.job.partitions[partition]}

    def plan(self, occasion):
        """Decide as production does: in rounds, each of which asks the store about the partitions that it names."""
        losses, intact = {}, set()
        if occasion is Occasion.LOSS:
            own = self.state.inputs_of(self.failed)
            losses |= {each: loss(each) for each in own if each in self.gone}
        for _ in range(len(self.state.results) + 2):
            answer = decide(
                self.state, Failure(failed=self.failed, losses=losses, intact=frozenset(intact), occasion=occasion)
            )
            if not isinstance(answer, NeedsProbe):
                return answer
            assert not answer.partitions & (losses.keys() | intact)
            losses |= {each: loss(each) for each in answer.partitions & self.gone}
            intact |= answer.partitions - self.gone
        raise AssertionError("the decision does not end")

    def rerun(self, plan):
        return {step.region for step in plan.of(StepKind.RERUN) if step.region != CLOSE} | {self.failed}

    def __repr__(self):
        return f"{self.failed} fails, {sorted(map(str, self.gone))} are gone, of {self.topology.dataflow}"


def loss(partition):
    return Loss("run", partition.stage, partition.subtask, partition.layout, "t0001", Fault.MISSING, "gone")


@given(SEEDS, st.sampled_from([Occasion.LOSS, Occasion.QUESTION]))
@THOUSANDS
def test_with_always_weir_restarts_exactly_the_regions_that_flink_restarts(seed, occasion):
    scene = Scene(Random(seed), consumers="always")
    job = scene.job
    flinks = tasks_to_restart(job.graph, job.regions, scene.failed_vertex, missing=scene.missing)
    assert scene.rerun(scene.plan(occasion)) == job.of(flinks), scene


@given(SEEDS)
@HUNDREDS
def test_with_if_changed_weir_restarts_flinks_producers_and_names_flinks_consumers_as_possible(seed):
    scene = Scene(Random(seed), consumers="if_changed", deterministic=1)
    job = scene.job
    flinks = restart_set(
        job.graph, job.regions, scene.failed_vertex, consumers=Consumers.IF_CHANGED, missing=scene.missing
    )
    plan = scene.plan(Occasion.QUESTION)
    assert scene.rerun(plan) == job.of(flinks.restarted), scene
    possible = {step.region for step in plan.of(StepKind.IF_CHANGED) if step.region != CLOSE}
    assert possible == job.of(flinks.if_changed), scene
    assert scene.rerun(scene.plan(Occasion.LOSS)) == job.of(flinks.restarted), scene


@given(SEEDS)
@HUNDREDS
def test_a_full_failover_restarts_every_region_as_flinks_does(seed):
    scene = Scene(Random(seed), failover="full")
    assert scene.rerun(scene.plan(Occasion.LOSS)) == set(scene.topology.region_ids())


@given(SEEDS)
@HUNDREDS
def test_an_individual_failover_names_the_producers_that_flink_restarts_and_clears_none(seed):
    scene = Scene(Random(seed), failover="individual", consumers="always")
    job = scene.job
    flinks = restart_set(
        job.graph,
        job.regions,
        scene.failed_vertex,
        consumers=Consumers.ALWAYS,
        strategy=FailoverStrategy.INDIVIDUAL,
        missing=scene.missing,
    )
    plan = scene.plan(Occasion.LOSS)
    assert scene.rerun(plan) == job.of(flinks.restarted) | job.of(flinks.by_hand), scene
    assert bool(plan.held_back) is bool(flinks.by_hand)
    assert not plan.of(StepKind.IF_CHANGED)


# Releases, and failures in the middle of a run


class Run:
    """A run whose regions commit one by one, in Weir's terms and in Flink's; what is released may be needed again."""

    def __init__(self, topology):
        self.topology = topology
        self.job = FlinkJob(topology)
        self.view = RegionRelease(self.job.graph, self.job.regions)
        self.flinks = set()
        """Flink's partitions that are released."""
        self.waiting = set(topology.region_ids())
        """The regions that have not begun, or that run again."""
        self.results, self.regions, self.replaced = {}, {}, []

    @property
    def state(self):
        return RunState(run="run", topology=self.topology, results=dict(self.results), regions=dict(self.regions))

    def ready(self):
        return sorted(each for each in self.waiting if not self.waiting & set(self.producers(each)))

    def producers(self, region):
        return [self.topology.producer(each) for read in self.topology.inputs(region) for each in read.partitions]

    def begin(self, region):
        ended = self.regions.get(region, RegionState(region=region)).ended_try
        self.regions[region] = RegionState(
            region=region, newest_try=ended + 1, newest_state=AttemptState.RUNNING, ended_try=ended
        )

    def commit(self, region):
        attempt_number = self.regions[region].newest_try
        attempt = f"t{attempt_number}-{region}"
        reads = tuple(
            ReadSet(tuple(ReadResult(each, self.results[each].attempt, str(each)) for each in read.partitions))
            for read in self.topology.inputs(region)
        )
        for each in self.topology.outputs(region):
            if each in self.results:
                self.replaced.append(self.results[each])
            number = len(self.results) + len(self.replaced)
            self.results[each] = CurrentResult(
                partition=each,
                result=number,
                attempt=attempt,
                try_number=attempt_number,
                state=PartitionState.FINISHED,
                folder="",
                manifest_sha256="",
                digest=str(each),
                rows=1,
                bytes=1,
                reads=reads,
                versions=frozenset({"code"}),
            )
        self.regions[region] = RegionState(
            region=region, newest_try=attempt_number, newest_state=AttemptState.COMMITTED, ended_try=attempt_number
        )
        self.waiting.discard(region)
        for vertex in self.job.vertices[region]:
            self.flinks |= set(self.view.finished(vertex))

    def fail(self, region):
        """A region that had committed runs again; what is gone for Flink are the files that Weir has released.

        Flink may have released the partition of one exchange whose files another exchange needs: they are still there.
        """
        released = self.weirs_released()
        gone = {each for partition in released for each in self.job.partitions[partition]}
        created = {vertex for each in self.waiting for vertex in self.job.vertices[each]}
        flinks = tasks_to_restart(
            self.job.graph, self.job.regions, self.job.vertices[region][0], missing=gone, created=created
        )
        plan = decide(self.state, Failure(failed=region, losses={}, intact=frozenset(self.results)))
        restarted = {region, *(step.region for step in plan.of(StepKind.RERUN))}
        assert restarted == self.job.of(flinks)
        for each in restarted:
            self.begin(each)
            for vertex in self.job.vertices[each]:
                self.view.unfinished(vertex)
            for output in self.topology.outputs(each):
                self.flinks -= self.job.partitions[output]
            self.flinks -= set(self.read_by(each)) - gone
        self.waiting |= restarted

    def read_by(self, region):
        """Flink's partitions that a region reads."""
        graph = self.job.graph
        wirings = [
            (place, vertex) for vertex in self.job.vertices[region] for place in graph.reads[graph.stage_of[vertex]]
        ]
        for place, vertex in wirings:
            wiring = graph.exchanges[place]
            for producer in wiring.group(wiring.group_of_consumer(vertex)).producers:
                yield JobPartition(place, producer - wiring.producers.start)

    def release(self):
        """Release what may go, by Weir's rule."""
        current = [each for each in self.results.values() if each.state is PartitionState.FINISHED]
        stored = tuple(
            StoredResult(result=each.result, partition=each.partition, attempt=each.attempt, is_current=True, bytes=1)
            for each in current
        )
        life = RunRetention(
            state=self.state,
            stored=stored,
            pins={},
            needed_later={},
            closed_at=None,
            closed_after=None,
            is_close_newest=False,
            last_event=NOW,
        )
        for verdict in release_decisions(life, ON_CONSUMED, NOW):
            if verdict.is_released:
                partition = verdict.stored.partition
                self.results[partition] = replace(self.results[partition], state=PartitionState.RELEASED)

    def weirs_released(self):
        """The results that are released and are not about to be made again."""
        released = {each.partition for each in self.results.values() if each.state is PartitionState.RELEASED}
        return {each for each in released if self.topology.producer(each) not in self.waiting}

    def flinks_released(self):
        """The results of which Flink has released the partitions of all exchanges."""
        return {each for each, flinks in self.job.partitions.items() if flinks and flinks <= self.flinks}


@given(SEEDS)
@HUNDREDS
def test_weir_releases_what_flink_releases_and_restarts_what_flink_restarts_in_the_middle_of_a_run(seed):
    random = Random(seed)
    run = Run(Topology(random_dataflow(random, consumers="always", deterministic=1)))
    failures = random.randint(0, 3)
    while run.waiting:
        finished = sorted(set(run.topology.region_ids()) - run.waiting)
        if failures and finished and random.random() < 0.3:
            failures -= 1
            run.fail(random.choice(finished))
        region = random.choice(run.ready())
        for step in (run.begin, run.commit):
            step(region)
            run.release()
            assert run.weirs_released() == run.flinks_released(), run.topology.dataflow
    assert run.weirs_released() == {each for each, flinks in run.job.partitions.items() if flinks}
