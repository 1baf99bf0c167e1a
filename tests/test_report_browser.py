"""The report in a real browser: it draws, answers to keys and clicks, and keeps to itself."""

import re
import socket

import browser as browsers
import pytest
from report_traces import HOSTILE_NAME, HOSTILE_PIECES, HOSTILE_PROMPT, open_written
from selenium.webdriver import ActionChains, Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from tracekit.analysis import default_budget, residency_timeline
from tracekit.report import build_report
from tracekit.report.caching import default_budgets
from tracekit.routing.grid import decode_grid

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(browsers.missing() is not None, reason=str(browsers.missing())),
]

WIDE = {"n_layer": 6, "n_expert": 32, "top_k": 4, "n_tokens": 400, "n_turns": 2, "prefill": 6}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("report")


@pytest.fixture(scope="module")
def trace(folder):
    return open_written(folder / "run.trace", hostile=True, **WIDE)


@pytest.fixture(scope="module")
def page(folder, trace):
    # Chunks of 100 tokens, so that a short trace has several.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tracekit.report.matrix.CHUNK_LOOKUPS", 100 * 6 * 4)
        text = build_report(trace)
    path = folder / "report.html"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def chromium():
    with browsers.chromium() as started:
        yield started


@pytest.fixture
def browser(chromium, page):
    chromium.prefer(dark=False)
    chromium.open(page)
    until(chromium, "matrix-cell-title", "step")
    return chromium


def until(browser, name, pattern):
    """Wait until the text of an element matches, and return it."""
    WebDriverWait(browser.driver, 60).until(
        lambda _: re.search(pattern, browser.text(name), re.IGNORECASE),
        f"{name} does not say {pattern!r}",
    )
    return browser.text(name)


def press(browser, *keys):
    browser.driver.find_element(By.ID, "matrix-scroller").send_keys(*keys)


def spoken(trace, token, layer):
    """What a screen reader should hear of a cell under LRU at the default budget."""
    grid = decode_grid(trace)
    budget = default_budget(trace)
    rows = residency_timeline(trace, "lru", budget).set_index(["token", "layer"])
    row = rows.loc[(token, grid.layer[layer])]
    experts = [str(expert) for expert in grid.experts[token, layer]]
    return grid.turn[token], grid.step[token], row["hits"], row["lookups"], experts


def check_cell(browser, trace, token, layer):
    turn, step, hits, lookups, experts = spoken(trace, token, layer)
    sentence = until(browser, "matrix-spoken", f"^Turn {turn}, step {step}, layer {layer}, token")
    assert f"{hits} of {lookups} experts were resident" in sentence
    of_experts = sentence.rpartition("Experts: ")[2].rstrip(".").split(", ")
    assert [text.split()[0] for text in of_experts] == experts
    assert sum(text.endswith(" hit") for text in of_experts) == hits
    rows = browser.run(
        "return [...document.querySelectorAll('#matrix-rows tr')]"
        ".map((row) => row.cells[1].textContent)"
    )
    assert rows == experts


def test_the_page_draws_without_a_complaint_or_a_request(browser, page):
    assert browser.complaints() == []
    asked = [url for url in browser.requests() if not url.startswith("data:image/")]
    assert set(asked) == {page.resolve().as_uri()}
    assert browser.run(
        "return [...document.images].every((image) => image.complete && image.naturalWidth > 0)"
    )
    assert browser.run("return document.getElementById('matrix-browser').hidden") is False


