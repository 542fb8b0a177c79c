import pytest

from weir.doctor.examination import Status
from weir.doctor.versions import (
    PYSPARK_FILES,
    PYTHON,
    installed_versions,
    package_findings,
    range_findings,
    version_findings,
)

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
        ({"apache-airflow-core": "3.2.1"}, "Airflow", Status.PROBLEM, "apache-airflow>=3.3"),
        ({"apache-airflow-core": "3.4.0"}, "Airflow", Status.WARNING, "try it"),
        ({"apache-airflow-core": None}, "Airflow", Status.PROBLEM, "pip install"),
        ({"pyspark": None, PYSPARK_FILES: None}, "pyspark", Status.PROBLEM, "pip install"),
        ({"pyspark": "3.5.1", PYSPARK_FILES: "3.5.1"}, "pyspark", Status.PROBLEM, "pip install"),
        ({PYSPARK_FILES: "4.2.0"}, "pyspark", Status.PROBLEM, "pip uninstall -y pyspark-client"),
        ({PYSPARK_FILES: None}, "pyspark", Status.PROBLEM, "--force-reinstall --no-deps pyspark==4.3.0"),
        ({"pyspark-client": "4.2.0"}, "pyspark-client", Status.PROBLEM, "override-dependencies"),
        ({"apache-airflow-providers-apache-spark": "5.9.0"}, "provider of Spark", Status.PROBLEM, "pip install"),
    ],
)
def test_a_version_that_does_not_fit_is_reported_with_the_command_that_corrects_it(changes, name, status, advice):
    found = {each.name: each for each in version_findings({k: v for k, v in {**GOOD, **changes}.items() if v})}
    assert found[name].status is status
    assert advice in found[name].mend
    assert {each.status for key, each in found.items() if key != name} <= {Status.OK}


def test_the_client_alone_is_enough_from_the_version_that_the_extra_asks_for():
    alone = {"pyspark": None, "apache-airflow-providers-apache-spark": None}
    assert findings(**alone, **{"pyspark-client": "4.2.0"})["pyspark-client"].status is Status.OK
    old = findings(**alone, **{"pyspark-client": "4.1.3"})["pyspark-client"]
    assert (old.status, old.mend) == (Status.PROBLEM, "pip install 'weir[connect]'")


def test_the_extras_that_are_installed_and_those_that_are_not_are_listed():
    assert findings(s3fs="2026.9.0")["extras"].found == (
        "local, submit, s3; not installed: connect, quality, postgres, delta, iceberg, kafka"
    )


def test_a_package_that_store_or_ledger_needs_and_that_is_missing_is_named_with_its_extra(monkeypatch):
    assert list(package_findings("s3://bucket/weir", "postgresql+psycopg2://db/weir")) == []
    monkeypatch.setattr("importlib.util.find_spec", lambda _module: None)
    assert list(package_findings("file:///data", "sqlite:////ledger.db")) == []
    s3, postgres = package_findings("s3://bucket/weir", "postgresql+psycopg2://db/weir")
    assert (s3.name, postgres.name) == ("s3fs", "psycopg2")
    assert "pip install 'weir[s3]'" in s3.mend
    assert "pip install 'weir[postgres]'" in postgres.mend


def test_a_package_outside_of_the_versions_that_a_distribution_allows_is_reported(tmp_path, monkeypatch):
    metadata = tmp_path / "other-1.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Name: other\nVersion: 1\nRequires-Dist: rich>=1\nRequires-Dist: typer<0.1; extra == 'x'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    (found,) = range_findings("other")
    assert (found.name, found.mend) == ("typer", "pip install 'typer<0.1'")
    assert list(range_findings("not-installed")) == []


def test_a_client_of_the_same_version_as_pyspark_does_no_harm():
    assert "pyspark-client" not in findings(**{"pyspark-client": "4.3.0"})


def test_this_environment_is_as_the_lock_file_has_it():
    assert {each.status for each in version_findings(installed_versions())} == {Status.OK}
