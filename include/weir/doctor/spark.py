"""Findings about Spark: versions, Java, Python, and its access to the store.

Invariant: Spark's error is in the finding; it only selects the advice.
"""

from __future__ import annotations

import re

from weir.doctor.examination import Finding, ok, problem, warning


def version_finding(area: str, version: str, client: str) -> Finding:
    """Compare the version of a Connect server with that of pyspark here."""
    if version == client:
        return ok(area, "version", f"Spark {version}, as here")
    found = f"Spark {version}; pyspark here is {client}"
    if _numbers(client)[:1] == _numbers(version)[:1] and _numbers(client) < _numbers(version):
        return ok(area, "version", f"{found}: an older client is fine")
    return problem(
        area,
        "version",
        found,
        expected="one version, or a client that is older than the server: plans and UDFs are those of its version",
        mend=f"pip install 'pyspark[connect]=={version}' (or 'pyspark-client=={version}', never both) here and at all "
        f"workers, or start the server with Spark {client}",
    )


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)[:3]]


def java_finding(area: str, version: str, *, where: str = "") -> Finding:
    """Judge a Java by its version, for example "17.0.9"."""
    major = version.split(".", 1)[0]
    found = f"{version}{where and f', {where}'}"
    if major in {"17", "21"}:
        return ok(area, "Java", found)
    if major.isdigit() and int(major) > 21:
        mend = "if Spark fails with it, set JAVA_HOME to a Java 17 or 21"
        return warning(area, "Java", found, expected="17 or 21, with which Spark 4 is tested", mend=mend)
    return problem(area, "Java", found, expected="17 or 21", mend="install one, and set JAVA_HOME to it")


def python_finding(area: str, there: str, here: str, *, error: str = "") -> Finding:
    """Judge the version of the Python that runs UDFs, empty if it did not run one because of `error`."""
    minor = ".".join(here.split(".")[:2])
    if there.split(".")[:2] == here.split(".")[:2]:
        return ok(area, "Python", f"{there} runs UDFs")
    return problem(
        area,
        "Python",
        f"{there}; here it is {here}" if there else _first_line(error),
        expected=f"the same minor version as here ({here}): a UDF is bytecode",
        mend=f"set PYSPARK_PYTHON to a Python {minor} where the server and its executors start",
    )


def store_finding(area: str, name: str, url: str, wanted: int, seen: int) -> Finding:
    """Compare the number of files that one side wrote to the store with the number that the other side has seen."""
    if wanted == seen:
        return ok(area, name, f"all {seen} files at {url}")
    return problem(
        area,
        name,
        f"{seen} of {wanted} files at {url} were seen",
        expected="all of them: the store is one place for this machine and every machine of Spark",
        mend="mount the store on every machine of Spark at the same path, or use an object store",
    )


def store_error_finding(area: str, name: str, error: str, url: str, hadoop: str) -> Finding:
    """Judge an error of Spark that could not read or write at `url`; `hadoop` is its version, empty if unknown."""
    expected = "Spark and this machine see the same store"
    return problem(area, name, f"{url}: {_first_line(error)}", expected=expected, mend=_advice(error, url, hadoop))


def _advice(error: str, url: str, hadoop: str) -> str:
    scheme = url.partition("://")[0]
    if scheme == "s3a" and ("S3AFileSystem" in error or "No FileSystem" in error or "UNSUPPORTED_DATA" in error):
        version = hadoop or "THE_HADOOP_VERSION_OF_SPARK"
        return (
            f"start Spark with --packages org.apache.hadoop:hadoop-aws:{version} (its version must be that of "
            "Spark's Hadoop) and with the store's access: --conf spark.hadoop.fs.s3a.endpoint=..., or keys in its "
            "environment"
        )
    if "ClassNotFoundException" in error or "No FileSystem" in error:
        return f"start Spark with the Hadoop file system of {scheme}:// among its jars"
    if "PATH_NOT_FOUND" in error or "FileNotFound" in error or "does not exist" in error:
        return f"mount the store on every machine of Spark at the same path: Spark does not see {url}"
    if any(word in error for word in ("AccessDenied", "AccessControl", "Permission denied", "Forbidden", "403")):
        return "give the user (or the keys) of Spark's processes the right to read and write the store"
    return "read the server's log; Spark itself reads and writes the store, so it needs the same access as the workers"


def _first_line(error: str) -> str:
    return " ".join(error.strip().split("\n", 1)[0].split())[:400]
