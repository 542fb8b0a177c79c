"""Paths in the store: what is built is parsed again."""

import pytest

from weir.formats.paths import (
    COPY,
    AttemptRecordPath,
    ResultPath,
    attempt_of_folder,
    attempt_record_folder,
    copies_folder,
    dataflow_of_path,
    is_below_dataflow,
    parse_attempt_path,
    pointer_path,
    record_path,
    result_folder,
)

EPOCH, ATTEMPT = "20130101T000000Z", "t0001-4f"


@pytest.mark.parametrize("below", ["", "/part-0.parquet", "/m0/part-0.parquet"])
def test_the_path_of_a_result_and_of_its_files_names_stage_layout_and_attempt(below):
    folder = result_folder("flow", EPOCH, "rows", "plain", 3, ATTEMPT)
    found = parse_attempt_path(folder + below)
    assert folder == f"flow/{EPOCH}/rows/plain/3/{ATTEMPT}"
    assert found == ResultPath(dataflow="flow", epoch=EPOCH, stage="rows", layout="plain", subtask="3", attempt=ATTEMPT)
    assert str(found) == folder
    assert not found.is_copy
    assert attempt_of_folder(folder) == ATTEMPT


def test_the_copy_of_a_cached_stage_is_told_from_a_result():
    folder = result_folder("flow", EPOCH, "rows", COPY, 3, ATTEMPT)
    assert folder == f"{copies_folder('flow', EPOCH, 'rows', 3)}/{ATTEMPT}"
    assert parse_attempt_path(folder).is_copy


def test_the_record_of_an_attempt_names_its_region():
    folder = attempt_record_folder("flow", EPOCH, "rows-out", 3, ATTEMPT)
    found = parse_attempt_path(f"{folder}/report.json")
    assert folder == f"flow/{EPOCH}/_regions/rows-out/3/{ATTEMPT}"
    assert found == AttemptRecordPath(dataflow="flow", epoch=EPOCH, region="rows-out", subtask="3", attempt=ATTEMPT)
    assert str(found) == folder


@pytest.mark.parametrize(
    "path",
    [
        "flow",
        record_path("flow", EPOCH),
        f"flow/{EPOCH}/rows/plain/3",
        f"flow/{EPOCH}/.hidden/plain/3/{ATTEMPT}",
        f"flow/{EPOCH}/_other/plain/3/{ATTEMPT}",
    ],
)
def test_a_path_where_no_attempt_writes_is_not_parsed(path):
    assert parse_attempt_path(path) is None


def test_a_path_belongs_to_the_dataflow_whose_folder_it_is_below():
    path = result_folder("flow", EPOCH, "rows", "plain", 3, ATTEMPT)
    assert dataflow_of_path(path) == "flow"
    assert is_below_dataflow(path, "flow")
    assert not is_below_dataflow(path, "flo")
    assert not is_below_dataflow(pointer_path("flow", "out", EPOCH, 1), "flow")
