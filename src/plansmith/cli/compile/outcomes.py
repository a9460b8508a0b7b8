"""How a compile of one model ended, as a document, as text, and as one line among others."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from plansmith.formatting import format_bytes

if TYPE_CHECKING:
    from plansmith.errors import PlansmithError
    from plansmith.records.destination import Publication
    from plansmith.records.engine import BuildCheck, BuildSpec, OptimizationProfile
    from plansmith.records.model import LoweredModel
    from plansmith.records.release import Manifest, Package, PublishedVersion, ReleasedModel, StepRecord
    from plansmith.records.validation import ValidationReport
    from plansmith.steps.tensorrt.preview import BuildPreview

_SAID = {"profiles", "memory_pools", "optimization_level", "tf32"}


def build_lines(preview: BuildPreview) -> Iterator[str]:
    """The build spec, what is not known yet, and the call of trtexec, ready to be copied."""
    kinds = ", ".join(f"{gpu.name} (compute capability {gpu.compute_capability})" for gpu in preview.gpus)
    yield f"TensorRT {preview.tensorrt} of {preview.target}, for {kinds or 'a GPU that is not named yet'}"
    yield f"  {'precision':<21}{preview.precision}, as the graph has it: plans are strongly typed"
    for profile in preview.spec.profiles:
        yield from _profile_lines(profile)
    if not preview.spec.profiles:
        yield f"  {'profiles':<21}none"
    for name, value in _told(preview.spec):
        yield f"  {name:<21}{value}"
    yield from (f"  note: {note}" for note in preview.notes)
    yield f"The same by hand, in {preview.containers}:"
    yield preview.shell_line
    yield f"Its speed by trtexec, alike for every TensorRT ({preview.switches}), on random inputs unless --loadInputs:"
    yield from preview.timing_lines


def _profile_lines(profile: OptimizationProfile) -> Iterator[str]:
    head = f"profile {profile.name}"
    for name, shape in (profile.shapes | profile.values).items():
        yield f"  {head:<21}{name} {shape}"
        head = ""


def _told(spec: BuildSpec) -> Iterator[tuple[str, str]]:
    """What differs from TensorRT's own defaults, and what people ask for most."""
    pools = spec.memory_pools
    limits = ", ".join(f"{pool} {format_bytes(size)}" for pool, size in pools.items())
    yield "memory pools", limits or "as much as the GPU has"
    yield "optimization level", str(spec.optimization_level)
    yield "TF32", "yes" if spec.tf32 else "no"
    for name, field in type(spec).model_fields.items():
        value = getattr(spec, name)
        if name not in _SAID and value != field.get_default(call_default_factory=True):
            yield name.replace("_", " "), _describe(value)


