"""The declared colours are told apart by everybody: contrast as WCAG 2.2 counts it, in both schemes and on paper."""

from __future__ import annotations

import re

import pytest

from ..support.report.colours import CSS, READABLE, SCHEMES, VISIBLE, colours, contrast

TEXT = ("text", "muted", "accent", "good", "bad", "caution")


def test_contrast_measure_follows_standard() -> None:
    """The measure is that of the standard."""
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.478, abs=0.001)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("ground", ["page", "panel"])
@pytest.mark.parametrize("name", TEXT)
def test_every_text_can_be_read(name: str, ground: str, scheme: str) -> None:
    palette = colours(scheme)
    assert contrast(palette[name], palette[ground]) >= READABLE


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", ["good", "bad"])
def test_status_words_are_readable(name: str, scheme: str) -> None:
    """Words on a status can be read."""
    palette = colours(scheme)
    assert contrast(palette["on-status"], palette[name]) >= READABLE


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", ["accent", "good", "bad"])
def test_bar_is_seen_on_track(name: str, scheme: str) -> None:
    """A bar is seen on its track."""
    palette = colours(scheme)
    assert contrast(palette[name], palette["track"]) >= VISIBLE


def test_rules_share_palette_colours() -> None:
    """No rule has a colour of its own."""
    rules = re.sub(r":root \{.*?\}", "", CSS, flags=re.DOTALL)
    assert not re.findall(r"#[0-9a-f]{3,8}\b(?=[;\s])|rgba?\(|hsla?\(", rules)
