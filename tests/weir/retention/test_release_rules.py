"""The rules release results that are not needed; tests/conformance compares the rule with Flink's."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.simulator.dataflows import random_scene

from weir.dataflow.retention import RetentionPolicy
from weir.dataflow.retention_settings import RetentionSettings
from weir.execution.partition_state import PartitionState
from weir.execution.run_state import CLOSE, AttemptState, CurrentResult, ReadResult, ReadSet, RegionState, RunState
from weir.retention.deletion_rules import (
    QUIET,
    Keeper,
    Pin,
    RunRetention,
    StoredResult,
    is_kept,
    release_decisions,
)
from weir.topology.regions import Topology

NOW = datetime(2026, 1, 10, tzinfo=UTC)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
CONSUMED = RetentionSettings(keep=RetentionPolicy.from_text("on_consumed"))
KEEPS = ("on_consumed", "end_of_run", "1 run", "2 runs", "3 runs", "1 hour", "12 hours", "7 days")
SEEDS = st.integers(0, 10**6)
MANY = settings(max_examples=200, deadline=None)

FINISHED, RELEASED, LOST = PartitionState.FINISHED, PartitionState.RELEASED, PartitionState.LOST


def random_topology(random):
    return Topology(random_scene(random).flow)


def keeping(keep, **more):
    return RetentionSettings(keep=RetentionPolicy.from_text(keep), **more)


class Run:
    """A run whose regions commit one by one; the outputs of each depend on nothing but their name."""

    def __init__(self, topology):
        self.topology = topology
        self.results = {}
        self.regions = {}
        self.old = []
        self.number = 0

    @property
    def state(self):
        return RunState(run="run", topology=self.topology, results=dict(self.results), regions=dict(self.regions))

    def inputs(self, region):
        return [each for read in self.topology.inputs(region) for each in read.partitions]

    def can_begin(self, region):
        return all(each in self.results and self.results[each].state is FINISHED for each in self.inputs(region))

    def commit(self, region, digest="same"):
        """The next try of a region has committed."""
        reads = tuple(
            ReadSet(
                tuple(
                    ReadResult(each, self.results[each].attempt, self.results[each].digest) for each in read.partitions
                )
            )
            for read in self.topology.inputs(region)
        )
        try_number = self.regions.get(region, RegionState(region=region)).newest_try + 1
        attempt = f"t{try_number}-{region}"
        for each in self.topology.outputs(region):
            if each in self.results and self.results[each].state is FINISHED:
                self.old.append(self.results[each])
            self.number += 1
            self.results[each] = CurrentResult(
                partition=each,
                result=self.number,
                attempt=attempt,
                try_number=try_number,
                state=FINISHED,
                folder=attempt,
                manifest_sha256="sha",
                digest=f"{digest} {each}",
                rows=1,
                bytes=1,
                reads=reads,
                versions=frozenset({"code"}),
            )
        self.regions[region] = RegionState(
            region=region, newest_try=try_number, newest_state=AttemptState.COMMITTED, ended_try=try_number
        )

    def begin(self, region):
        """The next try of a region is at work."""
        known = self.regions.get(region, RegionState(region=region))
        self.regions[region] = replace(known, newest_try=known.newest_try + 1, newest_state=AttemptState.RUNNING)

    def mark(self, partition, state):
        self.results[partition] = replace(self.results[partition], state=state)

    def life(self, **more):
        current = [each for each in self.results.values() if each.state is FINISHED]
        stored = tuple(
            StoredResult(
                result=each.result, partition=each.partition, attempt=each.attempt, is_current=is_current, bytes=1
            )
            for group, is_current in ((current, True), (self.old, False))
            for each in group
        )
        usual = {
            "pins": {},
            "needed_later": {},
            "closed_at": None,
            "closed_after": None,
            "is_close_newest": False,
            "last_event": NOW,
        }
        return RunRetention(state=self.state, stored=stored, **{**usual, **more})

    def release(self, **more):
        """Release what may go; answers which current partitions."""
        gone = {each.stored for each in release_decisions(self.life(**more), CONSUMED, NOW) if each.is_released}
        for each in gone:
            if each.is_current:
                self.mark(each.partition, RELEASED)
        self.old = [each for each in self.old if each.result not in {one.result for one in gone}]
        return {each.partition for each in gone if each.is_current}


def whole(topology, *, is_released=False):
    """A run in which each region has committed once; what has been consumed on the way may be released."""
    run = Run(topology)
    for region in topology.region_ids():
        run.commit(region)
        if is_released:
            run.release()
    return run


# Against what is needed, by definition


def random_run(random):
    """A run in any state: results made again, lost, stale; regions at work, failed, not begun."""
    run = Run(random_topology(random))
    regions = run.topology.region_ids()
    for region in regions:
        if run.can_begin(region) and random.random() < 0.9:
            run.commit(region)
    for _ in range(random.randint(0, 6)):
        region = random.choice(regions)
        known = run.regions.get(region)
        what = random.choice(["commit", "commit", "change", "begin", "fail", "owe", "lose", "quarantine", "anew"])
        if what in ("commit", "change") and run.can_begin(region):
            run.commit(region, "same" if what == "commit" else what)
        elif what == "begin":
            run.begin(region)
        elif what == "fail" and known is not None:
            run.regions[region] = RegionState(
                region=region,
                newest_try=known.newest_try + 1,
                newest_state=AttemptState.FAILED,
                ended_try=known.newest_try + 1,
            )
        elif what == "owe" and known is not None:
            run.regions[region] = replace(known, repair_after_try=known.newest_try)
        elif what == "anew":
            run.regions.pop(region, None)
        elif known is not None:
            for each in run.topology.outputs(region):
                if each in run.results:
                    run.mark(each, LOST if what == "lose" else PartitionState.QUARANTINED)
    if random.random() < 0.2:
        run.regions[CLOSE] = random.choice(
            [
                RegionState(region=CLOSE, newest_try=2, newest_state=AttemptState.RUNNING, ended_try=1),
                RegionState(region=CLOSE, newest_try=1, newest_state=None),
            ]
        )
    return run


def random_life(random, run=None):
    run = run or random_run(random)
    numbers = [each.result for each in run.results.values()] + [each.result for each in run.old]
    closed = random.random() < 0.6
    return run.life(
        pins={each: Pin(Keeper.READER, "somebody reads it") for each in numbers if random.random() < 0.15},
        needed_later={each.name: "later" for each in run.topology.dataflow.stages if random.random() < 0.1},
        closed_at=NOW - random.choice([1, 5, 20, 200]) * HOUR if closed else None,
        closed_after=random.randrange(4) if closed else None,
        is_close_newest=closed and random.random() < 0.7,
        last_event=NOW - random.choice([0, 0.5, 2, 300, 400]) * HOUR,
        is_deleted=random.random() < 0.05,
        to_checkpoint=frozenset(each for each in run.results if random.random() < 0.1),
    )


def released(life, kept=CONSUMED, *, now=NOW, is_reclaiming=False):
    decisions = release_decisions(life, kept, now, is_reclaiming=is_reclaiming)
    return {each.stored.result for each in decisions if each.is_released}


def reads_it(state, region, stored):
    """Whether what a region has that is current was made from a stored result."""
    results = [state.results[each] for each in state.topology.outputs(region) if each in state.results]
    found = [each.reads for each in results if any(_names(reads, stored) for reads in each.reads)]
    return bool(results) and len(found) == len(results)


def _names(reads, stored):
    return any((each.partition, each.attempt) == (stored.partition, stored.attempt) for each in reads.members)


def has_to_run(state, region):
    """Whether a region runs or has to, as far as a ledger can tell."""
    known = state.regions.get(region)
    is_ended = known is not None and known.newest_state is AttemptState.COMMITTED
    return not is_ended or known.is_running or not all(state.is_done(each) for each in state.topology.outputs(region))


def needs(life, stored):
    """Whether somebody needs a stored result, from first principles; not what policies and time make of it."""
    state = life.state
    if stored.result in life.pins:
        return True
    if not stored.is_current:
        return False
    if stored.partition.stage in life.needed_later:
        return True
    if is_given_up(life):
        return False
    if stored.partition in life.to_checkpoint:
        return True
    if is_over(life):
        return False
    consumers = state.topology.consumers(stored.partition)
    return not consumers or any(has_to_run(state, each) or not reads_it(state, each, stored) for each in consumers)


def is_over(life):
    regions = [*life.state.topology.region_ids(), CLOSE]
    known = [life.state.regions[each] for each in regions if each in life.state.regions]
    is_still = not any(each.is_running or each.newest_state is AttemptState.FAILED for each in known)
    outputs = [each for region in regions[:-1] for each in life.state.topology.outputs(region)]
    is_quiet = life.last_event + QUIET <= NOW and all(life.state.is_done(each) for each in outputs)
    return life.is_deleted or (life.closed_at is not None and is_still and (life.is_close_newest or is_quiet))


def is_given_up(life):
    return not is_over(life) and life.last_event + CONSUMED.keep_failed <= NOW


@given(SEEDS)
@MANY
def test_a_needed_result_is_never_released_and_all_others_are_in_the_end(seed):
    random = Random(seed)
    life = random_life(random)
    needed = {each.result for each in life.stored if needs(life, each)}
    stored = {each.result for each in life.stored}
    assert released(life) == stored - needed
    for keep in KEEPS:
        assert not released(life, keeping(keep)) & needed
        assert not released(life, keeping(keep), is_reclaiming=True) & needed
        assert not released(life, keeping(keep, keep_failed=None), is_reclaiming=True) & needed


@given(SEEDS)
@MANY
def test_policies_only_keep_longer(seed):
    random = Random(seed)
    life = random_life(random)
    by_keep = {keep: released(life, keeping(keep)) for keep in KEEPS}
    for keep, found in by_keep.items():
        assert found <= by_keep["on_consumed"], keep
        assert found <= released(life, keeping(keep), is_reclaiming=True), keep
        if keep != "on_consumed":
            assert found <= by_keep["end_of_run"], keep
    assert by_keep["3 runs"] <= by_keep["2 runs"] <= by_keep["1 run"]
    assert by_keep["7 days"] <= by_keep["12 hours"] <= by_keep["1 hour"]


@given(SEEDS)
@MANY
def test_where_space_is_needed_policies_keep_nothing(seed):
    life = random_life(Random(seed))
    assert {frozenset(released(life, keeping(keep), is_reclaiming=True)) for keep in KEEPS} == {
        frozenset(released(life, CONSUMED))
    }


@given(SEEDS)
@MANY
def test_what_may_go_may_go_later_too(seed):
    """Time alone makes nothing needed again."""
    life = random_life(Random(seed))
    for keep in KEEPS:
        assert released(life, keeping(keep)) <= released(life, keeping(keep), now=NOW + 3 * HOUR)
        assert released(life, keeping(keep)) <= released(life, keeping(keep), now=NOW + 30 * DAY)


@given(SEEDS)
@MANY
def test_every_kept_result_has_a_reason(seed):
    life = random_life(Random(seed))
    for keep in KEEPS:
        assert all(each.reason for each in release_decisions(life, keeping(keep), NOW))


# What may happen to a run


@given(SEEDS)
@MANY
def test_two_losses_repaired_in_one_plan_never_release_each_others_inputs(seed):
    """Release goes on behind every commit; each region of the plan runs once, and finds all that it reads."""
    random = Random(seed)
    topology = random_topology(random)
    run = whole(topology, is_released=True)
    there = [each for each, result in run.results.items() if result.state is FINISHED]
    lost = random.sample(there, k=min(2, len(there)))
    for each in lost:
        run.mark(each, LOST)
    plan = must_run_again(run, {topology.producer(each) for each in lost})
    for region in plan:
        known = run.regions[region]
        run.regions[region] = replace(known, repair_after_try=known.newest_try)
    left = set(plan)
    while left:
        ready = sorted(each for each in left if run.can_begin(each))
        assert ready, f"{sorted(map(str, left))} miss what was released: {run.results}"
        region = random.choice(ready)
        run.begin(region)
        run.release()
        assert run.can_begin(region)
        run.commit(region)
        left.remove(region)
        run.release()
    run.release(closed_at=NOW, closed_after=0, is_close_newest=True)
    assert not any(result.state is FINISHED for result in run.results.values())


def must_run_again(run, regions):
    """The regions, and the producers of what they read that is not there."""
    found, waiting = set(), list(regions)
    while waiting:
        region = waiting.pop()
        if region not in found:
            found.add(region)
            missing = [each for each in run.inputs(region) if run.results[each].state is not FINISHED]
            waiting += [run.topology.producer(each) for each in missing]
    return sorted(found)


def chain():
    scenes = (random_scene(Random(seed)) for seed in range(1000))
    topologies = (Topology(each.flow) for each in scenes)
    return next(
        each
        for each in topologies
        if len(each.regions) == 3 and all(one.parallelism == 1 for one in each.regions) and len(each.leaves) == 1
    )


def closed(run, **more):
    return run.life(**{"closed_at": NOW - 5 * HOUR, "closed_after": 0, "is_close_newest": True, **more})


END_OF_RUN = keeping("end_of_run")


def test_a_closing_task_that_is_to_publish_keeps_what_it_reads_however_long_it_takes():
    run = whole(chain())
    assert released(closed(run), END_OF_RUN) == {each.result for each in run.results.values()}
    run.regions[CLOSE] = RegionState(
        region=CLOSE, newest_try=1, newest_state=AttemptState.COMMITTED, ended_try=1, repair_after_try=1
    )
    assert not released(closed(run), END_OF_RUN)
    long_ago = closed(run, is_close_newest=False, last_event=NOW - 5 * HOUR)
    assert not released(long_ago, END_OF_RUN)


def test_a_closing_task_that_has_failed_keeps_what_it_reads_until_it_is_given_up():
    run = whole(chain())
    run.regions[CLOSE] = RegionState(region=CLOSE, newest_try=2, newest_state=AttemptState.FAILED, ended_try=2)
    assert not released(closed(run, last_event=NOW - 13 * DAY), END_OF_RUN)
    assert released(closed(run, last_event=NOW - 14 * DAY), END_OF_RUN)


def test_a_closed_run_that_is_not_whole_is_not_over_by_being_quiet():
    run = whole(chain())
    first = next(iter(run.topology.region_ids()))
    run.commit(first, "changed")
    quiet = closed(run, is_close_newest=False, last_event=NOW - 5 * HOUR)
    assert released(quiet, END_OF_RUN) == {each.result for each in run.old}


def test_a_closed_run_with_recomputed_equal_results_is_over_when_it_is_quiet():
    run = whole(chain())
    run.commit(next(iter(run.topology.region_ids())))
    busy = closed(run, is_close_newest=False, last_event=NOW)
    assert released(busy, END_OF_RUN) == {each.result for each in run.old}
    quiet = closed(run, is_close_newest=False, last_event=NOW - HOUR)
    assert released(quiet, END_OF_RUN) == {each.result for each in (*run.results.values(), *run.old)}


def test_what_a_later_epoch_reads_is_not_given_up_with_its_run():
    run = whole(chain())
    stage = next(iter(run.results)).stage
    life = run.life(needed_later={stage: "the next epoch reads it"}, last_event=NOW - 100 * DAY)
    assert {each.partition.stage for each in life.stored if each.result not in released(life)} == {stage}


def test_what_a_person_has_restarted_in_a_dagrun_that_was_made_anew_has_not_been_consumed():
    run = whole(chain())
    assert released(run.life())
    run.regions = {}
    assert not released(run.life())


@given(st.sampled_from(KEEPS), st.integers(0, 4), st.integers(0, 200))
def test_a_policy_keeps_for_so_many_later_runs_or_so_long(keep, closed_after, hours):
    policy = RetentionPolicy.from_text(keep)
    keeps = is_kept(policy, NOW - hours * HOUR, closed_after, NOW)
    number, _, unit = keep.partition(" ")
    if unit.startswith("run"):
        assert keeps is (closed_after < int(number))
    elif unit:
        assert keeps is (hours < int(number) * {"hour": 1, "hours": 1, "days": 24}[unit])
    else:
        assert not keeps
