import gzip
import json
from pathlib import Path

import pytest

from weir.cli.job_graph_plan import Failure, read_topology, what_if
from weir.dataflow.failover import Consumers, FailoverStrategy
from weir.errors import Misconfigured

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


def ask(task, lost=None, consumers=Consumers.IF_CHANGED, topology=DIAMOND, strategy=FailoverStrategy.REGION):
    (answer,) = what_if(read_topology(json.dumps(topology)), [Failure(task, lost)], consumers, strategy)["restarts"]
    return answer


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
            found = what_if(topology, topology.failures, Consumers.ALWAYS)
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
