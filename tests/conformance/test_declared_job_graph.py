from itertools import product
from random import Random

import pytest
from tests.conformance.cases import job_graph, partition
from tests.conformance.declared_job_graph import DeclaredJobGraph
from tests.conformance.flink.job_graph import pipelined_regions
from tests.conformance.flink.restart_set import restart_set

from weir.dataflow.dataflow import Consumers, FailoverStrategy
from weir.errors import Misconfigured

DIAMOND = {
    "stages": [
        {"name": "a", "parallelism": 3},
        {"name": "b", "parallelism": 2},
        {"name": "c", "parallelism": 2},
        {"name": "d", "parallelism": 1},
    ],
    "exchanges": [
        {"from": "a", "to": "b", "pattern": "all_to_all", "type": "blocking"},
        {"from": "b", "to": "c", "pattern": "pointwise", "type": "pipelined"},
        {"from": "c", "to": "d", "pattern": "all_to_all", "type": "blocking"},
    ],
}


def ask(task, lost=None, *, consumers=Consumers.IF_CHANGED, strategy=FailoverStrategy.REGION, missing=()):
    """Ask the production engine; return the tasks that restart, that do if what they read changes, and by hand."""
    graph = job_graph(DIAMOND)
    declared = DeclaredJobGraph(graph, consumers, strategy)
    found = declared.restart_set(graph.names.index(task), {*map(partition, missing)}, lost and partition(lost))
    parts = found.restarted, found.if_changed, found.by_hand
    return tuple([graph.names[vertex] for vertex in part] for part in parts)


def test_a_lost_partition_restarts_its_producer_and_only_perhaps_the_other_readers():
    assert ask("b#1", "a->b:0#2") == (["a#2", "b#1", "c#1"], ["b#0", "c#0", "d#0"], [])


def test_flinks_rule_restarts_all_consumers():
    restarted = ["a#2", "b#0", "b#1", "c#0", "c#1", "d#0"]
    assert ask("b#1", "a->b:0#2", consumers=Consumers.ALWAYS) == (restarted, [], [])


def test_a_full_restart_is_of_all_tasks():
    assert ask("b#1", strategy=FailoverStrategy.FULL) == (job_graph(DIAMOND).names, [], [])


def test_an_individual_restart_names_what_a_person_has_to_clear():
    assert ask("b#1", "a->b:0#2", strategy=FailoverStrategy.INDIVIDUAL) == (["b#1", "c#1"], [], ["a#2"])


def test_what_a_changed_consumer_would_miss_is_made_again_only_with_it():
    assert ask("c#1", missing=["c->d:2#0"]) == (["b#1", "c#1"], ["b#0", "c#0", "d#0"], [])


# What can be declared


def exchange(one, other, pattern, kind):
    return {"from": one, "to": other, "pattern": pattern, "type": kind}


@pytest.mark.parametrize(
    ("exchanges", "why"),
    [
        ([exchange("a", "b", "all_to_all", "hybrid_full")], "exchange 0 (a->b) is hybrid_full"),
        (
            [exchange("b", "c", "all_to_all", "pipelined")],
            "exchange 0 (b->c) is pipelined, but does not join equal parallelisms subtask to subtask",
        ),
        ([exchange("a", "b", "pointwise", "blocking")], "exchange 0 (a->b) is pointwise between unequal parallelisms"),
        (
            [exchange("b", "c", "pointwise", "pipelined"), exchange("b", "c", "pointwise", "blocking")],
            "stage 'c' reads 'b' over a blocking exchange inside one task",
        ),
        (
            [exchange("a", "b", "all_to_all", "blocking"), exchange("b", "a", "all_to_all", "blocking")],
            "the stages read each other in a cycle, a -> b -> a",
        ),
    ],
)
def test_a_job_graph_that_weir_cannot_run_is_refused_in_its_own_names(exchanges, why):
    with pytest.raises(Misconfigured) as refused:
        DeclaredJobGraph(job_graph({**DIAMOND, "exchanges": exchanges}), Consumers.ALWAYS, FailoverStrategy.REGION)
    assert why in str(refused.value)
    assert "s0" not in str(refused.value)


@pytest.mark.parametrize(("consumers", "strategy"), product(Consumers, FailoverStrategy))
def test_a_job_graph_that_weir_can_run_is_declared(consumers, strategy):
    graph = job_graph(DIAMOND)
    assert DeclaredJobGraph(graph, consumers, strategy).regions == pipelined_regions(graph)


def random_job_graph(random):
    """Stages in any order and under any names; most can be run by Weir, save that regions may wait for each other."""
    names = random.sample(["Source: flights", "s1", "s2", "s0_1", "join", "s4_out", "JOIN"], k=random.randint(1, 6))
    sizes = {name: random.choice([1, 2, 2, 2, 3]) for name in names}
    exchanges = []
    for _ in range(random.randint(0, 7) if len(names) > 1 else 0):
        one, other = sorted(random.sample(range(len(names)), k=2))
        parallelisms = sizes[names[one]], sizes[names[other]]
        is_by_index = parallelisms[0] == parallelisms[1]
        pattern = random.choice(["all_to_all", "pointwise"]) if is_by_index or 1 in parallelisms else "all_to_all"
        can_join = is_by_index and (pattern == "pointwise" or parallelisms[0] == 1)
        kind = random.choice(["pipelined", "pipelined", "blocking"]) if can_join else "blocking"
        exchanges.append(exchange(names[one], names[other], pattern, kind))
    stages = [{"name": name, "parallelism": size} for name, size in sizes.items()]
    random.shuffle(stages)
    partitions = [
        f"{each['from']}->{each['to']}:{place}#{subtask}"
        for place, each in enumerate(exchanges)
        for subtask in range(sizes[each["from"]])
    ]
    tasks = [f"{name}#{subtask}" for name, size in sizes.items() for subtask in range(size)]
    failures = [
        {"task": random.choice(tasks), "lost": random.choice([None, *partitions])} for _ in range(random.randint(1, 3))
    ]
    missing = [each for each in partitions if random.random() < 0.2]
    return {"stages": stages, "exchanges": exchanges, "missing": missing, "failures": failures}


def test_on_random_job_graphs_the_production_engine_and_the_reference_give_the_same_answer():
    runnable = 0
    for seed in range(400):
        request = random_job_graph(Random(seed))
        graph = job_graph(request)
        regions = pipelined_regions(graph)
        missing = {partition(name) for name in request["missing"]}
        for consumers, strategy in product(Consumers, FailoverStrategy):
            try:
                declared = DeclaredJobGraph(graph, consumers, strategy)
            except Misconfigured:
                continue
            runnable += 1
            assert declared.regions == regions
            for failure in request["failures"]:
                failed, lost = graph.names.index(failure["task"]), failure["lost"] and partition(failure["lost"])
                expected = restart_set(
                    graph, regions, failed, consumers=consumers, strategy=strategy, missing=missing, lost=lost
                )
                answered = declared.restart_set(failed, missing, lost)
                assert answered == expected, f"seed {seed}, {consumers}, {strategy}, {failure}"
    assert runnable > 1500, f"the production engine answers for only {runnable} of 2400"
