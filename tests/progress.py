"""What several processes of tests are doing, in lines: each module when it is through, each failure at once."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict

import pytest

QUIET_SECONDS = 30.0
"""After so long without a line, one says which modules run."""


class Progress:
    """Takes the place of pytest's letters, which say neither which module nor which failure."""

    def __init__(self, config):
        self._plugins = config.pluginmanager
        self._total, self._of_module = 0, Counter()
        self._outcomes, self._seconds, self._reasons = defaultdict(Counter), Counter(), defaultdict(set)
        self._done, self._at_work = 0, {}
        self._started = self._said_at = time.monotonic()
        self._end = threading.Event()

    def pytest_sessionstart(self):
        """Report at times which modules run, from now on."""
        threading.Thread(target=self._repeat, daemon=True).start()

    def pytest_xdist_node_collection_finished(self, ids):
        """Count the tests, when the first process has found them."""
        if not self._total:
            self._total, self._of_module = len(ids), Counter(map(_module_of, ids))
            self._say(f"{self._total} tests in {len(self._of_module)} modules")

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report):
        """Let pytest count, and print nothing."""
        if hasattr(report, "wasxfail"):
            return None
        if report.failed:
            return ("failed" if report.when == "call" else "error"), "", ""
        if report.skipped:
            return "skipped", "", ""
        return ("passed" if report.when == "call" else ""), "", ""

    def pytest_runtest_logstart(self, nodeid):
        """Remember which modules run."""
        self._at_work.setdefault(_module_of(nodeid), time.monotonic())

    def pytest_runtest_logreport(self, report):
        """Print a failure at once, and a module when its last test is through."""
        module = _module_of(report.nodeid)
        self._seconds[module] += report.duration
        if report.failed:
            reason = getattr(getattr(report.longrepr, "reprcrash", None), "message", str(report.longrepr))
            self._say(f"FAILED ({report.when}) {report.nodeid}: {' '.join(reason.split())[:300]}")
            self._outcomes[module]["failed"] += 1
        elif report.skipped and isinstance(report.longrepr, tuple):
            self._outcomes[module]["skipped"] += 1
            self._reasons[module].add(report.longrepr[2].removeprefix("Skipped: "))
        elif report.skipped or report.when == "call":
            self._outcomes[module][report.outcome] += 1
        if report.when == "teardown":
            self._done += 1
            self._of_module[module] -= 1
            if self._of_module[module] == 0:
                del self._at_work[module]
                counts = ", ".join(f"{number} {outcome}" for outcome, number in self._outcomes[module].items())
                reasons = "".join(f"; skipped: {reason}" for reason in sorted(self._reasons[module]))
                self._say(f"{module}: {counts} in {self._seconds[module]:.0f} s{reasons}")

    def pytest_sessionfinish(self):
        """Fall silent: the last lines are pytest's."""
        self._end.set()

    def _repeat(self):
        while not self._end.wait(1):
            if time.monotonic() - self._said_at > QUIET_SECONDS:
                left = [f"{module} ({self._of_module[module]} to go)" for module in list(self._at_work)]
                self._say(f"running: {', '.join(left) or 'looking for tests'}")

    def _say(self, text):
        self._said_at = time.monotonic()
        seconds = int(self._said_at - self._started)
        count = f"{self._done} of {self._total}, " if self._total else ""
        terminal = self._plugins.get_plugin("terminalreporter")
        terminal.write_line(f"[{count}{seconds // 60}:{seconds % 60:02}] {text}")


def _module_of(nodeid):
    return nodeid.partition("::")[0]
