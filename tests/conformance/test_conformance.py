"""Weir's core, and a reference of Flink's algorithms (tests.conformance.flink), against Apache Flink 2.3.0's classes.

Where the production engine can answer a question about a job graph, it does so too; test_production_against_flink holds
it against the reference on random dataflows.

The folder is that of the environment variable WEIR_GOLDEN, else the sample beside this file. The first part of a file's
name tells its kind. A case is a request with its answer, or a trace: steps that hold what was asked and what followed.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.cases import job_graph, partition, partition_name
from tests.conformance.declared_job_graph import DeclaredJobGraph
from tests.conformance.flink.job_graph import JobGraph, Regions, pipelined_regions
from tests.conformance.flink.key_groups import default_max_parallelism
from tests.conformance.flink.region_release import RegionRelease
from tests.conformance.flink.restart_set import JobPartition, tasks_to_restart
from tests.conformance.flink.shared_files import ClaimMode, RestoredSnapshot, SharedFiles, Sharing, Use

from weir.dataflow.dataflow import Consumers, FailoverStrategy
from weir.errors import Internal, Misconfigured
from weir.formats.checkpoint import SnapshotKind
from weir.restarts.strategy import ExponentialDelay, FailureRate, FixedDelay, NoRestart, RestartStrategy
from weir.state.retention_rules import CompletedSnapshot, subsumed
from weir.topology.key_groups import key_group_range

Request = dict[str, Any]
Answer = dict[str, Any]
Restarted = Callable[[int, Set[JobPartition], JobPartition | None], tuple[int, ...]]
"""What restarts when a vertex fails, of the partitions that are missing and the one that it did not find."""

FOLDER = Path(os.environ.get("WEIR_GOLDEN") or Path(__file__).parent / "golden")
FILES = sorted(FOLDER.glob("*.jsonl.gz"))


def keygroups(request: Request) -> Answer:
    maximum, parallelism = request["max"], request["parallelism"]
    return {
        "ranges": [list(key_group_range(maximum, parallelism, subtask)) for subtask in range(parallelism)],
        "default_max": default_max_parallelism(parallelism),
    }


def restart(request: Request) -> Answer:
    def no_jitter(failed_at: int, offset: int) -> int:
        return 0

    decisions = restart_strategy(request).decisions(request["failures"], no_jitter)
    return {
        "decisions": [{"can": d.can_restart, "backoff": d.backoff_ms, "new_attempt": d.new_attempt} for d in decisions]
    }


def restart_strategy(request: Request) -> RestartStrategy:
    match request["strategy"]:
        case "none":
            return NoRestart()
        case "fixed-delay":
            return FixedDelay(request["attempts"], request["delay"])
        case "failure-rate":
            return FailureRate(request["max"], request["interval"], request["delay"])
        case "exponential-delay":
            return ExponentialDelay(
                initial_backoff_ms=request["initial"],
                max_backoff_ms=request["max"],
                multiplier=request["multiplier"],
                reset_threshold_ms=request["reset"],
                jitter_factor=request["jitter"],
                attempts_before_reset=request["attempts"],
            )
    raise AssertionError(f"unknown strategy {request['strategy']!r}")


def failover(request: Request) -> Answer:
    graph = job_graph(request)
    regions = pipelined_regions(graph)

    def restarted(failed: int, missing: Set[JobPartition], lost: JobPartition | None) -> tuple[int, ...]:
        return tasks_to_restart(graph, regions, failed, missing=missing, lost=lost)

    return restarts(request, graph, regions, restarted)


def restarts(request: Request, graph: JobGraph, regions: Regions, restarted: Restarted) -> Answer:
    """Answer what each failure of a request restarts."""
    vertices = {name: vertex for vertex, name in enumerate(graph.names)}
    missing = frozenset(partition(name) for name in request["missing"])
    answers = []
    for failure in request["failures"]:
        lost = partition(failure["lost"]) if failure.get("lost") else None
        found = restarted(vertices[failure["task"]], missing, lost)
        answers.append({"count": len(found), "tasks": sorted(graph.names[vertex] for vertex in found)})
    members = sorted(sorted(graph.names[vertex] for vertex in region) for region in regions.members)
    return {"restarts": answers, "regions": len(members), "region_members": members}


def release(request: Request) -> Answer:
    graph = job_graph(request)
    vertices = {name: vertex for vertex, name in enumerate(graph.names)}
    view = RegionRelease(graph, pipelined_regions(graph))
    released = []
    for event in request["events"]:
        vertex = vertices[event["task"]]
        if event["event"] == "finished":
            released.append(sorted(partition_name(graph, freed) for freed in view.finished(vertex)))
        else:
            view.unfinished(vertex)
            released.append([])
    return {"released": released}


@dataclass(frozen=True)
class Handle:
    """A file as a checkpoint describes it."""

    key: str
    content: int


def registry(trace: Request) -> Answer:
    files: SharedFiles[Handle] = SharedFiles()
    contents = count()
    described: dict[str, Handle] = {}

    def handle(key: str, how: str) -> Handle:
        if how in ("same", "equal") and key in described:
            return Handle(key, described[key].content)
        return Handle(key, next(contents))

    def taken(step: Request) -> Answer:
        match step["op"]:
            case "restore":
                named = {key: described.setdefault(key, handle(key, "new")) for key in step["keys"]}
                sharing = Sharing.WHOLE if step["savepoint"] else Sharing.FILE_BY_FILE
                files.restore(RestoredSnapshot(step["ckpt"], named, ClaimMode(step["mode"]), sharing))
                return step
            case "register":
                key, use = step["key"], Use.WHOLE_ORIGIN if step["prevent"] else Use.FILE
                try:
                    if step["how"] == "placeholder":
                        files.register_again(key, step["ckpt"], use)
                    else:
                        described[key] = files.register(key, handle(key, step["how"]), step["ckpt"], use)
                except Internal:
                    return {**step, "error": "conflict" if key in files.files else "unknown"}
                return {**step, "error": None}
            case "unregister":
                unused = files.unregister_unused(step["lowest"])
                discarded, live = sorted(unused.files), sorted(files.files)
                return {**step, "discarded": discarded, "in_use": sorted(unused.in_use), "live": live}
            case "next":
                return step
        raise AssertionError(f"unknown step {step!r}")

    return {"steps": [taken(step) for step in trace["steps"]]}


def subsume(trace: Request) -> Answer:
    left: list[CompletedSnapshot] = []
    steps = []
    for number, (kind, *_) in enumerate(trace["steps"], 1):
        left.append(CompletedSnapshot(number, SnapshotKind(kind), epoch=f"{number:09d}"))
        removed = sorted(subsumed(left, trace["retain"]))
        left = [snapshot for snapshot in left if snapshot.number not in removed]
        steps.append([kind, removed, [snapshot.number for snapshot in left], max(removed, default=None)])
    return {"steps": steps}


ANSWERS: dict[str, Callable[[Request], Answer]] = {
    "failover": failover,
    "keygroups": keygroups,
    "registry": registry,
    "release": release,
    "restart": restart,
    "subsume": subsume,
}
"""For each kind what Weir says to a request, or the trace as Weir would have written it."""


def in_any_order(answer: Answer) -> Answer:
    """Answers are sets where Flink's are: of regions, of tasks, of partitions."""
    ordered = dict(answer)
    if "region_members" in answer:
        ordered["region_members"] = sorted(sorted(region) for region in answer["region_members"])
    if "restarts" in answer:
        ordered["restarts"] = [
            {**restarted, "tasks": sorted(restarted["tasks"])} if "tasks" in restarted else restarted
            for restarted in answer["restarts"]
        ]
    if "released" in answer:
        ordered["released"] = [sorted(released) for released in answer["released"]]
    if "steps" in answer:
        ordered["steps"] = [
            {name: sorted(value) if isinstance(value, list) else value for name, value in step.items()}
            if isinstance(step, dict)
            else step
            for step in answer["steps"]
        ]
    return ordered


