"""`plansmith loadtest --dry-run`: the stages, and the requests as far as releases tell of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from plansmith.cli.loadtest.target import RequestedTarget, known_models, opened_repository
from plansmith.cli.text import count, echo_lines, printable

if TYPE_CHECKING:
    from plansmith.cli.loadtest.plan import RequestedTest
    from plansmith.loadtest.payloads.source import KnownModel, ModelInputs
    from plansmith.loadtest.plan.stages import LoadPlan


def show_plan(target: RequestedTarget, test: RequestedTest, options: Mapping[str, Any]) -> None:
    """Print what the test would do; nothing is started or sent."""
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
    """What the repository, or a file, tells of the models."""
    from plansmith.loadtest.payloads.source import KnownModel
    from plansmith.triton.client.signature import signature_from_package

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
    from plansmith.loadtest.plan.schedule import schedule_stage, schedule_stages

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
