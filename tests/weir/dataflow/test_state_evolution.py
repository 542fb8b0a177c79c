"""Which states can go on under another declaration, and what the first epoch of it does."""

import pytest
from tests.messages.kinds import of_kind

from weir.dataflow import Dataflow, Stage, blocking, broadcast_state, keyed_state, list_state, sink, source
from weir.dataflow.state_evolution import Evolution, evolution, incompatibilities, require_compatible
from weir.errors import Misconfigured

COLUMNS = "k STRING, n INT, x FLOAT, d DECIMAL(7, 2), s STRUCT<a: INT>"


def history(schema=COLUMNS, name="history", key="k", **more):
    return keyed_state(name, key=key, schema=schema, **more)


def flow(*states, **more):
    keys = (states[0].divided_by if states else ()) or "k"
    stage = Stage("aircraft", "p:aircraft", [blocking("flights", by=keys)], state=states)
    return Dataflow("delays", [source("flights", "p:flights"), stage, sink("aircraft", "known")], **more)


def refused(new, old=None):
    return "; ".join(incompatibilities(flow(old or history()), flow(new)))


@pytest.mark.parametrize(
    "schema",
    [
        COLUMNS,
        COLUMNS.replace("n INT", "n BIGINT"),
        COLUMNS.replace("x FLOAT", "x DOUBLE"),
        COLUMNS.replace("(7, 2)", "(12, 2)"),
        COLUMNS.replace("a: INT", "a: BIGINT, b: STRING"),
        f"{COLUMNS}, more ARRAY<STRING>",
        "more DATE, s STRUCT<a: INT>, k STRING",
    ],
)
def test_columns_may_be_added_dropped_moved_and_widened(schema):
    assert refused(history(schema)) == ""


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (COLUMNS.replace("n INT", "n SMALLINT"), "the column n was int and is now smallint"),
        (COLUMNS.replace("n INT", "n STRING"), "the column n was int and is now string"),
        (COLUMNS.replace("x FLOAT", "x DECIMAL(9, 2)"), "the column x was float and is now decimal(9,2)"),
        (COLUMNS.replace("(7, 2)", "(7, 3)"), "the column d was decimal(7,2) and is now decimal(7,3)"),
        (COLUMNS.replace("a: INT", "b: INT"), "the column s was struct<a:int> and is now struct<b:int>"),
        (f"{COLUMNS}, more INT NOT NULL", "the new column more is NOT NULL"),
        (COLUMNS.replace("n INT", "N INT"), "the column n is now spelled N"),
        (COLUMNS.replace("k STRING", "k BINARY"), "the key column k was string and is now binary: a key's type"),
    ],
)
def test_other_changes_of_columns_are_refused_with_both_schemas(schema, why):
    told = refused(history(schema))
    assert why in told
    assert "It was written with (k string, n int, x float, d decimal(7,2), s struct<a:int>), and is declared" in told


def test_a_key_does_not_even_become_wider():
    ints, longs = history("k INT, n INT"), history("k BIGINT, n INT")
    assert "the key column k was int and is now bigint" in refused(longs, ints)


def test_other_keys_other_kinds_and_other_key_groups_are_refused():
    assert "is kept by k, not by n" in refused(history(key="n"))
    assert "was a keyed state and is now a split one" in refused(list_state("history"))
    told = "; ".join(incompatibilities(flow(history()), flow(history(), max_parallelism=64)))
    assert "is divided into 128 key groups, and max_parallelism is 64: write max_parallelism=128" in told


def test_a_time_to_live_may_change_but_neither_come_nor_go():
    assert refused(history(ttl="3 days"), history(ttl="7 days")) == ""
    assert refused(history(ttl="9 days"), history(ttl="7 days")) == ""
    assert 'had no ttl and now has ttl="7 days"' in refused(history(ttl="7 days"))
    assert 'had ttl="7 days" and now has no ttl' in refused(history(), history(ttl="7 days"))


def test_what_says_how_a_state_is_stored_may_change():
    assert refused(history(runs=3, budget="1 MB", incremental="auto")) == ""


def test_a_state_that_is_gone_is_refused_unless_it_is_left_out_and_a_new_one_is_not():
    old, new = flow(history()), flow(history(name="other"))
    assert list(incompatibilities(old, new, left_out={"history"})) == []
    assert list(incompatibilities(flow(), new)) == []
    with pytest.raises(Misconfigured, match="run b cannot go on from the state of run a: state 'history' is not") as e:
        require_compatible(old, new, "run a", "run b")
    assert "it keeps other" in str(e.value)
    assert "weir restore delays CHECKPOINT --allow-non-restored-state" in str(e.value)
    assert "would be lost" in "; ".join(incompatibilities(old, flow()))


def test_all_that_is_wrong_is_told_at_once():
    old = flow(history(), broadcast_state("rates", schema="c STRING, rate DOUBLE"))
    new = flow(history(key="n"), broadcast_state("rates", schema="c STRING, rate FLOAT"))
    with pytest.raises(Misconfigured) as error:
        require_compatible(old, new, "run a", "run b")
    assert str(error.value).count("\n- ") == 2


def test_equal_operator_state_may_be_spelled_otherwise():
    rates = broadcast_state("rates", schema="c STRING, n LONG")
    assert refused(broadcast_state("rates", schema="c string, n bigint"), rates) == ""


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (history(), history(), Evolution()),
        (history(), history(COLUMNS.lower()), Evolution()),
        (history(), history(f"{COLUMNS}, more DATE"), Evolution(is_changed=True, is_exact=True)),
        (history(), history(COLUMNS.replace("n INT", "n LONG")), Evolution(is_changed=True, is_exact=True)),
        (history(), history("k STRING, n INT"), Evolution(is_changed=True, is_exact=True, is_rewritten=True)),
        (history(ttl="7 days"), history(ttl="2 days"), Evolution(is_exact=True)),
        (history(ttl="7 days"), history(ttl="8 days"), Evolution(is_rewritten=True, is_exact=True)),
        (list_state("history"), list_state("history"), Evolution()),
    ],
)
def test_the_first_epoch_of_a_declaration_digests_anew_and_rewrites_only_what_it_must(old, new, expected):
    assert evolution(old, new) == expected


@pytest.mark.parametrize(
    ("state", "why"),
    [
        (history("n INT"), "its schema has no key column 'k'"),
        (history("k DOUBLE, n INT"), "a key column cannot be of type double"),
        (history("k STRING, _weir_deleted BOOLEAN"), "reserved for Weir's own columns"),
        (history("k STRING n INT"), "has 'n' where ',' was expected"),
        (history(runs=1), "runs must be a whole number of at least 2"),
        (history(ttl="soon"), "soon"),
        (history(name="aircraft"), "the state 'aircraft' of stage 'aircraft' has the name of a stage: give one"),
        (history(name="known"), "the sink 'known' has the name of a state: give the data set another name"),
        (history(name="flights"), "an input of the stage has that name, too"),
    ],
)
def test_a_state_that_cannot_be_kept_is_refused_where_it_is_declared(state, why):
    with pytest.raises(Misconfigured, check=of_kind("dataflow.invalid", dataflow="delays")) as error:
        flow(state)
    assert why in str(error.value)


def test_a_key_that_becomes_that_of_maps_is_another_key():
    maps = history(map_key="n")
    assert "state 'history' is kept by k, not by k, map_key=n: give the new one another name" in refused(maps)
    assert "is kept by k, map_key=n, not by k, n" in refused(history(key=["k", "n"]), maps)
    assert refused(maps, maps) == ""
