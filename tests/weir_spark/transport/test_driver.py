"""What a submitted driver finds: in its environment, at the task that has started it, or nowhere."""

from secrets import token_hex
from urllib.parse import quote

import pytest
from tests.messages.kinds import of_kind

from weir.connections import FROM_ENVIRONMENT, Connection, LookUps, answering
from weir.errors import Misconfigured, Retryable
from weir_spark.transport.driver import look_ups_of_driver

SHOP = Connection(id="shop", kind="postgres", host="db", password="hunter22", extra={"sslmode": "require"})


def of_task(conn_id):
    if conn_id == "shop":
        return SHOP
    raise (Retryable if conn_id == "slow" else Misconfigured)(f"no {conn_id}")


def test_a_driver_has_the_connections_and_variables_of_its_environment():
    environ = {"AIRFLOW_CONN_SHOP": "postgres://me:hunter22@db/shop", "AIRFLOW_VAR_CITY": "Oslo"}
    found = look_ups_of_driver(environ)
    assert (found.connection("shop").password, found.variable("city")) == ("hunter22", "Oslo")


@pytest.mark.parametrize("folder", ["short", "long" * 30])
def test_a_driver_on_the_machine_of_its_task_asks_the_task(tmp_path, folder):
    (tmp_path / folder).mkdir()
    with answering(str(tmp_path / folder), LookUps(of_task, {"city": "Oslo"}.__getitem__)) as environ:
        found = look_ups_of_driver({**environ, "AIRFLOW_VAR_LAND": "Norway"})
        assert found.connection("shop") == SHOP
        assert (found.variable("city"), found.variable("land")) == ("Oslo", "Norway")
        with pytest.raises(Misconfigured, match="no other"):
            found.connection("other")
        with pytest.raises(Retryable, match="no slow"):
            found.connection("slow")
        with pytest.raises(Retryable, check=of_kind("connections.task_does_not_answer")):
            found.variable("unknown")
    with pytest.raises(Retryable, check=of_kind("connections.task_does_not_answer")):
        found.connection("shop")


@pytest.mark.parametrize(("kind", "name"), [("connection", "AIRFLOW_CONN_SHOP"), ("variable", "AIRFLOW_VAR_SHOP")])
def test_a_driver_in_a_cluster_says_how_it_gets_a_connection_or_a_variable(kind, name):
    with pytest.raises(Misconfigured, check=of_kind("transport.secret_missing", name=name, alias=name.lower())):
        getattr(look_ups_of_driver({}), kind)("shop")


def test_a_driver_finds_in_a_credential_provider_what_no_variable_has():
    asked = []

    def of_provider(name):
        asked.append(name)
        return {"AIRFLOW_CONN_SHOP": "postgres://me:hunter22@db/shop", "AIRFLOW_VAR_CITY": "Bergen"}.get(name)

    found = look_ups_of_driver({"AIRFLOW_VAR_CITY": "Oslo"}, of_provider)
    assert (found.connection("shop").password, found.variable("city")) == ("hunter22", "Oslo")
    with pytest.raises(Misconfigured, check=of_kind("transport.secret_missing", name="AIRFLOW_VAR_LAND")):
        found.variable("land")
    assert asked == ["AIRFLOW_CONN_SHOP", "AIRFLOW_VAR_LAND"]


def test_what_functions_are_given_is_hidden_where_it_is_recorded(monkeypatch):
    from weir.secrecy import without_secrets

    # A process keeps what it hides: no other test may have the same secrets.
    password, key, token = f"opens {token_hex(8)}", token_hex(8), token_hex(8)
    monkeypatch.setenv("AIRFLOW_CONN_BANK", f"http://me:{quote(password)}@bank/?api_key={key}&colour=green-ish")
    monkeypatch.setenv("AIRFLOW_VAR_BANK_TOKEN", token)
    monkeypatch.setenv("AIRFLOW_VAR_CITY", "Reykjavik")
    found = FROM_ENVIRONMENT.hiding()
    text = f"{password}, {key}, {token}, green-ish, Reykjavik"
    assert without_secrets(text) == text
    found.connection("bank"), found.variable("bank_token"), found.variable("city")
    assert without_secrets(text) == "***, ***, ***, green-ish, Reykjavik"
