"""Which pictures there are, and what makes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..browser import Browser
from .prefect_runs import prefect_runs
from .sentence_encoder import sentence_encoder
from .status_page import status_page


@dataclass(frozen=True)
class Scene:
    """A run, and the pictures that are taken of it.

    Attributes:
        pictures: their file names in docs/images/.
        run: yields each with its content, from an empty folder and a browser.
    """

    pictures: tuple[str, ...]
    run: Callable[[Path, Browser], Iterator[tuple[str, bytes]]]


SCENES = (
    Scene(("session.svg", "report.png", "loadtest.png"), sentence_encoder),
    Scene(("fleet.png", "model.png", "inbox.png"), status_page),
    Scene(("prefect.png",), prefect_runs),
)
