"""Where store and ledger are, and who may know the way in."""

import json
from pathlib import Path

import pytest
from tests.messages.kinds import of_kind

import weir
from weir.dataflow import FailoverStrategy
from weir.errors import Misconfigured, Retryable
from weir.restarts.answer import Budgets
from weir.restarts.strategy import FailureLimits, NoRestart
from weir.settings import StoreConnection, read_settings, store_options, url_without_password

URL = "s3://bucket/weir"
LEDGER = "postgresql+psycopg2://weir:hush@db/weir"


class Connections:
    """Airflow's connections; `asked` says which were looked up."""

    def __init__(self, store=None, ledger=None):
        self.asked = []
        self._store = store
        self._ledger = ledger

    def store(self):
        self.asked.append("weir_store")
        return self._store

    def ledger(self):
        self.asked.append("weir_ledger")
        return self._ledger


def test_the_environment_goes_before_the_configuration_and_that_before_the_connection():
    said = {"store": "s3://section/weir", "ledger": "sqlite:////section.db"}
    connections = Connections(StoreConnection("s3://connection/weir", {"key": "k"}), LEDGER)
    from_environment = read_settings({"WEIR_STORE": URL, "WEIR_LEDGER": "sqlite:////env.db"}, said.get, connections)
    assert (from_environment.store, from_environment.ledger) == (URL, "sqlite:////env.db")
    from_section = read_settings({}, said.get, connections)
    assert (from_section.store, from_section.ledger) == ("s3://section/weir", "sqlite:////section.db")
    from_connection = read_settings({}, {}.get, connections)
    assert (from_connection.store, from_connection.ledger) == ("s3://connection/weir", LEDGER)


def test_suites_are_beside_the_package_unless_somebody_says_otherwise():
    environ = {"WEIR_STORE": "/disk/store", "WEIR_LEDGER": LEDGER}
    assert read_settings(environ).expectations == str(Path(weir.__file__).parents[1] / "expectations")
    assert read_settings(environ, {"expectations": "/etc/suites"}.get).expectations == "/etc/suites"
    environ["WEIR_EXPECTATIONS"] = "/opt/suites"
    assert read_settings(environ, {"expectations": "/etc/suites"}.get).expectations == "/opt/suites"


def test_the_options_of_the_environment_go_before_those_of_the_connection():
    connections = Connections(StoreConnection(None, {"key": "connection"}))
    environ = {"WEIR_STORE": URL, "WEIR_LEDGER": LEDGER}
    assert read_settings(environ, None, connections).store_options == {"key": "connection"}
    environ["WEIR_STORE_OPTIONS"] = json.dumps({"key": "environment"})
    assert read_settings(environ, None, connections).store_options == {"key": "environment"}


def test_a_connection_is_looked_up_only_where_something_is_unknown():
    connections = Connections()
    read_settings({"WEIR_STORE": "/disk/store", "WEIR_LEDGER": LEDGER}, None, connections)
    read_settings({"WEIR_STORE": URL, "WEIR_LEDGER": LEDGER, "WEIR_STORE_OPTIONS": "{}"}, None, connections)
    assert connections.asked == []
    read_settings({"WEIR_STORE": URL, "WEIR_LEDGER": LEDGER}, None, connections)
    assert connections.asked == ["weir_store"]


def test_neither_connection_has_to_exist():
    found = read_settings({"WEIR_STORE": URL, "WEIR_LEDGER": LEDGER}, None, Connections())
    assert (found.store, found.store_options) == (URL, {})


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({"WEIR_LEDGER": LEDGER}, of_kind("settings.key_unknown")),
        ({"WEIR_STORE": "/disk"}, of_kind("settings.key_unknown", type="LEDGER")),
    ],
)
def test_what_is_not_set_is_named_with_all_ways_to_set_it(environ, says):
    with pytest.raises(Misconfigured, check=says):
        read_settings(environ, None, Connections(StoreConnection(None, {})))


def test_an_airflow_that_does_not_answer_is_not_a_missing_setting():
    class Silent(Connections):
        def store(self):
            raise Retryable("Airflow did not answer")

    with pytest.raises(Retryable):
        read_settings({"WEIR_LEDGER": LEDGER}, None, Silent())


