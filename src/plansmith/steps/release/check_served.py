"""Served check: a real Triton loads a release and answers; as a compile step, or on a published release."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith.data.reference import StoredCase, read_case
from plansmith.errors import ServedCheckError
from plansmith.pipelines.agreement import RawLimits, compare, limits_of, widest
from plansmith.pipelines.cases import read_case as read_raw_case
from plansmith.records.engine import BuildSpec
from plansmith.records.model import UNEXPORTED, OnnxModel
from plansmith.records.pipeline import MODEL_PART, Pipeline, RawCase, Script
from plansmith.records.release import BESIDE_FOLDER, Manifest, Package
from plansmith.records.validation import ServedReport, ValidationReport
from plansmith.steps.artifacts import CompiledModel
from plansmith.steps.runner import StageRunner, StepResult
from plansmith.triton.config.ensemble import tensor_name
from plansmith.triton.config.model_config import parse_config
from plansmith.triton.config.plan_config import instances_take
from plansmith.triton.served_inputs import array_as_served, inputs_as_served, is_accepted
from plansmith.triton.server.runtime import ServingRuntime

if TYPE_CHECKING:
    from plansmith.records.arrays import Arrays
    from plansmith.triton.server.served_check import RawQuestions

# The cases that are small enough to send to a server many times over.
_CASES = {"traced", "single", "untraced", "min", "opt"}


def run_served_check(
    stages: StageRunner,
    runtime: ServingRuntime,
    package: StepResult[Package],
    model: CompiledModel,
    beside: Mapping[str, CompiledModel] | None = None,
    script: StepResult[Script] | None = None,
) -> StepResult[ServedReport] | None:
    """Load a release into a server, and compare its answers with the reference.

    Plans are asked nothing that none of their profiles takes, and their plugins are looked for where they were when the
    plans were built. An ensemble is asked the questions of all its pipelines, too.

    Args:
        stages: runs the step.
        runtime: the server and the backend that answers.
        package: what is served.
        model: has the reference, the tolerances, and what stands around the model, if anything does.
        beside: by name, the models of the release beside its own.
        script: answers in their place; then its questions are asked.

    Raises:
        ServedCheckError: it does not load, answers wrongly, or Triton understood another configuration.
    """
    server, onnx, validation, build = runtime.installation, model.onnx, model.validation, model.engine.record.build
    models = {"": model, **(beside or {})}
    requests = ReleaseRequests(
        package=package.record,
        folder=package.folder,
        onnx=onnx.record,
        reference=onnx.folder,
        validation=validation.record,
        build=build,
        raw=_raw_of(
            {
                name: _Raw(name, entry.pipeline.record.cases, entry.pipeline.folder, limits_of(entry.validation.record))
                for name, entry in models.items()
                if entry.pipeline is not None
            },
            (script.record, script.folder) if script is not None else None,
        ),
    )
    parameters = {
        "server": server.version or stages.digester.file(server.binary, foreign=True),
        "real": runtime.site is None,
        "real_dali": runtime.dali_site is None,
        "runtime": runtime.description,
        "device": runtime.device,
        "profiles": [profile.model_dump(mode="json") for profile in (build.profiles if build is not None else ())],
    }

    def check(out: Path) -> ServedReport:
        _require_comparable(requests.model, onnx.record.mask_input)
        log = stages.log_file("triton")
        return requests.ask(runtime, scratch=out / "repository", log=log, progress=stages.progress)

    steps: list[StepResult[Any] | None] = [script]
    steps += [step for entry in models.values() for step in (entry.onnx, entry.validation, entry.pipeline)]
    inputs = [package.digest, *(step.digest if step is not None else "" for step in steps)]
    tools = "check_served_python" if onnx.record.exporter == UNEXPORTED else ""
    return stages.stage("check_served", ServedReport, inputs, parameters, check, tools=tools)


def check_published_release(
    manifest: Manifest,
    release: Path,
    runtime: ServingRuntime,
    *,
    scratch: Path,
    log: Path,
    progress: Callable[[str], None] = lambda _: None,
) -> ServedReport:
    """Load a published release into a server, and compare its answers with the release's own reference.

    Args:
        manifest: the release's.
        release: its folder.
        runtime: the server and the backend that answers.
        scratch: a folder for the server's repository, made and removed here; best on the release's file system.
        log: takes the server's output.
        progress: told what is being done.

    Raises:
        ServedCheckError: it does not load, answers wrongly, or Triton understood another configuration.
    """
    return release_requests(manifest, release).ask(runtime, scratch=scratch, log=log, progress=progress)


def incomparable_reason(manifest: Manifest, release: Path) -> str | None:
    """Describe why no server's answers can be compared with a release's content; None if they can."""
    requests = release_requests(manifest, release)
    try:
        _require_comparable(requests.model, manifest.onnx.mask_input)
    except ServedCheckError as error:
        return error.message
    if not requests.takes_raw and not any(requests.is_taken(case.feed) for case in requests.cases()):
        return "it holds no case of a reference that it takes"
    return None


def release_requests(manifest: Manifest, release: Path) -> ReleaseRequests:
    """Return the requests stored in a published release; `release` is its folder."""
    return ReleaseRequests(
        package=manifest.package,
        folder=release,
        onnx=manifest.onnx,
        reference=release,
        validation=manifest.validation,
        build=manifest.engine.build,
        raw=_raw_of(
            {
                name: _Raw(name, pipeline.cases, folder, limits_of(validation))
                for name, (pipeline, folder, validation) in _recorded_pipelines(manifest, release).items()
            },
            (manifest.script, release) if manifest.script is not None else None,
        ),
    )


def _recorded_pipelines(manifest: Manifest, release: Path) -> dict[str, tuple[Pipeline, Path, ValidationReport]]:
    """Return the release's pipeline records: by model, the base folder of the case files, and the verdict."""
    pipelines = {}
    if manifest.pipeline is not None:
        pipelines[""] = manifest.pipeline, release, manifest.validation
    for name, companion in manifest.beside.items():
        pipelines[name] = companion.pipeline, release / BESIDE_FOLDER / name, companion.validation
    return pipelines


