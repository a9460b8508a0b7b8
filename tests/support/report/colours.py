"""The colours of the reports' style sheet, and how well they are told apart."""

from __future__ import annotations

import re
from importlib.resources import files

CSS = files("plansmith.report").joinpath("templates", "report.css").read_text(encoding="utf-8")
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


def contrast(first: str, second: str) -> float:
    """From 1, the same, to 21, black on white."""
    lighter, darker = sorted((luminance(first), luminance(second)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)
