"""What compiles cost, measured in one run and written into docs/benchmarks.md.

    python -m benchmarks.compiles [ROUNDS]

First compiles beside a plain script, compiles as users meet them, and a fleet beside single compiles. The machine
should do nothing else meanwhile.
"""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from benchmarks import compile_cases, compile_cost, fleet_cost
from benchmarks.measure import Comparison

from plansmith import __version__

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
BEGIN, END = "<!-- Measured by `make bench`. -->", "<!-- End of what was measured. -->"
_LIBRARIES = ("torch", "transformers", "onnxruntime")


def main(rounds: int) -> None:
    rows = [row for case in (compile_cost, compile_cases, fleet_cost) for row in case.main(rounds)]
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{chr(10).join(_lines(rows, rounds))}\n{END}{after}")


def _lines(rows: Iterable[Comparison], rounds: int) -> Iterator[str]:
    libraries = ", ".join(f"{name} {version(name).partition('+')[0]}" for name in _LIBRARIES)
    versions = f"Python {platform.python_version()}, plansmith {__version__}, {libraries}"
    yield f"{datetime.now(UTC):%Y-%m-%d}, {_machine()}, {versions};"
    yield f"medians of {rounds} rounds, and the range of the ratios.\n"
    yield "| | CPU s | beside | ratio | time ratio | memory ratio |"
    yield "|---|---|---|---|---|---|"
    by_label: dict[str, dict[str, Comparison]] = {}
    for row in rows:
        by_label.setdefault(row.label, {})[row.unit] = row
    for label, units in by_label.items():
        cpu, wall, memory = units["CPU s"], units["wall s"], units["MiB peak"]
        interval = f"{cpu.ratio:.2f} ({cpu.lowest:.2f} to {cpu.highest:.2f})"
        yield f"| {label} | {cpu.ours:.2f} | {cpu.theirs:.2f} | {interval} | {wall.ratio:.2f} | {memory.ratio:.2f} |"


def _machine() -> str:
    models = re.findall(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    model = models[0] if models else platform.machine()
    return f"{len(os.sched_getaffinity(0))} cores ({model})"


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
