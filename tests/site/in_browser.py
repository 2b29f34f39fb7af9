# SPDX-License-Identifier: Apache-2.0
"""The site in Chromium: search, figures, a phone's width. `make site` runs it, `make test` does not.

Screenshots are left in build/site_screens, to be looked at.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

selenium = pytest.importorskip("selenium", reason="Selenium is not installed: make site")
from selenium.webdriver import Chrome, ChromeOptions, ChromeService  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.support.wait import WebDriverWait  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
SITE, SCREENS = ROOT / "build" / "site", ROOT / "build" / "site_screens"
PHONE = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
SECONDS = 20


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None: ...


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """Its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(SITE))) as opened:
        Thread(target=opened.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{opened.server_port}/"
        opened.shutdown()


@pytest.fixture(scope="module")
def browser(server):
    driver, chromium = shutil.which("chromedriver"), shutil.which("chromium")
    if not driver or not chromium:
        pytest.skip("no Chromium with its driver: apt-get install chromium chromium-driver")
    assert (SITE / "index.html").exists(), "make site first"
    options = ChromeOptions()
    options.binary_location = chromium
    for argument in ("--headless=new", "--no-sandbox"):  # root has no sandbox
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    SCREENS.mkdir(exist_ok=True)
    with Chrome(options=options, service=ChromeService(driver)) as opened:
        opened.set_window_size(1280, 1000)
        opened.home = server
        yield opened


def show(browser, page: str, name: str) -> None:
    browser.get(browser.home + page)
    browser.save_screenshot(str(SCREENS / f"{name}.png"))


def test_search_finds_an_operator(browser):
    show(browser, "", "home")
    words = browser.find_element(By.CSS_SELECTOR, "input.md-search__input")
    words.click()
    words.send_keys("fused_add_rms_norm")
    links = WebDriverWait(browser, SECONDS).until(
        lambda b: b.find_elements(By.CSS_SELECTOR, ".md-search-result__link")
    )
    browser.save_screenshot(str(SCREENS / "search.png"))
    targets = [link.get_attribute("href").split("?")[0] for link in links]
    assert any(target.endswith("reference/operators/norm/") for target in targets), targets


@pytest.mark.parametrize("page", ["", "kernels/", "attention/", "products/"])
def test_figures_are_shown(browser, page):
    show(browser, page, "figures_" + page.strip("/"))
    figures = browser.find_elements(By.CSS_SELECTOR, "article img")
    assert figures
    for figure in figures:
        browser.execute_script("arguments[0].scrollIntoView()", figure)
        assert browser.execute_script("return arguments[0].naturalWidth", figure) > 100


@pytest.mark.parametrize(
    "page",
    [
        "",
        "tutorial/",
        "routing/",
        "compare/",
        "reference/operators/norm/",
        "reference/python/anyop.torch.optim/",
    ],
)
def test_a_phone_shows_text_at_its_width(browser, page):
    """Tables and code scroll by themselves; the page does not."""
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", PHONE)
    try:
        show(browser, page, "phone_" + page.replace("/", "_"))
        width = browser.execute_script("return document.documentElement.scrollWidth")
        assert width <= PHONE["width"]
        size = browser.execute_script(
            "return parseFloat(getComputedStyle(document.querySelector('article')).fontSize)"
        )
        assert size >= 14
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_nothing_is_fetched_and_nothing_complains(browser):
    browser.get_log("performance")
    browser.get_log("browser")
    show(browser, "reference/operators/norm/", "operators")
    sent = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [
        one["params"]["request"]["url"] for one in sent if one["method"].endswith("WillBeSent")
    ]
    assert asked and not [
        url for url in asked if not url.startswith((browser.home, "data:", "blob:"))
    ]
    assert not [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