@dataclass(frozen=True)
class _Raw:
    """Raw requests for one model of a release, with the release's output names, or for its script.

    Args:
        name: of the model, empty for the release's own and for a script.
        cases: requests and answers.
        folder: that their files start from.
        limits: what is allowed.
    """

    name: str
    cases: tuple[RawCase, ...]
    folder: Path
    limits: RawLimits

    def questions(self) -> RawQuestions:
        """The parsed requests."""
        from plansmith.triton.server.served_check import RawQuestion, RawQuestions

        def judge(name: str, expected: Arrays, answer: Arrays) -> Sequence[str]:
            own = {output: answer[tensor_name(self.name, output)] for output in expected}
            return compare(name, expected, own, self.limits).failures

        read = [(case.name, *read_raw_case(self.folder / case.file)) for case in self.cases]
        return RawQuestions([RawQuestion(*entry) for entry in read], judge, by_row=self.limits.ranked)


def _raw_of(models: Mapping[str, _Raw], script: tuple[Script, Path] | None) -> tuple[_Raw, ...]:
    """Return the raw requests for a release: for each of its models, or for the script in front of them."""
    if script is None:
        return tuple(models.values())
    record, folder = script
    return (_Raw("", record.cases, folder, widest([model.limits for model in models.values()])),)


@dataclass(frozen=True)
class ReleaseRequests:
    """Stored requests of a release, with the expected answers.

    Args:
        package: what is served; its files lie in `folder`.
        folder: holds config.pbtxt and model/.
        onnx: names the cases of the reference.
        reference: the folder that their files start from.
        validation: has the tolerances, by output.
        build: of the release's plans, if it has any.
        raw: what it is asked besides: about each of its models that something stands around, or its script.
    """

    package: Package
    folder: Path
    onnx: OnnxModel
    reference: Path
    validation: ValidationReport
    build: BuildSpec | None
    raw: tuple[_Raw, ...] = ()

    @property
    def model(self) -> Package:
        """The model whose inputs and outputs the reference has: for an ensemble, one of its members."""
        return self.package.part(MODEL_PART).alone() if self.package.members else self.package

    @property
    def takes_raw(self) -> bool:
        """Whether the model takes raw inputs itself, as text generation models do."""
        return bool(self.raw) and not self.package.members

    def ask(
        self, runtime: ServingRuntime, *, scratch: Path, log: Path, progress: Callable[[str], None]
    ) -> ServedReport:
        """Load the release and send it the requests; arguments and errors as for `check_served`."""
        from plansmith.triton.server.served_check import check_served

        plugins = [Path(plugin) for plugin in self.build.plugins] if self.build is not None else []
        folders = tuple(dict.fromkeys(plugin.parent for plugin in plugins))
        return check_served(
            self.package,
            self.folder,
            self.cases(),
            runtime=replace(runtime, library_folders=folders),
            mask_input=self.onnx.mask_input,
            tolerances=self.validation.tolerances,
            takes=self.is_taken,
            scratch=scratch,
            log=log,
            progress=progress,
            raw=[item.questions() for item in self.raw],
        )

    def cases(self) -> list[StoredCase]:
        """Yield the cases that are small enough, in the form that clients send and receive."""
        if self.takes_raw:
            return []  # its clients cannot send those
        chosen = [case for case in self.onnx.reference.cases if case.name in _CASES and case.in_range]
        return [_as_served(read_case(case, self.reference), self.model) for case in chosen]

    def is_taken(self, feed: Arrays) -> bool:
        """Whether the release accepts such inputs at all."""
        model, folder = self.model, self.folder
        if self.package.members:
            folder /= self.package.part(MODEL_PART).folder
        own = {name: array for name, array in feed.items() if name not in model.reshaped}
        config = parse_config((folder / model.config_file).read_text())
        profiles = self.build.profiles if self.build is not None else ()
        return is_accepted(feed, model) and instances_take(config, profiles, own)


def _as_served(case: StoredCase, package: Package) -> StoredCase:
    """Return the case as clients of the release send and receive it.

    Lowered inputs and outputs change the element types; options of the spec change dims, and hide what Triton fills.
    """
    outputs = package.interface.outputs
    answer = {tensor.name: array_as_served(case.answer[tensor.name], tensor, package) for tensor in outputs}
    return replace(case, feed=inputs_as_served(case.feed, package), answer=answer)


def _require_comparable(package: Package, mask_input: str | None) -> None:
    """Check that padding remains distinguishable if dims of the mask, or of what it masks, were reshaped.

    Raises:
        ServedCheckError: it cannot.
    """
    own = {
        t.name: package.reshaped.get(t.name, t.dims) for t in (*package.interface.inputs, *package.interface.outputs)
    }
    if mask_input not in own:
        return
    mask = own[mask_input]
    masked = [t for t in package.interface.outputs if own[t.name][: len(mask)] == mask]
    changed = [t.name for t in masked if t.dims[: len(mask)] != mask] or [mask_input] * (mask_input in package.reshaped)
    if changed and masked:
        raise ServedCheckError(
            f"clients see other dims of {changed[0]} than the model has, so that nothing tells what is padding",
            remedy="leave its leading dims to the model in `triton:`, or write check_served: false",
        )
