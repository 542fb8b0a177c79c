"""How files are divided among subtasks."""

import pytest
from tests.messages.kinds import of_kind

from weir.errors import Misconfigured
from weir_spark.files.paths import spark_path
from weir_spark.sources.splits import LiveFile, shares, table_splits

SCHEMA = {"type": "struct", "fields": [{"name": "v", "type": "long", "nullable": True, "metadata": {}}]}


@pytest.mark.parametrize(
    ("sizes", "parallelism", "expected"),
    [
        ([5, 5, 5, 5], 2, [[5, 5], [5, 5]]),
        ([1, 1, 1, 9], 2, [[1, 1, 1], [9]]),
        ([9, 1, 1, 1], 2, [[9], [1, 1, 1]]),
        ([7], 3, [[], [7], []]),
        ([], 2, [[], []]),
        ([0, 0], 2, [[0, 0], []]),
    ],
)
def test_neighbours_stay_together_and_sizes_are_about_equal(sizes, parallelism, expected):
    assert shares([(size, size) for size in sizes], parallelism) == expected


def test_a_split_names_files_by_the_values_of_their_partition():
    files = [LiveFile(f"/t/{day}/{n}.parquet", 10, (("day", day),)) for n in (2, 1) for day in ("b", None)]
    first, second = table_splits(files, 2, SCHEMA, "version 3 of t", version=3)
    assert first["groups"] == [{"values": {"day": None}, "files": [f"file:///t/None/{n}.parquet" for n in (1, 2)]}]
    assert second["groups"] == [{"values": {"day": "b"}, "files": [f"file:///t/b/{n}.parquet" for n in (1, 2)]}]
    assert (first["version"], first["reads"]) == (3, "version 3 of t: 4 file(s), 40 bytes")


def test_a_file_that_spark_would_leave_out_is_refused():
    with pytest.raises(Misconfigured, check=of_kind("sources.table_file_hidden", hidden="/t/_a.parquet")):
        table_splits([LiveFile("/t/_a.parquet", 1)], 1, SCHEMA, "version 3 of t")


@pytest.mark.parametrize("path", ["/at:10/br[1]/a.parquet", "/q?x/at:10/a.parquet", "s3://lake/{x}/a:b/a.parquet"])
def test_a_file_that_hadoop_cannot_have_is_refused(path):
    with pytest.raises(Misconfigured, check=of_kind("sources.table_path_unfit")):
        table_splits([LiveFile(path, 1)], 1, SCHEMA, "version 3 of t")


@pytest.mark.parametrize("path", ["/at:10/a.parquet", "/br[1]/a.parquet", "s3://lake/{x}/a.parquet", "file:///w*/a"])
def test_a_colon_or_a_pattern_alone_is_read(path):
    assert table_splits([LiveFile(path, 1)], 1, SCHEMA, "version 3 of t")[0]["groups"]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/a b/c[1]", "file:///a b/c\\[1\\]"),
        ("s3://b/k", "s3a://b/k"),
        ("file:///a", "file:///a"),
        ("file:/a", "file:/a"),
    ],
)
def test_spark_spells_paths_its_own_way(path, expected):
    assert spark_path(path) == expected
