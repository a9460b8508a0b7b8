"""Encoded images for NVIDIA DALI: the bytes of each as a row of numbers, zero-padded to equal length.

DALI answers a batch in which one image cannot be decoded with an error for all of it. So what is no JPEG or PNG, is
damaged or cut off, or is too large, is refused here, for its own request alone and without decoding it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .encoded_files import Unfit, check_file
from .requests import Arrays, Refusal


class EncodedStep:
    """Encoded image step: checks encoded images and places their bytes in equal rows.

    Settings:
        input: name of the tensor of bytes, [batch, 1].
        output: name of the tensor of numbers, [batch, longest].
        most_pixels: of an image, before and after any resize.
        whitened, steps: as those of the part that reads images with Pillow.
    """

    def __init__(self, settings: Mapping[str, Any], folder: Path) -> None:  # noqa: ARG002 - every step is made like this
        """See the class; needs no other files in the folder."""
        self._settings = settings

    def answer(self, feeds: Sequence[Arrays]) -> Sequence[Arrays | Refusal]:
        """Return the rows of each request, or the reason for refusing it."""
        return [self._answered(feed[self._settings["input"]]) for feed in feeds]

    def _answered(self, files: np.ndarray[Any, Any]) -> Arrays | Refusal:
        settings = self._settings
        rows = files.reshape(-1).tolist()
        for row, file in enumerate(rows):
            try:
                check_file(file, settings["steps"], settings["most_pixels"], whitened=settings["whitened"])
            except Unfit as problem:
                return Refusal(f"{settings['input']}: the image in row {row} is refused: {problem}")
        laid = np.zeros((len(rows), max(map(len, rows), default=1)), np.uint8)
        for row, file in enumerate(rows):
            laid[row, : len(file)] = np.frombuffer(file, np.uint8)
        return {settings["output"]: laid}
