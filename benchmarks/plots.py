"""Plots of measured points and the lines through them. It runs where matplotlib is, and has nothing of plansmith.

python benchmarks/plots.py OUT.svg < SERIES.json
"""

from __future__ import annotations

import json
import sys
from typing import Any

COLUMNS = 2


def main(out: str, series: list[dict[str, Any]]) -> None:
    import matplotlib.pyplot as plt  # type: ignore[import-not-found]

    plt.rcParams |= {"svg.hashsalt": "plansmith", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
    plt.rcParams |= {"svg.fonttype": "none", "font.sans-serif": ["Helvetica", "Arial", "DejaVu Sans"]}
    rows = -(-len(series) // COLUMNS)
    figure, axes = plt.subplots(rows, COLUMNS, figsize=(9, 2.6 * rows), layout="constrained", squeeze=False)
    for place, each in zip(axes.flat, series, strict=False):
        sizes, seconds = zip(*each["points"], strict=True)
        constant, slope = each["line"]
        ends = (0, max(sizes))
        place.plot(ends, [constant + slope * end for end in ends], color="#9aa5b1", linewidth=1)
        place.plot(sizes, seconds, "o", color="#1f6feb", markersize=4)
        place.set(title=each["title"], xlabel=each["unit"], ylabel="CPU s")
        place.set(xlim=(0, 1.05 * max(sizes)), ylim=(0, 1.1 * max(seconds)))
    for place in axes.flat[len(series) :]:
        place.remove()
    figure.savefig(out, metadata={"Date": None})


if __name__ == "__main__":
    main(sys.argv[1], json.load(sys.stdin))
