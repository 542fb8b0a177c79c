"""The pointer to a published version."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.messages.kinds import of_kind

from weir.errors import Misconfigured
from weir.formats.pointer import Pointer, PublishedPartition, pointer_from_json

GOLDEN = Path(__file__).parents[2] / "golden"
POINTER = Pointer(
    dataflow="ladder",
    sink="delays",
    epoch="20130101T000000Z",
    version=3,
    attempt="t0001-0123456789ab",
    spark_schema="{}",
    partitions=(PublishedPartition(0, "ladder/20130101T000000Z/report/plain/0/t", ("part-0.parquet",), 7, "d"),),
    published_at="2013-01-02T00:00:09+00:00",
    ledger="0f0e0d0c-0b0a-4908-8706-050403020100",
    revision=41,
    deliveries=({"target": {"kind": "files", "options": {}}, "version": {}, "token": {}},),
    lacks="its run is not closed",
)


def test_the_format_on_disk_is_that_of_the_golden_file():
    assert POINTER.to_json() == (GOLDEN / "pointer-v1.json").read_bytes()


@pytest.mark.parametrize("pointer", [POINTER, replace(POINTER, deliveries=())])
def test_a_pointer_comes_back_as_it_was(pointer):
    assert pointer_from_json(pointer.to_json()) == pointer


def test_an_unknown_format_is_refused():
    document = json.loads(POINTER.to_json()) | {"format": 4}
    with pytest.raises(Misconfigured, check=of_kind("formats.pointer_of_other_format", form=4, format="1")):
        pointer_from_json(json.dumps(document).encode())
