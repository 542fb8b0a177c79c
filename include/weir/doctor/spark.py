"""What Spark's servers answer, judged.

Invariant: whatever Spark said is in the finding; only the advice is chosen by it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from weir.doctor.examination import Finding, ok, problem, unknown, warning

LENIENT = ("spark.sql.files.ignoreMissingFiles", "spark.sql.files.ignoreCorruptFiles")


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What a Spark server says of itself. Texts are empty where it did not say."""

    version: str
    java: str = ""
    hadoop: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)


def judge_server(area: str, facts: ServerFacts, client: str) -> Iterator[Finding]:
    """Judge a server beside the Spark of this environment."""
    if facts.version == client:
        yield ok(area, "version", f"Spark {facts.version}, as here")
    else:
        yield problem(
            area,
            "version",
            f"Spark {facts.version}; pyspark here is {client}",
            expected="one version: the client's plans and UDFs are those of its own version",
            mend=f"pip install 'pyspark[connect]=={facts.version}' here and at all workers, or start the server with "
            f"Spark {client}",
        )
    if facts.java:
        yield judge_java(area, facts.java)
    yield judge_lenience(area, facts.settings)


def judge_java(area: str, version: str, *, where: str = "") -> Finding:
    """Judge a Java by its version, "17.0.9" say."""
    major = version.split(".", 1)[0]
    found = f"{version}{where and f', {where}'}"
    if major in {"17", "21"}:
        return ok(area, "Java", found)
    if major.isdigit() and int(major) > 21:
        mend = "if Spark fails with it, set JAVA_HOME to a Java 17 or 21"
        return warning(area, "Java", found, expected="17 or 21, with which Spark 4 is tested", mend=mend)
    return problem(area, "Java", found, expected="17 or 21", mend="install one, and set JAVA_HOME to it")


def judge_python(area: str, there: str, here: str, *, said: str = "") -> Finding:
    """Judge the Python that runs UDFs, empty if it did not run one; then `said` is why."""
    expected = "the same minor version as here: a UDF is bytecode"
    mend = f"set PYSPARK_PYTHON to a Python {'.'.join(here.split('.')[:2])} where the server and its executors start"
    if not there:
        return problem(area, "Python", _first_line(said), expected=f"{expected} ({here})", mend=mend)
    if there.split(".")[:2] == here.split(".")[:2]:
        return ok(area, "Python", f"{there} runs UDFs")
    return problem(area, "Python", f"{there}; here it is {here}", expected=expected, mend=mend)


def judge_lenience(area: str, settings: Mapping[str, str]) -> Finding:
    """Judge the settings by which Spark leaves out what it cannot read."""
    name = "missing and corrupt files"
    lenient = [key for key in LENIENT if settings.get(key, "false").lower() == "true"]
    if not lenient:
        return ok(area, name, "are errors")
    return warning(
        area,
        name,
        f"are left out without a word: {', '.join(lenient)}",
        expected="false: Weir reads its own results strictly whatever the server says, but a source would lose rows",
        mend=" and ".join(f"--conf {key}=false" for key in lenient) + " where the server is started",
    )


def judge_reading(area: str, url: str, wanted: int, read: int) -> Finding:
    """Judge how many of the files that were written through the store Spark has read."""
    if wanted == read:
        return ok(area, "reads the store", f"{read} files that were written from here, at {url}")
    return problem(
        area,
        "reads the store",
        f"{read} of {wanted} files that were written from here, at {url}",
        expected="all of them",
        mend="mount the store on every machine of Spark at the same path",
    )


def judge_writing(area: str, url: str, wanted: int, seen: int) -> Finding:
    """Judge how many of the rows that Spark wrote can be read through the store."""
    if wanted == seen:
        return ok(area, "writes the store", "what it wrote was read and deleted from here")
    return problem(
        area,
        "writes the store",
        f"Spark wrote {wanted} rows to {url}; from here {seen} are seen",
        expected="all of them: the store is one place for this machine and every machine of Spark",
        mend="mount the store on every machine of Spark at the same path, or use an object store",
    )


def judge_trouble(area: str, name: str, said: str, url: str, hadoop: str) -> Finding:
    """Judge what Spark said when it could not read or write at `url`."""
    return problem(
        area,
        name,
        f"{url}: {_first_line(said)}",
        expected="Spark and this machine see the same store",
        mend=_advice(said, url, hadoop),
    )


def judge_submit(area: str, version: str | None, client: str, program: str) -> Finding:
    """Judge the version that a spark-submit says, None if it said none."""
    if version is None:
        return unknown(area, "spark-submit", f"{program} said no version", mend=f"try it: {program} --version")
    if version == client:
        return ok(area, "spark-submit", f"{program}, Spark {version}, as pyspark here")
    return problem(
        area,
        "spark-submit",
        f"{program} is of Spark {version}; pyspark here is {client}",
        expected="one version",
        mend=f"let PATH find the spark-submit of pyspark {client}, or pip install 'pyspark[connect]=={version}'",
    )


def judge_scope(area: str, master: str, deploy_mode: str, store_url: str) -> Iterator[Finding]:
    """Judge whether a local folder may be the store of a cluster."""
    is_cluster = not master.startswith("local")
    if store_url.startswith("file://") and is_cluster:
        where = "the driver and every executor" if deploy_mode == "cluster" else "every executor"
        yield warning(
            area,
            "store of a cluster",
            f"{store_url} is a folder",
            expected=f"a place that {where} sees at the same path: a shared mount, or an object store",
            mend="fine if all machines mount it; else set WEIR_STORE to s3://... or another object store",
        )


def _advice(said: str, url: str, hadoop: str) -> str:
    scheme = url.partition("://")[0]
    if scheme == "s3a" and ("S3AFileSystem" in said or "No FileSystem" in said or "UNSUPPORTED_DATA" in said):
        version = hadoop or "THE_HADOOP_VERSION_OF_SPARK"
        return (
            f"start Spark with --packages org.apache.hadoop:hadoop-aws:{version} (its version has to be that of "
            "Spark's Hadoop) and with the store's access: --conf spark.hadoop.fs.s3a.endpoint=..., or keys in its "
            "environment"
        )
    if "ClassNotFoundException" in said or "No FileSystem" in said:
        return f"start Spark with the Hadoop file system of {scheme}:// among its jars"
    if "PATH_NOT_FOUND" in said or "FileNotFound" in said or "does not exist" in said:
        return f"mount the store on every machine of Spark at the same path: {url} is not there as Spark sees it"
    if any(word in said for word in ("AccessDenied", "AccessControl", "Permission denied", "Forbidden", "403")):
        return "give the user (or the keys) of Spark's processes the right to read and write the store"
    return "read the server's log; Spark itself reads and writes the store, so it needs the same access as the workers"


def _first_line(said: str) -> str:
    return " ".join(said.strip().split("\n", 1)[0].split())[:400]
