"""Findings about Spark: versions, Java, Python, and its access to the store.

Invariant: Spark's error is in the finding; it only selects the advice.
"""

from __future__ import annotations

import re
from typing import Final

from weir.doctor import table
from weir.doctor.examination import Finding, Item
from weir.wording import shortened


def version_finding(area: str, version: str, client: str) -> Finding:
    """Compare the version of a Connect server with that of pyspark here."""
    item = table.SPARK_VERSION.of(area)
    if version == client:
        return item.ok(f"Spark {version}, as here")
    found = f"Spark {version}; pyspark here is {client}"
    if _numbers(client)[:1] == _numbers(version)[:1] and _numbers(client) < _numbers(version):
        return item.ok(f"{found}: an older client is fine")
    return item.problem(found, version=version, client=client)


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)[:3]]


def java_finding(area: str, version: str, *, where: str = "") -> Finding:
    """Judge a Java by its version, for example "17.0.9"."""
    major = version.split(".", 1)[0]
    found = f"{version}{where and f', {where}'}"
    if major in {"17", "21"}:
        return table.JAVA.of(area).ok(found)
    if major.isdigit() and int(major) > 21:
        return table.NEWER_JAVA.of(area).warning(found)
    return table.JAVA.of(area).problem(found)


def python_finding(area: str, there: str, here: str, *, error: str = "") -> Finding:
    """Judge the version of the Python that runs UDFs, empty if it did not run one because of `error`."""
    item = table.SPARK_PYTHON.of(area)
    if there.split(".")[:2] == here.split(".")[:2]:
        return item.ok(f"{there} runs UDFs")
    found = f"{there}; here it is {here}" if there else _first_line(error)
    return item.problem(found, here=here, minor=".".join(here.split(".")[:2]))


def connector_finding(area: str, jars: str, hadoop: str) -> Finding:
    """Compare the S3A connectors among the names of Spark's jars with the version of its Hadoop client."""
    item = table.S3A.of(area)
    found = sorted(set(re.findall(r"hadoop-aws-([\w.-]+?)\.jar", jars)))
    if found == [hadoop]:
        return item.ok(f"hadoop-aws {hadoop}, as Spark's Hadoop")
    told = f"hadoop-aws {', '.join(found)}" if found else "no hadoop-aws-*.jar among Spark's jars"
    return item.problem(f"{told}; Spark's Hadoop is {hadoop}", hadoop=hadoop)


def store_finding(item: Item, url: str, wanted: int, seen: int) -> Finding:
    """Compare the number of files that one side wrote to the store with the number that the other side has seen."""
    if wanted == seen:
        return item.ok(f"all {seen} files at {url}")
    return item.problem(f"{seen} of {wanted} files at {url} were seen")


def store_error_finding(item: Item, error: str, url: str, hadoop: str) -> Finding:
    """Judge an error of Spark that could not read or write at `url`; `hadoop` is its version, empty if unknown."""
    refused = table.STORE_REFUSED.of(item.area, item.name)
    return refused.problem(f"{url}: {_first_line(error)}", advice=_advice(error, url, hadoop))


_OF_HDFS: Final = {
    "UnknownHost": "set HADOOP_CONF_DIR where Spark's driver and executors start: the folder of core-site.xml and "
    "hdfs-site.xml, which say where the NameNodes are",
    "Permission denied": "set HADOOP_USER_NAME to the same user for Spark's processes and the workers, and give that "
    "user the folder",
}
"""Advice by a part of Spark's error."""


def _advice(error: str, url: str, hadoop: str) -> str:
    scheme = url.partition("://")[0]
    for part, advice in _OF_HDFS.items():
        if scheme == "hdfs" and part in error:
            return advice
    if scheme == "s3a" and ("S3AFileSystem" in error or "No FileSystem" in error or "UNSUPPORTED_DATA" in error):
        return table.S3A.mend.format(hadoop=hadoop or "THE_HADOOP_VERSION_OF_SPARK")
    if "ClassNotFoundException" in error or "No FileSystem" in error:
        return f"start Spark with the Hadoop file system of {scheme}:// among its jars"
    if "PATH_NOT_FOUND" in error or "FileNotFound" in error or "does not exist" in error:
        return f"mount the store on every machine of Spark at the same path: Spark does not see {url}"
    if any(word in error for word in ("AccessDenied", "AccessControl", "Permission denied", "Forbidden", "403")):
        return "give the user (or the keys) of Spark's processes the right to read and write the store"
    return "read the server's log; Spark itself reads and writes the store, so it needs the same access as the workers"


def _first_line(error: str) -> str:
    return shortened(" ".join(error.strip().split("\n", 1)[0].split()), 400)
