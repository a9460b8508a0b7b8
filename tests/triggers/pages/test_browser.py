"""The pages in Chromium, as somebody on call meets them: on a phone at night, by keyboard, and on a desktop."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from plansmith.records.model import Precision
from plansmith.triggers.inbox.entry import StartedRun
from plansmith.triggers.receiver.server import ReceiverServer, address_of, bind
from plansmith.triggers.registries.delivery import Event

from ...support.browser import Browser
from ...support.faults.packages import source_model
from ...support.waiting import soon
from .site import HOSTILE, Site, link

pytestmark = pytest.mark.services

PHONE, DESKTOP = (360, 740), (1280, 900)
LONG = "encoder" * 20
PATIENCE_SECONDS = 120


@pytest.fixture
def address(site: Site) -> Iterator[str]:
    """A site full of what there may be, at an address of this machine."""
    site.model("ranker", versions=4)
    site.model("ajar", versions=0)
    site.model(LONG[:120], versions=2)
    for number, name in enumerate(("ranker", LONG), 3):
        registered = source_model(
            scheme="hf", location="/cache", registered=f"mlflow:models:/{name}", revision=str(number)
        )
        site.place.publish(site.place.specs / f"{LONG[:120]}.yaml", content=f"version {number}", source=registered)
    site.compiled("ranker", failed=True, source=f"hf:{LONG}", precision=Precision.INT8)
    site.compiled("ranker")
    site.place.write("typo.yaml", {"source": "hf:a/b", LONG: 1})
    site.deliver(Event(registry="ours", model=LONG, version=LONG, change="alias", value=HOSTILE))
    site.deliver(Event(registry="ours", model="ranker", version="3", change="alias", value="champion"))
    for model in ("embedder", "tagger"):
        site.deliver(Event(registry="ours", model=model, version="1", change="alias", value="champion"))
    for reason in (LONG, "", "", ""):
        entry = site.inbox.claim("w", site.clock.now, 60)
        assert entry is not None
        if reason:
            site.inbox.set_aside(entry, reason)
        else:
            run = StartedRun(id="0b6a1c9e-7a57-4c55", address="https://prefect.example.com/runs/1")
            site.inbox.finish(entry, [run], tell=True)
    for reason in (LONG, ""):
        write_back = site.inbox.write_backs.claim("t", site.clock.now, 60)
        assert write_back is not None
        if reason:
            site.inbox.write_backs.set_aside(write_back, reason)
        else:
            site.inbox.write_backs.finish(write_back, "refused")
    with bind("127.0.0.1", 0) as at, ReceiverServer(site.app, at):
        yield address_of(at)


@pytest.fixture
def pages(site: Site, address: str) -> dict[str, str]:
    """The address of each kind of page."""
    model = site.page("/models/ranker")
    ways = {
        "fleet": "/",
        "model": "/models/ranker",
        "long": f"/models/{LONG[:120]}",
        "differences": link(model, "/diff"),
        "inbox": "/inbox",
        "absent": "/models/absent",
    }
    return {name: address + way for name, way in ways.items()}


# How many elements reach beyond the screen.
_CUT_OFF = """
[...document.querySelectorAll('main *')].filter(found =>
  !found.closest('.visually-hidden, thead, pre') && found.getBoundingClientRect().right > innerWidth + 1
).length
"""


def _complaints(chromium: Browser) -> list[str]:
    """What the console says; that a page was not found is the browser's own word for it."""
    kinds = ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown")
    return [str(event) for kind in kinds for event in chromium.happened(kind) if "status of 404" not in str(event)]


@pytest.mark.parametrize("dark", [False, True], ids=["day", "night"])
def test_page_fits_phone_without_complaint(pages: dict[str, str], dark: bool, chromium: Browser) -> None:
    """No page is wider than a phone or causes a complaint."""
    for name, page in pages.items():
        for width, height in (PHONE, DESKTOP):
            chromium.open(page, width=width, height=height, dark=dark)
            assert chromium.evaluate("document.documentElement.scrollWidth") == width, name
            assert _complaints(chromium) == []
            assert chromium.evaluate(_CUT_OFF) == 0, name


def test_nothing_comes_from_elsewhere(pages: dict[str, str], address: str, chromium: Browser) -> None:
    for page in pages.values():
        chromium.open(page, width=DESKTOP[0], height=DESKTOP[1])
        addresses = [event["request"]["url"] for event in chromium.happened("Network.requestWillBeSent")]
        assert not [url for url in addresses if not url.startswith((address, "data:"))]
        assert chromium.evaluate("document.styleSheets.length") == 1
        assert chromium.evaluate("document.scripts.length") == 0


