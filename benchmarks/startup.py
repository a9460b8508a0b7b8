"""What the light commands cost: CPU seconds of `import`, --help, --version and an unchanged compile.

python -m benchmarks.startup [ROUNDS]
"""

from __future__ import annotations

import sys
import tempfile
from statistics import median

from benchmarks.compile_cost import MINILM
from benchmarks.measure import PLANSMITH, run

LIMITS = {"import plansmith": 0.1, "plansmith --help": 0.3, "plansmith --version": 0.3, "unchanged compile": 1.5}


def main(rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        unchanged = [*PLANSMITH, "compile", f"hf:{MINILM}", "--artifacts", folder, "--quiet"]
        run(unchanged)
        commands = {
            "import plansmith": [sys.executable, "-c", "import plansmith"],
            "plansmith --help": [*PLANSMITH, "--help"],
            "plansmith --version": [*PLANSMITH, "--version"],
            "unchanged compile": unchanged,
        }
        plain = median(run([sys.executable, "-c", "pass"]).cpu_seconds for _ in range(rounds))
        print(f"{'python -c pass':<22} {plain:.2f} CPU s")
        for label, command in commands.items():
            seconds = median(run(command).cpu_seconds for _ in range(rounds))
            print(f"{label:<22} {seconds:.2f} CPU s   (aim: below {LIMITS[label]})")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
