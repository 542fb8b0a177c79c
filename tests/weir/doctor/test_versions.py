import pytest

from weir.doctor.examination import Status
from weir.doctor.versions import PYSPARK_FILES, PYTHON, installed_versions, version_findings

GOOD = {
    PYTHON: "3.11.7",
    "apache-airflow-core": "3.3.2",
    "apache-airflow-providers-apache-spark": "6.3.4",
    "pyspark": "4.3.0",
    PYSPARK_FILES: "4.3.0",
}


def findings(**changes):
    found = {**GOOD, **{name.replace("_", "-"): version for name, version in changes.items()}}
    return {each.name: each for each in version_findings({key: value for key, value in found.items() if value})}


def test_good_versions_are_all_ok():
    assert {each.status for each in findings().values()} == {Status.OK}


@pytest.mark.parametrize(
    ("changes", "name", "status", "advice"),
    [
        ({PYTHON: "3.10.2"}, "Python", Status.PROBLEM, "newer Python"),
        ({"apache-airflow-core": "3.2.1"}, "Airflow", Status.PROBLEM, "apache-airflow==3.3.2"),
        ({"apache-airflow-core": "3.4.0"}, "Airflow", Status.WARNING, "try it"),
        ({"apache-airflow-core": None}, "Airflow", Status.PROBLEM, "pip install"),
        ({"pyspark": None, PYSPARK_FILES: None}, "pyspark", Status.PROBLEM, "pip install"),
        ({"pyspark": "3.5.1", PYSPARK_FILES: "3.5.1"}, "pyspark", Status.PROBLEM, "pip install"),
        ({PYSPARK_FILES: "4.2.0"}, "pyspark", Status.PROBLEM, "pip uninstall -y pyspark-client"),
        ({PYSPARK_FILES: None}, "pyspark", Status.PROBLEM, "--force-reinstall --no-deps pyspark==4.3.0"),
        ({"pyspark-client": "4.2.0"}, "pyspark-client", Status.PROBLEM, "override-dependencies"),
        ({"apache-airflow-providers-apache-spark": "5.9.0"}, "provider of Spark", Status.PROBLEM, "pip install"),
        ({"apache-airflow-providers-apache-spark": None}, "provider of Spark", Status.PROBLEM, "pip install"),
    ],
)
def test_a_version_that_does_not_fit_is_reported_with_the_command_that_corrects_it(changes, name, status, advice):
    found = {each.name: each for each in version_findings({k: v for k, v in {**GOOD, **changes}.items() if v})}
    assert found[name].status is status
    assert advice in found[name].mend
    assert {each.status for key, each in found.items() if key != name} <= {Status.OK}


def test_a_client_of_the_same_version_as_pyspark_does_no_harm():
    assert "pyspark-client" not in findings(**{"pyspark-client": "4.3.0"})


def test_this_environment_is_as_the_lock_file_has_it():
    assert {each.status for each in version_findings(installed_versions())} == {Status.OK}