def test_night_has_own_colours(address: str, chromium: Browser) -> None:
    """The night has colours of its own."""
    colours = []
    for dark in (False, True):
        chromium.open(address, width=DESKTOP[0], height=DESKTOP[1], dark=dark)
        colours.append(chromium.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert colours == ["rgb(252, 252, 251)", "rgb(20, 22, 24)"]


def test_keyboard_shows_place_and_skips(address: str, chromium: Browser) -> None:
    """A person with a keyboard sees where they are and skips to the content."""
    chromium.open(address, width=DESKTOP[0], height=DESKTOP[1])
    skip = (
        "(() => { const box = document.activeElement.getBoundingClientRect(); return [document.activeElement.className,"
    )
    _press(chromium, "Tab")
    assert chromium.evaluate(f"{skip} box.left >= 0 && box.top >= 0] }})()") == ["skip", True]
    _press(chromium, "Enter")
    assert chromium.evaluate("location.hash") == "#content"
    reached = []
    for _ in range(8):
        _press(chromium, "Tab")
        style = "getComputedStyle(document.activeElement)"
        assert chromium.evaluate(f"{style}.outlineStyle") == "solid"
        assert chromium.evaluate(f"parseFloat({style}.outlineWidth)") >= 2
        reached.append(chromium.evaluate("document.activeElement.innerText.trim()"))
    assert reached[0].endswith("set aside")
    assert "ajar" in reached


@pytest.mark.parametrize("width", [PHONE[0], DESKTOP[0]])
def test_screen_reader_hears_table_heads(width: int, pages: dict[str, str], chromium: Browser) -> None:
    """A screen reader hears tables with their heads however they look."""
    for name, heads in (("fleet", 6), ("inbox", 5), ("model", 12), ("differences", 3)):
        chromium.open(pages[name], width=width, height=900)
        tree = chromium.ask("Accessibility.getFullAXTree")["nodes"]
        roles = [node["role"]["value"] for node in tree if not node["ignored"]]
        assert roles.count("columnheader") % heads == 0, name
        assert roles.count("columnheader") >= heads, name
        assert roles.count("rowheader") > 0, name
        assert {"banner", "main", "navigation", "contentinfo"} <= set(roles)
        named = [node["name"]["value"] for node in tree if not node["ignored"] and node["role"]["value"] == "table"]
        assert named, name
        assert all(named), name


def test_versions_compared_without_script(pages: dict[str, str], chromium: Browser) -> None:
    """Two versions are chosen and compared without script."""
    chromium.open(pages["model"], width=PHONE[0], height=PHONE[1])
    chromium.evaluate("document.querySelector('select[name=old]').value = '1'")
    chromium.evaluate("document.querySelector('.compare button').click()")
    title = "document.querySelector('h1')?.innerText.startsWith('Version 1')"
    assert soon(lambda: bool(chromium.evaluate(title)), expected=True)
    assert "old=1&new=4" in chromium.evaluate("location.search")


def test_foreign_report_script_does_not_run(site: Site, address: str, chromium: Browser) -> None:
    """A report is shown, and what somebody wrote into it does not run."""
    release = site.place.repository.release("ranker", 4)
    text = "<!DOCTYPE html><title>ours</title><style>body { color: red }</style><script>document.title = 'ran'</script>"
    (release / "report.html").write_text(text)
    chromium.open(address + link(site.page("/models/ranker"), "/reports/"), width=DESKTOP[0], height=DESKTOP[1])
    assert chromium.evaluate("document.title") == "ours"
    assert chromium.evaluate("getComputedStyle(document.body).color") == "rgb(255, 0, 0)"
    assert chromium.evaluate("window.origin") == "null"


def test_deliveries_answered_during_query(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deliveries are answered while the fleet is queried."""
    gate = threading.Event()
    monkeypatch.setattr(site, "_query", lambda _: gate.wait(PATIENCE_SECONDS) and {"models": []})
    with bind("127.0.0.1", 0) as at, ReceiverServer(site.app, at):
        where = at.getsockname()
        asking = [socket.create_connection(where) for _ in range(20)]
        for connection in asking:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        with socket.create_connection(where, timeout=PATIENCE_SECONDS / 2) as sender:
            sender.sendall(b"POST /hooks/ours HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
            assert sender.recv(100).startswith(b"HTTP/1.1 401")
        assert not gate.is_set(), "the delivery waited for the end of the query"
        gate.set()
        for connection in asking:
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
            connection.close()


def _press(chromium: Browser, key: str) -> None:
    code = {"Tab": 9, "Enter": 13}[key]
    text = {"text": "\r"} if key == "Enter" else {}
    for kind in ("keyDown", "keyUp"):
        chromium.ask(
            "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code,
            **(text if kind == "keyDown" else {}),
        )  # fmt: skip
