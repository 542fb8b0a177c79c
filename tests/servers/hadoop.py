"""Hadoop's own servers for tests: where their classes come from, and an HDFS of a NameNode and DataNodes.

Maven brings the classes once into an ignored folder; a lock says which bytes they are. Invariants: servers listen on
the loopback interface alone, write below one folder, and end with the process that started them.
"""

from __future__ import annotations

import ctypes
import fcntl
import getpass
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import quote, urlencode
from urllib.request import Request, urlopen
from xml.sax.saxutils import escape

from weir.java import find_java
from weir_dev.files import tail
from weir_dev.ports import LOOPBACK, choose_ports

ROOT = Path(__file__).parents[2]
POM = Path(__file__).with_name("hadoop_jars") / "pom.xml"
LOCK = POM.with_name("jars.sha256")
INSTALLED = ROOT / ".weir" / "hadoop"
VERSION = "3.5.0"
BLOCK_BYTES = 2**20
PAGE = 20
"""How many names a page of a listing has."""

_CLIENT_JARS = (f"hadoop-client-runtime-{VERSION}.jar", "slf4j-api-*.jar", "log4j-*.jar", "jcl-over-slf4j-*.jar")
_SCANNED_JAR = f"hadoop-client-api-{VERSION}.jar"
_INSTALL_SECONDS = 300.0
_START_SECONDS = 120.0
_SMALL_JAVA = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Xshare:auto")
_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux's prctl
_NAMENODE = "org.apache.hadoop.hdfs.server.namenode.NameNode"
_DATANODE = "org.apache.hadoop.hdfs.server.datanode.DataNode"
_LOGGING = """rootLogger.level = info
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss.SSS} %p %c{1}: %m%n
"""


class HadoopMissing(Exception):
    """Hadoop's servers cannot be had here; the text says why."""


