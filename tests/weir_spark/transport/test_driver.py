"""What a submitted driver finds in its environment."""

import pytest

from weir.errors import Misconfigured
from weir_spark.transport.driver import connection_of_driver


def test_a_driver_has_the_connections_of_its_environment(monkeypatch):
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", "postgres://me:hunter22@db/shop")
    assert connection_of_driver("shop").password == "hunter22"


def test_a_driver_in_a_cluster_says_how_it_gets_a_connection():
    name = r"spark\.kubernetes\.driver\.secretKeyRef\.AIRFLOW_CONN_SHOP .*spark\.yarn\.appMasterEnv\.AIRFLOW_CONN_SHOP"
    with pytest.raises(Misconfigured, match=name):
        connection_of_driver("shop")
