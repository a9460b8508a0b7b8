"""Progress display of `plansmith capacity`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from plansmith.capacity.measurement import Progress
from plansmith.capacity.results import CapacityReport, Eviction, LoadedCopy, MemoryPool, Spread
from plansmith.cli.compile.progress import WithMovingLine
from plansmith.cli.output import table
from plansmith.errors import in_one_line
from plansmith.formatting import format_bytes

_ENDINGS = {
    "max-copies": "no more were asked for",
    "disk": "the disk is full",
    "load-failed": "the next does not load",
    "answer-failed": "a copy fails to answer",
    "server-lost": "the server was lost",
    "interrupted": "interrupted",
}


def report_lines(report: CapacityReport) -> Iterator[str]:
    """Return the report as lines."""
    number = len(report.copies)
    yield (
        f"{_copies(number)} of {', '.join(report.releases)} fit"
        if report.ending == "share"
        else (f"{_copies(number)} of {', '.join(report.releases)} loaded; {_ENDINGS[report.ending]}")
    )
    yield f"  {in_one_line(report.reason)}"
    yield f"  {report.server}, on {report.device.upper()}, up to {report.share:.0%} of memory"
    estimate = report.estimated_copies()
    if estimate is not None:
        yield f"  at this rate about {estimate} copies fit into {report.share:.0%}"
    rows = [("", "MEDIAN", "LEAST", "LARGEST", "OF")]
    rows += [
        (name, f"{spread.median:.4g} {unit}", f"{spread.min:.4g}", f"{spread.max:.4g}", str(spread.count))
        for name, spread, unit in _spreads(report)
        if spread.count
    ]
    if len(rows) > 1:
        yield from (f"  {line}" for line in table(rows))
    yield from _memory_lines(report)
    yield from _eviction_lines(report.eviction) if report.eviction is not None else ()
    yield from (f"  {name} failed: {message}" for name, message in report.failed_answers.items())
    if report.still_loaded:
        yield f"  STILL LOADED: {', '.join(report.still_loaded)}"
    yield from (f"  Note: {note}." for note in report.notes)


def copy_line(copy: LoadedCopy, pools: Sequence[MemoryPool]) -> str:
    """Format a loaded copy in one line."""
    growth = ", ".join(f"{name} {_signed(size)}" for name, size in copy.memory_bytes.items())
    used = ", ".join(f"{pool.name} {pool.used_bytes / pool.total_bytes:.0%}" for pool in pools if pool.total_bytes)
    return (
        f"copy {copy.number}: {copy.release} loaded in {copy.load_seconds:.2f} s, first answer {copy.first_ms:g} ms,"
        f" {growth}; in use: {used}"
    )


def _spreads(report: CapacityReport) -> list[tuple[str, Spread, str]]:
    return [
        ("load", report.load_seconds, "s"),
        ("answer, all loaded", report.answers_ms, "ms"),
        ("unload", report.unload_seconds, "s"),
    ]


def _memory_lines(report: CapacityReport) -> Iterator[str]:
    after = {pool.name: pool for pool in report.memory_after}
    before = {pool.name: pool for pool in report.memory_before}
    for pool in report.memory_full:
        per_copy = report.bytes_per_copy(pool.name)
        if per_copy is None:
            continue
        line = f"  memory, {pool.name}: {_signed(per_copy)} per copy; {_size(before[pool.name])} before the first"
        line += f", {_size(pool)} with all"
        yield line + (f", {_size(after[pool.name])} after unloading" if pool.name in after else "")


def _eviction_lines(eviction: Eviction) -> Iterator[str]:
    number = eviction.hits + eviction.misses
    rate = f", {eviction.hits / number:.0%}" if number else ""
    yield (
        f"  {number} invocations of {eviction.models} models ({eviction.popularity}, seed {eviction.seed}), at most"
        f" {eviction.slots} loaded: {eviction.hits} hits{rate}, {eviction.evictions} evictions"
    )
    for name, spread in (("hits", eviction.hit_ms), ("misses", eviction.miss_ms)):
        if spread.count:
            yield f"    {name} answer in {spread.median:.4g} ms, at most {spread.max:.4g} ms"
    if eviction.errors:
        yield f"    {eviction.errors} failed: {eviction.first_error}"


def _size(pool: MemoryPool) -> str:
    return format_bytes(pool.used_bytes if pool.server_bytes is None else max(0, pool.server_bytes))


def _signed(size: int) -> str:
    return f"{'-' if size < 0 else ''}{format_bytes(abs(size))}"


def _copies(number: int) -> str:
    return f"{number} {'copy' if number == 1 else 'copies'}"


class CapacityProgress(WithMovingLine):
    """Progress display: a line per copy, and a moving line below; a context manager."""

    @property
    def callbacks(self) -> Progress:
        """Callbacks that receive the progress of a measurement."""
        return Progress(activity=self._line.tell, copy=self._show_copy)

    def _show_copy(self, copy: LoadedCopy, pools: Sequence[MemoryPool]) -> None:
        if not self._quiet:
            self._console.print(copy_line(copy, pools), markup=False)
