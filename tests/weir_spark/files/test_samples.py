"""A sample's values are as it says them, or it is refused."""

from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from weir.formats.programs import Sample
from weir_spark.region.trial import rows_of_sample, told

pytestmark = pytest.mark.spark


@pytest.fixture
def read(spark, tmp_path):
    def write_and_read(name, content):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        form = name.partition("/")[0].rpartition(".")[2]
        folder = path.parent if "/" in name else path
        return rows_of_sample(spark, Sample("orders", str(folder), form)).collect()

    return write_and_read


def test_values_are_read_as_they_stand(read, spark, tmp_path):
    (row,) = read("a [1].csv", 'id,said,x,big\n1,"He ""said""",0.30000000000000004,12345678901234567890123\n')
    assert tuple(row) == (1, 'He "said"', 0.30000000000000004, Decimal("12345678901234567890123"))
    (row,) = read("a.json", '{"n":9223372036854775808,"at":"x","s":{"x":1}}\n')
    assert row.n == Decimal("9223372036854775808")
    folder = tmp_path / "merged.parquet"
    folder.mkdir()
    pq.write_table(pa.table({"id": [1]}), folder / "a.parquet")
    pq.write_table(pa.table({"id": [2], "tip": ["x"]}), folder / "b.parquet")
    rows = rows_of_sample(spark, Sample("orders", str(folder), "parquet")).collect()
    assert sorted(map(tuple, rows)) == [(1, None), (2, "x")]


REFUSED = {
    "digits": ("a.csv", f"id\n{'9' * 40}\n", "guessed to be DOUBLE"),
    "fraction": ("b.csv", "id\n1234567890123456789.5\n", "guessed to be DOUBLE"),
    "beyond": ("c.csv", "id\n1e400\n", "guessed to be DOUBLE"),
    "nanoseconds": ("d.csv", "at\n2013-01-01 10:00:00.123456789\n2013-01-01 10:00:00\n", "guessed to be TIMESTAMP"),
    "json": ("e.json", '{"n":1234567890123456789.5}\n', "guessed to be DOUBLE"),
    "short line": ("f.csv", "id,name\n1,x\n2\n", "does not fit"),
    "quote": ("g.csv", 'id\n"a\nb"\n', "ends within quotes"),
    "encoding": ("h.csv", "id\ncafé\n".encode("latin-1"), "no UTF-8"),
    "twice": ("i.json", '{"a":1,"a":2}\n', "already exists"),
    "no JSON": ("j.json", '{"a":1}\n{"a":\n', "does not fit"),
}


def test_values_that_spark_would_change_are_refused(read):
    for name, content, said in REFUSED.values():
        with pytest.raises(Exception) as error:  # noqa: PT011  it is told
            print(read(name, content))
        assert said in (told(error.value) or str(error.value))


def test_a_text_of_parquet_that_is_none_is_refused(spark, tmp_path):
    folder = tmp_path / "texts.parquet"
    folder.mkdir()
    text = pa.array([b"\xff"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"name": text}), folder / "a.parquet")
    with pytest.raises(Exception) as error:  # noqa: PT011  it is told
        rows_of_sample(spark, Sample("orders", str(folder), "parquet")).selectExpr("upper(name)").collect()
    assert "a.parquet" in told(error.value)