def _describe(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def environment_lines(package: Package) -> Iterator[str]:
    """A line for each packed environment: whose it is, its Python, what it takes."""
    from plansmith.formatting import format_bytes

    brought = [(package.model, package.environment), *((one.model, one.environment) for one in package.members)]
    for model, environment in brought:
        if environment is not None:
            packages = len(environment.distributions)
            yield (
                f"{model} brings its environment for Python {environment.python}:"
                f" {packages} package{'s' * (packages != 1)}, {format_bytes(environment.bytes)},"
                f" unpacked {format_bytes(environment.unpacked_bytes)}"
            )


def accuracy_lines(lowered: LoweredModel | None, validation: ValidationReport) -> Iterator[str]:
    """The recipe with its size and speed, what held-out samples showed, the errors at all shapes, what is in doubt."""
    from plansmith.report.text.precision import describe_held_out, doubts, evaluation_lines, format_cosine, recipe_lines

    if lowered is not None:
        yield from recipe_lines(lowered)
    if validation.evaluation is not None:
        yield f"{describe_held_out(validation.evaluation)}:"
        for line, good in evaluation_lines(validation.evaluation):
            yield f"  {'' if good else '!! '}{line}"
    yield f"compared with {validation.reference}, on {validation.data}:"
    for output, worst in validation.worst().items():
        allowed = validation.tolerances[output]
        yield (
            f"  {output}: largest error {_part(worst['max_relative'])} of the output's magnitude"
            f" (allowed {_part(allowed.max_relative)}), smallest cosine {format_cosine(worst['min_cosine'])}"
        )
    yield from doubts(validation)


def _part(share: float) -> str:
    """A part of a magnitude: 1.9e-05, 0.03, 10."""
    return f"{share:.1e}" if 0 < share < 0.001 else f"{share:.2g}"


def describe_publication(made: Publication) -> str:
    """Where a release is, as which version, under which aliases, and what had to be sent: of one line."""
    aliases = f" ({', '.join(made.aliases)})" if made.aliases else ""
    state = "already in" if made.unchanged else "published to"
    sent = f"{format_bytes(made.sent_bytes)} of {format_bytes(made.total_bytes)} sent"
    view = ", and shown in its repository" if made.view else ""
    return f"{state} {made.place} as version {made.version}{aliases}: {sent}{view}"


_BACKENDS = {"onnxruntime": "ONNX Runtime", "tensorrt": "TensorRT", "python": "Python"}


@dataclass(frozen=True)
class Planned:
    """What a dry run found; `builds`: what the build of a TensorRT plan would be told; `check`: of its graph."""

    name: str
    plan: dict[str, str]
    builds: BuildPreview | None
    publications: tuple[Publication, ...] = ()
    check: BuildCheck | None = None

    def document(self) -> dict[str, Any]:
        """The outcome as JSON-ready fields."""
        build: dict[str, Any] = {"build": self.builds.model_dump(mode="json")} if self.builds else {}
        if self.check is not None:
            build["build_check"] = self.check.model_dump(mode="json")
        publications = [one.model_dump() for one in self.publications]
        return {"name": self.name, "plan": self.plan, **build, "publications": publications}

    def show(self) -> None:
        """Print it."""
        done = "nothing was done" if self.check is None else "the graph was made and checked, and nothing else done"
        click.echo(f"{self.name}: {done}; a compile would")
        for step, what in self.plan.items():
            click.echo(f"  {step:<13}{what}")
        if self.builds is not None:
            click.echo("\n".join(build_lines(self.builds)))
        if self.check is not None:
            from plansmith.cli.text import echo_lines
            from plansmith.report.text.plan import check_lines

            echo_lines(check_lines(self.check))
        for one in self.publications:
            click.echo(f"  would be {describe_publication(one)}")

    def summary(self) -> tuple[str, str]:
        """One word to count it by, and a few that say more."""
        first = next((step for step, what in self.plan.items() if what.startswith("would")), None)
        return ("to do", f"would run from {first} on") if first else ("unchanged", "nothing to do")


@dataclass(frozen=True)
class Compiled:
    """What a compile made."""

    published: PublishedVersion
    manifest: Manifest
    steps: list[StepRecord]

    @property
    def name(self) -> str:
        """Of the model."""
        return self.published.name

    def document(self) -> dict[str, Any]:
        """The outcome as JSON-ready fields."""
        return _document(self.published, self.manifest, self.steps)

    def show(self) -> None:
        """Print it."""
        _print_summary(self.published, self.manifest)

    def summary(self) -> tuple[str, str]:
        """One word to count it by, and a few that say more."""
        state = "unchanged" if self.published.unchanged else "published"
        return state, f"{state}, version {self.published.version}"


@dataclass(frozen=True)
class Failed:
    """What kept one of several models from being compiled."""

    name: str
    error: PlansmithError

    def document(self) -> dict[str, Any]:
        """The outcome as JSON-ready fields."""
        return {"name": self.name, **self.error.to_dict()}

    def show(self) -> None:
        """Print it."""
        click.echo(f"plansmith: {self.error}", err=True)

    def summary(self) -> tuple[str, str]:
        """One word to count it by, and a few that say more."""
        at = f" at {self.error.step}" if self.error.step else ""
        return "failed", f"failed{at}, exit code {self.error.exit_code}"


Outcome = Planned | Compiled | Failed


def print_outcomes(outcomes: Sequence[Outcome], targets: Sequence[str]) -> None:
    """A line a model, below how many ended how; `targets`: of each, empty where it has one alone."""
    summaries = [outcome.summary() for outcome in outcomes]
    counts = ", ".join(f"{count} {state}" for state, count in Counter(state for state, _ in summaries).items())
    names, places = [outcome.name for outcome in outcomes], max(map(len, targets))
    width = max(map(len, names))
    click.echo(f"{len(outcomes)} model(s): {counts}")
    for name, target, (_, words) in zip(names, targets, summaries, strict=True):
        click.echo(f"  {name:<{width}}  {f'{target:<{places}}  ' if places else ''}{words}")


def _document(published: PublishedVersion, manifest: Manifest, steps: list[StepRecord]) -> dict[str, Any]:
    from plansmith.records.release import MANIFEST_FILE

    served, evaluation = manifest.served, manifest.validation.evaluation
    return {
        "name": published.name,
        "version": published.version,
        "unchanged": published.unchanged,
        "repository": published.repository,
        "publications": [one.model_dump() for one in published.publications],
        "model_path": published.release,
        "manifest": str(Path(published.release) / MANIFEST_FILE),
        "engine": manifest.engine.kind,
        "precision": manifest.engine.precision,
        "verdict": manifest.validation.verdict,
        "fixed": [fixed.model_dump() for fixed in manifest.onnx.fixed],
        "tied": [tied.model_dump() for tied in manifest.onnx.tied],
        "steps": [step.model_dump() for step in steps],
        "report": str(_report(published) or "") or None,
        "server_arguments": list(manifest.package.server_arguments),
        "validation": manifest.validation.worst(),
        "evaluation": evaluation and evaluation.model_dump(exclude={"worst"}),
        "pipeline": manifest.pipeline and manifest.pipeline.model_dump(),
        "beside": {name: _beside(one) for name, one in manifest.beside.items()},
        "script": manifest.script and manifest.script.model_dump(),
        "members": {member.part: member.model for member in manifest.package.members},
        "lowering": manifest.lowered and _lowering(manifest.lowered),
        "build_check": manifest.engine.build_check and manifest.engine.build_check.model_dump(),
        "plans": {capability: plan.model_dump() for capability, plan in manifest.engine.plans.items()},
        "ran": list(manifest.validation.ran),
        "at_corners": [corner.model_dump() for corner in manifest.validation.at_corners],
        "speeds": [speed.model_dump() for speed in manifest.validation.speeds],
        "not_validated": list(manifest.validation.not_validated),
        "served": served
        and {
            "server_version": served.server_version,
            "backend": served.backend,
            "backend_runtime": served.backend_runtime,
            "device": served.device,
            "checks": [check.model_dump() for check in served.checks],
            "median_seconds": served.median_seconds,
            "worst_seconds": served.worst_seconds,
        },
    }


def _report(published: PublishedVersion) -> Path | None:
    """The page about a release; None for a release that is older than such pages."""
    from plansmith.report import REPORT_FILE

    path = Path(published.release) / REPORT_FILE
    return path if path.is_file() else None


def _lowering(lowered: LoweredModel) -> dict[str, Any] | None:
    """The recipe and what it brought; None where nothing was lowered."""
    if lowered.recipe is None:
        return None
    chosen = next((trial for trial in lowered.trials if trial.chosen), None)
    return {
        **lowered.recipe.model_dump(),
        "file_bytes": chosen and chosen.file_bytes,
        "fp32_bytes": lowered.fp32_bytes or None,
        "speed": chosen and chosen.speed and chosen.speed.model_dump(),
        "tried": len(lowered.trials),
    }


def _print_summary(published: PublishedVersion, manifest: Manifest) -> None:
    from plansmith.cli.text import echo_lines, program, short
    from plansmith.config.target.targets import load_target
    from plansmith.report.text.pipeline import script_lines

    target = load_target(manifest.target)
    device = target.device
    release = short(Path(published.release))
    state = "unchanged, still" if published.unchanged else "published,"
    click.echo(
        f"{published.name} {state} version {published.version}: {manifest.engine.kind}, {manifest.engine.precision},"
        f" gate {manifest.validation.verdict}"
    )
    echo_lines(f"  {line}" for line in _model_lines(manifest))
    for name, one in manifest.beside.items():
        click.echo(
            f"  {name}, beside it, is {one.source.address}: {one.engine.precision}, gate {one.validation.verdict}"
        )
        echo_lines(f"    {line}" for line in _model_lines(one))
    echo_lines(f"  {line}" for line in script_lines(manifest.script))
    if manifest.served is None:
        click.echo("  not checked on a running Triton (--no-check-served)")
    else:
        served = manifest.served
        who = (
            f"its own {_BACKENDS[manifest.engine.kind]} backend"
            if served.backend == "real"
            else f"a stand-in backend ({served.backend_runtime})"
        )
        who += ", DALI in a stand-in" if served.dali == "stand-in" else ""
        click.echo(
            f"  served by Triton {served.server_version} with {who}: {served.requests} requests over HTTP and gRPC,"
            f" median {served.median_seconds * 1000:.0f} ms"
        )
        if served.device != device:
            click.echo(
                f"  checked on {served.device.upper()} instances only; the release asks for {device.upper()} ones"
            )
    echo_lines(f"  {line}" for line in environment_lines(manifest.package))
    if manifest.package.server_arguments:
        arguments = manifest.package.server_arguments
        sagemaker = f"SAGEMAKER_TRITON_ADDITIONAL_ARGS={shlex.quote(' '.join(arguments))}"
        written = sagemaker if target.flavour == "sagemaker" else shlex.join(arguments)
        click.echo(f"  the server has to be started with {written}")
    echo_lines(f"  {describe_publication(one)}" for one in published.publications)
    click.echo(f"  repository  {short(Path(published.repository))}")
    click.echo(f"  release     {release}")
    if (page := _report(published)) is not None:
        click.echo(f"  report      {short(page)}")
    where = "on a machine with a GPU, " if device == "gpu" else ""
    click.echo(f"Next: {where}{program()} serve {published.name} --repository {short(Path(published.repository))}")
    if target.flavour == "sagemaker":
        repository = short(Path(published.repository))
        click.echo(f"      {program()} sagemaker package {published.name} --repository {repository}")
    click.echo(f"      {program()} inspect {release}")


def _model_lines(found: Manifest | ReleasedModel) -> Iterator[str]:
    """What was found of one model of a release, before any server was asked."""
    from plansmith.report.text.pipeline import pipeline_lines
    from plansmith.report.text.plan import plan_lines

    if found.source.random_weights:
        yield "the weights are random: its answers mean nothing"
    yield from pipeline_lines(found.pipeline)
    yield from accuracy_lines(found.lowered, found.validation)
    yield from plan_lines(found.engine, found.validation)


def _beside(one: ReleasedModel) -> dict[str, Any]:
    """A model beside a release's own, as JSON values."""
    return {
        "source": one.source.address,
        "precision": one.engine.precision,
        "verdict": one.validation.verdict,
        "validation": one.validation.worst(),
        "pipeline": one.pipeline.model_dump(),
    }
