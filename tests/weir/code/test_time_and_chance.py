"""Names in code by which rows may depend on more than their inputs are found, wherever they stand."""

import pytest

from weir.code.time_and_chance import told_by_time_or_chance

PLAIN = b"""
from pyspark.sql import functions as F

def made(ctx, flights, now="now"):
    random_name = flights.groupBy("today", "open").agg(F.sum("user").alias("rand"))
    return random_name.where("hash > 3 AND time < 5 AND uuid IS NULL")
"""


def told(text, function="pipelines.made:made", **files):
    return told_by_time_or_chance({"pipelines/made.py": text, **files}, [function])


def test_names_of_columns_and_arguments_are_none():
    assert told(PLAIN) == ""
    assert told(b"def made(ctx, prices):\n    return prices.where(prices.open < prices.close)\n") == ""
    assert told(b"from shop.kinds import Variable\ndef made(ctx, prices):\n    return prices\n") == ""


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("F.current_date()", "current_date"),
        ("flights.withColumn('x', F.rand())", "rand"),
        ("flights.selectExpr('uuid() AS id')", "uuid"),
        ("flights.where(F.expr('at < CURRENT_TIMESTAMP ()'))", "CURRENT_TIMESTAMP"),
        ("datetime.now()", "now"),
        ("open('rates.csv')", "open"),
        ("os.environ['RATE']", "environ"),
        ("hash('a')", "hash"),
        ("flights.sample(0.5)", "sample"),
        ("flights.sparkSession.table('rates')", "sparkSession"),
        ("flights.where('day = current_date')", "current_date"),
        ("flights.where(\"day > date 'yesterday'\")", "yesterday"),
        ("flights.selectExpr('_metadata.file_path')", "_metadata"),
        ("time.time()", "time"),
        ("time.strftime('%Y')", "strftime"),
        ("random.randint(1, 3)", "randint"),
        ("numpy.random.default_rng()", "default_rng"),
        ("os.listdir('.')", "listdir"),
        ("Path('rates.csv').open()", "open"),
        ("gzip.open('rates.csv')", "open"),
        ("models.Variable.get('rate')", "Variable"),
    ],
)
def test_what_is_called_is_named_with_its_module(line, name):
    found = told(
        f"import os, numpy\nfrom datetime import datetime\ndef made(ctx, flights):\n    return {line}\n".encode()
    )
    assert found.startswith(f"pipelines.made names {name}, ")


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("from requests import get", "requests"),
        ("from sqlite3 import connect", "sqlite3"),
        ("from random import gauss", "random"),
        ("from time import time", "time"),
        ("import urllib3.util", "urllib3.util"),
        ("from airflow.sdk import Variable", "Variable"),
        ("from airflow.models.connection import Connection as C", "Connection"),
    ],
)
def test_a_module_that_is_imported_is_named(line, name):
    assert told(f"{line}\ndef made(ctx, flights):\n    return flights\n".encode()).startswith(
        f"pipelines.made names {name}, "
    )


def test_what_is_imported_counts_where_it_is_reached():
    text = b"from pipelines.rates import rate\ndef made(ctx, flights):\n    return rate(flights)\n"
    rates = b"from uuid import uuid4\ndef rate(rows):\n    return rows\n"
    assert told(text, **{"pipelines/rates.py": rates}).startswith("pipelines.rates names uuid4, ")
    assert told(PLAIN, **{"pipelines/rates.py": rates}) == ""


def test_a_query_and_code_that_cannot_be_followed():
    sql = {"pipelines/made.sql": b"SELECT *, current_date AS day FROM flights"}
    assert told_by_time_or_chance(sql, ["pipelines/made.sql"]).startswith("pipelines/made.sql names current_date, ")
    assert told_by_time_or_chance({"pipelines/made.sql": b"SELECT today FROM x"}, ["pipelines/made.sql"]) != ""
    sample = {"pipelines/made.sql": b"SELECT * FROM x TABLESAMPLE (10 PERCENT)"}
    assert "TABLESAMPLE" in told_by_time_or_chance(sample, ["pipelines/made.sql"])
    assert told_by_time_or_chance({"pipelines/made.sql": b"SELECT k FROM x"}, ["pipelines/made.sql"]) == ""
    assert "cannot be followed" in told(b"import importlib\nmodule = importlib.import_module('x')\n")
