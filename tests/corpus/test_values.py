"""Each type with its awkward values comes through results and targets as it went in, or is refused before.

On both kinds of sessions the digests are equal.
"""

from __future__ import annotations

import pytest
from tests.corpus.columns import of_arrow
from tests.corpus.engines import Refused
from tests.corpus.places import PLACES, Written
from tests.corpus.values import REGION, VALUES, by_type

pytestmark = pytest.mark.spark

ACCEPTED = {type_: values for type_, values in by_type().items() if REGION not in values[0].refused}
REFUSED = [type_ for type_ in by_type() if type_ not in ACCEPTED]
DIGESTS = {}
"""The digests of the first session that has computed them, by type."""


def function_of(number, type_):
    rows = " union all ".join(
        f"select {at} n, cast({value.sql} as {type_}) v"
        if type_.isidentifier() and type_ != "void"
        else f"select {at} n, {value.sql} v"
        for at, value in enumerate(by_type()[type_])
    )
    return f"def type_{number}(ctx):\n    return ctx.spark.sql({rows!r}).coalesce(1)\n"


TYPES = list(by_type())
MODULE = "def nothing(ctx):\n    pass\n" + "".join(function_of(at, type_) for at, type_ in enumerate(TYPES))


def stage_of(jobs, module, type_):
    at = TYPES.index(type_)
    return jobs.stage(f"type_{at}", f"{module}:type_{at}", jobs.output(f"type_{at}"), is_source=True)


@pytest.fixture(scope="module")
def code(code_of):
    return code_of(MODULE)


@pytest.fixture(scope="module")
def written(engine, jobs, code, store):
    """What a region has written, by type."""
    module, packed = code
    job = jobs.region(*(stage_of(jobs, module, type_) for type_ in ACCEPTED), code=packed)
    report = engine.run(job, store)
    return dict(zip(ACCEPTED, (Written(each, store) for each in report.outputs), strict=True))


def test_a_result_has_the_values_that_went_in_and_both_sessions_give_equal_digests(written):
    found = {type_: of_arrow(each.arrow()["v"]) for type_, each in written.items()}
    assert found == {type_: [value.found for value in values] for type_, values in ACCEPTED.items()}
    digests = {type_: str(each.report.digest) for type_, each in written.items()}
    assert DIGESTS.setdefault("first", digests) == digests


@pytest.mark.parametrize("type_", REFUSED)
def test_a_type_without_a_digest_is_refused_in_one_try(engine, jobs, code, store, type_):
    module, packed = code
    with pytest.raises(Refused) as refused:
        engine.run(jobs.region(stage_of(jobs, module, type_), code=packed), store)
    assert refused.value.kind == "Misconfigured"


@pytest.mark.parametrize("place", PLACES)
def test_a_target_gives_back_the_values_that_went_in_or_refuses_them_before_it_shows_anything(
    written, request, tmp_path, place
):
    target = PLACES[place](tmp_path, request)
    found = {type_: tried(target, place, written[type_], values) for type_, values in ACCEPTED.items()}
    right = {type_: outcome(place, values) for type_, values in ACCEPTED.items()}
    assert {type_: (found[type_], right[type_]) for type_ in right if found[type_] != right[type_]} == {}


def tried(target, place, whole, values):
    """What comes back of the values that a place takes, and what becomes of each that it refuses."""
    taken = [at for at, value in enumerate(values) if place not in value.refused]
    published = target.published(whole.version(taken)) if taken else []
    others = [values[at].what for at in range(len(values)) if at not in taken and target.refuses(whole.version([at]))]
    return published, others


def outcome(place, values):
    taken = [value.found for value in values if place not in value.refused]
    return taken, [value.what for value in values if place in value.refused]


def test_every_place_that_refuses_is_one_that_is_tried():
    assert {place for value in VALUES for place in value.refused} <= {*PLACES, REGION}
