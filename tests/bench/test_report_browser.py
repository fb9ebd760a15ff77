"""The report in a real browser: clicks, themes, a phone's width and paper."""

from __future__ import annotations

import base64
import io
import json
import re
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from paper_records import full_records
from report_records import cell, failed, some
from rich.console import Console

from sicl.bench.paper.drawings import drawing
from sicl.bench.paper.figures import sheets
from sicl.bench.paper.presets import PRESETS
from sicl.bench.paper.show import show_preset
from sicl.bench.report import write_report

BROWSER = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(not (BROWSER and DRIVER), reason="needs chromium and chromedriver on PATH")

FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --hide-scrollbars --disable-dev-shm-usage"
)


class Browser:
    """A few verbs of the W3C WebDriver protocol, spoken with the standard library."""

    def __init__(self, port: int, profile: Path) -> None:
        self._root = f"http://127.0.0.1:{port}"
        options = {"binary": BROWSER, "args": [*FLAGS.split(), f"--user-data-dir={profile}"]}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        session = self._send("/session", {"capabilities": {"alwaysMatch": wanted}})
        self._root += f"/session/{session['sessionId']}"

    def _send(self, path: str, body: dict[str, Any] | None, method: str = "POST") -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self._root + path, data, headers, method=method)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=60) as answer:
            return json.load(answer)["value"]

    def open(self, page: Path) -> None:
        """Load a file."""
        self._send("/url", {"url": page.as_uri()})

    def run(self, script: str) -> Any:
        """Return what a line of JavaScript evaluates to."""
        return self._send("/execute/sync", {"script": f"return {script}", "args": []})

    def click(self, selector: str) -> None:
        """Scroll to an element and click it as a user would."""
        found = self._send("/element", {"using": "css selector", "value": selector})
        self._send(f"/element/{next(iter(found.values()))}/click", {})

    def type(self, selector: str, text: str) -> None:
        """Type into a field."""
        found = self._send("/element", {"using": "css selector", "value": selector})
        self._send(f"/element/{next(iter(found.values()))}/value", {"text": text})

    def point(self, selector: str) -> None:
        """Move the mouse to the middle of an element."""
        self.run(
            f"document.querySelector('{selector}').scrollIntoView({{block: 'center', behavior: 'instant'}})"
        )
        found = self._send("/element", {"using": "css selector", "value": selector})
        move = {"type": "pointerMove", "duration": 0, "x": 0, "y": 0, "origin": found}
        self._send("/actions", {"actions": [{"type": "pointer", "id": "mouse", "actions": [move]}]})

    def devtools(self, command: str, **params: Any) -> Any:
        """Speak to the browser's own tools."""
        return self._send("/goog/cdp/execute", {"cmd": command, "params": params})

    def complaints(self) -> list[str]:
        """Return what the console logged since the last call."""
        return [entry["message"] for entry in self._send("/se/log", {"type": "browser"})]

    def pdf(self) -> bytes:
        """Print the page."""
        return base64.b64decode(self._send("/print", {}))

    def close(self) -> None:
        """End the session."""
        self._send("", None, "DELETE")


def driver_port(driver: subprocess.Popen[bytes], log: Path) -> int:
    """Return the port the driver chose, once it listens."""
    for _ in range(200):
        if found := re.search(rb"successfully on port (\d+)", log.read_bytes()):
            return int(found[1])
        time.sleep(0.05)
        assert driver.poll() is None, log.read_text()
    raise AssertionError(log.read_text())


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Return a browser for this module."""
    log = tmp_path_factory.mktemp("driver") / "log"
    with log.open("wb") as out:
        driver = subprocess.Popen([str(DRIVER), "--port=0"], stdout=out, stderr=subprocess.STDOUT)
    try:
        session = Browser(driver_port(driver, log), tmp_path_factory.mktemp("profile"))
        yield session
        session.close()
    finally:
        driver.terminate()
        driver.wait(10)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a report of five cells of TENT, one failed, and one of SoTTA."""
    records = [*some(), failed(), cell("fog", method="sotta")]
    return write_report(records, tmp_path_factory.mktemp("report") / "report.html", title="Browser")


@pytest.fixture
def opened(browser: Browser, page: Path) -> Browser:
    """Return the browser with the report freshly opened."""
    browser.devtools("Emulation.clearDeviceMetricsOverride")
    browser.devtools("Emulation.setEmulatedMedia", features=[])
    browser.open(page)
    return browser


def column(browser: Browser, head: str) -> list[str]:
    """Return a column of the table of all cells as shown."""
    heads = browser.run("[...document.querySelectorAll('#all-cells th')].map(h => h.textContent)")
    texts = "r => [...r.cells].map(c => c.textContent)"
    rows = browser.run(f"[...document.querySelectorAll('#all-cells tbody tr')].map({texts})")
    return [row[heads.index(head)] for row in rows]


def test_the_page_loads_without_errors_or_requests(opened: Browser) -> None:
    """Nothing on the console, nothing fetched."""
    assert opened.run("document.title") == "Browser"
    assert opened.run("performance.getEntriesByType('resource').length") == 0
    assert opened.complaints() == []


def test_a_click_on_a_head_sorts_and_a_second_turns_it_round(opened: Browser) -> None:
    """Numbers sort as numbers; the failed cell, which has none, stays last both ways."""
    heads = opened.run("[...document.querySelectorAll('#all-cells th')].map(h => h.textContent)")
    button = f"#all-cells th:nth-child({heads.index('Softmax') + 1}) button"
    opened.click(button)
    rising = column(opened, "Softmax")
    assert [float(value) for value in rising[:-1]] == sorted(float(value) for value in rising[:-1])
    opened.click(button)
    falling = column(opened, "Softmax")
    assert falling[:-1] == rising[:-1][::-1]
    assert rising[-1] == falling[-1] == "\N{EN DASH}"


