"""What lies in a stranger's folder is read to the last value, or refused in one try, by name."""

from __future__ import annotations

import pytest
from tests.corpus.engines import CONNECT, OWN_SESSION, Refused, on_both
from tests.corpus.files import FILES, laid_out
from tests.corpus.places import Written
from tests.weir_spark.sources.conftest import resolved

from weir.errors import Misconfigured

pytestmark = pytest.mark.spark

READ = [case for case in FILES if case.rows is not None]
REFUSED = [case for case in FILES if case.rows is None]
FORMATS = ("csv", "json", "parquet", "a partition column", "a link", "hidden")
FEW = [next(case for case in READ if case.what.startswith(how)) for how in FORMATS]
"""One of each reader and way to find files."""

MODULE = "def nothing(ctx):\n    pass\n"


@pytest.fixture(scope="module")
def laid(tmp_path_factory):
    """Lay out the folder of a case; the declared source on it."""

    def lay(case):
        return laid_out(case, tmp_path_factory.mktemp("files"))

    return lay


def stage_of(jobs, number, source):
    """The stage of a case; its split is what a run has recorded."""
    (split,) = resolved(source)
    name = f"case_{number}"
    return jobs.stage(name, source.function, jobs.output(name), is_source=True, split=split)


@pytest.mark.parametrize(
    ("engine", "cases"),
    [(CONNECT, READ), (OWN_SESSION, FEW), pytest.param(OWN_SESSION, READ, marks=pytest.mark.soak)],
    ids=(CONNECT, f"{OWN_SESSION}-few", OWN_SESSION),
    indirect=["engine"],
)
def test_files_that_can_be_read_have_all_their_rows(engine, jobs, store, code_of, laid, cases):
    stages = [stage_of(jobs, number, laid(case)) for number, case in enumerate(cases)]
    _, code = code_of(MODULE)
    report = engine.run(jobs.region(*stages, code=code), store)
    found = {
        case.what: sorted((tuple(row.values()) for row in Written(each, store).arrow().to_pylist()), key=repr)
        for case, each in zip(cases, report.outputs, strict=True)
    }
    right = {case.what: sorted(case.rows, key=repr) for case in cases}
    assert {what: (found[what], right[what]) for what in right if found[what] != right[what]} == {}


@on_both(REFUSED, lambda case: case.what, lambda case: case.what.partition(":")[0])
def test_files_that_cannot_be_read_are_refused_by_name_in_one_try(engine, jobs, store, code_of, laid, case):
    _, code = code_of(MODULE)
    with pytest.raises((Misconfigured, Refused)) as refused:
        engine.run(jobs.region(stage_of(jobs, 0, laid(case)), code=code), store)
    assert getattr(refused.value, "kind", "Misconfigured") == "Misconfigured", refused.value
    assert case.names in str(refused.value)
