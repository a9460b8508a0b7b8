"""Reports in Chromium, as a person meets them: on a phone and a desktop, by day and by night, and on paper."""

from __future__ import annotations

from pathlib import Path

import pytest

from plansmith.report.render import render
from plansmith.report.verdict import ReportFacts

from ..support.browser import Browser
from ..support.report.page import Page
from ..support.report.parts import judged

pytestmark = pytest.mark.services

PHONE, DESKTOP = (390, 844), (1280, 900)
SCREENS = {"phone": PHONE, "desktop": DESKTOP, "a narrow phone": (320, 640)}
EVERY = ("int8", "fp16", "fp32", "trials", "plans", "unrun")

LONG = "encoder" * 40


@pytest.fixture(scope="module")
def folder(pages: dict[str, Page], facts: dict[str, ReportFacts], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reports as files; `long` has names without a place to break them."""
    reports = tmp_path_factory.mktemp("reports")
    for name, page in pages.items():
        (reports / f"{name}.html").write_text(page.source, encoding="utf-8")
    (reports / "long.html").write_text(render(_long_names(facts["int8"])), encoding="utf-8")
    return reports


@pytest.mark.parametrize("screen", SCREENS)
@pytest.mark.parametrize("name", [*EVERY, "long"])
def test_page_fits_screen_width(name: str, screen: str, chromium: Browser, folder: Path) -> None:
    """No page is wider than its screen."""
    width, height = SCREENS[screen]
    chromium.open(folder / f"{name}.html", width=width, height=height)
    assert chromium.evaluate("innerWidth") == width
    assert chromium.evaluate("document.documentElement.scrollWidth") == width
    chromium.evaluate("document.querySelectorAll('details').forEach(found => found.open = true)")
    assert chromium.evaluate("document.documentElement.scrollWidth") == width


# Each figure of the page that stands on several lines.
_BROKEN_FIGURES = """
(() => {
  const broken = [], texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    for (const found of texts.currentNode.data.matchAll(/(?<![\\w.])\\d+[.]\\d+(?![\\w.])/g)) {
      const range = document.createRange();
      range.setStart(texts.currentNode, found.index);
      range.setEnd(texts.currentNode, found.index + found[0].length);
      const tops = new Set([...range.getClientRects()].map(box => Math.round(box.top)));
      if (tops.size > 1) broken.push(found[0] + " of " + texts.currentNode.parentElement.closest("[class]").className);
    }
  }
  return broken;
})()
"""


@pytest.mark.parametrize("width", [320, 390, 600, 768, 1024, 1280])
@pytest.mark.parametrize("name", EVERY)
def test_figure_stays_on_one_line(name: str, width: int, chromium: Browser, folder: Path) -> None:
    """No figure is broken over two lines."""
    chromium.open(folder / f"{name}.html", width=width, height=900)
    assert chromium.evaluate(_BROKEN_FIGURES) == []


@pytest.mark.parametrize("name", EVERY)
def test_wide_tables_scroll_by_keyboard(name: str, chromium: Browser, folder: Path) -> None:
    """Wide tables scroll by themselves and can be reached with the keyboard."""
    chromium.open(folder / f"{name}.html", width=PHONE[0], height=PHONE[1])
    boxes = chromium.evaluate(
        "[...document.querySelectorAll('table')].map(table => {"
        " const box = table.parentElement;"
        " return [box.tabIndex, getComputedStyle(box).overflowX, box.getAttribute('aria-label') !== null] })"
    )
    assert boxes
    assert boxes == [[0, "auto", True]] * len(boxes)


def test_shape_errors_fit_phone(chromium: Browser, folder: Path) -> None:
    """The errors at every shape need no scrolling on a phone."""
    chromium.open(folder / "int8.html", width=PHONE[0], height=PHONE[1])
    spare = "[...document.querySelectorAll('#shapes .scroll')].map(box => box.scrollWidth - box.clientWidth)"
    assert chromium.evaluate(spare) == [0, 0]


@pytest.mark.parametrize("screen", ["phone", "desktop"])
@pytest.mark.parametrize("name", EVERY)
def test_verdict_stands_on_first_screen(name: str, screen: str, chromium: Browser, folder: Path) -> None:
    """The verdict and how far it is from the limits are on the first screen."""
    width, height = SCREENS[screen]
    chromium.open(folder / f"{name}.html", width=width, height=height)
    bottoms = chromium.evaluate(
        "[...document.querySelectorAll('h1, .lede, .nearest')].map(found => found.getBoundingClientRect().bottom)"
    )
    assert len(bottoms) == (2 if name == "trials" else 3)
    assert all(0 < bottom < height / 2 for bottom in bottoms)
    word = "Failed" if name in {"fp16", "trials"} else "Passed"
    assert chromium.evaluate("document.querySelector('h1').innerText.trim()") == word
    assert chromium.evaluate("parseFloat(getComputedStyle(document.querySelector('h1')).fontSize)") >= 40


@pytest.mark.parametrize("name", [*EVERY, "long"])
def test_page_loads_nothing_without_complaint(name: str, chromium: Browser, folder: Path) -> None:
    """Nothing is loaded and nothing is complained of."""
    page = folder / f"{name}.html"
    chromium.open(page, width=DESKTOP[0], height=DESKTOP[1], dark=True)
    addresses = [event["request"]["url"] for event in chromium.happened("Network.requestWillBeSent")]
    assert [address for address in addresses if not address.startswith("data:")] == [page.as_uri()]
    for kind in ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown"):
        assert chromium.happened(kind) == []


def test_page_obeys_no_script_rule(folder: Path, chromium: Browser) -> None:
    """A page obeys its own rule that nothing may run."""
    tampered = folder / "tampered.html"
    source = (folder / "fp32.html").read_text(encoding="utf-8")
    tampered.write_text(source.replace("</main>", "<script>document.title = 'ran'</script></main>"), encoding="utf-8")
    chromium.open(tampered, width=DESKTOP[0], height=DESKTOP[1])
    assert chromium.evaluate("document.title") == "Passed: resnet50, version 1"
    assert "Content Security Policy" in str(chromium.happened("Log.entryAdded"))


def test_night_has_own_colours(chromium: Browser, folder: Path) -> None:
    """The night has colours of its own."""
    colours = []
    for dark in (False, True):
        chromium.open(folder / "int8.html", width=DESKTOP[0], height=DESKTOP[1], dark=dark)
        colours.append(
            chromium.evaluate(
                "[['body', 'backgroundColor'], ['body', 'color'], ['h1', 'color'], ['a', 'color']]"
                ".map(([found, what]) => getComputedStyle(document.querySelector(found))[what])"
            )
        )
    assert colours[0] == ["rgb(252, 252, 251)", "rgb(27, 29, 32)", "rgb(23, 105, 60)", "rgb(31, 93, 171)"]
    assert colours[1] == ["rgb(20, 22, 24)", "rgb(233, 233, 230)", "rgb(111, 208, 154)", "rgb(134, 182, 255)"]


def test_dots_round_inside_chart(chromium: Browser, folder: Path) -> None:
    """Dots are round and inside of the chart however wide it is."""
    for width, height in (PHONE, DESKTOP):
        chromium.open(folder / "int8.html", width=width, height=height)
        beyond = chromium.evaluate(
            "(() => { const area = document.querySelector('.area').getBoundingClientRect();"
            " return [...document.querySelectorAll('.area .rank')].filter(mark => {"
            "  const box = mark.getBoundingClientRect(), middle = (box.left + box.right) / 2;"
            "  return middle < area.left || middle > area.right }).length })()"
        )
        assert beyond == 0
        dots = "[...document.querySelectorAll('.plot circle')].map(dot => dot.getBoundingClientRect())"
        assert chromium.evaluate(f"{dots}.every(box => Math.abs(box.width - box.height) < 0.1 && box.width > 5)")


def test_paper_opens_everything_light(chromium: Browser, folder: Path) -> None:
    """On paper, everything is open and light."""
    chromium.open(folder / "int8.html", width=DESKTOP[0], height=DESKTOP[1], dark=True)
    hidden = "[...document.querySelectorAll('.nodes')].filter(found => found.innerText === '').length"
    assert chromium.evaluate(hidden) == 3
    features = [{"name": "prefers-color-scheme", "value": "dark"}]
    chromium.ask("Emulation.setEmulatedMedia", media="print", features=features)
    assert chromium.evaluate(hidden) == 0
    assert chromium.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert chromium.evaluate("getComputedStyle(document.querySelector('nav')).display") == "none"


def _long_names(facts: ReportFacts) -> ReportFacts:
    """The same report on a model whose names have no place where a line may end."""
    lowered = facts.lowered
    assert lowered is not None
    assert lowered.recipe is not None
    nodes = tuple(node.model_copy(update={"node": LONG, "reason": LONG}) for node in lowered.recipe.kept)
    return facts.model_copy(
        update={
            "name": LONG,
            "target": LONG,
            "lowered": lowered.model_copy(
                update={
                    "recipe": lowered.recipe.model_copy(update={"kept": nodes, "method": LONG}),
                    "layers": tuple(layer.model_copy(update={"node": LONG}) for layer in lowered.layers),
                    "trials": tuple(t.model_copy(update={"name": LONG, "problem": LONG}) for t in lowered.trials),
                }
            ),
            "validation": judged(facts).model_copy(
                update={"reference": LONG, "data": LONG, "not_validated": (LONG,), "candidate": LONG}
            ),
        }
    )
