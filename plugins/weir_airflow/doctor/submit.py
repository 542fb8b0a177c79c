"""The checks of a connection to spark-submit, and of YARN where it leads there. Invariant: nothing is submitted."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.error import URLError
from urllib.request import urlopen
from xml.etree import ElementTree as ET

from weir.doctor import table
from weir.doctor.examination import Check, Finding, Item
from weir.doctor.versions import version_of
from weir.errors import WeirError
from weir_airflow.engines import yarn
from weir_airflow.engines.spark_submit import environment_of_spark, is_on_yarn, master_of

if TYPE_CHECKING:
    from airflow.sdk import Connection


_VERSION_SECONDS: Final = 60.0


def submit_checks(area: str, connection: Connection) -> list[Check]:
    """Return the checks of a connection: its master, its program, and where it leads to YARN, what that needs."""
    master = table.SUBMIT_MASTER.of(area)
    program = table.SPARK_SUBMIT.of(area)
    return [
        master.check(lambda: [master.ok(master_of(connection))]),
        program.check(lambda: _check_program(program, connection)),
        *(yarn_checks(area, connection) if is_on_yarn(connection) else []),
    ]


def _check_program(item: Item, connection: Connection) -> Iterator[Finding]:
    """Check that the program runs, and that its version is that of pyspark."""
    name = str(connection.extra_dejson.get("spark-binary") or item.name)
    client = version_of("pyspark")  # None: Spark is the cluster's own
    program = shutil.which(name, path=environment_of_spark().get("PATH"))
    output, found = "", None
    if program is not None:
        command = [program, "--version"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_VERSION_SECONDS, check=False)
        output = done.stdout + done.stderr
        found = re.search(r"version\s+(\d+\.\d+\.\d+\S*)", output)
    if found is not None and client in (None, found[1]):
        like = "; no pyspark here" if client is None else ", as pyspark here"
        yield item.ok(f"{program}, Spark {found[1]}{like}")
        return
    said = f"is of Spark {found[1]}" if found else f"--version failed: {' '.join(output.split())[-300:]}"
    wanted = "4" if client is None else f"{client}, as pyspark here,"
    yield item.problem(f"PATH has no {name}" if program is None else f"{program} {said}", version=wanted)


_FILES: Final = ("core-site.xml", "yarn-site.xml")
_DEFAULT_QUEUE: Final = "default"
_WEB_ADDRESS: Final = "yarn.resourcemanager.webapp.address"
_HOST: Final = "yarn.resourcemanager.hostname"
_WEB_PORT: Final = 8088
_SECONDS: Final = 10.0
_DEFAULTS: Final = "spark-defaults.conf"
_JARS: Final = ("spark.yarn.archive", "spark.yarn.jars")
_ARCHIVES: Final = "spark.yarn.dist.archives"
_OF_THIS_MACHINE: Final = re.compile(r"file:|(?![a-zA-Z][\w+.-]*:)")


def yarn_checks(area: str, connection: Connection) -> list[Check]:
    """Return the checks: the cluster's settings, what a submission uploads, the queue, and the versions of Hadoop."""
    items = (table.HADOOP_SETTINGS, table.YARN_UPLOADS, table.YARN_QUEUE, table.HADOOP_VERSION)
    settings, uploads, queue, version = (each.of(area) for each in items)
    return [
        settings.check(lambda: [_check_settings(settings)]),
        uploads.check(lambda: [_check_uploads(uploads)]),
        queue.check(lambda: [_check_queue(queue, connection)]),
        version.check(lambda: _check_version(version)),
    ]


def _check_settings(item: Item) -> Finding:
    folder = _folder()
    if not folder:
        return item.problem("neither HADOOP_CONF_DIR nor YARN_CONF_DIR is set")
    missing = [each for each in _FILES if not Path(folder, each).is_file()]
    return item.problem(f"{folder} has no {' and no '.join(missing)}") if missing else item.ok(folder)


def _folder() -> str:
    """Return the folder of the cluster's settings, as Hadoop's client looks for it; empty where none is named."""
    return os.environ.get("HADOOP_CONF_DIR") or os.environ.get("YARN_CONF_DIR") or ""


def _check_uploads(item: Item) -> Finding:
    """Look for large files that each submission would copy into the cluster."""
    defaults = _defaults()
    jars = next((defaults[name] for name in _JARS if name in defaults), "")
    uploaded = [] if jars and not _is_uploaded(jars) else [jars or "Spark's jars"]
    uploaded += [each for each in defaults.get(_ARCHIVES, "").split(",") if each and _is_uploaded(each)]
    return item.warning(" and ".join(uploaded)) if uploaded else item.ok(jars)


def _is_uploaded(path: str) -> bool:
    return _OF_THIS_MACHINE.match(path.strip()) is not None


def _defaults() -> dict[str, str]:
    """Return the settings that spark-submit has of its own; none where there is no file."""
    environment = environment_of_spark()
    folder = environment.get("SPARK_CONF_DIR") or f"{environment.get('SPARK_HOME', '')}/conf"
    with suppress(OSError):
        lines = (each.strip() for each in Path(folder, _DEFAULTS).read_text().splitlines())
        pairs = (re.split(r"\s*[\s=:]\s*", each, maxsplit=1) for each in lines if not each.startswith("#"))
        return {each[0]: each[1] for each in pairs if len(each) == 2}
    return {}


def _check_queue(item: Item, connection: Connection) -> Finding:
    name = str(connection.extra_dejson.get("queue") or _DEFAULT_QUEUE)
    try:
        told = yarn.state_of_queue(name, environment_of_spark())
    except WeirError as error:
        return item.problem(str(error), queue=name)
    state = re.search(r"State : (\w+)", told)
    if state is None:
        return item.problem(" ".join(told.split())[-200:] or "YARN says nothing of it", queue=name)
    found = f"{name} is {state[1]}"
    return item.ok(found) if state[1] == "RUNNING" else item.problem(found, queue=name)


def _check_version(item: Item) -> Iterator[Finding]:
    """Compare the client's version with the one that the ResourceManager's page tells, where that can be reached."""
    try:
        client = yarn.version_of_client(environment_of_spark())
    except WeirError as error:
        yield item.unknown(str(error), "mend spark-submit first")
        return
    cluster = _version_of_cluster()
    if cluster is None:
        yield item.unknown(f"the client is {client}; the ResourceManager's page was not reached")
    elif client.partition(".")[0] == cluster.partition(".")[0]:
        yield item.ok(f"client {client}, cluster {cluster}")
    else:
        yield item.warning(f"client {client}, cluster {cluster}", version=cluster)


def _version_of_cluster() -> str | None:
    path = Path(_folder(), "yarn-site.xml")
    try:
        settings = {each.findtext("name"): each.findtext("value") for each in ET.parse(path).iter("property")}  # noqa: S314  the administrators' own file
        address = settings.get(_WEB_ADDRESS) or f"{settings.get(_HOST)}:{_WEB_PORT}"
        with urlopen(f"http://{address}/ws/v1/cluster/info", timeout=_SECONDS) as answer:
            return str(json.load(answer)["clusterInfo"]["hadoopVersion"])
    except (OSError, URLError, ET.ParseError, ValueError, LookupError):
        return None
