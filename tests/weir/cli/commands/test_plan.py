import json

import pytest
from typer.testing import CliRunner

from weir.cli.main import app
from weir.errors import Misconfigured

TOPOLOGY = {
    "stages": [{"name": "a", "parallelism": 2}, {"name": "b", "parallelism": 2}],
    "exchanges": [{"from": "a", "to": "b", "pattern": "all_to_all", "type": "blocking"}],
}


@pytest.fixture
def topology(tmp_path):
    path = tmp_path / "topology.json"
    path.write_text(json.dumps(TOPOLOGY))
    return str(path)


def run(*arguments, **more):
    return CliRunner().invoke(app, ["plan", *arguments], catch_exceptions=False, **more)


def test_the_answer_as_json(topology):
    said = run("--topology", topology, "--fail", "b#1", "--lost", "a->b:0#0", "--consumers", "always", "--json")
    (restart,) = json.loads(said.stdout)["restarts"]
    assert restart["tasks"] == ["a#0", "b#0", "b#1"]
    assert restart["regions"] == [["a#0"], ["b#0"], ["b#1"]]


def test_the_answer_for_people_spares_consumers_unless_their_input_changes(topology):
    said = run("--topology", topology, "--fail", "b#1", "--lost", "a->b:0#0")
    assert said.stdout.splitlines() == [
        "b#1 fails, which does not find a->b:0#0",
        "  will re-run: a#0, b#1",
        "  will re-run if what they read changes: b#0",
        "  spared: 1 task(s)",
    ]


def test_a_full_restart_spares_nobody_and_an_individual_one_names_whom_a_person_clears(topology):
    said = run("--topology", topology, "--fail", "b#1", "--strategy", "full", "--json")
    assert json.loads(said.stdout)["restarts"][0]["tasks"] == ["a#0", "a#1", "b#0", "b#1"]
    said = run("--topology", topology, "--fail", "b#1", "--lost", "a->b:0#0", "--strategy", "individual")
    assert said.stdout.splitlines() == [
        "b#1 fails, which does not find a->b:0#0",
        "  will re-run: b#1",
        "  to be cleared by hand first: a#0",
        "  will re-run if what they read changes: none",
        "  spared: 2 task(s)",
    ]


@pytest.mark.parametrize("option", [("--consumers", "if_changed"), ("--strategy", "full")])
def test_options_of_a_job_graph_are_refused_for_a_run(option):
    with pytest.raises(Misconfigured, match=rf"^{option[0]} asks about a job graph \(--topology\), and a run keeps"):
        run("trips@20130101T000000Z", *option)


@pytest.mark.parametrize("option", [("--code", "as_it_was"), ("--apply",)])
def test_options_of_a_run_are_refused_for_a_job_graph(topology, option):
    with pytest.raises(Misconfigured, match=rf"^{option[0]} asks about a run, and a job graph has none"):
        run("--topology", topology, "--fail", "b#1", *option)


def test_a_case_of_the_conformance_files_is_a_topology_file_too():
    case = {"request": {"op": "failover", **TOPOLOGY, "failures": [{"task": "a#0"}]}, "answer": {"restarts": []}}
    said = run("--topology", "-", "--consumers", "always", "--json", input=json.dumps(case))
    assert json.loads(said.stdout)["restarts"][0]["tasks"] == ["a#0", "b#0", "b#1"]


def test_the_failures_may_stand_in_the_file_and_the_file_may_be_standard_input():
    given = {**TOPOLOGY, "failures": [{"task": "a#0"}, {"task": "b#0"}]}
    said = run("--topology", "-", "--json", input=json.dumps(given))
    assert [each["tasks"] for each in json.loads(said.stdout)["restarts"]] == [["a#0"], ["b#0"]]


def test_what_is_missing_is_asked_for(topology, tmp_path):
    with pytest.raises(Misconfigured, match="--fail TASK"):
        run("--topology", topology)
    with pytest.raises(Misconfigured, match="--fail TASK --lost PARTITION"):
        run("--topology", topology, "--lost", "a->b:0#0")
    with pytest.raises(Misconfigured, match="cannot be read"):
        run("--topology", str(tmp_path / "none.json"), "--fail", "a#0")


def test_an_answer_of_flinks_algorithm_says_so_and_its_json_stays_alone_on_standard_output():
    edge = {**TOPOLOGY["exchanges"][0], "type": "hybrid_full"}
    given = json.dumps({**TOPOLOGY, "exchanges": [edge]})
    note = (
        "Weir cannot run this job graph, so the answer is that of Flink's algorithm: exchange 0 (a->b) is hybrid_full"
    )
    said = run("--topology", "-", "--fail", "b#1", input=given)
    assert said.stdout.splitlines()[-1].startswith(note)
    said = run("--topology", "-", "--fail", "b#1", "--json", input=given)
    assert json.loads(said.stdout)["restarts"][0]["tasks"] == ["b#1"]
    assert said.stderr.startswith(note)


def test_an_answer_of_the_production_engine_needs_no_remark(topology):
    assert run("--topology", topology, "--fail", "b#1", "--json").stderr == ""
