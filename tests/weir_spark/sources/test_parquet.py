"""Files of several partitions as one scan: each row has the values of its own file."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from weir_spark.files.failures import refusal_in
from weir_spark.files.paths import spark_path
from weir_spark.sources.parquet import read_groups

pytestmark = pytest.mark.spark

FIELDS = [
    {"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in (("v", "long"), ("s", "string"))
]


@pytest.mark.parametrize(
    "names", [("a.parquet", "b.parquet"), ("p.parquet", "p.parquet"), ("a+b%20 ü.parquet", "c[1].parquet")]
)
def test_each_row_has_the_values_of_its_file_whatever_that_is_called(spark, tmp_path, names):
    groups = []
    for number, name in enumerate(names):
        folder = tmp_path / f"s={number} +%2B[x]"
        folder.mkdir()
        pq.write_table(pa.table({"v": [number, number]}), folder / name)
        groups.append({"values": {"s": (None, "b")[number]}, "files": [spark_path(str(folder / name))]})
    pq.write_table(pa.table({"v": [7], "s": ["own"]}), tmp_path / "z.parquet")
    groups.append({"values": {}, "files": [spark_path(str(tmp_path / "z.parquet"))]})
    read = read_groups(spark, {"type": "struct", "fields": FIELDS}, groups, "it")
    assert sorted(map(tuple, read.collect())) == [(0, None), (0, None), (1, "b"), (1, "b"), (7, "own")]
    assert [tuple(row) for row in read.where("s = 'b'").select("v").collect()] == [(1,), (1,)]


def test_a_text_that_is_none_is_refused_where_it_is_used(spark, tmp_path):
    """As a table's files may have it: Spark's functions make one text of two."""
    file = tmp_path / "a.parquet"
    text = pa.array([b"a", b"\xff"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"v": [1, 2], "s": text}), file)
    groups = [{"values": {}, "files": [spark_path(str(file))]}]
    read = read_groups(spark, {"type": "struct", "fields": FIELDS}, groups, "it")
    assert [tuple(row) for row in read.select("v").orderBy("v").collect()] == [(1,), (2,)]
    with pytest.raises(Exception) as error:  # noqa: PT011  it is told
        read.selectExpr("upper(s)").collect()
    assert refusal_in(error.value).endswith(str(file))
