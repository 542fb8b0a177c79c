"""Tables and published folders below awkward names: every row is read back, by Spark and by those who know no Weir."""

import duckdb
import pandas as pd
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from tests.messages.kinds import of_kind
from tests.weir_spark.sources.conftest import resolved
from tests.weir_spark.sources.test_iceberg import ORDERS, Lake

from weir.connections import Connection
from weir.dataflow import delta_source, files, files_source, iceberg
from weir.errors import Misconfigured
from weir.sinks.targets.files import FilesTarget
from weir.sinks.targets.iceberg import IcebergTarget
from weir.testing.sink_contract import LocalReach, Versions
from weir_spark.files.paths import spark_path

FOR_ALL = ["my lake 50% a+b", "at:10 ä日本 a,b;c"]
FOR_DELTA = "h#1 q?x {x} w*"
FOR_ICEBERG = "br[1] a^b|c {x} w*"


@pytest.mark.spark
def test_tables_below_awkward_names_are_read(tmp_path, attempt):
    p = ["a b/%20+", "x", None, "2013-01-01 00:00:00"]
    rows = pa.table({"v": pa.array(range(4), pa.int64()), "p": p})
    for name in [*FOR_ALL, FOR_DELTA]:
        path = str(tmp_path / name / "t")
        write_deltalake(path, rows, partition_by=["p"])
        stage = delta_source("orders", path)
        assert attempt.rows(stage, resolved(stage)) == list(enumerate(p)), name
    for name in [*FOR_ALL, FOR_ICEBERG]:
        lake = Lake(tmp_path / f"{name} of Iceberg", [("v", pa.int64()), ("p", pa.string())], ["p"])
        lake.append(v=rows["v"], p=rows["p"])
        splits = resolved(ORDERS, lake.connection)
        assert attempt.rows(ORDERS, splits, lake.connection) == list(enumerate(p)), name


@pytest.mark.spark
def test_what_a_files_sink_publishes_below_awkward_names_is_read_back(tmp_path, attempt):
    versions = Versions(tmp_path / "versions")
    versions.folder.mkdir()
    names = [*FOR_ALL, FOR_DELTA, f"{FOR_ICEBERG} 50%20off"]
    for epoch in ("20130101T000000Z", "20130102T053000Z"):
        version = versions.version(1, [(1, "a")], [(2, "b")], epoch=epoch)
        for name in names:
            path = tmp_path / "lakes" / name / "delays"
            path.parent.mkdir(parents=True, exist_ok=True)
            target = FilesTarget(files(str(path)).options, LocalReach(versions.folder))
            target.commit(version, target.prepare(version, None))
    for name in names:
        path = str(tmp_path / "lakes" / name / "delays")
        seen = {(epoch, k) for epoch in ("2013-01-01 00:00:00", "2013-01-02 05:30:00") for k in (1, 2)}
        by_spark = attempt.spark.read.parquet(spark_path(path)).selectExpr("string(epoch) epoch", "k").collect()
        assert {(row.epoch, row.k) for row in by_spark} == seen, name
        assert sorted(pd.read_parquet(f"{path}/epoch=2013-01-01")["k"]) == [1, 2], name
        pattern = "".join(f"[{each}]" if each in "*?[" else each for each in path) + "/epoch=*/*.parquet"
        by_duckdb = duckdb.sql(f"select k from read_parquet('{pattern}')").fetchall()  # noqa: S608
        assert sorted(by_duckdb) == [(1,), (1,), (2,), (2,)], name
        stage = files_source("read", pattern.replace("{", "{{").replace("}", "}}"), schema="k BIGINT, s STRING")
        assert attempt.rows(stage, resolved(stage)) == [(1, "a"), (1, "a"), (2, "b"), (2, "b")], name


@pytest.mark.parametrize("name", ["h#1", "q?x"])
def test_a_warehouse_that_pyiceberg_would_cut_off_is_refused(tmp_path, name):
    extra = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/{name}"}
    connection = Connection(id="lake", kind="iceberg", extra=extra)
    with pytest.raises(Misconfigured, check=of_kind("catalogs.path_is_read_otherwise")):
        resolved(ORDERS, connection)
    sink = IcebergTarget(iceberg("lake.db.t", create="if_missing").options, LocalReach(tmp_path, connection))
    with pytest.raises(Misconfigured, check=of_kind("catalogs.path_is_read_otherwise")):
        sink.prepare(Versions(tmp_path).version(1, [(1, "a")]), None)
    assert not (tmp_path / name[0]).exists()