def test_a_click_on_a_tab_shows_its_panel_only(opened: Browser) -> None:
    """Metrics, groups and cells each switch by themselves; arrows move along."""
    shown = "[...document.querySelectorAll('[data-owner={}]')].filter(p => p.offsetParent).map(p => p.id)"
    assert opened.run(shown.format("metrics")) == ["metrics-0"]
    opened.click("#metrics-4-tab")
    assert opened.run(shown.format("metrics")) == ["metrics-4"]
    assert opened.run("document.getElementById('metrics-4-tab').getAttribute('aria-selected')") == "true"
    opened.type("#metrics-4-tab", "\ue014")
    assert opened.run(shown.format("metrics")) == ["metrics-5"]
    opened.click("#groups-1-tab")
    assert opened.run(shown.format("groups")) == ["groups-1"]
    opened.click("#groups-0-tab")
    opened.click("#g0-2-tab")
    assert opened.run(shown.format("g0")) == ["g0-2"]


def test_the_filter_keeps_matching_cells(opened: Browser) -> None:
    """Every word must occur."""
    opened.type("input.filter", "tent shot")
    visible = "[...document.querySelectorAll('#all-cells tbody tr')].filter(r => r.offsetParent).length"
    assert opened.run(visible) == 1


def test_the_colour_key_hides_a_calibrator_everywhere(opened: Browser) -> None:
    """Lines and diagrams of the calibrator go, and come back."""
    shown = "p => p.style.display !== 'none'"
    count = f"[...document.querySelectorAll('polyline.c-softmax')].filter({shown}).length"
    before = opened.run(count)
    opened.click(".key [data-c=softmax]")
    assert (before > 0, opened.run(count)) == (True, 0)
    opened.click(".key [data-c=softmax]")
    assert opened.run(count) == before


def test_pointing_at_a_chart_tells_its_values(opened: Browser) -> None:
    """The tooltip of a line chart lists every calibrator, that of a bar its bin."""
    opened.point("svg.lines")
    said = opened.run("document.getElementById('tip').textContent")
    assert "samples seen" in said
    assert "SICL" in said
    opened.point("svg.reliability g[data-t] .bar")
    assert "confidence" in opened.run("document.getElementById('tip').textContent")


def test_the_theme_follows_the_system_and_the_button(opened: Browser) -> None:
    """Dark when the system is dark; the button turns it round and is remembered."""
    colour = "getComputedStyle(document.body).backgroundColor"
    light = opened.run(colour)
    opened.devtools(
        "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}]
    )
    dark = opened.run(colour)
    assert light != dark
    opened.click(".theme")
    assert opened.run(colour) == light
    opened.click(".theme")
    assert opened.run(colour) == dark
    opened.run("localStorage.clear()")


@pytest.mark.parametrize("width", [360, 390, 820])
def test_nothing_sticks_out_on_a_phone(opened: Browser, width: int) -> None:
    """The page never scrolls sideways; wide tables scroll within themselves."""
    opened.devtools(
        "Emulation.setDeviceMetricsOverride", width=width, height=844, deviceScaleFactor=2, mobile=True
    )
    assert opened.run("[innerWidth, document.documentElement.scrollWidth]") == [width, width]


OVERLAPS = """[...document.querySelectorAll('svg.plot')].flatMap(svg => {
  const texts = [...svg.querySelectorAll('text:not([transform])')].filter(t => t.textContent);
  const boxes = texts.map(t => [t.textContent, t.getBoundingClientRect()]);
  return boxes.flatMap(([a, p], i) => boxes.slice(i + 1)
    .filter(([b, q]) => p.left + 1 < q.right && q.left + 1 < p.right && p.top + 3 < q.bottom && q.top + 3 < p.bottom)
    .map(([b, q]) => a + ' / ' + b));
})"""


@pytest.mark.parametrize("width", [390, 1100])
def test_no_words_of_the_papers_figures_overlap(browser: Browser, tmp_path: Path, width: int) -> None:
    """Whole presets, at a phone's width and a desk's; only the wide stream scrolls, within itself."""
    parts = []
    for name in PRESETS:
        if name != "figure2":
            made = full_records(name)
            drawn = drawing(name, PRESETS[name].title, sheets(name, made, tmp_path), made)
            assert drawn is not None
            parts.append(drawn.html())
    size = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.devtools("Emulation.setDeviceMetricsOverride", **size)
    browser.open(write_report(some(), tmp_path / "report.html", parts=parts))
    assert browser.run("document.querySelectorAll('svg.plot').length") > 20
    assert browser.run(OVERLAPS) == []
    assert browser.run("document.documentElement.scrollWidth") == width


@pytest.mark.slow
def test_a_report_of_72_settings_opens_in_two_seconds(browser: Browser, tmp_path: Path) -> None:
    """The whole main table, three seeds: 1,728 records; slow, because a busy machine spoils it."""
    records = full_records("table2", seeds=3)
    shown = show_preset("table2", records, tmp_path, Console(file=io.StringIO(), width=200))
    browser.devtools("Emulation.clearDeviceMetricsOverride")
    browser.open(write_report(records, tmp_path / "report.html", parts=shown.parts))
    took = browser.run("performance.timing.loadEventEnd - performance.timing.navigationStart")
    assert len(records) == 1728
    assert took < 2000


def test_it_prints(opened: Browser) -> None:
    """The printed page is a PDF with more than one page."""
    paper = opened.pdf()
    assert paper.startswith(b"%PDF")
    assert len(re.findall(rb"/Type /Page\b", paper)) > 1
