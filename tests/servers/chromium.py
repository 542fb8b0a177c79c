"""A Chromium without a window, which tests drive over a pipe by its DevTools protocol: no driver, and no port.

Chromium ends when its pipe does, also where the tests are killed. Nothing here sleeps: the page itself waits for what
it is to show.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

SECONDS = 30.0
"""How long an answer, and what a page is to show, may take."""

KEYS = {"Tab": 9, "Enter": 13}

_WAITS = """new Promise((done, failed) => {
  const begin = performance.now();
  const look = () => {
    let found;
    try { found = (() => (%s))(); } catch (error) { found = null; }
    const isLate = performance.now() - begin > %d;
    if (found) done(found.nodeType ? true : found);
    else if (isLate) failed(new Error("not shown; what is: " + document.body.innerText.slice(0, 2000)));
    else setTimeout(look, 20);
  };
  look();
})"""

_PLACE = """(() => {
  const element = %s;
  if (!element || element.ownerDocument.readyState !== "complete") return null;
  element.scrollIntoView({block: "center"});
  const frame = element.ownerDocument.defaultView.frameElement;
  const around = frame ? frame.getBoundingClientRect() : {x: 0, y: 0};
  const [box] = element.getClientRects();
  return box && {x: around.x + box.x + box.width / 2, y: around.y + box.y + box.height / 2};
})()"""


class PageError(AssertionError):
    """A page could not do what it was asked for."""


def why_no_chromium() -> str | None:
    """Return why no test can run in Chromium here; None where it can."""
    return None if _program() else "there is no chromium on the PATH: Debian's package chromium has it"


def _program() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@contextmanager
def running_chromium() -> Iterator[Chromium]:
    """Start a Chromium with a profile of its own; it and its profile are gone afterwards."""
    program = _program()
    assert program is not None
    with tempfile.TemporaryDirectory(prefix="weir-chromium-", ignore_cleanup_errors=True) as profile:
        (reads, told_to), (told_by, writes) = os.pipe(), os.pipe()
        own = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (reads, writes)]  # not one of those it gets
        command = [
            *("bash", "-c", f'exec "$@" 3<&{own[0]} 4>&{own[1]}', "bash", program, "--headless"),
            *("--remote-debugging-pipe", f"--user-data-dir={profile}", "--no-sandbox", "--disable-dev-shm-usage"),
            *(
                "--disable-gpu",
                "--hide-scrollbars",
                "--no-first-run",
                "--disable-extensions",
                "--force-color-profile=srgb",
            ),
            *(
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-sync",
                "--disable-default-apps",
            ),
        ]
        process = subprocess.Popen(command, pass_fds=own, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for end in (reads, writes, *own):
            os.close(end)
        chromium = Chromium(told_to, told_by)
        try:
            yield chromium
        finally:
            with suppress(PageError, OSError):
                chromium.command("Browser.close")
            os.close(told_to)
            os.close(told_by)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class Chromium:
    """A running Chromium."""

    def __init__(self, write_to: int, read_from: int) -> None:
        self._write_to, self._read_from = write_to, read_from
        self._buffer = b""
        self._number = 0
        self._pages: dict[str, Page] = {}

    def command(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its answer; what pages tell meanwhile is noted with them."""
        self._number += 1
        number = self._number
        message = {"id": number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._write_to, data) :]
        deadline = time.monotonic() + SECONDS + 5
        while True:
            told = self._next(deadline)
            if told.get("id") != number:
                self._note(told)
            elif "error" in told:
                raise PageError(f"{method}: {told['error']['message']}")
            else:
                answer: dict[str, Any] = told["result"]
                return answer

    def _next(self, deadline: float) -> dict[str, Any]:
        """Return the next message, which ends with a NUL."""
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read_from], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise PageError("Chromium does not answer")
            data = os.read(self._read_from, 1 << 20)
            if not data:
                raise PageError("Chromium has ended")
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        told: dict[str, Any] = json.loads(message)
        return told

    def _note(self, told: dict[str, Any]) -> None:
        page = self._pages.get(told.get("sessionId", ""))
        if page is not None:
            page.note(told["method"], told["params"])

    @contextmanager
    def page(self, *, cookies: dict[str, str] | None = None, of: str = "") -> Iterator[Page]:
        """Open a page that shares nothing with others; it has these cookies for addresses that begin with `of`."""
        context = self.command("Target.createBrowserContext")["browserContextId"]
        if cookies:
            sent = [{"name": name, "value": value, "url": of} for name, value in cookies.items()]
            self.command("Storage.setCookies", cookies=sent, browserContextId=context)
        target = self.command("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.command("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self._pages[session] = Page(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.command(f"{domain}.enable")
        yield page
        del self._pages[session]
        self.command("Target.disposeBrowserContext", browserContextId=context)


@dataclass(slots=True)
class Page:
    """A page of a Chromium."""

    chromium: Chromium
    session: str
    problems: list[str] = field(default_factory=list)
    """What its console told of: errors, and what its policy refused."""
    requested: list[str] = field(default_factory=list)
    """The addresses that it has asked for."""
    width: int = 1280

    def command(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command to this page."""
        return self.chromium.command(method, self.session, **parameters)

    def note(self, method: str, told: dict[str, Any]) -> None:
        """Note what the page has told."""
        if method == "Network.requestWillBeSent":
            self.requested.append(told["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(told["exceptionDetails"])[:2000])
        elif method == "Runtime.consoleAPICalled" and told["type"] in ("error", "assert"):
            self.problems.append(json.dumps(told["args"])[:2000])
        elif method == "Log.entryAdded" and told["entry"]["level"] == "error":
            self.problems.append(f"{told['entry']['text']} {told['entry'].get('url', '')}")

    def looks(self, *, width: int = 1280, height: int = 900, is_dark: bool = False, is_printed: bool = False) -> None:
        """Show the page as wide as this, in light or dark colours, on a screen or on paper."""
        self.width = width
        self.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self.command("Emulation.setEmulatedMedia", media="print" if is_printed else "screen", features=[scheme])

    def open(self, url: str, shown: str = "true") -> None:
        """Go to an address, until the page is loaded and this JavaScript expression holds."""
        self.problems.clear()
        self.requested.clear()
        answer = self.command("Page.navigate", url=url)
        assert "errorText" not in answer, answer
        self.wait_for(f"location.href !== 'about:blank' && document.readyState === 'complete' && ({shown})")

    def wait_for(self, expression: str) -> Any:
        """Wait until a JavaScript expression holds, and return its value."""
        deadline = time.monotonic() + SECONDS
        while True:
            try:
                return self.tell(_WAITS % (expression, int(max(0.0, deadline - time.monotonic()) * 1000)))
            except PageError as error:  # it went elsewhere meanwhile, and what waited is gone with it
                if "navigated" not in str(error) and "context" not in str(error):
                    raise

    def tell(self, expression: str) -> Any:
        """Return the value of a JavaScript expression, or what its promise gives."""
        answer = self.command(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True, userGesture=True
        )
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise PageError(details.get("exception", {}).get("description") or details["text"])
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        """Press a key."""
        code = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key]}
        text = {"text": "\r"} if key == "Enter" else {}
        self.command("Input.dispatchKeyEvent", type="keyDown", **code, **text)
        self.command("Input.dispatchKeyEvent", type="keyUp", **code)

    def click(self, element: str) -> None:
        """Press the mouse where an element is; `element` is a JavaScript expression."""
        at = self.wait_for(_PLACE % element)
        for kind in ("mousePressed", "mouseReleased"):
            self.command("Input.dispatchMouseEvent", type=kind, **at, button="left", clickCount=1)

    def picture(self, *, height: int | None = None) -> bytes:
        """Return the page as PNG: whole, or its upper part."""
        size = self.command("Page.getLayoutMetrics")["cssContentSize"]
        high = size["height"] if height is None else min(height, size["height"])
        clip = {"x": 0, "y": 0, "width": self.width, "height": high, "scale": 1}
        answer = self.command("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        return base64.b64decode(answer["data"])

    def printed(self) -> bytes:
        """Return the page as PDF, on A4."""
        answer = self.command("Page.printToPDF", paperWidth=8.27, paperHeight=11.69, printBackground=False)
        return base64.b64decode(answer["data"])
