"""A store, and engines of it, for tests that submit."""

from __future__ import annotations

import pytest

from weir.store.store import Store


@pytest.fixture
def store(tmp_path):
    opened = Store.open(str(tmp_path / "the store"))
    opened.initialise()
    return opened


@pytest.fixture
def engine(store):
    """Make an engine for a connection: spark-submit on this machine, if nothing else is said."""
    from airflow.sdk import Connection

    from weir_airflow.engines.engines import engine_for

    def make(conn_type="spark", host="local[2]", **more):
        return engine_for(Connection(conn_id="spark_default", conn_type=conn_type, host=host, **more), store, {})

    return make


@pytest.fixture(scope="session")
def yarn_server(hdfs_server, tmp_path_factory):
    """The one YARN that tests of each commit share, of one node; they are skipped where its jars cannot be had."""
    from tests.servers.java import JarsMissing
    from tests.servers.yarn.cluster import running_yarn

    try:
        with running_yarn(hdfs_server, tmp_path_factory.mktemp("yarn"), nodes=1) as server:
            yield server
    except JarsMissing as missing:
        pytest.skip(str(missing))