def test_nothing_can_leave_the_page(browser):
    """Even a script in the page, were there one, could neither load nor send, nor add a script."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.5)
        browser.driver.execute_async_script(
            """
            const [address, done] = arguments;
            const make = (tag, properties) => Object.assign(document.createElement(tag), properties);
            document.body.append(
              make("img", { src: address }),
              make("link", { rel: "stylesheet", href: address }),
              make("script", { src: address }),
              make("script", { textContent: "window.hacked = 'inline'" }),
              make("div", { innerHTML: "<p onclick='window.hacked = 1'>" }),
            );
            document.body.lastChild.firstChild.click();
            navigator.sendBeacon(address, "x");
            fetch(address).then(() => done("fetched"), () => done("refused"));
            """,
            f"http://127.0.0.1:{server.getsockname()[1]}/",
        )
        with pytest.raises(TimeoutError):
            server.accept()
    assert browser.run("return window.hacked") is None
    complaints = browser.complaints()
    assert len(complaints) >= 7
    assert all("Content Security Policy" in text or "Fetch API" in text for text in complaints)


def test_text_of_a_trace_stays_text(browser):
    assert browser.run("return document.querySelector('h1').textContent") == HOSTILE_NAME
    facts = browser.run("return [...document.querySelectorAll('dd')].map((d) => d.textContent)")
    assert HOSTILE_PROMPT in facts
    for piece in HOSTILE_PIECES[:3]:
        shown = piece.decode()
        while browser.text("matrix-piece") != shown:
            press(browser, Keys.ARROW_RIGHT)
            until(browser, "matrix-spoken", "token")
        assert f"token “{shown}”" in until(browser, "matrix-spoken", re.escape(shown))
    assert browser.run("return window.hacked") is None
    assert browser.run("return document.querySelectorAll('img:not(figure img), h1 *').length") == 0
    assert browser.complaints() == []


def test_the_matrix_answers_to_the_keyboard(browser, trace):
    last_token, last_layer = WIDE["n_tokens"] - 1, WIDE["n_layer"] - 1
    assert browser.text("matrix-spoken") == ""  # silent until the reader moves
    press(browser, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_UP)
    check_cell(browser, trace, 2, 1)
    press(browser, Keys.ARROW_DOWN, Keys.ARROW_DOWN)  # the lowest layer is the end
    check_cell(browser, trace, 2, 0)
    press(browser, Keys.ARROW_LEFT)
    check_cell(browser, trace, 1, 0)
    press(browser, Keys.END, *[Keys.ARROW_UP] * 9)
    check_cell(browser, trace, last_token, last_layer)
    press(browser, Keys.HOME)
    check_cell(browser, trace, 0, last_layer)
    press(browser, Keys.PAGE_DOWN)
    token = browser.run("return Number(document.getElementById('matrix-token').value)")
    assert 10 < token < last_token
    check_cell(browser, trace, token, last_layer)
    assert browser.complaints() == []


def test_the_picked_cell_can_be_seen(browser):
    for key in (Keys.END, Keys.HOME, Keys.PAGE_DOWN, Keys.ARROW_LEFT):
        press(browser, key)
        left, width, token, cell = browser.run(
            """
            const scroller = document.getElementById("matrix-scroller");
            const tokens = Number(document.getElementById("matrix-token").max) + 1;
            const sizer = document.getElementById("matrix-sizer");
            return [scroller.scrollLeft, scroller.clientWidth,
                    Number(document.getElementById("matrix-token").value),
                    sizer.clientWidth / tokens];
            """
        )
        assert left <= token * cell < left + width


def colours(browser, x, y):
    """Return the colour of the matrix at a point, and the page's colours of a hit and a miss."""
    return browser.run(
        """
        const canvas = document.getElementById("matrix-canvas");
        const ratio = canvas.width / canvas.clientWidth;
        const pixel = canvas.getContext("2d")
          .getImageData(arguments[0] * ratio, arguments[1] * ratio, 1, 1).data;
        const style = getComputedStyle(document.documentElement);
        const hex = "#" + [...pixel].slice(0, 3)
          .map((part) => part.toString(16).padStart(2, "0")).join("");
        return [hex, style.getPropertyValue("--hit").trim(), style.getPropertyValue("--miss").trim()];
        """,
        x,
        y,
    )


def test_cells_have_the_colour_of_what_they_found(browser, trace):
    rows = residency_timeline(trace, "lru", default_budget(trace)).set_index(["token", "layer"])
    sizes = browser.run(
        "const c = document.getElementById('matrix-canvas'); return [c.clientWidth, c.clientHeight]"
    )
    tall = (sizes[1] - 24 - 3) / WIDE["n_layer"]
    found = set()
    for token in range(4, 60):
        for layer in range(WIDE["n_layer"]):
            row = rows.loc[(token, layer)]
            y = 24 + (WIDE["n_layer"] - 1 - layer + 0.5) * tall
            shown, hit, miss = colours(browser, 3 + (token + 0.5) * 12, y)
            if row["hits"] == row["lookups"]:
                assert shown == hit
                found.add("hit")
            elif row["hits"] == 0:
                assert shown == miss
                found.add("miss")
            else:
                assert shown not in (hit, miss)
        if found == {"hit", "miss"}:
            return
    raise AssertionError(f"of hits and misses the first tokens have only {found}")


