"""The report in a real browser: nothing on the console, every picture drawn, in light, in dark and on paper.

Chromium is driven through `--remote-debugging-pipe`: JSON commands and events, each ended by a zero byte, on two pipes.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from studies import ARMS, full_study, make_row, write_study

from thrice.compare.results import read_rows
from thrice.compare.summary import summarise
from thrice.report import write_report
from thrice.report.charts import DARK, LIGHT, Colours

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

    def open(self, page: Path, *, colours: str = "light", width: int = 1280) -> list[str]:
        """Open a file, wait until it is loaded and its pictures are drawn, and give every complaint."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": colours}])
        self.events.clear()
        self.call("Page.navigate", url=page.as_uri())
        deadline = time.monotonic() + PATIENCE
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._read(deadline))
        waited = "!document.getElementById('specs') || document.documentElement.dataset.charts === 'drawn'"
        while not self.evaluate(waited):
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


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip(f"no browser to look at the report with: none of {', '.join(NAMES)} is installed")
    browser = Browser(program, tmp_path_factory.mktemp("profile"))
    try:
        browser.connect()
        yield browser
    finally:
        browser.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(full_study(tmp_path_factory.mktemp("study")))


def written(study: Path) -> Path:
    return write_report(summarise(study), read_rows(study), study / "report.html")


@pytest.mark.parametrize(
    ("script", "complaint"),
    [
        ("console.error('deliberate')", "deliberate"),
        ("console.warn('deliberate')", "deliberate"),
        ("throw new Error('deliberate')", "deliberate"),
        ("Promise.reject(new Error('deliberate'))", "deliberate"),
        ("nobodyDefinedThis()", "nobodyDefinedThis"),
        ("document.body.append(Object.assign(new Image(), {src: 'missing.png'}))", "ERR_FILE_NOT_FOUND"),
    ],
)
def test_the_detector_catches_what_it_should(browser: Browser, tmp_path: Path, script: str, complaint: str) -> None:
    page = tmp_path / "bad.html"
    page.write_text(f"<!doctype html><title>bad</title><body><script>{script}</script>", encoding="utf-8")
    found = browser.open(page)
    assert len(found) == 1
    assert complaint in found[0]


def test_the_detector_is_silent_about_a_good_page(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "good.html"
    page.write_text("<!doctype html><title>good</title><body><script>window.ran = 1</script>", encoding="utf-8")
    assert browser.open(page) == []
    assert browser.evaluate("window.ran") == 1


@pytest.mark.parametrize(("colours", "palette"), [("light", LIGHT), ("dark", DARK)])
def test_every_picture_is_drawn_in_the_readers_colours(
    browser: Browser, report: Path, colours: str, palette: Colours
) -> None:
    assert browser.open(report, colours=colours) == []
    sizes = browser.evaluate("[...document.querySelectorAll('.chart svg')].map(e => [e.clientWidth, e.clientHeight])")
    assert len(sizes) == 3
    assert min(width for width, _ in sizes) > 400
    assert min(height for _, height in sizes) > 300
    assert browser.evaluate("getComputedStyle(document.documentElement).backgroundColor") == rgb(palette.background)
    # Lines of the first picture: eight runs of encoders, one of them collapsed, three of TF-IDF, and four means.
    assert browser.evaluate("document.querySelectorAll('#learning-curves .mark-line path').length") == 8 + 3 + 4
    drawn = set(browser.evaluate("[...document.querySelectorAll('.chart svg *')].map(e => getComputedStyle(e).stroke)"))
    assert {rgb(colour) for colour in palette.arms[:3]} <= drawn
    labels = browser.evaluate("[...document.querySelectorAll('.chart svg text')].map(e => getComputedStyle(e).fill)")
    assert set(labels) == {rgb(palette.ink), rgb(palette.muted)}


@pytest.mark.parametrize("width", [360, 800])
def test_the_page_fits_a_narrow_window(browser: Browser, report: Path, width: int) -> None:
    assert browser.open(report, width=width) == []
    assert browser.evaluate("document.documentElement.scrollWidth") == width
    assert (
        browser.evaluate("Math.max(...[...document.querySelectorAll('.chart svg')].map(s => s.clientWidth))") <= width
    )


def test_paper_is_light_even_for_a_reader_of_dark_pages(browser: Browser, report: Path) -> None:
    browser.open(report, colours="dark")
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    browser.call("Emulation.setEmulatedMedia", media="print", features=dark)
    assert browser.evaluate("getComputedStyle(document.documentElement).backgroundColor") == rgb(LIGHT.background)
    browser.call("Emulation.setEmulatedMedia", media="screen", features=dark)
    assert browser.evaluate("getComputedStyle(document.documentElement).backgroundColor") == rgb(DARK.background)


def test_a_reader_of_marks_gets_the_numbers(browser: Browser, report: Path) -> None:
    browser.open(report)
    place = "document.querySelector('#score-time .mark-symbol path[aria-label*=attention]').getBoundingClientRect()"
    browser.evaluate("document.getElementById('score-time').scrollIntoView()")
    box = browser.evaluate(f"(box => [box.x + box.width / 2, box.y + box.height / 2])({place})")
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=box[0], y=box[1])
    tooltip = "document.querySelector('#vg-tooltip-element.visible')"
    deadline = time.monotonic() + PATIENCE
    while not browser.evaluate(f"{tooltip} !== null"):
        assert time.monotonic() < deadline, "no tooltip"
    said = browser.evaluate(f"{tooltip}.innerText")
    assert ARMS[1] in said
    assert "20.20" in said


