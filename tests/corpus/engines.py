"""The two kinds of sessions that compute regions, alike for a case: on a Connect server, and one of its own.

As a program it is the process of the second kind: `python -m tests.corpus.engines` answers a job a line of its input.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid

import pytest

from weir.formats.codec import from_json, region_job_from_json, to_json
from weir.formats.region_job import RegionReport
from weir.store.store import Store

CONNECT, OWN_SESSION = "Connect", "own session"
ANSWER = "answer: "
OF_CONNECT = {"SPARK_CONNECT_MODE_ENABLED", "SPARK_REMOTE", "SPARK_LOCAL_REMOTE"}
"""The environment of a client, which this process has become by its sessions."""

SETTINGS = {
    "spark.master": "local[2]",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
}


def on_both(cases, told, kind=lambda case: None):
    """Parameters `engine` and `case`: all on a Connect server, and of each kind one in a session of its own.

    The others are soaks there: the same reader or rule answers on both.
    """
    first = {}
    for case in cases:
        first.setdefault(kind(case), case)
    of_own = [(case, () if case in first.values() else pytest.mark.soak) for case in cases]
    return pytest.mark.parametrize(
        ("engine", "case"),
        [
            *(pytest.param(CONNECT, case, id=f"{CONNECT}-{told(case)}") for case in cases),
            *(pytest.param(OWN_SESSION, case, id=f"{OWN_SESSION}-{told(case)}", marks=marks) for case, marks in of_own),
        ],
        indirect=["engine"],
    )


class Refused(Exception):
    """A job ended with an error; `kind` is that of Weir which its task acts by, empty where none fits."""

    def __init__(self, kind, text):
        self.kind, self.text = kind, text
        super().__init__(f"{kind}: {text}")


class OnConnect:
    """Each region in a session of the shared server, as a task runs it."""

    def __init__(self, url):
        from weir_spark.transport.connect import ConnectEngine

        self._engine = ConnectEngine(url, retries=2)

    def run(self, job, store):
        try:
            self._engine.run(job, str(uuid.uuid4()), lambda line: None)
        except Exception as error:  # noqa: BLE001  it is the answer
            raise Refused(type(error).__name__, str(error)) from None
        return from_json(RegionReport, store.read(job.report))


class InOwnSession:
    """Each region in a new session of one JVM, as the driver of an application runs it; ended by `close`."""

    def __init__(self):
        command = [sys.executable, "-m", "tests.corpus.engines"]
        own = {name: value for name, value in os.environ.items() if name not in OF_CONNECT}
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=own)

    def run(self, job, store):
        found = {name: value for name, value in os.environ.items() if name.startswith("AIRFLOW_CONN_")}
        asked = {"job": to_json(job).decode(), "environment": found}
        print(json.dumps(asked), file=self._process.stdin, flush=True)
        for line in self._process.stdout:
            if line.startswith(ANSWER):
                answer = json.loads(line.removeprefix(ANSWER))
                break
        else:
            raise AssertionError(f"the session of its own ended with {self._process.wait()}")
        if "report" not in answer:
            raise Refused(**answer)
        return from_json(RegionReport, answer["report"].encode())

    def close(self):
        self._process.stdin.close()
        assert self._process.wait(timeout=60) == 0


def answered(text, session):
    """Run a job in a session of its own as a driver does; what the driver would report."""
    from weir_spark.region import region
    from weir_spark.transport.driver import translate_of_own_session
    from weir_spark.transport.failures import in_place_of

    job = region_job_from_json(text.encode())
    try:
        report = region.run(job, session, Store.open(job.store), lambda line: None)
    except Exception as error:  # noqa: BLE001  it is the answer
        translated = in_place_of(error, translate_of_own_session(error, job.region), job)
        return {"kind": type(translated).__name__, "text": str(translated)}
    return {"report": to_json(report).decode()}


def main():
    from weir_spark.program import session_of_program

    session = session_of_program("corpus", None, SETTINGS)
    modules = session.sparkContext._jsc.sc().addedFiles()
    for line in sys.stdin:
        asked = json.loads(line)
        os.environ.update(asked["environment"])
        print(ANSWER + json.dumps(answered(asked["job"], session.newSession())), flush=True)
        modules.clear()  # the modules of a job are deleted with it, and the next one has its own
    session.stop()


if __name__ == "__main__":
    main()
