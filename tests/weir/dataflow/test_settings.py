from datetime import timedelta

from weir.dataflow import TaskSettings, source, spark_conf, task_settings


def test_settings_of_a_region_are_merged():
    region = [
        source("a", "p:a", task=TaskSettings(pool="io", executor_config={"x": 1}), spark={"b": "2"}),
        source("b", "p:b", task=TaskSettings(priority_weight=0, executor_config={"y": 2}), spark={"a": "1", "b": "2"}),
        source("c", "p:c", task=TaskSettings(execution_timeout=timedelta(seconds=9))),
    ]
    assert task_settings(region) == TaskSettings(
        pool="io", priority_weight=0, execution_timeout=timedelta(seconds=9), executor_config={"x": 1, "y": 2}
    )
    assert spark_conf(region) == {"a": "1", "b": "2"}
    assert list(spark_conf(region)) == ["a", "b"]


def test_a_region_without_settings_has_none():
    assert task_settings([source("a", "p:a")]) == TaskSettings()
    assert spark_conf([source("a", "p:a")]) == {}