@pytest.mark.parametrize("text", ['{"secret": "hush', '["hush"]', '"hush"', "hush"])
def test_options_that_are_no_json_object_are_refused_without_being_shown(text):
    with pytest.raises(Misconfigured, match=r"WEIR_STORE_OPTIONS.*JSON") as refused:
        store_options({"WEIR_STORE_OPTIONS": text})
    assert "hush" not in str(refused.value)
    assert refused.value.__cause__ is None


def test_the_settings_show_no_secret():
    found = read_settings({"WEIR_STORE": URL, "WEIR_LEDGER": LEDGER, "WEIR_STORE_OPTIONS": '{"secret": "hush"}'})
    assert "hush" not in repr(found)
    assert "hush" not in repr(StoreConnection(URL, {"secret": "hush"}))


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (LEDGER, "postgresql+psycopg2://weir:***@db/weir"),
        ("postgresql://weir:h@ush@db:5432/weir?sslmode=require", "postgresql://weir:***@db:5432/weir?sslmode=require"),
        ("postgresql://db/weir", "postgresql://db/weir"),
        ("sqlite:////disk/led@ger.db", "sqlite:////disk/led@ger.db"),
    ],
)
def test_a_url_is_shown_without_its_password(url, shown):
    assert url_without_password(url) == shown


PLACES = {"WEIR_STORE": URL, "WEIR_LEDGER": LEDGER, "WEIR_STORE_OPTIONS": "{}"}


def test_the_section_says_how_tasks_restart_and_what_has_a_budget():
    section = {
        "store": "s3://elsewhere",
        "restart-strategy.type": "none",
        "maximum_total_task_failures": "40",
        "maximum_backtracks": "5",
        "largest_plan": "1",
        "failover": "full",
        "failure_enrichers": "tickets:owner, tickets:runbook",
        "maximum_conflicts": "",
    }
    found = read_settings(PLACES, section=section).recovery
    assert found.restart.resolved() == NoRestart(limits=FailureLimits(per_run=40))
    assert found.budgets == Budgets(backtracks=5)
    assert (found.largest_plan, found.failure_enrichers) == (1.0, ("tickets:owner", "tickets:runbook"))
    assert found.failover is FailoverStrategy.FULL


def test_the_environment_goes_before_the_section_here_too():
    environ = {
        **PLACES,
        "WEIR_RESTART_STRATEGY_TYPE": "none",
        "WEIR_MAXIMUM_BACKTRACKS": "7",
        "WEIR_FAILOVER": "individual",
    }
    section = {"restart-strategy.type": "fixed-delay", "maximum_backtracks": "5", "failover": "full"}
    found = read_settings(environ, section=section).recovery
    assert found.restart.resolved() == NoRestart()
    assert found.budgets.backtracks == 7
    assert found.failover is FailoverStrategy.INDIVIDUAL
    assert read_settings(PLACES).recovery.failover is FailoverStrategy.REGION


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("restart-strategy.typ", "none", r"no option 'restart-strategy.typ'; did you mean 'restart-strategy.type'\?"),
        ("restart_strategy_type", "never", "is 'never': write none, fixed-delay"),
        ("maximum_backtrack", "5", r"no option 'maximum_backtrack'; did you mean 'maximum_backtracks'\?"),
        ("maximum_backtracks", "many", "maximum_backtracks must be a whole number"),
        ("maximum_conflicts", "-1", "maximum_conflicts is -1, expected 0 or more"),
        ("maximum_per_task_failures", "-1", "maximum-per-task-failures must be a whole number of at least 0"),
        ("largest_plan", "50%", "largest_plan is '50%', expected a share"),
        ("largest_plan", "2", "from 0 to 1"),
        ("failover", "regions", r"failover is 'regions': write region, full or individual; did you mean 'region'\?"),
    ],
)
def test_what_the_section_says_of_recovery_is_understood_or_refused(key, value, says):
    with pytest.raises(Misconfigured, match=f"{says}", check=of_kind("settings.section_wrong")):
        read_settings(PLACES, section={key: value})
