"""Problems of DAG files are lines that begin with their place."""

from __future__ import annotations

import json

from weir.doctor.problems import Problem, texts_of
from weir.errors import Misconfigured


def test_a_problem_is_one_line_with_its_place():
    found = Problem(file="dags/x.py", line=3, dataflow="delays", stage="clean", text="no\n  function")
    assert str(found) == "dags/x.py:3: dataflow 'delays', stage 'clean': no function"
    assert str(Problem(file="dags/x.py", text="it is empty")) == "dags/x.py: it is empty"
    assert Problem.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_a_list_of_problems_is_said_one_by_one():
    error = Misconfigured("dataflow 'd' has 2 problems:\n- stage 'a': one\n- stage 'b': other")
    assert texts_of(error) == ["dataflow 'd': stage 'a': one", "dataflow 'd': stage 'b': other"]
    assert texts_of(Misconfigured("dataflow 'd': one")) == ["dataflow 'd': one"]
    assert texts_of(KeyError("x")) == ["KeyError: 'x'"]