@cache
def hadoop_classes() -> tuple[Path, ...]:
    """Return the class path of Hadoop's servers, installed unless they are. Raises HadoopMissing."""
    jars = _jars_of_pyspark()
    name = hashlib.sha256(POM.read_bytes() + LOCK.read_bytes()).hexdigest()[:12]
    folder = INSTALLED / name
    INSTALLED.mkdir(parents=True, exist_ok=True)
    with (INSTALLED / "install.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _install(folder, jars / _SCANNED_JAR)
    return (*sorted(folder.iterdir()), *(path for each in _CLIENT_JARS for path in sorted(jars.glob(each))))


def _jars_of_pyspark() -> Path:
    """Return the folder of pyspark's jars, which are Hadoop's client and what its servers log with."""
    spec = find_spec("pyspark")
    jars = Path(spec.origin).parent / "jars" if spec is not None and spec.origin else None
    if jars is None or not (jars / _SCANNED_JAR).exists():
        raise HadoopMissing(f"this pyspark brings no {_SCANNED_JAR}, which its servers' jars need")
    return jars


def _install(folder: Path, scanned: Path) -> None:
    """Have Maven copy the jars, compare them with the lock, and unpack them.

    The NameNode's web server reads each jar with one of its packages from end to end; a folder it does not.
    """
    if shutil.which("mvn") is None:
        raise HadoopMissing("there is no mvn on the PATH: Debian's package maven has it")
    jars = INSTALLED / f"jars-{uuid.uuid4().hex}"
    try:
        _copy_dependencies(jars)
        found = {each.name: hashlib.sha256(each.read_bytes()).hexdigest() for each in jars.iterdir()}
        if found != locked():
            raise AssertionError(f"Maven brought {found}, and {LOCK} has {locked()}")
        classes = jars / "classes"
        for each in [*(jars / name for name in found), scanned]:
            with zipfile.ZipFile(each) as jar:
                jar.extractall(classes / each.stem)
        _make_small_pages(classes / "0-pages" / "webapps")
        classes.rename(folder)
    finally:
        shutil.rmtree(jars, ignore_errors=True)


def _copy_dependencies(jars: Path) -> None:
    command = ["mvn", "-B", "-q", "-f", str(POM), "dependency:copy-dependencies", f"-DoutputDirectory={jars}"]
    try:
        run = subprocess.run(
            command, capture_output=True, text=True, timeout=_INSTALL_SECONDS, check=False, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired as error:
        raise HadoopMissing(f"Maven's repository did not answer within {error.timeout:g} s") from error
    if run.returncode != 0:
        said = (run.stdout + run.stderr).strip().splitlines() or ["nothing"]
        raise HadoopMissing(f"Maven could not bring Hadoop's servers: {said[0][:300]}")


def _make_small_pages(webapps: Path) -> None:
    """Make web applications without a page, in the place of those for people, which take seconds to unpack."""
    for name in ("hdfs", "datanode", "static"):
        (webapps / name / "WEB-INF").mkdir(parents=True)
        (webapps / name / "WEB-INF" / "web.xml").write_text("<web-app/>")


def locked() -> dict[str, str]:
    """Return the digests of the jars that Maven is to bring, by name."""
    return {name: digest for digest, name in (line.split() for line in LOCK.read_text().splitlines())}


class Server:
    """A server of Hadoop, started by its main class, which may be killed and started again."""

    def __init__(self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self.log = log
        self._name = name
        self._command = command
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; it is ready some seconds later."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                cwd=self.log.parent,
                preexec_fn=_end_with_parent,  # noqa: PLW1509  # it makes one call of the system
            )

    def is_alive(self) -> bool:
        """Report whether it was started, and has not ended."""
        return self._process is not None and self._process.poll() is None

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """End it at once, as a crash would, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class Hdfs:
    """An HDFS: a NameNode, whose addresses stay the same over restarts, and DataNodes."""

    def __init__(self, folder: Path, datanodes: int) -> None:
        self.folder = folder
        self._ports = choose_ports(["rpc", "http"], {})
        java = find_java(folder / "java", os.environ)
        self._environment = {**os.environ, **java.environment(os.environ)}
        self._java = str(java.home / "bin" / "java")
        self._path = os.pathsep.join(str(each) for each in (folder / "conf", *hadoop_classes()))
        self._write_settings(datanodes)
        self.namenode = self._server("namenode", _NAMENODE, 256)
        self.datanodes = [self._datanode(number) for number in range(1, datanodes + 1)]

    @property
    def url(self) -> str:
        """The root, as Hadoop's clients take it."""
        return f"hdfs://{LOOPBACK}:{self._ports['rpc']}"

    @property
    def http(self) -> str:
        """The address of the NameNode's HTTP interface."""
        return f"{LOOPBACK}:{self._ports['http']}"

    @property
    def storage_options(self) -> dict[str, Any]:
        """Options for `Store.open`: this process's user, who may do all."""
        return {"namenodes": self.http, "user": getpass.getuser()}

    def format(self) -> None:
        """Make the NameNode's files, of an empty HDFS: its own program takes seconds, so they are kept."""
        made = INSTALLED / f"formatted-{VERSION}"
        if made.exists():
            shutil.copytree(made, self.folder / "name")
            return
        self.run(_NAMENODE, "-format", "-nonInteractive")
        kept = INSTALLED / uuid.uuid4().hex
        shutil.copytree(self.folder / "name", kept)
        try:
            kept.rename(made)
        except OSError:  # another process was faster
            shutil.rmtree(kept)

    def start(self) -> None:
        """Start all servers, and return when they take files."""
        for each in (self.namenode, *self.datanodes):
            each.start()
        self.await_datanodes(len(self.datanodes))

    def stop(self) -> None:
        """End all servers."""
        for each in (self.namenode, *self.datanodes):
            each.kill()

    def run(self, main: str, *arguments: str) -> str:
        """Run a program of Hadoop, and return its output."""
        run = subprocess.run(
            [*self._command(main, 128), *arguments],
            capture_output=True,
            text=True,
            env=self._environment,
            cwd=self.folder,
            check=False,
            timeout=_START_SECONDS,
        )
        if run.returncode != 0:
            raise AssertionError(f"{main} {arguments}:\n{run.stdout[-1000:]}{run.stderr[-3000:]}")
        return run.stdout

    def ask(self, method: str, operation: str, path: str, **arguments: Any) -> dict[str, Any]:
        """Ask the NameNode as the one who may do all; Hadoop's answer, {} if it has none."""
        query = urlencode({"op": operation, "user.name": getpass.getuser(), **arguments})
        url = f"http://{self.http}/webhdfs/v1{quote(path)}?{query}"
        with urlopen(Request(url, method=method), timeout=30) as answer:
            body = answer.read()
        found: dict[str, Any] = json.loads(body) if body else {}
        return found

    def syncs(self) -> int:
        """How often DataNodes have synced files of theirs to their disks, by their own count."""
        found = 0
        for each in json.loads(self._bean("NameNode", "NameNodeInfo", self.http)["LiveNodes"]).values():
            found += int(self._bean("DataNode", "DataNodeActivity-*", each["infoAddr"])["FsyncCount"])
        return found

    def await_datanodes(self, number: int) -> None:
        """Return when the NameNode answers, is out of safe mode, and knows so many live DataNodes."""
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline and self.namenode.is_alive():
            with suppress(URLError, OSError, ValueError, LookupError):
                if self._live() == number:
                    return
            time.sleep(0.1)
        raise AssertionError(f"HDFS did not start:\n{tail(self.namenode.log)}\n{tail(self.datanodes[0].log)}")

    def blocks_of(self, number: int) -> list[Path]:
        """Return the files of blocks on the disk of a DataNode; they count from 1."""
        return [each for each in self._data(number).rglob("blk_*") if each.suffix != ".meta"]

    def _live(self) -> int:
        found = self._bean("NameNode", "NameNodeInfo", self.http)
        return 0 if found["Safemode"] else len(json.loads(found["LiveNodes"]))

    def _bean(self, service: str, name: str, address: str) -> dict[str, Any]:
        with urlopen(f"http://{address}/jmx?qry=Hadoop:service={service},name={name}", timeout=5) as answer:
            found: dict[str, Any] = json.load(answer)["beans"][0]
        return found

    def _server(self, name: str, main: str, megabytes: int, *arguments: str) -> Server:
        command = [*self._command(main, megabytes), *arguments]
        return Server(name, command, self.folder / f"{name}.log", self._environment)

    def _datanode(self, number: int) -> Server:
        own = {
            "dfs.datanode.data.dir": self._data(number),
            "hadoop.tmp.dir": self.folder / f"tmp{number}",
            "dfs.datanode.hostname": LOOPBACK,
            **{f"dfs.datanode.{each}": f"{LOOPBACK}:0" for each in ("address", "http.address", "ipc.address")},
        }
        given = [part for key, value in own.items() for part in ("-D", f"{key}={value}")]
        return self._server(f"datanode{number}", _DATANODE, 128, *given)

    def _data(self, number: int) -> Path:
        return self.folder / f"data{number}"

    def _command(self, main: str, megabytes: int) -> list[str]:
        return [self._java, f"-Xmx{megabytes}m", *_SMALL_JAVA, "-cp", self._path, main]

    def _write_settings(self, datanodes: int) -> None:
        settings = {
            "fs.defaultFS": self.url,
            "hadoop.tmp.dir": self.folder / "tmp",
            "dfs.namenode.name.dir": self.folder / "name",
            "dfs.namenode.rpc-address": f"{LOOPBACK}:{self._ports['rpc']}",
            "dfs.namenode.http-address": self.http,
            "dfs.replication": datanodes,
            "dfs.blocksize": BLOCK_BYTES,
            "dfs.ls.limit": PAGE,
            "dfs.namenode.handler.count": 4,
            "dfs.datanode.handler.count": 2,
            "dfs.namenode.edits.noeditlogchannelflush": "true",  # tests kill servers, never the machine
            "dfs.namenode.safemode.extension": 0,
            "dfs.heartbeat.interval": 1,
            "dfs.namenode.heartbeat.recheck-interval": 1000,  # with 10 heartbeats more, a DataNode is dead
            "ipc.client.connect.retry.interval": 100,
            "ipc.client.connect.max.retries": 600,
        }
        conf = self.folder / "conf"
        conf.mkdir(parents=True)
        told = "".join(
            f"<property><name>{key}</name><value>{escape(str(each))}</value></property>"
            for key, each in settings.items()
        )
        for name in ("core-site.xml", "hdfs-site.xml"):
            (conf / name).write_text(f"<configuration>{told}</configuration>")
        (conf / "log4j2.properties").write_text(_LOGGING)
        (conf / "hadoop-metrics2.properties").write_text("*.period=1\n")


@contextmanager
def running_hdfs(folder: Path, datanodes: int = 1) -> Iterator[Hdfs]:
    """Start an empty HDFS that writes below `folder` only, and end it. Raises HadoopMissing."""
    hdfs = Hdfs(folder, datanodes)
    hdfs.format()
    try:
        hdfs.start()
        yield hdfs
    finally:
        hdfs.stop()


def _end_with_parent() -> None:
    """Have the system kill the server if its parent ends in whatever way; only Linux can."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, int(signal.SIGKILL))
