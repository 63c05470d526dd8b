"""The page in a browser: charts, no errors, no requests, toggles, sorting, dark theme, phone, print."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from comparison import INJECTION, SPOKEN

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine"),
]

IMAGE = "clustered-25 <img src=x onerror=alert(1)>"  # a candidate's label


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


class Visit:
    """An open page with its console messages and requests."""

    def __init__(self, browser: Any, path: Path, **options: Any) -> None:
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.messages: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.messages.append(message.text))
        self.page.on("pageerror", lambda error: self.messages.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.messages.append("dialog"), dialog.dismiss()))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri(), timeout=120_000)  # a busy machine
        self.page.wait_for_selector("html[data-ready]", timeout=120_000)

    def marks(self, figure: str, kind: str) -> int:
        """Count the elements of a mark type (symbol, line, text, rect, image)."""
        return int(self.page.locator(f"#{figure} .view .mark-{kind} > *").count())


@pytest.fixture(scope="module")
def visit(browser: Any, written: Path) -> Iterator[Visit]:
    visit = Visit(browser, written, viewport={"width": 1280, "height": 900}, color_scheme="light")
    yield visit
    visit.context.close()


def test_the_console_is_empty_and_nothing_is_requested(visit: Visit, written: Path) -> None:
    assert visit.messages == []
    assert [url for url in visit.requests if not url.startswith("data:")] == [written.as_uri()]


@pytest.fixture(scope="module")
def mailed(browser: Any, written: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visit]:
    """A copy of the page without the folder `figures`."""
    alone = shutil.copy(written, tmp_path_factory.mktemp("mailed") / "page.html")
    visit = Visit(browser, alone, offline=True, viewport={"width": 1280, "height": 900})
    yield visit
    assert visit.messages == []
    visit.context.close()


def save(visit: Visit, button: str) -> Path:
    with visit.page.expect_download() as caught:
        visit.page.locator(button).click()
    place = Path(caught.value.path())
    return place.rename(place.with_name(caught.value.suggested_filename))


@pytest.mark.parametrize(("kind", "start"), [("PNG", b"\x89PNG"), ("PDF", b"%PDF")])
def test_a_mailed_copy_has_its_pictures(mailed: Visit, written: Path, kind: str, start: bytes) -> None:
    """The links led to files beside the page, which a mailed copy lacks."""
    saved = save(mailed, f"#figure-curves a:text-is('{kind}')")
    assert saved.name == f"figure-curves.{kind.lower()}"
    assert saved.read_bytes().startswith(start)
    assert saved.read_bytes() == (written.parent / "figures" / saved.name).read_bytes()


def test_a_saved_svg_holds_all_panels_and_the_legend(mailed: Visit) -> None:
    """Six panels were six files, and the legend, which is part of the page, was in none of them."""
    button = mailed.page.locator("#figure-curves [data-series='full']")
    button.click()
    svg = save(mailed, "#figure-curves [data-svg]").read_text()
    button.click()
    assert svg.startswith("<svg")
    assert "var(--" not in svg
    labels = [title for title in ("training loss", "dev loss", "dev PER (%)") if svg.count(f">{title}<") == 2]
    assert len(labels) == 3
    assert "role-legend-label" in svg
    assert ">i-clustered-25<" in svg
    shown, everything = (
        save(mailed, f"#{name} [data-svg]").read_text() for name in ("figure-maps", "figure-accuracy")
    )
    assert shown.count("<image") == 18  # nine for each of two heads
    assert svg.count("model: full;") == 0  # hidden on the page
    assert ">i-clustered-25<" in everything  # a label beside its point


@pytest.mark.parametrize(
    ("format", "row"),
    [
        ("markdown", r"^\| full \| \d+\.\d\d \(\d+\.\d\d … \d+\.\d\d\) \|"),
        ("latex", r"^  full & \d+\.\d\d \(\d+\.\d\d--\d+\.\d\d\) &"),
    ],
)
def test_a_copied_table_keeps_its_intervals(mailed: Visit, format: str, row: str) -> None:
    mailed.page.evaluate("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    mailed.page.locator(f"#outcome [data-copy='{format}']").click()
    copied = str(mailed.page.evaluate("window.copied"))
    assert re.search(row, copied, flags=re.M), copied


def test_charts_pictures_and_players_have_names(mailed: Visit) -> None:
    """A screen reader read the base64 of a heat map."""
    names = mailed.page.locator(".view svg").evaluate_all(
        "nodes => nodes.map(x => x.closest('[aria-label]').getAttribute('aria-label'))"
    )
    assert len(names) == 17
    assert all(names)
    pictures = mailed.page.locator("#figure-maps .mark-image > *").evaluate_all(
        "nodes => nodes.map(x => x.getAttribute('aria-label'))"
    )
    assert len(pictures) == 18
    assert all(name.startswith(("attention weights of", "spectrogram along")) for name in pictures)
    players = mailed.page.locator("#utterances audio")
    assert players.count() > 0
    assert str(players.first.get_attribute("aria-label")).startswith("Utterance ")


def test_the_error_browser_shows_words_beside_phones(mailed: Visit) -> None:
    assert mailed.page.locator("#utterances > li .spoken").first.inner_text() == f"“{SPOKEN}”"


def test_every_chart_has_its_marks(visit: Visit) -> None:
    panels = 6 + 1 + 3 + 6 + 1
    assert visit.page.locator(".view").count() == panels
    assert visit.page.locator(".view svg").count() == panels
    assert visit.marks("figure-accuracy", "symbol") >= 4
    assert visit.marks("figure-curves", "line") >= 6
    assert visit.marks("figure-bench", "symbol") >= 8
    assert visit.marks("figure-maps", "image") == 18
    assert visit.marks("figure-distance", "symbol") == 2


def test_the_legend_hides_and_shows_a_series(visit: Visit) -> None:
    before = visit.marks("figure-accuracy", "symbol")
    button = visit.page.locator("#figure-accuracy [data-series='clustered']")
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    visit.page.wait_for_timeout(300)
    assert visit.marks("figure-accuracy", "symbol") == before - 1
    button.click()
    visit.page.wait_for_timeout(300)
    assert visit.marks("figure-accuracy", "symbol") == before


def test_a_logarithmic_axis_moves_the_points(visit: Visit) -> None:
    places = "#figure-accuracy .view .mark-symbol > *"
    read = f"els = [...document.querySelectorAll({places!r})].map(x => x.getAttribute('transform')).join()"
    before = visit.page.evaluate(read)
    visit.page.locator("#figure-accuracy [data-log='x']").click()
    visit.page.wait_for_timeout(500)
    after = visit.page.evaluate(read)
    assert after not in ("", before)
    assert visit.page.locator("#figure-accuracy [data-log='x']").get_attribute("aria-pressed") == "true"


def test_hovering_shows_hostile_text_as_text(visit: Visit) -> None:
    places = visit.page.locator("#figure-accuracy .view .mark-symbol > *")
    for i in range(places.count()):
        places.nth(i).hover()
        visit.page.wait_for_timeout(100)
        tooltip = visit.page.locator("#vg-tooltip-element")
        if tooltip.count() and IMAGE in tooltip.inner_text():
            break
    else:
        pytest.fail("no tooltip with the label as text")
    assert visit.page.locator("#vg-tooltip-element img").count() == 0


def test_clicks_sort_a_table_and_reverse_the_order(visit: Visit) -> None:
    head = visit.page.locator("#outcome thead th").nth(1)
    column = "#outcome tbody tr td:nth-child(2) .value"

    def shown() -> list[float]:
        texts = visit.page.locator(column).all_inner_texts()
        assert texts[-1] == "–"  # the failed model stays last
        return [float(text) for text in texts[:-1]]

    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert shown() == sorted(shown())
    head.locator("button").click()
    assert shown() == sorted(shown(), reverse=True)


def test_the_error_browser_filters_and_escapes(visit: Visit) -> None:
    entries = visit.page.locator("#utterances > li")
    total = entries.count()
    visit.page.select_option("#error-speaker", "=" + INJECTION)
    assert entries.count() == 1 < total
    assert f"speaker {INJECTION}" in entries.first.inner_text()
    assert "</script><!--" in entries.first.inner_text()
    assert visit.page.locator("#errors script, #errors img").count() == 0
    visit.page.select_option("#error-speaker", "")
    visit.page.locator("#error-kinds input[value='D']").check()
    kinds = visit.page.locator("#utterances > li:not(:has(.alignment .D))")
    assert kinds.count() == 0
    visit.page.locator("#error-kinds input[value='D']").uncheck()


def test_the_worst_utterance_can_be_played(visit: Visit) -> None:
    duration = visit.page.evaluate(
        """async () => {
            const player = document.querySelector('#utterances audio');
            player.preload = 'metadata';
            player.load();
            await new Promise((done) => { player.onloadedmetadata = done; player.onerror = done; });
            return player.duration;
        }"""
    )
    assert 0.3 < duration < 5


def test_the_theme_follows_button_and_preference(visit: Visit, browser: Any, written: Path) -> None:
    def paper(page: Any) -> str:
        return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    def axis(page: Any) -> str:
        return str(page.evaluate("getComputedStyle(document.querySelector('.role-axis-label text')).fill"))

    light = paper(visit.page), axis(visit.page)
    visit.page.locator("#theme").click()
    dark = paper(visit.page), axis(visit.page)
    assert light[0] != dark[0]
    assert light[1] != dark[1]
    visit.page.locator("#theme").click()
    assert (paper(visit.page), axis(visit.page)) == light
    other = Visit(browser, written, color_scheme="dark")
    assert (paper(other.page), axis(other.page)) == dark
    other.page.emulate_media(media="print")
    assert other.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    other.context.close()


def test_a_phone_does_not_scroll_sideways(browser: Any, written: Path) -> None:
    phone = {"viewport": {"width": 360, "height": 740}, "is_mobile": True, "has_touch": True}
    visit = Visit(browser, written, **phone)
    width = visit.page.evaluate("document.documentElement.scrollWidth")
    assert width <= 360
    widest = visit.page.evaluate(
        "Math.max(...[...document.querySelectorAll('.view svg')].map(x => x.getBoundingClientRect().right))"
    )
    assert widest <= 360 + 60  # a map has a fixed size and scrolls in its own frame
    assert visit.messages == []
    visit.context.close()


def test_no_table_is_cut_on_a_wide_screen(browser: Any, written: Path) -> None:
    """Half of the main table's columns were beyond the edge, with nothing to tell."""
    visit = Visit(browser, written, viewport={"width": 1400, "height": 900})
    widths = visit.page.locator(".scroll").evaluate_all("all => all.map(x => [x.scrollWidth, x.clientWidth])")
    assert len(widths) > 6
    assert all(inner <= outer for inner, outer in widths)
    assert visit.page.locator(".scroll.more").count() == 0
    visit.page.set_viewport_size({"width": 420, "height": 900})
    visit.page.wait_for_selector("#outcome .scroll.more")
    visit.context.close()


def test_figures_and_tables_are_numbered_in_page_order(visit: Visit) -> None:
    """They were Figure 1, Tables 2 and 3, Table 1, Figure 7, Figure 8, Figure 8b."""
    shown = visit.page.locator("h2 .label").all_inner_texts()
    for kind in ("Figure", "Table"):
        numbers = [int(text.split()[1]) for text in shown if text.startswith(kind)]
        assert numbers == list(range(1, len(numbers) + 1))
        assert len(numbers) > 3


def test_hostile_text_never_ran(visit: Visit) -> None:
    """Runs last: hovering, filtering and sorting caused no dialog and no console message."""
    assert visit.messages == []
