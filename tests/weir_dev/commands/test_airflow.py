"""Whose Airflow `./weir airflow` is: that of the local stack, or of the environment."""

import pytest

from weir.errors import Misconfigured
from weir.local_stack import PROJECT_VARIABLE
from weir_dev.commands.airflow import environment_of_airflow
from weir_dev.commands.doctor import ENVIRONMENT


def test_of_a_local_stack_that_is_down_there_is_none(tmp_path, monkeypatch):
    (tmp_path / "dags").mkdir()
    monkeypatch.setenv(PROJECT_VARIABLE, str(tmp_path))
    with pytest.raises(Misconfigured, match=r"\./weir up"):
        environment_of_airflow({})
    assert not (tmp_path / ".weir" / "airflow").exists()


@pytest.mark.parametrize("name", ENVIRONMENT)
def test_an_environment_with_a_store_is_that_of_a_deployment(name):
    assert environment_of_airflow({name: "x", "AIRFLOW_HOME": "home"}) == {name: "x", "AIRFLOW_HOME": "home"}
