"""Connections lead to engines."""

from __future__ import annotations

import json

import pytest
from tests.messages.kinds import of_kind

from weir.coordination.values import SparkWork
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
    from weir_airflow.engines.engines import engine_address

    assert engine_address(connection(**fields)) == address


def test_the_address_that_goes_into_the_ledger_holds_no_secret():
    from weir_airflow.engines.engines import engine_address

    assert "hush" not in engine_address(connection(host="spark", port=1, login="me", password="hush"))


def test_the_engine_gets_the_account_and_a_user_that_all_workers_share(store):
    from weir_airflow.engines.engines import engine_for

    secured = connection(host="spark", port=1, password="h;sh", extra=json.dumps({"use_ssl": True}))
    assert engine_for(secured, store, {}).url == "sc://spark:1/;user_id=weir;token=h%3Bsh;use_ssl=true"


def test_the_engine_of_a_recorded_address_uses_the_account_of_the_connection(store):
    from weir_airflow.engines.engines import engine_at

    engine = engine_at("sc://old:2", connection(host="new", port=1, login="me"), store, {})
    assert engine.url == "sc://old:2/;user_id=me"


def test_an_account_of_another_type_is_not_given_to_a_connect_server(store):
    from weir_airflow.engines.engines import engine_at

    submitting = connection(conn_type="spark", host="yarn", login="me", password="hush")
    assert engine_at("sc://old:2", submitting, store, {}).url == "sc://old:2/;user_id=weir"


def test_a_connection_is_of_the_kind_of_the_addresses_that_it_leads_to():
    from weir_airflow.engines.engines import is_of_kind

    connect, submitting = connection(host="spark", port=1), connection(conn_type="spark", host="yarn")
    assert is_of_kind(connect, "sc://elsewhere:2")
    assert not is_of_kind(submitting, "sc://elsewhere:2")
    assert is_of_kind(submitting, "spark-submit:spark://master:7077")


def test_submitted_work_is_interrupted_by_a_file_whatever_the_present_connection_is(store):
    from weir_airflow.engines.engines import engine_at

    work = SparkWork("t0001-a", "spark-submit:yarn", "s", "flow/e/_regions/r/0/t0001-a")
    for _ in range(2):
        engine_at(work.session_url, connection(host="spark", port=1), store, {}).interrupt(work)
    assert store.size("flow/e/_regions/r/0/t0001-a/stop") == 0


@pytest.mark.parametrize(
    ("fields", "address"),
    [
        ({"host": "spark://master:7077"}, "spark-submit:spark://master:7077"),
        ({"host": "spark://master", "port": 7077}, "spark-submit:spark://master:7077"),
        ({"host": "master", "port": 7077}, "spark-submit:spark://master:7077"),
        ({"host": "local[2]"}, "spark-submit:local[2]"),
        ({"host": "yarn", "extra": '{"deploy-mode": "cluster"}'}, "spark-submit:yarn"),
        ({"host": "k8s://https://kube", "port": 443}, "spark-submit:k8s://https://kube:443"),
        ({"conn_type": "k8s", "host": "https://kube", "port": 443}, "spark-submit:k8s://https://kube:443"),
    ],
)
def test_the_address_of_submitted_regions_is_the_master_as_the_providers_hook_spells_it(fields, address):
    from weir_airflow.engines.engines import engine_address
    from weir_airflow.engines.submission import Submission

    given = connection(**{"conn_type": "spark"} | fields)
    assert engine_address(given) == address
    if "k8s" not in address:  # the hook wants Kubernetes' own packages at once
        hook = Submission(given, deploy_mode="client", on_progress=print)._hook
        assert f"spark-submit:{hook._connection['master']}" == address


@pytest.mark.parametrize("master", ["spark://master:7077", "local[2]"])
def test_a_python_driver_in_a_cluster_that_spark_refuses_is_refused_before_anything_starts(master):
    from weir_airflow.engines.engines import engine_address

    with pytest.raises(Misconfigured, check=of_kind("engines.master_unfit_for_cluster")):
        engine_address(connection(conn_type="spark", host=master, extra='{"deploy-mode": "cluster"}'))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"host": ""}, of_kind("engines.master_missing")),
        ({"host": "yarn", "extra": '{"deploy-mode": "x"}'}, of_kind("engines.deploy_mode_unknown", found="x")),
    ],
)
def test_a_connection_that_cannot_submit_is_refused_with_what_to_set(fields, message):
    from weir_airflow.engines.engines import engine_address

    with pytest.raises(Misconfigured, check=message):
        engine_address(connection(**{"conn_type": "spark"} | fields))


def test_another_type_of_connection_is_refused_with_what_to_use():
    from weir_airflow.engines.engines import engine_address

    with pytest.raises(
        Misconfigured,
        check=of_kind("engines.connection_of_other_type", conn_type="livy", spark_connect="spark_connect"),
    ):
        engine_address(connection(conn_type="livy", host="spark"))


def test_a_connection_without_a_host_is_refused():
    from weir_airflow.engines.engines import engine_address

    with pytest.raises(Misconfigured, check=of_kind("engines.connect_host_missing")):
        engine_address(connection())
