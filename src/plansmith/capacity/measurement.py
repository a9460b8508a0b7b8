"""A capacity measurement: copies are loaded until memory is used or a load fails, all answer, and all are unloaded."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager

from plansmith.capacity.eviction import EvictionRun, Popularity
from plansmith.capacity.loader import CopyLoader, Progress, ServerLost
from plansmith.capacity.plan import CapacityPlan
from plansmith.capacity.results import CapacityReport, spread_of
from plansmith.capacity.server import CopyServer
from plansmith.errors import EnvironmentFault, PlansmithError, in_one_line


def measure(
    opening: AbstractContextManager[CopyServer],
    plan: CapacityPlan,
    progress: Progress,
    popularity: Popularity = Popularity(),  # noqa: B008 - it is frozen
) -> CapacityReport:
    """Measure how many copies fit.

    A server that ends, a copy that does not load, and KeyboardInterrupt are results: the report has what was measured.
    What is loaded is unloaded in any case, as far as the server lets it be.

    Args:
        opening: gives the server.
        plan: how far memory is filled.
        progress: told how it goes.
        popularity: of models in random invocations.

    Raises:
        PlansmithError: there is no server, or it tells nothing of its memory.
        KeyboardInterrupt: before there was a server.
    """
    began = time.monotonic()
    loader: CopyLoader | None = None
    try:
        with opening as server:
            loader = CopyLoader(server, plan, progress)
            try:
                _run(loader, popularity)
            finally:
                _release(loader)
    except KeyboardInterrupt:  # a second one, while it ended
        if loader is None:
            raise
    return _report(loader, plan, time.monotonic() - began)


def _run(loader: CopyLoader, popularity: Popularity) -> None:
    try:
        loader.before = loader.full = loader.server.meter.read()
        loader.load_all()
        loader.invoke_all()
        if loader.plan.invocations and loader.loaded:
            EvictionRun(loader, popularity).run()
        loader.unload_all()
    except KeyboardInterrupt:
        if loader.ending != "interrupted":
            loader.notes.append(f"loading ended before: {loader.reason}")
        loader.ending, loader.reason = "interrupted", "it was interrupted"
    except (ServerLost, PlansmithError) as error:
        if not loader.before:
            raise
        message = in_one_line(error.message if isinstance(error, PlansmithError) else str(error))
        if loader.ending != "interrupted":
            loader.notes.append(f"loading ended before: {loader.reason}")
        loader.ending = "server-lost"
        loader.reason = f"after {len(loader.copies)} copies the server was lost: {message}"


def _release(loader: CopyLoader) -> None:
    """Unload what is still loaded; of a server that cannot be asked, note what that is."""
    server = loader.server
    names = {number: server.name(number) for number in loader.loaded}
    try:  # one whose load was interrupted is written, and not among the loaded
        for number in sorted(loader.written) if not server.is_started else ():
            loader.progress.activity(f"unloading copy {number}", None)
            try:
                server.unload(number)
            except EnvironmentFault:
                break
            except PlansmithError:
                continue
            if number in loader.loaded:
                loader.loaded.remove(number)
    finally:
        if not server.is_started:
            loader.still_loaded += [names[number] for number in loader.loaded]
        for number in list(loader.written):
            loader.remove(number)


def _report(loader: CopyLoader, plan: CapacityPlan, seconds: float) -> CapacityReport:
    server = loader.server
    return CapacityReport(
        releases=tuple(release.release for release in server.releases),
        server=server.description,
        device=server.device,
        share=plan.share,
        file_bytes=tuple(release.file_bytes for release in server.releases),
        memory_before=loader.before,
        memory_full=loader.full,
        memory_after=loader.after,
        copies=tuple(loader.copies),
        ending=loader.ending,
        reason=loader.reason,
        answers_ms=spread_of(loader.answers_ms),
        failed_answers=loader.failed_answers,
        unload_seconds=spread_of(loader.unload_seconds),
        eviction=loader.eviction,
        still_loaded=tuple(loader.still_loaded),
        seconds=round(seconds, 1),
        notes=(*server.notes, *loader.notes),
    )
