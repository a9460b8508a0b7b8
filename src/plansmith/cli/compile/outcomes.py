"""Outcomes of compiling one model: as a JSON document, as text, and as one line of a list."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from plansmith.formatting import count, format_bytes

if TYPE_CHECKING:
    from plansmith.errors import PlansmithError
    from plansmith.records.destination import Publication
    from plansmith.records.engine import BuildCheck, BuildSpec, OptimizationProfile
    from plansmith.records.model import Device, LoweredModel
    from plansmith.records.release import Manifest, Package, PublishedVersion, ReleasedModel, StepRecord
    from plansmith.records.validation import ValidationReport
    from plansmith.steps.tensorrt.preview import BuildPreview

_SAID = {"profiles", "memory_pools", "optimization_level", "tf32"}

_BACKENDS = {"onnxruntime": "ONNX Runtime", "tensorrt": "TensorRT", "python": "Python"}


def build_lines(preview: BuildPreview) -> Iterator[str]:
    """Return the build spec, its unknown parts, and the trtexec command, ready to copy."""
    kinds = ", ".join(f"{gpu.name} (compute capability {gpu.compute_capability})" for gpu in preview.gpus)
    yield f"TensorRT {preview.tensorrt} of {preview.target}, for {kinds or 'a GPU that is not named yet'}"
    yield f"  {'precision':<21}{preview.precision}, as the graph has it: plans are strongly typed"
    for profile in preview.spec.profiles:
        yield from _profile_lines(profile)
    if not preview.spec.profiles:
        yield f"  {'profiles':<21}none"
    for name, value in _build_settings(preview.spec):
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


def _build_settings(spec: BuildSpec) -> Iterator[tuple[str, str]]:
    """Yield the build settings that differ from TensorRT's defaults, and the most commonly used ones."""
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
    """Return a line per packed environment: its model, its Python, its size."""
    from plansmith.formatting import format_bytes

    brought = [
        (package.model, package.environment),
        *((member.model, member.environment) for member in package.members),
    ]
    for model, environment in brought:
        if environment is not None:
            packages = len(environment.distributions)
            yield (
                f"{model} brings its environment for Python {environment.python}:"
                f" {packages} package{'s' * (packages != 1)}, {format_bytes(environment.bytes)},"
                f" unpacked {format_bytes(environment.unpacked_bytes)}"
            )


def accuracy_lines(lowered: LoweredModel | None, validation: ValidationReport) -> Iterator[str]:
    """Return the recipe with size and speed, held-out results, errors at all shapes, and doubts."""
    from plansmith.report.text import describe_held_out, doubts, evaluation_lines, format_cosine, recipe_lines

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
    """Format a fraction of a magnitude: 1.9e-05, 0.03, 10."""
    return f"{share:.1e}" if 0 < share < 0.001 else f"{share:.2g}"


def describe_publication(publication: Publication) -> str:
    """Describe a publication in one line: place, version, aliases, and transferred data."""
    aliases = f" ({', '.join(publication.aliases)})" if publication.aliases else ""
    state = "already in" if publication.unchanged else "published to"
    sent = f"{format_bytes(publication.sent_bytes)} of {format_bytes(publication.total_bytes)} sent"
    view = ", and shown in its repository" if publication.view else ""
    return f"{state} {publication.place} as version {publication.version}{aliases}: {sent}{view}"


