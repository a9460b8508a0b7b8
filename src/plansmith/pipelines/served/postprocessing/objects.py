"""Object detection: turns logits and boxes into the objects of an image: label, score, and the box in pixels."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..requests import Arrays, Refusal
from .labels import sigmoid, softmax, texts

OBJECTS = "objects"

DIGITS = 6
"""Of a score behind the point."""

_SIDES = ("xmin", "ymin", "xmax", "ymax")

Found = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]
"""Scores [count], classes [count] and boxes [count, 4]: centre, width and height, as shares of the image."""


class ObjectsStep:
    """Object detection step like that of transformers.

    Settings:
        logits: name of the model's output [batch, queries, classes].
        boxes: name of its output [batch, queries, 4].
        sizes: name of the height and width of every image as it was sent [batch, 2].
        labels: names of the classes, in their order.
        most: objects of an image, the likeliest first: each query may name any class (the logistic function's scores);
            None: each query names one class, or with the last one none (softmax), in the order of queries.
        threshold: what a score has to be above.
    """

    def __init__(self, settings: Mapping[str, Any], folder: Path) -> None:
        """See the class; needs no other files in the folder."""
        del folder
        self._settings = settings

    def answer(self, feeds: Sequence[Arrays]) -> list[Arrays | Refusal]:
        """Return `objects` [batch, 1]: a JSON list per image, of label, score and box (xmin, ymin, xmax, ymax)."""
        return [{OBJECTS: texts([*self._objects(feed)]).reshape(-1, 1)} for feed in feeds]

    def _objects(self, feed: Arrays) -> Iterator[bytes]:
        settings = self._settings
        names = (settings["logits"], settings["boxes"], settings["sizes"])
        every_logits, every_boxes, sizes = (feed[name] for name in names)
        whole = zip(every_logits.astype(np.float32), every_boxes.astype(np.float32), sizes.tolist(), strict=True)
        for logits, boxes, (height, width) in whole:
            most = settings["most"]
            scores, classes, centres = _of_queries(logits, boxes) if most is None else _likeliest(logits, boxes, most)
            pixels = _corners(centres) * np.array([width, height, width, height], np.float32)
            records = [
                {
                    "label": settings["labels"][number],
                    "score": round(float(score), DIGITS),
                    "box": dict(zip(_SIDES, map(int, box), strict=True)),
                }
                for score, number, box in zip(scores, classes, pixels, strict=True)
                if score > settings["threshold"]
            ]
            yield json.dumps(records, ensure_ascii=False).encode()


def _of_queries(logits: np.ndarray[Any, Any], boxes: np.ndarray[Any, Any]) -> Found:
    """Return the most likely class of each query; the last class means no object."""
    shares = softmax(logits)[:, :-1]
    return shares.max(axis=1), shares.argmax(axis=1), boxes


def _likeliest(logits: np.ndarray[Any, Any], boxes: np.ndarray[Any, Any], most: int) -> Found:
    """Return the most likely classes across all queries."""
    scores = sigmoid(logits).reshape(-1)
    best = np.argsort(-scores, kind="stable")[:most]
    return scores[best], best % logits.shape[1], boxes[best // logits.shape[1]]


def _corners(boxes: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    centres, halves = boxes[:, :2], np.float32(0.5) * boxes[:, 2:]
    return np.concatenate([centres - halves, centres + halves], axis=1)
