"""A YARN for tests: a ResourceManager and NodeManagers of Hadoop's own, over an HDFS, on this machine.

Invariants: all listen on the loopback interface alone. A NodeManager that is killed leaves its containers, as on a real
cluster; when the test or its process ends in whatever way, they end as well.
"""

from __future__ import annotations

import json
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import psutil
from tests.servers.hadoop import Hdfs, settings_xml
from tests.servers.java import SMALL_JAVA, JavaServer, installed_jars
from tests.servers.yarn.environment import packed_environment

from weir.store.store import Store
from weir_dev.files import tail
from weir_dev.ports import LOOPBACK, choose_ports
from weir_dev.stack.spark_server import spark_home

QUEUE = "default"
NARROW_QUEUE = "narrow"
"""A queue with room for one driver."""

MEMORY_OF_A_NODE = 6144
_START_SECONDS = 120.0
_RESOURCE_MANAGER = "org.apache.hadoop.yarn.server.resourcemanager.ResourceManager"
_NODE_MANAGER = "org.apache.hadoop.yarn.server.nodemanager.NodeManager"
_PORTS = {
    "address": "yarn.resourcemanager.address",
    "scheduler": "yarn.resourcemanager.scheduler.address",
    "tracker": "yarn.resourcemanager.resource-tracker.address",
    "admin": "yarn.resourcemanager.admin.address",
    "web": "yarn.resourcemanager.webapp.address",
}
_OF_CONTAINERS = ("JAVA_HOME", "HADOOP_CONF_DIR", "SPARK_LOCAL_IP", "WEIR_TEST_RUN")
"""What containers inherit from the environment of their NodeManager."""

_KEEPER = """
import ctypes, os, signal, subprocess, sys

import psutil

def end(*_):
    raise SystemExit

signal.signal(signal.SIGTERM, end)
ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: whose parent ends becomes a child of this process
ctypes.CDLL(None).prctl(1, int(signal.SIGTERM))  # PR_SET_PDEATHSIG
try:
    subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
    while True:
        try:
            os.wait()
        except ChildProcessError:
            signal.pause()
finally:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while left := [each for each in psutil.Process().children(recursive=True) if each.status() != "zombie"]:
        for each in left:
            each.kill()
        psutil.wait_procs(left, 5)
"""
"""Runs a NodeManager. Containers are in sessions of their own, and outlive it: they end when this process does."""


class NodeManager:
    """A NodeManager, which may be killed and started again; its containers run below a process that stays."""

    def __init__(self, command: list[str], log: Path, environment: Mapping[str, str]) -> None:
        self.log = log
        self._keeper = JavaServer([sys.executable, "-c", _KEEPER, *command], log, environment, signal.SIGTERM)

    def start(self) -> None:
        """Start it; what is left of an earlier one ends first."""
        self.end()
        self._keeper.start()

    def kill(self) -> None:
        """End the NodeManager at once, as a crash would; its containers stay."""
        for process in psutil.Process(self._keeper.pid).children():
            if _NODE_MANAGER in process.cmdline():
                process.kill()

    def containers(self, words: str = "") -> list[psutil.Process]:
        """Return the processes of JVMs in its containers whose command line has these words."""
        found = []
        for process in psutil.Process(self._keeper.pid).children(recursive=True):
            with suppress(psutil.Error):
                line = " ".join(process.cmdline())
                if process.name() == "java" and _NODE_MANAGER not in line and words in line:
                    found.append(process)
        return found

    def end(self) -> None:
        """End it, and all that it has started."""
        self._keeper.end()


