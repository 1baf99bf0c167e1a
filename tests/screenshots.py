"""Make the README's pictures: ``python tests/screenshots.py``.

Three plots and the report of the bundled trace, written to ``data/images``. Needs what the tests
need, Chromium among it.
"""

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from browser import chromium

ROOT = Path(__file__).resolve().parents[1]
TRACE = ROOT / "data" / "tiny-moe-64e.trace"
IMAGES = ROOT / "data" / "images"
PLOTS = ("predictability", "curves", "popularity")


def tracekit(*arguments: str | Path) -> None:
    """Run the command line."""
    subprocess.run([sys.executable, "-m", "tracekit", *map(str, arguments)], check=True, cwd=ROOT)


def main() -> None:
    """Draw the plots, then take the report's picture."""
    IMAGES.mkdir(exist_ok=True)
    for kind in PLOTS:
        picture = IMAGES / f"{kind}.png"
        tracekit("plot", kind, TRACE, "-o", picture, "--force", "--dpi", "110", "-q")
    with TemporaryDirectory() as folder, chromium(width=1180, height=1500) as browser:
        page = Path(folder) / "report.html"
        tracekit("report", TRACE, "-o", page, "-q")
        browser.open(page)
        browser.driver.save_screenshot(str(IMAGES / "report.png"))


if __name__ == "__main__":
    main()
