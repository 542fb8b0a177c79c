"""Which key types meet: those of all inputs that one stage reads by key, as Spark hashes them."""

import json

import pytest
from tests.messages.kinds import of_kind

from weir.dataflow.key_types import key_types, require_equal_key_types, require_key_of
from weir.errors import Misconfigured


def schema(**types):
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in types.items()]
    return json.dumps({"type": "struct", "fields": fields})


@pytest.mark.parametrize(
    ("kind", "canonical"),
    [
        ("byte", "bigint"),
        ("short", "bigint"),
        ("integer", "bigint"),
        ("long", "bigint"),
        ("string", "string"),
        ("boolean", "boolean"),
        ("date", "date"),
        ("timestamp", "timestamp"),
        ("binary", "binary"),
    ],
)
def test_a_key_is_hashed_as_its_canonical_type(kind, canonical):
    assert key_types(schema(k=kind), ("k",), "x") == (canonical,)


@pytest.mark.parametrize("kind", ["double", "decimal(10,2)", {"type": "array", "elementType": "long"}])
def test_what_has_no_canonical_type_is_no_key(kind):
    with pytest.raises(Misconfigured):
        key_types(schema(k=kind), ("k",), "x")


def test_columns_are_found_as_spark_finds_them_and_missed_by_name():
    assert key_types(schema(Origin="string"), ("origin",), "x") == ("string",)
    with pytest.raises(
        Misconfigured,
        check=of_kind("dataflow.column_missing", columns=["id", "day"], missing=["k"], where="the result of stage a"),
    ):
        key_types(schema(id="long", day="date"), ("k",), "the result of stage a")


def test_equal_types_of_other_names_meet():
    require_equal_key_types("joined", {"a": (("id",), ("bigint",)), "b": (("number",), ("bigint",))})
    require_equal_key_types("joined", {"a": (("id",), ("bigint",))})
    require_equal_key_types("joined", {})


def test_other_types_do_not_and_each_is_named_with_its_columns():
    with pytest.raises(
        Misconfigured,
        check=of_kind("dataflow.key_types_differ", inputs="a by id (bigint); b by id (string)", stage="joined"),
    ):
        require_equal_key_types("joined", {"a": (("id",), ("bigint",)), "b": (("id",), ("string",))})


@pytest.mark.parametrize(
    ("found", "declared"),
    [("int", "bigint"), ("bigint", "tinyint"), ("string", "string"), ("timestamp_ntz", "timestamp")],
)
def test_keys_of_one_kind_are_asked_for_whatever_their_width(found, declared):
    require_key_of(found, declared, "k")


@pytest.mark.parametrize(
    ("found", "declared"),
    [
        ("string", "bigint"),
        ("bigint", "string"),
        ("date", "timestamp"),
        ("boolean", "int"),
        ("binary", "string"),
        ("double", "bigint"),
        ("decimal(20,0)", "bigint"),
        ("string collate UTF8_LCASE", "string"),
        ("char(3)", "string"),
    ],
)
def test_keys_of_another_kind_are_refused_by_name(found, declared):
    with pytest.raises(Misconfigured) as error:
        require_key_of(found, declared, "k")
    assert f"its key k is {declared}, but the rows have {found}" in str(error.value)