def agrees(expected: Any, found: Any) -> bool:
    """Large answers may leave out members and keep the counts: compare what is there."""
    if isinstance(expected, dict):
        return all(key in found and agrees(value, found[key]) for key, value in expected.items())
    if isinstance(expected, list):
        return len(expected) == len(found) and all(map(agrees, expected, found))
    return bool(expected == found)


def cases(file: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        for line in lines:
            if line.strip():
                yield json.loads(line)


def test_there_are_golden_files():
    assert FILES, f"no *.jsonl.gz in {FOLDER}"


def question_and_answer(case: dict[str, Any]) -> tuple[Request, Answer]:
    if "request" in case:
        return case["request"], case["answer"]
    return case, {"steps": case["steps"]}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_weir_answers_as_flink(file: Path, capsys: pytest.CaptureFixture[str]):
    answer = ANSWERS[file.name.split(".")[0]]
    ran = disagreed = 0
    for case in cases(file):
        ran += 1
        question, expected = question_and_answer(case)
        found = in_any_order(answer(question))
        if agrees(in_any_order(expected), found):
            continue
        disagreed += 1
        with capsys.disabled():
            print(f"\n{file.name}, case {ran} disagrees:\n{json.dumps(case)}\nWeir answers:\n{json.dumps(found)}")
    with capsys.disabled():
        print(f"\n{file.name}: {ran} cases, {disagreed} disagreed")
    assert ran, f"{file} holds no cases"
    assert not disagreed, f"{disagreed} of {ran} cases of {file.name} disagree with Flink; they are printed above"


@pytest.mark.parametrize(
    "file", [each for each in FILES if each.name.startswith("failover.")], ids=lambda file: file.name
)
def test_the_production_engine_answers_as_flink_wherever_weir_can_run_the_job_graph(
    file: Path, capsys: pytest.CaptureFixture[str]
):
    ran = not_runnable = 0
    for case in cases(file):
        request = case["request"]
        graph = job_graph(request)
        try:
            declared = DeclaredJobGraph(graph, Consumers.ALWAYS, FailoverStrategy.REGION)
        except Misconfigured:
            not_runnable += 1
            continue
        found = restarts(
            request,
            graph,
            declared.regions,
            lambda *failure: declared.restart_set(*failure).restarted,  # noqa: B023
        )
        ran += 1
        assert agrees(in_any_order(case["answer"]), in_any_order(found)), json.dumps(case)
    with capsys.disabled():
        print(f"\n{file.name}: {ran} cases by the production engine, {not_runnable} are not runnable in Weir")
    assert ran or not_runnable
