"""One process for all that tests do in drivers of their own: its JVM has loaded and compiled what the second one needs.

Each program makes its sessions itself, and ends them as an application does; the context of the next one is another.
As a program it is that process: it answers a line of its input by a line.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ANSWER = "answer: "
ROOT = Path(__file__).parents[2]


class Drivers:
    """Programs that run one after the other in the process, which works in a folder; ended by `close`."""

    def __init__(self, folder):
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        command, pipe = [sys.executable, "-m", "tests.weir_spark.drivers"], subprocess.PIPE
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": path}
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=folder, env=environment)

    def run(self, program, *arguments):
        """Run the text of a function `answer` with these arguments; what it returns, by JSON."""
        print(json.dumps([program, arguments]), file=self._process.stdin, flush=True)
        for line in self._process.stdout:
            if line.startswith(ANSWER):
                return json.loads(line.removeprefix(ANSWER))
        raise AssertionError(f"the process of the drivers ended with {self._process.wait()}")

    def close(self):
        self._process.stdin.close()
        assert self._process.wait(timeout=60) == 0


def main():
    for line in sys.stdin:
        program, arguments = json.loads(line)
        names = {}
        exec(program, names)  # noqa: S102  it is a test's own
        print(f"\n{ANSWER}{json.dumps(names['answer'](*arguments))}", flush=True)


if __name__ == "__main__":
    main()