@dataclass(frozen=True)
class Planned:
    """Dry run outcome; `builds`: settings of the TensorRT plan builds; `check`: the check of their graph."""

    name: str
    plan: dict[str, str]
    builds: BuildPreview | None
    publications: tuple[Publication, ...] = ()
    check: BuildCheck | None = None

    def document(self) -> dict[str, Any]:
        """Return the outcome as JSON-ready fields."""
        build: dict[str, Any] = {"build": self.builds.model_dump(mode="json")} if self.builds else {}
        if self.check is not None:
            build["build_check"] = self.check.model_dump(mode="json")
        publications = [publication.model_dump() for publication in self.publications]
        return {"name": self.name, "plan": self.plan, **build, "publications": publications}

    def show(self) -> None:
        """Print the outcome."""
        done = "nothing was done" if self.check is None else "the graph was made and checked, and nothing else done"
        click.echo(f"{self.name}: {done}; a compile would")
        for step, outcome in self.plan.items():
            click.echo(f"  {step:<13}{outcome}")
        if self.builds is not None:
            click.echo("\n".join(build_lines(self.builds)))
        if self.check is not None:
            from plansmith.cli.output import echo_lines
            from plansmith.report.text import check_lines

            echo_lines(check_lines(self.check))
        for publication in self.publications:
            click.echo(f"  would be {describe_publication(publication)}")

    def summary(self) -> tuple[str, str]:
        """Return one word for the count, and a few words of detail."""
        first = next((step for step, outcome in self.plan.items() if outcome.startswith("would")), None)
        return ("to do", f"would run from {first} on") if first else ("unchanged", "nothing to do")


@dataclass(frozen=True)
class Compiled:
    """Outcome of a successful compile."""

    published: PublishedVersion
    manifest: Manifest
    steps: list[StepRecord]

    @property
    def name(self) -> str:
        """The model's name."""
        return self.published.name

    def document(self) -> dict[str, Any]:
        """Return the outcome as JSON-ready fields."""
        return _document(self.published, self.manifest, self.steps)

    def show(self) -> None:
        """Print the outcome."""
        _print_summary(self.published, self.manifest)

    def summary(self) -> tuple[str, str]:
        """Return one word for the count, and a few words of detail."""
        state = "unchanged" if self.published.unchanged else "published"
        return state, f"{state}, version {self.published.version}"


@dataclass(frozen=True)
class Failed:
    """Outcome of a model that failed to compile, one of several."""

    name: str
    error: PlansmithError

    def document(self) -> dict[str, Any]:
        """Return the outcome as JSON-ready fields."""
        return {"name": self.name, **self.error.to_dict()}

    def show(self) -> None:
        """Print the outcome."""
        click.echo(f"plansmith: {self.error}", err=True)

    def summary(self) -> tuple[str, str]:
        """Return one word for the count, and a few words of detail."""
        at = f" at {self.error.step}" if self.error.step else ""
        return "failed", f"failed{at}, exit code {self.error.exit_code}"


Outcome = Planned | Compiled | Failed


def print_outcomes(outcomes: Sequence[Outcome], targets: Sequence[str]) -> None:
    """Print a line per model and the counts per outcome; `targets`: of each model, empty for a single target."""
    summaries = [outcome.summary() for outcome in outcomes]
    counts = ", ".join(f"{count} {state}" for state, count in Counter(state for state, _ in summaries).items())
    names, places = [outcome.name for outcome in outcomes], max(map(len, targets))
    width = max(map(len, names))
    click.echo(f"{count(len(outcomes), 'model')}: {counts}")
    for name, target, (_, text) in zip(names, targets, summaries, strict=True):
        click.echo(f"  {name:<{width}}  {f'{target:<{places}}  ' if places else ''}{text}")


