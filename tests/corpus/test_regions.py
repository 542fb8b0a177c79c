"""Functions and queries of one region have names and settings of their own, and give rows or are refused by name."""

from __future__ import annotations

import ast

import pytest
from tests.corpus.engines import Refused, on_both
from tests.corpus.places import Written
from tests.corpus.regions import QUERIES, REGIONS, SMALL

pytestmark = pytest.mark.spark

OF_ROWS = [case for case in REGIONS if case.rows is not None]
READ = [case for case in QUERIES if case.rows is not None]


def stages_of(jobs, module, case):
    names = [node.name for node in ast.parse(case.code).body if isinstance(node, ast.FunctionDef)]
    small = jobs.stage("small", f"{module}:small", is_source=True)
    read = {"small": "small"}
    return [small, *(jobs.stage(name, f"{module}:{name}", jobs.output(name), pipelined=read) for name in names)]


def queries_of(jobs, module, cases):
    small = jobs.stage("small", f"{module}:small", is_source=True)
    names = [f"query_{at}" for at, _ in enumerate(cases)]
    read = {"small": "small"}
    return [small, *(jobs.stage(name, f"{name}.sql", jobs.output(name), pipelined=read) for name in names)]


def texts_of(cases):
    return {f"query_{at}.sql": case.text for at, case in enumerate(cases)}


def rows_of(report, store):
    return [
        sorted((tuple(row.values()) for row in Written(each, store).arrow().to_pylist()), key=repr)
        for each in report.outputs
    ]


@pytest.mark.parametrize("case", OF_ROWS, ids=lambda case: case.what)
def test_stages_of_one_region_have_rows_of_their_own(engine, jobs, store, code_of, case):
    module, code = code_of(SMALL + case.code)
    report = engine.run(jobs.region(*stages_of(jobs, module, case), code=code), store)
    found = dict(zip((each.stage for each in report.outputs), rows_of(report, store), strict=True))
    assert found == {name: sorted(rows, key=repr) for name, rows in case.rows.items()}


@pytest.mark.parametrize("case", [case for case in REGIONS if case.rows is None], ids=lambda case: case.what)
def test_a_stage_is_refused_by_its_name_in_one_try(engine, jobs, store, code_of, case):
    module, code = code_of(SMALL + case.code)
    with pytest.raises(Refused) as refused:
        engine.run(jobs.region(*stages_of(jobs, module, case), code=code), store)
    assert refused.value.kind == "Misconfigured"
    assert [name for name in case.names if name not in refused.value.text] == []
    assert [name for name in case.never if name in refused.value.text] == []


def test_queries_have_their_rows(engine, jobs, store, code_of):
    module, code = code_of(SMALL, texts_of(READ))
    report = engine.run(jobs.region(*queries_of(jobs, module, READ), code=code), store)
    found = dict(zip((case.what for case in READ), rows_of(report, store), strict=True))
    assert found == {case.what: sorted(case.rows, key=repr) for case in READ}


@on_both([case for case in QUERIES if case.rows is None], lambda case: case.what)
def test_a_query_of_what_is_no_input_is_refused_by_name_in_one_try(engine, jobs, store, code_of, case):
    module, code = code_of(SMALL, texts_of([case]))
    with pytest.raises(Refused) as refused:
        engine.run(jobs.region(*queries_of(jobs, module, [case]), code=code), store)
    assert refused.value.kind == "Misconfigured"
    assert case.names.lower() in refused.value.text.lower()
