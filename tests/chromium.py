"""Chromium driven through `--remote-debugging-pipe`: JSON commands and events, each ended by a zero byte."""

from __future__ import annotations

import fcntl
import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE = 60.0  # seconds until a browser that does not answer fails the test

# What must never happen in a page: an exception, console.error or console.warn, and what the browser itself
# complains about (a refused request, a blocked script).
COMPLAINTS = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")


# Chromium wants the pipes as descriptors 3 and 4. Both come in above 9, so that neither is overwritten on the way.
LAUNCHER = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.dup2(int(sys.argv[2]), 4)
os.execv(sys.argv[3], sys.argv[3:])
"""

FLAGS = """
--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --hide-scrollbars
--disable-background-networking --disable-component-update --disable-sync --remote-debugging-pipe
"""


def high_pipe() -> tuple[int, int]:
    """Give the reading and the writing end of a pipe, both above 9."""
    low = os.pipe()
    reading, writing = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in low)
    for end in low:
        os.close(end)
    return reading, writing


class Browser:
    """One headless Chromium with one open page."""

    def __init__(self, program: str, profile: Path) -> None:
        to_browser, self._send = high_pipe()
        self._receive, from_browser = high_pipe()
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-S", "-c", LAUNCHER, str(to_browser), str(from_browser), program),
                *(*FLAGS.split(), f"--user-data-dir={profile}", "about:blank"),
            ],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []

    def connect(self) -> None:
        """Take hold of the open page."""
        pages = self.call("Target.getTargets")["targetInfos"]
        target = next(page["targetId"] for page in pages if page["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send one command and give its result; events that arrive meanwhile are kept."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._send, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE
        while True:
            answer = self._read(deadline)
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self.events.append(answer)

    def open(self, page: Path, *, colours: str = "light", width: int = 1280, drawn: bool = True) -> list[str]:
        """Open a file, wait until it is loaded and its pictures are `drawn`, and give every complaint."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": colours}])
        self.events.clear()
        self.call("Page.navigate", url=page.as_uri())
        deadline = time.monotonic() + PATIENCE
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._read(deadline))
        waited = "!document.getElementById('specs') || document.documentElement.dataset.charts === 'drawn'"
        while drawn and not self.evaluate(waited):
            assert time.monotonic() < deadline, f"pictures not drawn after {PATIENCE} s: {self.complaints()}"
            time.sleep(0.05)
        return self.complaints()

    def complaints(self) -> list[str]:
        return [json.dumps(event["params"]) for event in self.events if event.get("method") in COMPLAINTS]

    def evaluate(self, expression: str) -> Any:
        """Give the JSON value of an expression in the page."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def close(self) -> None:
        os.close(self._send)
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._receive)

    def _read(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._receive], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"the browser said nothing for {PATIENCE} s"
            part = os.read(self._receive, 1 << 16)
            assert part, "the browser ended"
            self._buffer += part
        message, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(message)


def press(browser: Browser, key: str, code: int) -> None:
    """Press a key on what has the focus."""
    text = {"text": "\r"} if key == "Enter" else {}
    for kind in ("keyDown", "keyUp"):
        browser.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)


def click(browser: Browser, selector: str) -> None:
    """Click in the middle of an element, as a mouse does."""
    found = f"document.querySelector({json.dumps(selector)})"
    browser.evaluate(f"{found}.scrollIntoView({{block: 'center'}})")
    box = browser.evaluate(f"(b => [b.x + b.width / 2, b.y + b.height / 2])({found}.getBoundingClientRect())")
    for kind in ("mousePressed", "mouseReleased"):
        browser.call("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)
