"""The checks of a store in HDFS: its NameNodes, how often it keeps a file, and what a power cut takes.

Invariant: servers are only asked for what they say of themselves, and one small file is written, and deleted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Final

import httpx

from weir.doctor import table
from weir.doctor.examination import Check, Finding
from weir.errors import StoreFull
from weir.store.hdfs import HdfsFiles
from weir.store.store import Store

_SECONDS: Final = 5.0
_OLDEST_HADOOP: Final = 3
_SYNC: Final = "dfs.datanode.synconclose"


Scratch = Callable[[Store], AbstractContextManager[str]]
"""Makes a new folder in a store, which is deleted at the end."""


def hdfs_checks(store: Store, files: HdfsFiles, scratch: Scratch) -> list[Check]:
    """Return the checks."""
    return [
        table.NAMENODES.check(lambda: _check_namenodes(files)),
        table.REPLICAS.check(lambda: _check_file(store, files, scratch)),
        table.QUOTA.check(lambda: _check_quota(store)),
    ]


def _check_namenodes(files: HdfsFiles) -> Iterator[Finding]:
    """Check that one NameNode is active, that none of them answers with what was true before, and their version."""
    told, states = [], []
    for address in files.namenodes:
        try:
            state = str(_bean(address, "NameNodeStatus")["State"])
            version = str(_bean(address, "NameNodeInfo")["SoftwareVersion"])
        except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
            told.append(f"{address} does not say: {error or type(error).__name__}")
            continue
        states.append(state)
        told.append(f"{address} is {state}, Hadoop {version}")
        if int(version.partition(".")[0]) < _OLDEST_HADOOP:
            states.append("too old")
    found = "; ".join(told)
    if states.count("active") == 1 and not {"observer", "too old"} & set(states):
        yield table.NAMENODES.ok(found)
    elif states:
        yield table.NAMENODES.problem(found)
    else:
        yield table.NAMENODES.unknown(found, mend="see whether the NameNodes' pages /jmx may be read from here")


def _check_file(store: Store, files: HdfsFiles, scratch: Scratch) -> Iterator[Finding]:
    """Write a file, and check on how many DataNodes it is, and whether these sync what others write."""
    with scratch(store) as folder:
        path = f"{folder}/file"
        store.create(path, b"written by weir doctor")
        replicas, datanode = files.replicas(path), files.datanode_of(path)
    yield table.REPLICAS.warning("1") if replicas == 1 else table.REPLICAS.ok(str(replicas))
    try:
        value = _settings(datanode).get(_SYNC, "not set")
    except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
        found = f"{datanode} does not say: {error or type(error).__name__}"
        yield table.SYNC_ON_CLOSE.unknown(found, mend=f"look up {_SYNC} in hdfs-site.xml of the DataNodes")
        return
    item = table.SYNC_ON_CLOSE
    yield item.ok("true") if value == "true" else item.warning(f"{value}, at {datanode}")


def _check_quota(store: Store) -> Iterator[Finding]:
    try:
        store.require_free_space()
    except StoreFull as error:
        yield table.QUOTA.problem(str(error))
        return
    free = store.free_space()
    yield table.QUOTA.ok("none" if free is None else str(free))


def _settings(address: str) -> dict[str, str]:
    """Ask a server of Hadoop for all of its settings."""
    headers = {"Accept": "application/json"}
    answer = httpx.get(f"http://{address}/conf", headers=headers, timeout=_SECONDS, trust_env=False).raise_for_status()
    return {str(each["key"]): str(each["value"]) for each in answer.json()["properties"]}


def _bean(address: str, name: str) -> dict[str, Any]:
    query = {"qry": f"Hadoop:service=NameNode,name={name}"}
    answer = httpx.get(f"http://{address}/jmx", params=query, timeout=_SECONDS, trust_env=False).raise_for_status()
    found: dict[str, Any] = json.loads(answer.content)["beans"][0]
    return found
