"""Draw the pictures of the README anew: ``python tests/screenshots.py``.

Two plots and three views of the report, all of the bundled trace, and the ranking of policies, into
``data/images``. Needs
what the tests need: Chromium and its driver.
"""

import io
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd
from browser import Browser, chromium, missing
from PIL import Image
from selenium.webdriver import Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from tracekit.formats import open_any
from tracekit.plots import add_caption, caption, plot_closure
from tracekit.plots.kinds import KINDS, Choices
from tracekit.report import build_report
from tracekit.trace import Trace

IMAGES = Path(__file__).resolve().parents[1] / "data" / "images"
TRACE = "bundled:tiny-moe-64e.trace"
PLOTS = ("predictability", "curves")
TOKEN, LAYER = 64, 7  # the cell that the picture of the matrix shows


def save(png: bytes, name: str) -> None:
    """Write a picture with a palette, a third of its size and no loss that can be seen."""
    image = Image.open(io.BytesIO(png)).convert("RGB")
    path = IMAGES / f"{name}.png"
    image.quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path}: {path.stat().st_size // 1024} KiB")


def draw_plots(trace: Trace, names: Sequence[str]) -> None:
    """Draw plots as ``tracekit plot`` does."""
    for name in names:
        buffer = io.BytesIO()
        axes = KINDS[name].draw(KINDS[name].compute(trace, Choices()))
        add_caption(axes, caption(trace))
        axes.figure.savefig(buffer, format="png", dpi=110)
        save(buffer.getvalue(), name)


def draw_ranking() -> None:
    """Draw the closures that the study of policies found."""
    frame = pd.read_csv(IMAGES.parents[1] / "replays" / "policies.csv", keep_default_na=False)
    buffer = io.BytesIO()
    plot_closure(frame).figure.savefig(buffer, format="png", dpi=110)
    save(buffer.getvalue(), "closure")


def pick(browser: Browser, token: int, layer: int) -> None:
    """Pick a cell of the matrix with the keyboard, as a reader would."""
    scroller = browser.driver.find_element(By.ID, "matrix-scroller")
    scroller.send_keys(Keys.HOME, *[Keys.ARROW_RIGHT] * token, *[Keys.ARROW_UP] * layer)
    WebDriverWait(browser.driver, 60).until(
        lambda _: (
            browser.text("matrix-spoken").partition(", token")[0].endswith(f"layer {layer}")
            and browser.run("return document.getElementById('matrix-token').value") == str(token)
        )
    )
    browser.run("document.activeElement.blur()")


def part(browser: Browser, name: str) -> bytes:
    """Return a picture of a section of the page."""
    box = browser.run(
        "const box = document.getElementById(arguments[0]).getBoundingClientRect();"
        "return [box.x + scrollX, box.y + scrollY, box.width, box.height];",
        name,
    )
    x, y, width, height = box
    margin = 20
    clip = {"x": x - margin, "y": y - margin, "width": width + 2 * margin}
    return browser.screenshot(clip={**clip, "height": height + 2 * margin})


def draw_report(trace: Trace, folder: Path) -> None:
    """Draw the report on a desk and on a phone."""
    page = folder / "report.html"
    page.write_text(build_report(trace), encoding="utf-8")
    with chromium(width=1200, height=900) as browser:
        browser.open(page)
        save(browser.screenshot(), "report")
        pick(browser, TOKEN, LAYER)
        save(part(browser, "matrix"), "report-matrix")
    with chromium(width=390, height=844, dark=True) as browser:
        browser.open(page)
        pick(browser, TOKEN, LAYER)
        browser.run("document.getElementById('matrix').scrollIntoView()")
        save(browser.screenshot(), "report-phone")


def main() -> None:
    """Draw everything."""
    lacking = missing()
    if lacking:
        sys.exit(f"The report cannot be shown: {lacking}.")
    IMAGES.mkdir(exist_ok=True)
    trace = open_any(TRACE)
    draw_plots(trace, PLOTS)
    draw_ranking()
    with TemporaryDirectory() as folder:
        draw_report(trace, Path(folder))


if __name__ == "__main__":
    main()