def test_a_click_picks_the_cell_under_it(browser, trace):
    canvas = browser.driver.find_element(By.ID, "matrix-canvas")
    size = canvas.size
    x = 3 + 7.5 * 12  # the eighth token: cells of a long trace are 12 pixels wide
    y = 24 + 0.5 * (size["height"] - 24 - 3) / WIDE["n_layer"]  # the top row is the last layer
    ActionChains(browser.driver).move_to_element_with_offset(
        canvas, round(x - size["width"] / 2), round(y - size["height"] / 2)
    ).click().perform()
    check_cell(browser, trace, 7, WIDE["n_layer"] - 1)


def test_the_buttons_and_the_slider_move_the_picked_cell(browser, trace):
    buttons = browser.driver.find_elements(By.CSS_SELECTOR, "#matrix-arrows button")
    for button in buttons[1], buttons[3], buttons[3]:
        button.click()
    check_cell(browser, trace, 2, 1)
    browser.driver.find_element(By.ID, "matrix-token").send_keys(Keys.END)
    check_cell(browser, trace, WIDE["n_tokens"] - 1, 1)
    spoken_value = "return document.getElementById('matrix-token').getAttribute('aria-valuetext')"
    assert browser.run(spoken_value) == f"turn 1, step {6 + 199}"


def test_another_view_shows_another_residency(browser, trace):
    press(browser, *[Keys.ARROW_RIGHT] * 30)
    check_cell(browser, trace, 30, 0)
    before = browser.text("matrix-summary")
    view = browser.driver.find_element(By.ID, "matrix-view")
    budget = default_budgets(trace)[0]
    view.find_element(
        By.XPATH, f".//option[starts-with(., 'lru, {budget / 2**20:.3g}\N{NO-BREAK SPACE}')]"
    ).click()
    rows = residency_timeline(trace, "lru", budget)
    row = rows[rows["token"] == 30]
    missed, lookups = row["misses"].sum(), row["lookups"].sum()
    after = until(browser, "matrix-summary", f"whole token: {missed} of {lookups} lookups missed")
    assert after != before


def test_only_what_is_shown_is_unpacked(browser):
    pieces = browser.run("return document.querySelectorAll('script[type=\"text/plain\"]').length")
    at_first = browser.run("return window.unpacked")
    # Of one chunk: residency, experts, weights, text; and the strip of the whole run.
    assert at_first == 5 < pieces
    press(browser, Keys.END)
    until(browser, "matrix-spoken", "step 205")
    assert at_first < browser.run("return window.unpacked") <= 2 * at_first


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_both_schemes_have_contrast(browser, dark):
    browser.prefer(dark)
    style = browser.run(
        """
        const style = getComputedStyle(document.documentElement);
        const names = ["page", "paper", "ink", "muted", "link", "accent", "warn", "hit", "miss"];
        return Object.fromEntries(names.map((n) => [n, style.getPropertyValue("--" + n).trim()]));
        """
    )
    assert (luminance(style["page"]) < 0.1) is dark
    for text in ("ink", "muted", "link"):
        for ground in ("page", "paper"):
            assert contrast(style[text], style[ground]) >= 4.5, (text, ground)
    assert contrast(style["ink"], style["warn"]) >= 7
    assert contrast(style["paper"], style["accent"]) >= 4.5
    assert contrast(style["hit"], style["miss"]) >= 4.5
    assert colours(browser, 3 + 12 * 20.5, 40)[0] != ""


def test_the_matrix_follows_the_colour_scheme(browser):
    light = colours(browser, 3 + 12 * 20.5, 60)[0]
    browser.prefer(dark=True)
    WebDriverWait(browser.driver, 60).until(
        lambda _: colours(browser, 3 + 12 * 20.5, 60)[0] != light
    )


