"""Connections lead to engines."""

from __future__ import annotations

import json

import pytest

from weir.errors import Misconfigured


def connection(**fields):
    from airflow.sdk import Connection

    return Connection(conn_id="spark_connect_weir", **({"conn_type": "spark_connect"} | fields))


@pytest.mark.parametrize(
    ("fields", "address"),
    [
        ({"host": "spark", "port": 15002}, "sc://spark:15002"),
        ({"host": "sc://spark/", "port": 15002}, "sc://spark:15002"),
        ({"host": "spark:15003"}, "sc://spark:15003"),
    ],
)
def test_the_address_is_that_of_the_connection(fields, address):
    from weir_airflow.engines import engine_address

    assert engine_address(connection(**fields)) == address


def test_the_address_that_goes_into_the_ledger_holds_no_secret():
    from weir_airflow.engines import engine_address

    assert "hush" not in engine_address(connection(host="spark", port=1, login="me", password="hush"))


def test_the_engine_gets_the_account_and_a_user_that_all_workers_share():
    from weir_airflow.engines import engine_for

    secured = connection(host="spark", port=1, password="h;sh", extra=json.dumps({"use_ssl": True}))
    assert engine_for(secured).url == "sc://spark:1/;user_id=weir;token=h%3Bsh;use_ssl=true"


def test_the_engine_of_a_recorded_address_uses_the_account_of_the_connection():
    from weir_airflow.engines import engine_for

    engine = engine_for(connection(host="new", port=1, login="me"), "sc://old:2")
    assert engine.url == "sc://old:2/;user_id=me"


def test_another_type_of_connection_is_refused_with_what_to_use():
    from weir_airflow.engines import engine_address

    with pytest.raises(Misconfigured, match="has the type 'livy'; Weir computes with 'spark_connect' only"):
        engine_address(connection(conn_type="livy", host="spark"))


def test_a_connection_without_a_host_is_refused():
    from weir_airflow.engines import engine_address

    with pytest.raises(Misconfigured, match="has no host"):
        engine_address(connection())
