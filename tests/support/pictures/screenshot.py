"""Screenshots of pages, small enough for the documentation."""

from __future__ import annotations

import io
from pathlib import Path

from PIL import Image

from ..browser import Browser

WIDTH = 1200
_TALLEST = 2400
_COLOURS = 128


def screenshot(browser: Browser, page: Path | str, *, until: str, width: int = WIDTH, margin: int = 24) -> bytes:
    """A page from its top to the end of an element, as PNG with a palette.

    Args:
        browser: that shows it.
        page: a file or an address.
        until: CSS selector of the last element.
        width: of the window, in pixels.
        margin: below the element, in pixels.
    """
    browser.open(page, width=width, height=_TALLEST)
    bottom = browser.evaluate(f"document.querySelector('{until}').getBoundingClientRect().bottom")
    return capture(browser, width=width, height=round(bottom) + margin)


def capture(browser: Browser, *, width: int, height: int) -> bytes:
    """What the browser shows, from the top left, as PNG with a palette."""
    picture = Image.open(io.BytesIO(browser.picture())).convert("RGB").crop((0, 0, width, height))
    stream = io.BytesIO()
    picture.quantize(_COLOURS, dither=Image.Dither.NONE).save(stream, "png", optimize=True)
    return stream.getvalue()