def test_a_phone_scrolls_down_only(page):
    with browsers.chromium(width=390, height=844) as phone:
        phone.open(page)
        until(phone, "matrix-cell-title", "step")
        assert phone.run("return [innerWidth, document.documentElement.scrollWidth]") == [390, 390]
        assert phone.run(
            """
            const cell = document.querySelector(".cell");
            return cell.scrollWidth <= cell.clientWidth;
            """
        )
        small = phone.run(
            """
            return [...document.querySelectorAll("button, select, input")]
              .map((part) => part.getBoundingClientRect()).filter((box) => box.height < 28).length;
            """
        )
        assert small == 0
        assert phone.complaints() == []


def test_controls_have_names_that_are_read_out(browser):
    nodes = browser.command("Accessibility.getFullAXTree")["nodes"]
    names = {}
    for node in nodes:
        if not node.get("ignored"):
            names.setdefault(node["role"]["value"], []).append(node.get("name", {}).get("value"))
    assert names["application"] == ["Residency by token and layer"]
    assert names["slider"] == ["Lookups missed by each token of the run"]
    assert names["combobox"] == ["Residency"]
    assert len(names["button"]) == 4
    assert all(name for role in ("button", "image", "region", "table") for name in names[role])


def test_a_trace_of_one_token_and_one_layer_has_a_matrix(chromium, folder):
    trace = open_written(folder / "one.trace", n_layer=1, n_tokens=1, n_turns=1, prefill=0)
    path = folder / "one.html"
    path.write_text(build_report(trace), encoding="utf-8")
    chromium.open(path)
    until(chromium, "matrix-cell-title", "^Step 0, layer 0")
    press(chromium, Keys.ARROW_RIGHT, Keys.ARROW_UP, Keys.END, Keys.PAGE_UP)
    assert "0 of 2 experts were resident; 2 read" in until(
        chromium, "matrix-spoken", "Step 0, layer 0"
    )
    assert chromium.complaints() == []


def tables(browser):
    """How far the tables of the report reach beyond their boxes, and whether a hint is shown."""
    return browser.run(
        """
        return [...document.querySelectorAll(".scroll")].map((box) => [
          box.scrollWidth - box.clientWidth,
          box.querySelector(".sideways").checkVisibility(),
          getComputedStyle(box.querySelector("table")).borderCollapse,
        ]);
        """
    )


def test_a_wide_window_shows_tables_whole_and_a_phone_says_that_they_scroll(folder):
    trace = open_written(folder / "acting.trace", gate_inputs=True)
    path = folder / "acting.html"
    path.write_text(build_report(trace, policies=["lru", "prefetch", "bound"]), encoding="utf-8")
    with browsers.chromium(width=1200) as desk:
        desk.open(path)
        assert tables(desk) == [[0, False, "separate"]] * 3
    with browsers.chromium(width=390, height=844) as phone:
        phone.open(path)
        for beyond, hinted, collapse in tables(phone):
            assert beyond > 0
            assert hinted
            assert collapse == "separate"  # cells that stay in sight keep their lines
        assert phone.run("return document.documentElement.scrollWidth") == 390


def lines(browser):
    """The widths of the texts, of the tables, and of the widest line of text."""
    return browser.run(
        """
        const width = (part) => Math.round(part.getBoundingClientRect().width);
        const widths = (what) => [...new Set([...document.querySelectorAll(what)].map(width))];
        const rows = [...document.querySelectorAll(".texts")].flatMap((part) => {
          const range = document.createRange();
          range.selectNodeContents(part);
          return [...range.getClientRects()].map((row) => row.width);
        });
        return [widths(".texts"), widths(".scroll"), Math.max(...rows)];
        """
    )


@pytest.mark.parametrize("width", [1600, 1200, 800])
def test_text_is_as_wide_as_the_tables_and_its_lines_are_short(page, width):
    with browsers.chromium(width=width) as desk:
        desk.open(page)
        texts, tables, longest = lines(desk)
    assert texts == tables
    assert longest < 780  # a hundred characters