def _document(published: PublishedVersion, manifest: Manifest, steps: list[StepRecord]) -> dict[str, Any]:
    from plansmith.records.release import MANIFEST_FILE

    served, evaluation = manifest.served, manifest.validation.evaluation
    return {
        "name": published.name,
        "version": published.version,
        "unchanged": published.unchanged,
        "repository": published.repository,
        "publications": [item.model_dump() for item in published.publications],
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
        "beside": {name: _companion_values(item) for name, item in manifest.beside.items()},
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
    """Return the report page of a release; None for a release that predates such pages."""
    from plansmith.records.release import REPORT_FILE

    path = Path(published.release) / REPORT_FILE
    return path if path.is_file() else None


def _lowering(lowered: LoweredModel) -> dict[str, Any] | None:
    """Return the lowering recipe and its results; None if nothing was lowered."""
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
    from plansmith.cli.options import DEFAULT_REPOSITORY
    from plansmith.cli.output import echo_lines, echo_verdict, program, short
    from plansmith.config.targets import load_target
    from plansmith.report.text import script_lines

    target = load_target(manifest.target)
    device = target.device
    release = short(Path(published.release))
    state = "unchanged, still" if published.unchanged else "published,"
    echo_verdict(
        f"{published.name} {state} version {published.version}: {manifest.engine.kind}, {manifest.engine.precision}",
        manifest.validation.verdict,
    )
    echo_lines(f"  {line}" for line in _model_lines(manifest))
    for name, model in manifest.beside.items():
        click.echo(
            f"  {name}, beside it, is {model.source.address}: {model.engine.precision}, gate {model.validation.verdict}"
        )
        echo_lines(f"    {line}" for line in _model_lines(model))
    echo_lines(f"  {line}" for line in script_lines(manifest.script))
    echo_lines(f"  {line}" for line in _served_lines(manifest, device))
    echo_lines(f"  {line}" for line in environment_lines(manifest.package))
    if manifest.package.server_arguments:
        arguments = manifest.package.server_arguments
        sagemaker = f"SAGEMAKER_TRITON_ADDITIONAL_ARGS={shlex.quote(' '.join(arguments))}"
        written = sagemaker if target.flavour == "sagemaker" else shlex.join(arguments)
        click.echo(f"  the server has to be started with {written}")
    echo_lines(f"  {describe_publication(model)}" for model in published.publications)
    click.echo(f"  repository  {short(Path(published.repository))}")
    click.echo(f"  release     {release}")
    if (page := _report(published)) is not None:
        click.echo(f"  report      {short(page)}")
    where = "on a machine with a GPU, " if device == "gpu" else ""
    repository = short(Path(published.repository))
    named = "" if repository == str(DEFAULT_REPOSITORY) else f" --repository {repository}"
    click.echo(f"Next: {where}{program()} serve {published.name}{named}")
    if target.flavour == "sagemaker":
        click.echo(f"      {program()} sagemaker package {published.name}{named}")
    elif device == "cpu":
        click.echo(f"      {program()} infer {published.name} {_question(manifest)} --serve{named}")
    click.echo(f"      {program()} inspect {release}")


def _question(manifest: Manifest) -> str:
    """Return the options of `infer` that ask a model something."""
    inputs = {tensor.name for tensor in manifest.package.interface.inputs}
    if inputs == {"text"}:
        return '--text "some text"'
    return "--file FILE" if inputs in ({"image"}, {"audio"}) else "--random"


def _served_lines(manifest: Manifest, device: Device) -> Iterator[str]:
    """Yield the results of the served check on a running Triton."""
    served = manifest.served
    if served is None:
        yield "not checked on a running Triton (--no-check-served)"
        return
    own = served.backend == "real"
    server = (
        f"its own {_BACKENDS[manifest.engine.kind]} backend"
        if own
        else f"a stand-in backend ({served.backend_runtime})"
    )
    server += ", DALI in a stand-in" if served.dali == "stand-in" else ""
    milliseconds = served.median_seconds * 1000
    yield (
        f"served by Triton {served.server_version} with {server}: {served.requests} requests over HTTP and gRPC,"
        f" median {milliseconds:.0f} ms"
    )
    if served.device != device:
        yield f"checked on {served.device.upper()} instances only; the release asks for {device.upper()} ones"


def _model_lines(model: Manifest | ReleasedModel) -> Iterator[str]:
    """Yield the findings on one model of a release from before the served check."""
    from plansmith.report.text import isolation_lines, pipeline_lines, plan_lines

    if model.source.random_weights:
        yield "the weights are random: its answers mean nothing"
    yield from isolation_lines(model.onnx, model.data)
    yield from pipeline_lines(model.pipeline)
    yield from accuracy_lines(model.lowered, model.validation)
    yield from plan_lines(model.engine, model.validation)


def _companion_values(model: ReleasedModel) -> dict[str, Any]:
    """Return a companion model of the release as JSON values."""
    return {
        "source": model.source.address,
        "precision": model.engine.precision,
        "verdict": model.validation.verdict,
        "validation": model.validation.worst(),
        "pipeline": model.pipeline.model_dump(),
    }
