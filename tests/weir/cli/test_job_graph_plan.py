import gzip
import json
from itertools import product
from pathlib import Path
from random import Random

import pytest

from weir.cli.job_graph_plan import plan_of_job_graph
from weir.dataflow.dataflow import Consumers, FailoverStrategy
from weir.errors import Misconfigured
from weir.flink.job_graph import pipelined_regions
from weir.flink.job_graph_file import TaskFailure, partition, read_topology
from weir.flink.restart_set import restart_set

GOLDEN = Path(__file__).parents[2] / "conformance" / "golden" / "failover.sample.jsonl.gz"

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


def plan(task, lost=None, consumers=Consumers.IF_CHANGED, topology=DIAMOND, strategy=FailoverStrategy.REGION):
    return plan_of_job_graph(read_topology(json.dumps(topology)), [TaskFailure(task, lost)], consumers, strategy)


def ask(task, lost=None, consumers=Consumers.IF_CHANGED, topology=DIAMOND, strategy=FailoverStrategy.REGION):
    (restart,) = plan(task, lost, consumers, topology, strategy).answer["restarts"]
    return restart


def test_a_lost_partition_restarts_its_producer_and_only_perhaps_the_other_readers():
    answer = ask("b#1", "a->b:0#2")
    assert answer["tasks"] == ["a#2", "b#1", "c#1"]
    assert answer["regions"] == [["a#2"], ["b#1", "c#1"]]
    assert answer["if_changed"]["regions"] == [["b#0", "c#0"], ["d#0"]]
    assert (answer["count"], answer["spared"]) == (3, 2)


def test_flinks_rule_restarts_all_consumers():
    answer = ask("b#1", "a->b:0#2", Consumers.ALWAYS)
    assert answer["tasks"] == ["a#2", "b#0", "b#1", "c#0", "c#1", "d#0"]
    assert answer["if_changed"] == {"tasks": [], "regions": []}


def test_a_full_restart_is_of_all_tasks():
    answer = ask("b#1", strategy=FailoverStrategy.FULL)
    assert (answer["count"], answer["spared"]) == (8, 0)
    assert len(answer["regions"]) == 6


def test_an_individual_restart_names_what_a_person_has_to_clear():
    answer = ask("b#1", "a->b:0#2", strategy=FailoverStrategy.INDIVIDUAL)
    assert answer["tasks"] == ["b#1", "c#1"]
    assert answer["by_hand"] == {"tasks": ["a#2"], "regions": [["a#2"]]}
    assert answer["if_changed"]["tasks"] == []
    assert answer["spared"] == 5


def test_what_a_changed_consumer_would_miss_is_made_again_only_with_it():
    gone = {**DIAMOND, "missing": ["c->d:2#0"]}
    answer = ask("c#1", topology=gone)
    assert answer["tasks"] == ["b#1", "c#1"]
    assert answer["if_changed"]["tasks"] == ["b#0", "c#0", "d#0"]


def test_with_flinks_rule_the_answers_are_flinks():
    with gzip.open(GOLDEN, "rt") as lines:
        for line in lines:
            case = json.loads(line)
            topology = read_topology(json.dumps(case["request"]))
            found = plan_of_job_graph(topology, topology.failures, Consumers.ALWAYS).answer
            restarts = [(each["count"], sorted(each["tasks"])) for each in found["restarts"]]
            # A large answer of Flink's is a count only.
            for (count, tasks), expected in zip(restarts, case["answer"]["restarts"], strict=True):
                assert (count, tasks) == (expected["count"], sorted(expected.get("tasks", tasks)))
            assert found["regions"] == case["answer"]["regions"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"stages": {}}, "`stages` of the topology is {}, expected a list"),
        ({"stages": [{"name": "a"}]}, "a stage of the topology has no `parallelism`"),
        ({"stages": [{"name": "a", "parallelism": "2"}]}, "stage 'a' has the parallelism '2'"),
        ({"exchanges": [{"from": "a", "to": "x", "pattern": "pointwise", "type": "blocking"}]}, "the stage 'x'"),
        ({"exchanges": [{"from": "a", "to": "b", "pattern": "pairs", "type": "blocking"}]}, "pointwise, all_to_all"),
        ({"missing": ["a-b:0#1"]}, "names no partition"),
        ({"missing": ["a->b:7#1"]}, "there are 3, counted from 0"),
        ({"missing": ["a->c:0#1"]}, "exchange 0 is a->b"),
        ({"missing": ["a->b:0#3"]}, "a has the subtasks 0 to 2"),
        ({"failures": [{}]}, "failure 0 of the topology has no `task`"),
    ],
)
def test_a_topology_that_cannot_be_understood_is_refused_with_its_place(change, says):
    with pytest.raises(Misconfigured) as refused:
        read_topology(json.dumps({**DIAMOND, **change}))
    assert says in str(refused.value)


def test_no_json_and_an_unknown_task_are_refused():
    with pytest.raises(Misconfigured, match="no JSON"):
        read_topology("{")
    with pytest.raises(Misconfigured, match=r"no task 'b#9'.*a#0, a#1"):
        ask("b#9")


# Who answers


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
def test_the_reference_answers_for_a_job_graph_that_weir_cannot_run_and_says_why(exchanges, why):
    found = plan("a#0", topology={**DIAMOND, "exchanges": exchanges})
    assert why in found.not_runnable
    assert found.note().startswith("Weir cannot run this job graph, so the answer is that of Flink's algorithm: ")
    assert "s0" not in found.note()


@pytest.mark.parametrize(("consumers", "strategy"), product(Consumers, FailoverStrategy))
def test_the_production_engine_answers_for_a_job_graph_that_weir_can_run(consumers, strategy):
    found = plan("b#1", "a->b:0#2", consumers, strategy=strategy)
    assert (found.not_runnable, found.note()) == ("", "")


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
        topology = read_topology(json.dumps(random_job_graph(Random(seed))))
        graph, regions, names = topology.graph, pipelined_regions(topology.graph), topology.graph.names
        for consumers, strategy in product(Consumers, FailoverStrategy):
            found = plan_of_job_graph(topology, topology.failures, consumers, strategy)
            runnable += not found.not_runnable
            assert found.answer["region_members"] == [[names[each] for each in members] for members in regions.members]
            for failure, restart in zip(topology.failures, found.answer["restarts"], strict=True):
                decided = restart_set(
                    graph,
                    regions,
                    names.index(failure.task),
                    consumers=consumers,
                    strategy=strategy,
                    missing=topology.missing,
                    lost=failure.lost and partition(graph, failure.lost),
                )
                expected = [[names[each] for each in vertices] for vertices in parts(decided)]
                answered = [restart["tasks"], restart["if_changed"]["tasks"], restart["by_hand"]["tasks"]]
                assert answered == expected, f"seed {seed}, {consumers}, {strategy}, {failure}"
    assert runnable > 1500, f"only {runnable} of 2400 answers are the production engine's"


def parts(decided):
    return decided.restarted, decided.if_changed, decided.by_hand