def test_names_cannot_run_in_the_page(browser: Browser, tmp_path: Path) -> None:
    attack = "window.attacked = 1"
    evil = (
        f"<script>{attack}</script>",
        f"<img src=x onerror='{attack}'>",
        f"</script><svg onload='{attack}'>",
        f'" autofocus tabindex=1 onfocus="{attack}',
    )
    assert browser.open(written(full_study(tmp_path, arms=evil))) == []
    assert browser.evaluate("window.attacked === undefined")
    assert browser.evaluate("document.scripts.length") == 3
    assert browser.evaluate("document.querySelector('tbody th').textContent") == evil[0]


def one_seed_without_cost(folder: Path) -> Path:
    return write_study(folder, [make_row("a", 0, [0.7, 0.8], 0.8)], arms=["a"], seeds=[0])


def tfidf_alone(folder: Path) -> Path:
    rows = [make_row("tfidf", seed, [0.8], 0.8) for seed in (0, 1)]
    cost = {"arms": {"tfidf": {"seconds_per_epoch": 1.5, "file_bytes": None, "parameters_stored": None}}}
    return write_study(folder, rows, arms=["tfidf"], seeds=[0, 1], cost=cost)


def all_collapsed(folder: Path) -> Path:
    rows = [make_row("a", seed, [0.5, 0.5], 0.5, collapsed=True) for seed in (0, 1, 2)]
    return write_study(folder, rows, arms=["a"], cost={"arms": {"a": {"seconds_per_epoch": 3.0}}})


def many_arms_far_apart_in_cost(folder: Path) -> Path:
    arms = [f"arm {place}" for place in range(12)]
    rows = [make_row(arm, 0, [0.6 + place / 100] * 40, 0.7) for place, arm in enumerate(arms)]
    cost = {"arms": {arm: {"seconds_per_epoch": 3.0**place} for place, arm in enumerate(arms)}}
    return write_study(folder, rows, arms=arms, seeds=[0, 1], cost=cost)


def nothing_finished(folder: Path) -> Path:
    return write_study(folder, [], arms=["a", "b"])


@pytest.mark.parametrize(
    ("make", "pictures"),
    [
        (one_seed_without_cost, 1),
        (tfidf_alone, 2),
        (all_collapsed, 1),
        (many_arms_far_apart_in_cost, 2),
        (nothing_finished, 0),
    ],
)
def test_unusual_studies_are_drawn_without_complaint(
    browser: Browser, tmp_path: Path, make: Callable[[Path], Path], pictures: int
) -> None:
    assert browser.open(written(make(tmp_path))) == []
    assert browser.evaluate("document.querySelectorAll('.chart svg').length") == pictures


def rgb(colour: str) -> str:
    """Give a hexadecimal colour as browsers print it."""
    return f"rgb({', '.join(str(int(colour[place : place + 2], 16)) for place in (1, 3, 5))})"
