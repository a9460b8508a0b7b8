"""Segmentation: turns logits into a class map at the size of the sent image, and a list of its segments."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..requests import Arrays, Refusal
from .labels import texts

CLASS_MAP, SEGMENTS = "class_map", "segments"

Array = np.ndarray[Any, Any]


class SegmentationStep:
    """Segmentation step: upsamples logits and takes the argmax, as transformers' semantic segmentation does.

    Settings:
        logits: name of the model's output [batch, classes, height, width].
        sizes: name of the height and width of every image as it was sent [batch, 2].
        labels: names of the classes, in their order.
        dtype: of the map, by NumPy's name.
    """

    def __init__(self, settings: Mapping[str, Any], folder: Path) -> None:
        """See the class; needs no other files in the folder."""
        del folder
        self._settings = settings

    def answer(self, feeds: Sequence[Arrays]) -> list[Arrays | Refusal]:
        """Return `class_map` [batch, height, width] and `segments` [batch, 1]: JSON lists of id, label and pixels."""
        settings = self._settings
        return [self._segmented(feed[settings["logits"]], feed[settings["sizes"]]) for feed in feeds]

    def _segmented(self, logits: Array, sizes: Array) -> Arrays | Refusal:
        unique_sizes = sorted({(int(height), int(width)) for height, width in sizes})
        if len(unique_sizes) > 1:
            (least, narrowest), (most, widest) = unique_sizes[0], unique_sizes[-1]
            return Refusal(
                f"the images of one request have {narrowest} x {least} to {widest} x {most} pixels, and their maps are"
                " one tensor: send images of different sizes in requests of their own"
            )
        ((height, width),) = unique_sizes
        maps = np.stack([class_map(row, height, width, self._settings["dtype"]) for row in logits.astype(np.float32)])
        return {CLASS_MAP: maps, SEGMENTS: texts([self._segments(row) for row in maps]).reshape(-1, 1)}

    def _segments(self, classes: Array) -> bytes:
        numbers, counts = np.unique(classes, return_counts=True)
        records = [
            {"id": number, "label": self._settings["labels"][number], "pixels": count}
            for number, count in zip(numbers.tolist(), counts.tolist(), strict=True)
        ]
        return json.dumps(records, ensure_ascii=False).encode()


def class_map(logits: Array, height: int, width: int, dtype: str) -> Array:
    """Return the likeliest class of every pixel, [height, width], after bilinear interpolation.

    As `torch.nn.functional.interpolate` with align_corners=False; row by row, so that no more of the enlarged logits is
    in memory than two rows.

    Args:
        logits: [classes, rows, columns].
        height: of the map.
        width: of the map.
        dtype: of the map.
    """
    cells = np.ascontiguousarray(logits.transpose(1, 2, 0))  # the classes of a pixel beside each other
    above, below, down = _neighbours(cells.shape[0], height)
    left, right, across = _neighbours(cells.shape[1], width)
    across = across[:, None]
    wide: dict[int, Array] = {}
    classes = np.empty((height, width), dtype)
    for row in range(height):
        needed = {int(above[row]), int(below[row])}
        wide = {place: wide[place] for place in needed & wide.keys()} | {
            place: cells[place, left] * (1 - across) + cells[place, right] * across for place in needed - wide.keys()
        }
        share = down[row]
        classes[row] = (wide[int(above[row])] * (1 - share) + wide[int(below[row])] * share).argmax(axis=1)
    return classes


def _neighbours(count: int, size: int) -> tuple[Array, Array, Array]:
    """Return the two source cells for each target cell in linear interpolation, and the weight of the second."""
    scale = np.float32(count / size)
    places = np.maximum(scale * (np.arange(size, dtype=np.float32) + np.float32(0.5)) - np.float32(0.5), 0)
    first = np.minimum(places.astype(np.int64), count - 1)
    return first, np.minimum(first + 1, count - 1), (places - first).astype(np.float32)
