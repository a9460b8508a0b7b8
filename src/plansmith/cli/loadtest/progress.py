"""Progress display of a load test on standard error: a moving line in a terminal, and a line per stage."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from plansmith.cli.compile.progress import WithMovingLine
from plansmith.cli.loadtest.target import RequestedTarget, known_models, opened_repository
from plansmith.cli.output import echo_lines, printable
from plansmith.formatting import count, format_seconds

if TYPE_CHECKING:
    from plansmith.cli.loadtest.plan import RequestedTest
    from plansmith.loadtest.payloads.source import KnownModel, ModelInputs
    from plansmith.loadtest.runner.load_runner import Progress
    from plansmith.loadtest.stages import LoadPlan

_LINE_SECONDS = 30.0


def show_plan(target: RequestedTarget, test: RequestedTest, options: Mapping[str, Any]) -> None:
    """Print what the test would do; starts and sends nothing."""
    from plansmith.loadtest.payloads.source import choose_inputs

    models = [] if target.url else _models(target, test, options)
    inputs = {
        share.model: choose_inputs(share, model, test.options)
        for share, model in zip(test.models, models, strict=False)
    }
    plan = test.plan.with_warm_up()
    if options["as_json"]:
        sizes = {
            name: {"requests": len(chosen.arrays), "sizes": chosen.size_range, "inputs": chosen.description}
            for name, chosen in inputs.items()
        }
        document = {"dry_run": True, "url": target.url, "plan": plan.model_dump(mode="json"), "models": sizes}
        if target.endpoint is not None:
            document["endpoint"] = target.endpoint.name or target.endpoint.url
        click.echo(json.dumps(document))
        return
    names = ", ".join(share.model for share in test.models)
    server = target.label or "a Triton that is started for the test"
    echo_lines([f"server   {server}, with {names}", *_request_lines(inputs), *_stage_lines(plan)])


def _models(target: RequestedTarget, test: RequestedTest, options: Mapping[str, Any]) -> list[KnownModel]:
    """Return what the repository, or a file, specifies about the models."""
    from plansmith.loadtest.payloads.source import KnownModel
    from plansmith.triton.dtypes import signature_from_package

    if target.endpoint is not None:
        return known_models(target, test, options)
    opened = opened_repository(target, test, options)
    models = []
    for share in test.models:
        name, version = opened.find(share.model)
        manifest = opened.manifest(name, version)
        models.append(KnownModel(signature_from_package(manifest.package), manifest, opened.release(name, version)))
    return models


def _request_lines(inputs: Mapping[str, ModelInputs]) -> list[str]:
    lines = []
    for name, chosen in inputs.items():
        lines += [f"{name}: {count(len(chosen.arrays), 'request')} of {chosen.size_range}", f"  {chosen.description}"]
    return lines


def _stage_lines(plan: LoadPlan) -> list[str]:
    from plansmith.formatting import format_seconds
    from plansmith.loadtest.stages import schedule_stage, schedule_stages

    assert plan.warm_up is not None
    stages = schedule_stages(plan)
    warm_up = schedule_stage(plan.warm_up, 0.0)
    lines = [f"warm-up  {printable(plan.warm_up.label)}, {format_seconds(warm_up.seconds)}"]
    for stage in stages:
        label, duration = printable(stage.stage.label), format_seconds(stage.seconds)
        lines.append(f"{stage.at:7.0f} s  {label} ({stage.stage.loop} loop), {duration}")
    lines += [f"stops at {condition}" for condition in plan.stop_when.describe()]
    total = format_seconds(warm_up.seconds + stages[-1].end)
    return [*lines, f"Nothing was sent; it would take {total} with the warm-up."]


class LoadProgress(WithMovingLine):
    """Progress display of a load test; a context manager.

    Args:
        stages: how many there are.
        quiet: show nothing.
    """

    def __init__(self, stages: int, *, quiet: bool) -> None:
        super().__init__(quiet=quiet)
        self._stages = stages
        self._stage: int | None = None
        self._printed_at = 0.0

    def show(self, progress: Progress) -> None:
        """Update the display about once a second."""
        is_new = progress.stage != self._stage
        self._stage = progress.stage
        where = "warm-up" if progress.stage < 0 else f"stage {progress.stage + 1} of {self._stages}"
        if is_new and not self._quiet:
            duration = format_seconds(progress.planned_seconds)
            self._console.print(f"{where}: {progress.label}, {duration}", markup=False)
            self._printed_at = 0.0
        text = f"{where}, {format_seconds(progress.seconds)}: {self._figures(progress)}"
        if self._line.shown:
            share = min(progress.seconds / progress.planned_seconds, 1.0) if progress.planned_seconds else 1.0
            self._line.tell(text, share)
        elif not self._quiet and progress.seconds - self._printed_at >= _LINE_SECONDS:
            self._printed_at = progress.seconds
            self._console.print(text, markup=False)

    def _figures(self, progress: Progress) -> str:
        parts = [f"{progress.throughput:.4g} requests/s"]
        if progress.users:
            parts.insert(0, f"{progress.users} user{'' if progress.users == 1 else 's'}")
        if progress.requests:
            parts.append(f"p50 {progress.p50_ms:.4g} ms, p95 {progress.p95_ms:.4g} ms")
        if progress.failures:
            parts.append(f"{progress.failures} failed")
        return ", ".join(parts)