class Yarn:
    """A ResourceManager, whose addresses stay the same over restarts, and NodeManagers, over an HDFS."""

    def __init__(self, hdfs: Hdfs, folder: Path, nodes: int) -> None:
        self.hdfs = hdfs
        self.folder = folder
        self._ports = choose_ports(_PORTS, {})
        self.conf = folder / "conf"
        self._write_settings()
        environment = {**hdfs.environment, "HADOOP_CONF_DIR": str(self.conf), "SPARK_LOCAL_IP": LOOPBACK}
        self._path = (self.conf, *sorted(installed_jars("yarn").iterdir()))
        command = hdfs.command(_RESOURCE_MANAGER, 256, *self._path)
        self.manager = JavaServer(command, folder / "manager.log", environment)
        self.nodes = [
            NodeManager(self._node_command(number), folder / f"node{number}.log", environment)
            for number in range(1, nodes + 1)
        ]

    @property
    def http(self) -> str:
        """The address of the ResourceManager's pages."""
        return f"{LOOPBACK}:{self._ports['web']}"

    def start(self) -> None:
        """Start all servers, and return when all nodes are there."""
        self.manager.start()
        for each in self.nodes:
            each.start()
        self.await_nodes(len(self.nodes))

    def stop(self) -> None:
        """End all servers and containers."""
        self.manager.kill()
        for each in self.nodes:
            each.end()

    def await_nodes(self, number: int) -> None:
        """Return when the ResourceManager knows so many running nodes."""
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline and self.manager.is_alive():
            with suppress(URLError, OSError, ValueError, LookupError):
                if self.ask("metrics")["clusterMetrics"]["activeNodes"] == number:
                    return
            time.sleep(0.1)
        raise AssertionError(f"YARN did not start:\n{tail(self.manager.log)}\n{tail(self.nodes[0].log)}")

    def ask(self, path: str) -> dict[str, Any]:
        """Ask the ResourceManager's REST interface."""
        with urlopen(f"http://{self.http}/ws/v1/cluster/{path}", timeout=10) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def applications(self, *states: str) -> list[dict[str, Any]]:
        """Return what it knows of applications, oldest first; of all if no states are named."""
        found = (self.ask(f"apps?states={','.join(states)}" if states else "apps")["apps"] or {}).get("app", [])
        return sorted(found, key=lambda each: each["id"])

    def kill_application(self, identity: str) -> None:
        """Kill an application, as `yarn application -kill` does."""
        request = Request(
            f"http://{self.http}/ws/v1/cluster/apps/{identity}/state",
            json.dumps({"state": "KILLED"}).encode(),
            {"Content-Type": "application/json"},
            method="PUT",
        )
        with urlopen(request, timeout=10):  # noqa: S310  the address is ours
            return

    def logs(self, identity: str) -> str:
        """Return what `yarn logs` shows of an application that has ended."""
        return self.hdfs.run("org.apache.hadoop.yarn.client.cli.LogsCLI", "-applicationId", identity, first=self._path)

    def environment(self, *, packed: bool) -> dict[str, str]:
        """Return the environment of those who submit; containers get a packed environment of Python, or use ours."""
        conf = self.folder / ("spark-packed" if packed else "spark")
        if not conf.exists():
            self._write_spark_defaults(conf, self._upload_environment() if packed else {})
        return {
            "HADOOP_CONF_DIR": str(self.conf),
            "SPARK_CONF_DIR": str(conf),
            "SPARK_LOCAL_IP": LOOPBACK,
            "SPARK_SUBMIT_OPTS": " ".join(SMALL_JAVA),
            "PYTHONPATH": "",  # Spark hands it to containers, which would find Weir and all else there
        }

    def _upload_environment(self) -> dict[str, str]:
        packed = packed_environment()
        place = f"environments/{packed.name}"
        Store.open(self.hdfs.url, self.hdfs.storage_options).create(place, packed.read_bytes())
        return {
            "spark.yarn.dist.archives": f"{self.hdfs.url}/{place}#environment",
            "spark.pyspark.python": "./environment/bin/python",
            "spark.pyspark.driver.python": "./environment/bin/python",
        }

    def _write_spark_defaults(self, conf: Path, of_python: Mapping[str, str]) -> None:
        settings = {
            "spark.yarn.jars": f"local:{spark_home()}/jars/*",
            "spark.pyspark.python": sys.executable,
            "spark.executor.instances": "1",
            "spark.executor.memory": "512m",
            "spark.driver.memory": "512m",
            **{f"spark.{each}.extraJavaOptions": " ".join(SMALL_JAVA) for each in ("driver", "executor", "yarn.am")},
            **of_python,
        }
        conf.mkdir()
        told = "".join(f"{key} {value}\n" for key, value in settings.items())
        (conf / "spark-defaults.conf").write_text(told)

    def local_folder(self, number: int) -> Path:
        """Return the folder with local files and logs of a node; they count from 1."""
        return self.folder / f"node{number}"

    def _node_command(self, number: int) -> list[str]:
        own = self.local_folder(number)
        given = {
            "yarn.nodemanager.local-dirs": own / "local",
            "yarn.nodemanager.log-dirs": own / "logs",
            "hadoop.tmp.dir": own / "tmp",
        }
        options = [part for key, value in given.items() for part in ("-D", f"{key}={value}")]
        return [*self.hdfs.command(_NODE_MANAGER, 192, *self._path), *options]

    def _write_settings(self) -> None:
        shutil.copytree(self.hdfs.folder / "conf", self.conf)
        addresses = {key: f"{LOOPBACK}:{self._ports[name]}" for name, key in _PORTS.items()}
        of_nodes = {"address": 0, "localizer.address": 0, "webapp.address": 0, "collector-service.address": 0}
        settings = {
            "yarn.resourcemanager.hostname": LOOPBACK,
            **addresses,
            **{f"yarn.nodemanager.{name}": f"{LOOPBACK}:{port}" for name, port in of_nodes.items()},
            "yarn.nodemanager.hostname": LOOPBACK,
            "yarn.scheduler.include-port-in-node-name": "true",
            "yarn.nodemanager.resource.memory-mb": MEMORY_OF_A_NODE,
            "yarn.nodemanager.resource.cpu-vcores": 8,
            "yarn.scheduler.minimum-allocation-mb": 128,
            "yarn.nodemanager.vmem-check-enabled": "false",
            "yarn.nodemanager.pmem-check-enabled": "false",
            "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": 100,
            "yarn.nodemanager.env-whitelist": ",".join(_OF_CONTAINERS),
            "yarn.log-aggregation-enable": "true",
            "yarn.nodemanager.remote-app-log-dir": "/logs-of-containers",
            "yarn.nm.liveness-monitor.expiry-interval-ms": 10_000,
            "yarn.resourcemanager.nodemanagers.heartbeat-interval-ms": 200,
            "yarn.nodemanager.resourcemanager.connect.wait.secs": 60,
        }
        (self.conf / "yarn-site.xml").write_text(settings_xml(settings))
        queues = {
            "root.queues": f"{QUEUE},{NARROW_QUEUE}",
            f"root.{QUEUE}.capacity": 90,
            f"root.{QUEUE}.maximum-am-resource-percent": 1,
            f"root.{NARROW_QUEUE}.capacity": 10,
            f"root.{NARROW_QUEUE}.maximum-capacity": 10,
            f"root.{NARROW_QUEUE}.maximum-am-resource-percent": 1,
            "node-locality-delay": -1,
        }
        told = {f"yarn.scheduler.capacity.{key}": value for key, value in queues.items()}
        (self.conf / "capacity-scheduler.xml").write_text(settings_xml(told))
        for name in ("cluster", "node", "static"):
            (self.conf / "webapps" / name / "WEB-INF").mkdir(parents=True)
            (self.conf / "webapps" / name / "WEB-INF" / "web.xml").write_text("<web-app/>")


@contextmanager
def running_yarn(hdfs: Hdfs, folder: Path, nodes: int = 2) -> Iterator[Yarn]:
    """Start a YARN over an HDFS that runs, and end it with all containers."""
    yarn = Yarn(hdfs, folder, nodes)
    try:
        yarn.start()
        yield yarn
    finally:
        yarn.stop()
