"""The report in a real browser: nothing on the console, every picture drawn, every table sorted and filtered."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from chromium import NAMES, PATIENCE, Browser, click, press
from studies import ARMS, full_study, make_row, write_study
from studies_of_report import many_runs, two_tasks

from thrice.compare.results import read_rows
from thrice.compare.summary import summarise
from thrice.report import write_report
from thrice.report.charts import DARK, LIGHT, Colours


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
    assert len(sizes) == 8
    assert min(width for width, _ in sizes) > 400
    assert min(height for _, height in sizes) > 100
    assert browser.evaluate("getComputedStyle(document.documentElement).backgroundColor") == rgb(palette.background)
    # Lines of the first picture: eight runs of encoders, one of them collapsed, three of TF-IDF, and four means.
    assert browser.evaluate("document.querySelectorAll('#curves-0 .mark-line path').length") == 8 + 3 + 4
    drawn = set(browser.evaluate("[...document.querySelectorAll('.chart svg *')].map(e => getComputedStyle(e).stroke)"))
    assert {rgb(colour) for colour in palette.arms[:3]} <= drawn
    labels = browser.evaluate("[...document.querySelectorAll('.chart svg text')].map(e => getComputedStyle(e).fill)")
    assert set(labels) == {rgb(palette.ink), rgb(palette.muted), rgb(palette.background)}


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
    place = "document.querySelector('#time-0 .mark-symbol path[aria-label*=attention]').getBoundingClientRect()"
    browser.evaluate("document.getElementById('time-0').scrollIntoView()")
    box = browser.evaluate(f"(box => [box.x + box.width / 2, box.y + box.height / 2])({place})")
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=box[0], y=box[1])
    tooltip = "document.querySelector('#vg-tooltip-element.visible')"
    deadline = time.monotonic() + PATIENCE
    while not browser.evaluate(f"{tooltip} !== null"):
        assert time.monotonic() < deadline, "no tooltip"
    said = browser.evaluate(f"{tooltip}.innerText")
    assert ARMS[1] in said
    assert "20.20" in said


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(two_tasks(tmp_path_factory.mktemp("tasks")))


def column(browser: Browser, table: str, place: int) -> list[str]:
    rows = f"[...document.querySelectorAll('#{table} tbody tr')]"
    return browser.evaluate(f"{rows}.map(row => row.cells[{place}].textContent.trim())")


def test_two_tasks_are_drawn_and_nothing_scrolls_sideways(browser: Browser, tasks: Path) -> None:
    assert browser.open(tasks) == []
    assert browser.evaluate("document.querySelectorAll('.chart svg').length") == 2 * 7 + 2
    assert browser.evaluate("document.documentElement.scrollWidth") == 1280
    wide = "[...document.querySelectorAll('.wide')].filter(e => e.scrollWidth > e.clientWidth)"
    assert browser.evaluate(f"{wide}.map(e => e.querySelector('table').id)") == []
    outside = "[...document.querySelectorAll('.chart svg')].filter(e => e.clientWidth > e.parentNode.clientWidth)"
    assert browser.evaluate(f"{outside}.length") == 0


def test_tables_are_sorted_by_click_and_by_keyboard(browser: Browser, tasks: Path) -> None:
    browser.open(tasks)
    before = column(browser, "task-0-result", 4)
    header = "#task-0-result thead th:nth-child(5)"
    click(browser, f"{header} button")
    assert browser.evaluate(f"document.querySelector('{header}').ariaSort") == "ascending"
    assert column(browser, "task-0-result", 4) == sorted(before, key=lambda text: float(text.split()[0])) != before
    browser.evaluate(f"document.querySelector('{header} button').focus()")
    press(browser, "Enter", 13)
    assert browser.evaluate(f"document.querySelector('{header}').ariaSort") == "descending"
    assert column(browser, "task-0-result", 4) == sorted(before, key=lambda text: -float(text.split()[0]))
    assert browser.evaluate("document.querySelectorAll('#task-0-result [aria-sort]').length") == 1
    assert browser.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    # Signs, thousands, and what has no number, which comes last either way.
    click(browser, "#task-0-differences thead th:nth-child(2) button")
    signed = [float(text.replace("−", "-")) for text in column(browser, "task-0-differences", 1)]
    assert signed == sorted(signed)
    assert min(signed) < 0 < max(signed)
    for _ in range(2):
        click(browser, "#prediction-table thead th:nth-child(7) button")
        assert column(browser, "prediction-table", 6)[-1] == "—"
    assert column(browser, "prediction-table", 6)[0] == "31,200"
    assert browser.complaints() == []


def test_seeds_are_filtered_by_arm_task_state_and_text(browser: Browser, tasks: Path) -> None:
    browser.open(tasks)
    count = "document.querySelector('form output').textContent"
    assert browser.evaluate(count) == "35 of 35 rows"
    assert browser.evaluate("document.querySelector('form output').ariaLive") == "polite"
    choose = "(s, v) => { s.value = v; s.dispatchEvent(new Event('input', {bubbles: true})); }"
    browser.evaluate(f"({choose})(document.querySelectorAll('form select')[1], 'afqmc')")
    assert set(column(browser, "seeds-table", 1)) == {"afqmc"}
    browser.evaluate(f"({choose})(document.querySelectorAll('form select')[2], 'collapsed')")
    assert browser.evaluate(count) == "2 of 35 rows"
    browser.evaluate(f"({choose})(document.querySelectorAll('form select')[2], '')")
    browser.evaluate("document.querySelector('form input').focus()")
    for letter in "0.0003":
        browser.call("Input.dispatchKeyEvent", type="char", text=letter)
    assert set(column(browser, "seeds-table", 2)) == {"learning_rate=0.0003"}
    assert browser.evaluate(count) == "6 of 35 rows"
    press(browser, "Enter", 13)
    assert browser.evaluate("location.search") == ""


def test_an_arm_is_taken_out_of_tables_and_pictures(browser: Browser, tasks: Path) -> None:
    browser.open(tasks)
    marks = f"document.querySelectorAll('#size-0 path[aria-label*=\"arm: {ARMS[1]};\"]').length"
    before = browser.evaluate(marks)
    assert before > 3
    box = ".arms li:nth-child(2) input"
    browser.evaluate(f"document.querySelector('{box}').focus()")
    browser.call("Input.dispatchKeyEvent", type="keyDown", key=" ", code="Space", windowsVirtualKeyCode=32, text=" ")
    browser.call("Input.dispatchKeyEvent", type="keyUp", key=" ", code="Space", windowsVirtualKeyCode=32)
    assert column(browser, "task-0-result", 0) == [ARMS[0], f"{ARMS[2]}{GRID_NOTE}", ARMS[3]]
    assert ARMS[1] not in column(browser, "seeds-table", 0)
    deadline = time.monotonic() + PATIENCE
    while browser.evaluate(marks):
        assert time.monotonic() < deadline, "the arm is still drawn"
    click(browser, box)
    assert len(column(browser, "task-0-result", 0)) == 4
    while browser.evaluate(marks) != before:
        assert time.monotonic() < deadline, "the arm is not drawn again"
    assert browser.complaints() == []


GRID_NOTE = "learning_rate=0.0003, best of 2 grid points; not packed"


def test_thousands_of_runs_are_shown_in_pages(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "report.html"
    summary, rows = many_runs(tmp_path, monkeypatch, seeds=500, points=2, arms=3, tasks=2)
    assert browser.open(write_report(summary, rows, page)) == []
    count = "document.querySelector('form output').textContent"
    assert browser.evaluate(count) == "6000 of 6000 rows, 1 to 200 shown"
    first = column(browser, "seeds-table", 3)
    click(browser, ".pages button:nth-child(2)")
    assert browser.evaluate(count) == "6000 of 6000 rows, 201 to 400 shown"
    assert column(browser, "seeds-table", 3) == [str(seed) for seed in range(200, 400)] != first
    click(browser, "#seeds-table thead th:nth-child(5) button")
    click(browser, "#seeds-table thead th:nth-child(5) button")
    best = max(row["best_dev"] for row in rows)
    assert column(browser, "seeds-table", 4)[0] == f"{100 * best:.2f}"
    assert browser.evaluate("document.querySelectorAll('#seeds-table tbody svg').length") == 200
    assert browser.evaluate("document.querySelectorAll('#curves-0 .mark-area path').length") == 3
    assert browser.complaints() == []


def test_without_scripts_the_tables_can_be_read(browser: Browser, tasks: Path) -> None:
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        assert browser.open(tasks, drawn=False) == []
        root = browser.call("DOM.getDocument")["root"]["nodeId"]

        def found(selector: str) -> int:
            return len(browser.call("DOM.querySelectorAll", nodeId=root, selector=selector)["nodeIds"])

        assert found("#seeds-table tbody tr") == 35
        assert found("th button") == 0
        assert found("form[hidden]") == 1
        assert found("noscript p") > 0
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", value=False)


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
    assert browser.evaluate("document.querySelector('tbody [data-name]').textContent") == evil[0]


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
        (one_seed_without_cost, 2),
        (tfidf_alone, 3),
        (all_collapsed, 1),
        (many_arms_far_apart_in_cost, 4),
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
