"""A real Chromium without a window, for the tests of the report and its screenshots."""

import base64
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

# Counts what the page unpacks, before any script of the page runs.
_COUNTER = """
window.unpacked = 0;
const Original = window.DecompressionStream;
window.DecompressionStream = class extends Original {
  constructor(format) { super(format); window.unpacked += 1; }
};
"""


def missing() -> str | None:
    """Say which program of a browser is not installed."""
    for program in ("chromium", "chromedriver"):
        if shutil.which(program) is None:
            return f"{program} is not installed (apt-get install chromium chromium-driver)"
    return None


@contextmanager
def chromium(width: int = 1280, height: int = 900, dark: bool = False) -> Iterator["Browser"]:
    """Start a browser with a window of this size, narrow ones as a phone, and quit it at the end."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
        "--hide-scrollbars",
        f"--window-size={width},{height}",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        browser = Browser(driver)
        phone = width < 600
        browser.command(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if phone else 1,
            mobile=phone,
        )
        browser.command("Emulation.setTouchEmulationEnabled", enabled=phone)
        browser.prefer(dark)
        browser.command("Page.addScriptToEvaluateOnNewDocument", source=_COUNTER)
        yield browser
    finally:
        driver.quit()


class Browser:
    """A page in a browser.

    Attributes
    ----------
    driver : selenium.webdriver.Chrome
    """

    def __init__(self, driver: webdriver.Chrome):
        self.driver = driver

    def command(self, name: str, **parameters: Any) -> dict[str, Any]:
        """Send a command of the DevTools protocol."""
        return self.driver.execute_cdp_cmd(name, parameters)

    def prefer(self, dark: bool) -> None:
        """Prefer a dark colour scheme, or a light one; and no motion, which a test would race."""
        preferred = {
            "prefers-color-scheme": "dark" if dark else "light",
            "prefers-reduced-motion": "reduce",
        }
        features = [{"name": name, "value": value} for name, value in preferred.items()]
        self.command("Emulation.setEmulatedMedia", features=features)

    def open(self, page: Path) -> None:
        """Load a file; what was logged before is forgotten."""
        self.complaints()
        self.requests()
        self.driver.get(page.resolve().as_uri())

    def run(self, script: str, *arguments: Any) -> Any:
        """Return what a script in the page returns."""
        return self.driver.execute_script(script, *arguments)

    def text(self, name: str) -> str:
        """Return the text of the element with an id, as it stands in the page."""
        return self.run("return document.getElementById(arguments[0]).textContent", name)

    def complaints(self) -> list[str]:
        """Return what the browser has logged of the page since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """Return the addresses that were asked for since the last call."""
        messages = [json.loads(e["message"])["message"] for e in self.driver.get_log("performance")]
        return [
            message["params"]["request"]["url"]
            for message in messages
            if message["method"] == "Network.requestWillBeSent"
        ]

    def screenshot(self, whole: bool = False, clip: dict[str, float] | None = None) -> bytes:
        """Return a PNG of the window, of the whole page, or of a part of it in page pixels."""
        if whole:
            size = self.command("Page.getLayoutMetrics")["cssContentSize"]
            clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"]}
        parameters = {"captureBeyondViewport": clip is not None}
        if clip is not None:
            parameters["clip"] = {"scale": 1, **clip}
        return base64.b64decode(self.command("Page.captureScreenshot", **parameters)["data"])
