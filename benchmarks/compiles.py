"""What compiles cost, measured in one run and written into docs/benchmarks.md.

    python -m benchmarks.compiles [ROUNDS]

First compiles beside a plain script, compiles as users meet them, and a fleet beside single compiles. The machine
should do nothing else meanwhile.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

from benchmarks import compile_cases, compile_cost, fleet_cost
from benchmarks.measure import Comparison
from benchmarks.pages import setting, write_measured


def main(rounds: int) -> None:
    cases = (compile_cost.main, compile_cost.main_published, compile_cases.main, fleet_cost.main)
    rows = [row for case in cases for row in case(rounds)]
    write_measured("compiles", _lines(rows, rounds))


def _lines(rows: Iterable[Comparison], rounds: int) -> Iterator[str]:
    yield f"{setting()};\nmedians of {rounds} rounds, and the range of the ratios.\n"
    yield "| | CPU s | beside | ratio | time ratio | memory ratio |"
    yield "|---|---|---|---|---|---|"
    by_label: dict[str, dict[str, Comparison]] = {}
    for row in rows:
        by_label.setdefault(row.label, {})[row.unit] = row
    for label, units in by_label.items():
        cpu, wall, memory = units["CPU s"], units["wall s"], units["MiB peak"]
        interval = f"{cpu.ratio:.2f} ({cpu.lowest:.2f} to {cpu.highest:.2f})"
        yield f"| {label} | {cpu.ours:.2f} | {cpu.theirs:.2f} | {interval} | {wall.ratio:.2f} | {memory.ratio:.2f} |"


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
