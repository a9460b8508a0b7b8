"""Compiles as users meet them, beside a plain script without a cache: cold, warm, one thing changed, another machine.

    python -m benchmarks.compile_cases [ROUNDS]

All cases of a round follow each other in one folder: the first compile; the same again; with another tolerance; with
another option of Triton; the first one on another machine, which shares the cache. The plain script exports and judges
the same shapes each time. With the served check, which the plain script does not have.
"""

from __future__ import annotations

import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import yaml
from benchmarks.compile_cost import BARE, MINILM
from benchmarks.measure import PLANSMITH, Comparison, Cost, compare, run

SPEC = {"source": f"hf:{MINILM}", "name": "minilm", "shapes": {"input_ids": "1x8:4x32:8x64"}}
SHAPES = ("2x16", "1x16", "3x23", "1x8", "4x32", "8x64")
TOLERANCE = {"tolerances": {"sentence_embedding": {"min_cosine": 0.999}}}
BATCHING = {"triton": {"dynamic_batching": {"max_queue_delay_microseconds": 200}}}


def main(rounds: int) -> list[Comparison]:
    costs: dict[str, tuple[list[Cost], list[Cost]]] = defaultdict(lambda: ([], []))
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            plain = run([sys.executable, str(BARE), MINILM, name, *SHAPES])
            for label, machine, changes in (
                ("cold", "one", {}),
                ("warm", "one", {}),
                ("another tolerance", "one", TOLERANCE),
                ("another batching", "one", BATCHING),
                ("another machine", "two", {}),
            ):
                spec = folder / "spec.yaml"
                spec.write_text(yaml.safe_dump({**SPEC, **changes}))
                places = ("--artifacts", str(folder / machine), "--shared-cache", str(folder / "shared"))
                costs[label][0].append(run([*PLANSMITH, "compile", str(spec), *places, "--quiet"]))
                costs[label][1].append(plain)
    return [row for label, (ours, theirs) in costs.items() for row in compare(ours, theirs, label)]


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
