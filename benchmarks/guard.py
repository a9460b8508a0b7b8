"""Whether plansmith has become slower: a few ratios of CPU seconds, beside those that were recorded last.

    python -m benchmarks.guard [ROUNDS] [--record]

Each command runs in turn with what it is compared with. A median above 1.15 times the recorded one is a failure;
`--record` writes the medians down instead.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from statistics import median

from benchmarks.compile_cost import BARE, JOBS
from benchmarks.measure import PLANSMITH, run

RECORDED = Path(__file__).with_name("guard.json")
ALLOWED = 1.15
LIGHT_ROUNDS = 5  # of each round: commands below a second vary most
# What the core installs, imported: a compile without work and `--help` are beside it.
IMPORTS = (sys.executable, "-c", "import click, packaging, pydantic, rich.console, yaml")


def main(rounds: int, *, record: bool) -> None:
    ratios: dict[str, list[float]] = {}
    for label, ours, plain in (job for job in JOBS if job[0].endswith("small shapes")):
        with tempfile.TemporaryDirectory() as name:
            for number in range(rounds):
                folder = Path(name, str(number))
                command = [*PLANSMITH, "compile", *ours, "--no-check-served", "--quiet", "--artifacts", str(folder)]
                bare = run([sys.executable, str(BARE), plain[0], name, *plain[1:]])
                ratios.setdefault(label, []).append(run(command).cpu_seconds / bare.cpu_seconds)
                if "MiniLM" in label:
                    light = {"unchanged compile": command, "plansmith --help": [*PLANSMITH, "--help"]}
                    for _ in range(LIGHT_ROUNDS):
                        imports = run([*IMPORTS]).cpu_seconds
                        for case, again in light.items():
                            ratios.setdefault(case, []).append(run(again).cpu_seconds / imports)
    medians = {label: round(median(values), 3) for label, values in ratios.items()}
    if record:
        RECORDED.write_text(json.dumps(medians, indent=2) + "\n")
    recorded = json.loads(RECORDED.read_text())
    for label, values in ratios.items():
        spread = f"({min(values):.2f} to {max(values):.2f})"
        print(f"{label:<26} ratio {medians[label]:.2f} {spread:<16} recorded {recorded[label]:.2f}")
    slower = [label for label, ratio in medians.items() if ratio > ALLOWED * recorded[label]]
    if slower:
        sys.exit(f"slower than {ALLOWED} times what was recorded: {', '.join(slower)}")


if __name__ == "__main__":
    numbers = [int(argument) for argument in sys.argv[1:] if argument.isdigit()]
    main(numbers[0] if numbers else 2, record="--record" in sys.argv)
