"""The declared colours are told apart by everybody: contrast as WCAG 2.2 counts it, in both schemes and on paper."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

CSS = files("plansmith.report").joinpath("templates", "report.css").read_text(encoding="utf-8")
TEXT = ("text", "muted", "accent", "good", "bad", "caution")
SCHEMES = ("light", "dark", "paper")

# Level AA: of text (success criterion 1.4.3), and of what is drawn (1.4.11).
READABLE, VISIBLE = 4.5, 3.0


def colours(scheme: str) -> dict[str, str]:
    """The colours of a scheme by name."""
    blocks = [
        dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6});", block))
        for block in re.findall(r":root \{(.*?)\}", CSS, re.DOTALL)
    ]
    assert len(blocks) == len(SCHEMES)
    assert blocks[0].keys() == blocks[1].keys() == blocks[2].keys()
    return blocks[SCHEMES.index(scheme)]


def luminance(colour: str) -> float:
    """The relative luminance of #rrggbb."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """From 1, the same, to 21, black on white."""
    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def test_the_measure_is_that_of_the_standard() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.478, abs=0.001)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("ground", ["page", "panel"])
@pytest.mark.parametrize("name", TEXT)
def test_every_text_can_be_read(name: str, ground: str, scheme: str) -> None:
    known = colours(scheme)
    assert contrast(known[name], known[ground]) >= READABLE


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", ["good", "bad"])
def test_words_on_a_status_can_be_read(name: str, scheme: str) -> None:
    known = colours(scheme)
    assert contrast(known["on-status"], known[name]) >= READABLE


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", ["accent", "good", "bad"])
def test_a_bar_is_seen_on_its_track(name: str, scheme: str) -> None:
    known = colours(scheme)
    assert contrast(known[name], known["track"]) >= VISIBLE


def test_no_rule_has_a_colour_of_its_own() -> None:
    rules = re.sub(r":root \{.*?\}", "", CSS, flags=re.DOTALL)
    assert not re.findall(r"#[0-9a-f]{3,8}\b(?=[;\s])|rgba?\(|hsla?\(", rules)
