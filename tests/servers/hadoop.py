"""Hadoop's own servers for tests: where their classes come from, and an HDFS of a NameNode and DataNodes.

Invariant: servers listen on the loopback interface alone, and write below one folder.
"""

from __future__ import annotations

import getpass
import json
import os
import shutil
import subprocess
import time
import uuid
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.error import URLError
from urllib.parse import quote, urlencode
from urllib.request import Request, urlopen
from xml.sax.saxutils import escape

from tests.servers.java import INSTALLED, SMALL_JAVA, JarsMissing, JavaServer, installed_jars

from weir.java import find_java
from weir_dev.files import tail
from weir_dev.ports import LOOPBACK, choose_ports

VERSION = "3.5.0"
BLOCK_BYTES = 2**20
PAGE = 20
"""How many names a page of a listing has."""

_CLIENT_JARS = (f"hadoop-client-runtime-{VERSION}.jar", "slf4j-api-*.jar", "log4j-*.jar", "jcl-over-slf4j-*.jar")
_SCANNED_JAR = f"hadoop-client-api-{VERSION}.jar"
_START_SECONDS = 120.0
_NAMENODE = "org.apache.hadoop.hdfs.server.namenode.NameNode"
_DATANODE = "org.apache.hadoop.hdfs.server.datanode.DataNode"
_ADMIN = "org.apache.hadoop.hdfs.tools.DFSHAAdmin"
_FAILOVER = "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider"
_LOGGING = """rootLogger.level = info
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss.SSS} %p %c{1}: %m%n
"""


@cache
def hadoop_classes() -> tuple[Path, ...]:
    """Return the class path of Hadoop's servers, installed unless they are. Raises JarsMissing."""
    jars = _jars_of_pyspark()
    folder = installed_jars("hadoop", lambda brought: _unpack(brought, jars / _SCANNED_JAR))
    return (*sorted(folder.iterdir()), *(path for each in _CLIENT_JARS for path in sorted(jars.glob(each))))


def _jars_of_pyspark() -> Path:
    """Return the folder of pyspark's jars, which are Hadoop's client and what its servers log with."""
    spec = find_spec("pyspark")
    jars = Path(spec.origin).parent / "jars" if spec is not None and spec.origin else None
    if jars is None or not (jars / _SCANNED_JAR).exists():
        raise JarsMissing(f"this pyspark brings no {_SCANNED_JAR}, which its servers' jars need")
    return jars


def _unpack(jars: Path, scanned: Path) -> None:
    """Unpack the jars: the NameNode's web server reads each that has one of its packages from end to end."""
    for each in [*jars.iterdir(), scanned]:
        with zipfile.ZipFile(each) as jar:
            jar.extractall(jars / each.stem)
        if each != scanned:
            each.unlink()
    _make_small_pages(jars / "0-pages" / "webapps")


def _make_small_pages(webapps: Path) -> None:
    """Make web applications without a page, in the place of those for people, which take seconds to unpack."""
    for name in ("hdfs", "datanode", "static"):
        (webapps / name / "WEB-INF").mkdir(parents=True)
        (webapps / name / "WEB-INF" / "web.xml").write_text("<web-app/>")


class Hdfs:
    """An HDFS: a NameNode, whose addresses stay the same over restarts, and DataNodes."""

    def __init__(self, folder: Path, datanodes: int, settings: Mapping[str, Any] | None = None) -> None:
        self.folder = folder
        self._ports = choose_ports(self._interfaces(), {})
        java = find_java(folder / "java", os.environ)
        self.environment = {**os.environ, **java.environment(os.environ)}
        self._java = str(java.home / "bin" / "java")
        self._write_settings({**self._settings(datanodes), **(settings or {})})
        self.namenode = self._namenode()
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
        made = INSTALLED / f"hadoop-formatted-{VERSION}"
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
        self.namenode.start()
        self._start_datanodes()

    def stop(self) -> None:
        """End all servers."""
        for each in (self.namenode, *self.datanodes):
            each.kill()

    def run(self, main: str, *arguments: str, first: tuple[Path, ...] = ()) -> str:
        """Run a program of Hadoop, and return its output."""
        run = subprocess.run(
            [*self.command(main, 128, *first), *arguments],
            capture_output=True,
            text=True,
            env=self.environment,
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

    def _start_datanodes(self) -> None:
        for each in self.datanodes:
            each.start()
        self.await_datanodes(len(self.datanodes))

    def _interfaces(self) -> list[str]:
        """Name what has a port that stays the same over restarts."""
        return ["rpc", "http"]

    def _namenode(self, *arguments: str, name: str = "namenode") -> JavaServer:
        return self._server(name, _NAMENODE, 256, *arguments)

    def _server(self, name: str, main: str, megabytes: int, *arguments: str) -> JavaServer:
        command = [*self.command(main, megabytes), *arguments]
        return JavaServer(command, self.folder / f"{name}.log", self.environment)

    def _datanode(self, number: int) -> JavaServer:
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

    def command(self, main: str, megabytes: int, *first: Path) -> list[str]:
        """Return the command that runs a program of Hadoop; `first` is on its path in place of this HDFS's settings."""
        path = os.pathsep.join(str(each) for each in (*(first or (self.folder / "conf",)), *hadoop_classes()))
        return [self._java, f"-Xmx{megabytes}m", *SMALL_JAVA, "-cp", path, main]

    def _addresses(self) -> dict[str, Any]:
        """Return the settings that say where NameNodes are."""
        return {
            "dfs.namenode.rpc-address": f"{LOOPBACK}:{self._ports['rpc']}",
            "dfs.namenode.http-address": self.http,
        }

    def _settings(self, datanodes: int) -> dict[str, Any]:
        return {
            "fs.defaultFS": self.url,
            "hadoop.tmp.dir": self.folder / "tmp",
            "dfs.namenode.name.dir": self.folder / "name",
            **self._addresses(),
            "dfs.replication": datanodes,
            "dfs.blocksize": BLOCK_BYTES,
            "dfs.ls.limit": PAGE,
            "dfs.namenode.handler.count": 4,
            "dfs.datanode.handler.count": 2,
            # A DataNode that closes a file for WebHDFS asks the NameNode again whether the block has arrived.
            "dfs.client.block.write.locateFollowingBlock.initial.delay.ms": 5,
            "dfs.namenode.edits.noeditlogchannelflush": "true",  # tests kill servers, never the machine
            "dfs.namenode.safemode.extension": 0,
            "dfs.heartbeat.interval": 1,
            "dfs.namenode.heartbeat.recheck-interval": 1000,  # with 10 heartbeats more, a DataNode is dead
            "ipc.client.connect.retry.interval": 100,
            "ipc.client.connect.max.retries": 600,
        }

    def _write_settings(self, settings: Mapping[str, Any]) -> None:
        conf = self.folder / "conf"
        conf.mkdir(parents=True)
        for name in ("core-site.xml", "hdfs-site.xml"):
            (conf / name).write_text(settings_xml(settings))
        (conf / "log4j2.properties").write_text(_LOGGING)
        (conf / "hadoop-metrics2.properties").write_text("*.period=1\n")


def settings_xml(settings: Mapping[str, Any]) -> str:
    """Return the text of a file with settings, as Hadoop reads it."""
    told = "".join(
        f"<property><name>{key}</name><value>{escape(str(each))}</value></property>" for key, each in settings.items()
    )
    return f"<configuration>{told}</configuration>"


class HdfsPair(Hdfs):
    """An HDFS with two NameNodes, which share their edits in a folder: the active one, and one on standby.

    What fails over is told: there is no ZooKeeper that would notice it.
    """

    NAME: Final = "pair"
    IDS: Final = ("nn1", "nn2")

    def __init__(self, folder: Path, datanodes: int) -> None:
        super().__init__(folder, datanodes)
        self.namenodes = {"nn1": self.namenode, "nn2": self._namenode(*self._own("nn2"), name="nn2")}
        self.active = "nn1"

    @property
    def url(self) -> str:
        """The root: it names no host, but the two together."""
        return f"hdfs://{self.NAME}"

    @property
    def http(self) -> str:
        """The address of the active one's HTTP interface."""
        return self.http_of(getattr(self, "active", "nn1"))

    @property
    def storage_options(self) -> dict[str, Any]:
        """Options for `Store.open`: the user who may do all, and both NameNodes."""
        return super().storage_options | {"namenodes": ",".join(self.http_of(each) for each in self.IDS)}

    def http_of(self, name: str) -> str:
        """The address of the HTTP interface of a NameNode."""
        return f"{LOOPBACK}:{self._ports[f'http {name}']}"

    def format(self) -> None:
        """Make the files of both, and the edits that they share."""
        self.run(_NAMENODE, *self._own("nn1"), "-format", "-nonInteractive")
        shutil.copytree(self.folder / "nn1", self.folder / "nn2")

    def start(self) -> None:
        """Start all servers, and make the first NameNode the active one."""
        self.namenodes["nn2"].start()
        self.namenode.start()
        self._await_answer("nn1")
        self.activate("nn1")
        self._start_datanodes()

    def stop(self) -> None:
        """End all servers."""
        self.namenodes["nn2"].kill()
        super().stop()

    def activate(self, name: str) -> None:
        """Make a NameNode the active one, after the other has ended or gone on standby."""
        self._await_answer(name)
        self.run(_ADMIN, "-transitionToActive", "--forceactive", name)
        self.active = name

    def kill_active(self) -> None:
        """Kill the active NameNode, and make the other one active."""
        killed = self.active
        self.namenodes[killed].kill()
        self.activate(next(each for each in self.IDS if each != killed))

    def change_places(self) -> None:
        """Let the active NameNode go on standby, and the other one be active."""
        other = next(each for each in self.IDS if each != self.active)
        self._await_answer(other)
        self.run(_ADMIN, "-transitionToStandby", self.active)
        self.activate(other)

    def _await_answer(self, name: str) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline and self.namenodes[name].is_alive():
            with suppress(URLError, OSError, ValueError, LookupError):
                self._bean("NameNode", "NameNodeStatus", self.http_of(name))
                return
            time.sleep(0.1)
        raise AssertionError(f"{name} did not start:\n{tail(self.namenodes[name].log)}")

    def _interfaces(self) -> list[str]:
        return [f"{kind} {each}" for kind in ("rpc", "http") for each in self.IDS]

    def _namenode(self, *arguments: str, name: str = "nn1") -> JavaServer:
        return super()._namenode(*(arguments or self._own(name)), name=name)

    def _own(self, name: str) -> tuple[str, ...]:
        return ("-D", f"dfs.ha.namenode.id={name}", "-D", f"dfs.namenode.name.dir={self.folder / name}")

    def _addresses(self) -> dict[str, Any]:
        return {
            "dfs.nameservices": self.NAME,
            f"dfs.ha.namenodes.{self.NAME}": ",".join(self.IDS),
            **{
                f"dfs.namenode.{kind}-address.{self.NAME}.{each}": f"{LOOPBACK}:{self._ports[f'{kind} {each}']}"
                for kind in ("rpc", "http")
                for each in self.IDS
            },
            f"dfs.client.failover.proxy.provider.{self.NAME}": _FAILOVER,
            "dfs.namenode.shared.edits.dir": f"file://{self.folder / 'shared'}",
            "dfs.ha.tail-edits.period": 1,
        }


H = TypeVar("H", bound=Hdfs)


@contextmanager
def running_hdfs(folder: Path, datanodes: int = 1, settings: Mapping[str, Any] | None = None) -> Iterator[Hdfs]:
    """Start an empty HDFS that writes below `folder` only, and end it. Raises JarsMissing."""
    with _running(Hdfs(folder, datanodes, settings)) as hdfs:
        yield hdfs


@contextmanager
def running_pair(folder: Path) -> Iterator[HdfsPair]:
    """Start an empty HDFS with two NameNodes and two DataNodes, and end it. Raises JarsMissing."""
    with _running(HdfsPair(folder, 2)) as hdfs:
        yield hdfs


@contextmanager
def _running(hdfs: H) -> Iterator[H]:
    hdfs.format()
    try:
        hdfs.start()
        yield hdfs
    finally:
        hdfs.stop()
