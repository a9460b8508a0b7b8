"""The step that has a real Triton load a release and answer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith.engines import BuildSpec
from plansmith.manifest import Interface, Package
from plansmith.profile_inputs import profile_for
from plansmith.reference import StoredCase, read_case
from plansmith.reports import ServedReport, ValidationReport
from plansmith.stages import Finished, StageRunner
from plansmith.triton.serving_runtime import ServingRuntime
from plansmith.types import OnnxModel

if TYPE_CHECKING:
    from plansmith.reference import Arrays

# The cases that are small enough to send to a server many times over.
_CASES = {"traced", "single", "untraced", "min", "opt"}


def ask_server(
    stages: StageRunner,
    runtime: ServingRuntime,
    package: Finished[Package],
    onnx: Finished[OnnxModel],
    validation: Finished[ValidationReport],
    build: BuildSpec | None = None,
) -> Finished[ServedReport]:
    """Have a server load a release, and compare its answers with the reference's.

    Args:
        stages: runs the step.
        runtime: the server and the backend that answers.
        package: what is served.
        onnx: has the reference.
        validation: has the tolerances.
        build: of the release's plans, if it has any: they are asked nothing that none of their profiles takes, and
            their plugins are looked for where they were when the plans were built.

    Raises:
        ServedCheckError: it does not load, answers wrongly, or Triton understood another configuration.
    """
    server, profiles = runtime.installation, build.profiles if build is not None else ()
    plugins = [Path(plugin) for plugin in build.plugins] if build is not None else []
    folders = tuple(dict.fromkeys(plugin.parent for plugin in plugins))
    parameters = {
        "server": server.version or stages.digester.file(server.binary, foreign=True),
        "real": runtime.site is None,
        "runtime": runtime.words,
        "device": runtime.device,
        "profiles": [profile.model_dump(mode="json") for profile in profiles],
    }

    def check(out: Path) -> Any:
        from plansmith.triton.served_check import check_served

        cases = [c for c in onnx.record.reference.cases if c.name in _CASES and c.in_range]
        return check_served(
            package.record,
            package.folder,
            [_as_served(read_case(case, onnx.folder), package.record.interface) for case in cases],
            runtime=replace(runtime, library_folders=folders),
            mask_input=onnx.record.mask_input,
            tolerances=validation.record.tolerances,
            takes=lambda feed: not profiles or profile_for(profiles, feed) is not None,
            scratch=out / "repository",
            log=stages.log_file("triton"),
            progress=stages.progress,
        ).model_dump(mode="json")

    inputs = [package.digest, onnx.digest, validation.digest]
    return stages.stage("check_served", ServedReport, inputs, parameters, check)


def _as_served(case: StoredCase, interface: Interface) -> StoredCase:
    """The same case in the element types of the release, which lowered inputs and outputs change."""
    dtypes = {t.name: t.dtype for t in (*interface.inputs, *interface.outputs)}

    def cast(arrays: Arrays) -> Arrays:
        return {name: array.astype(dtypes[name], copy=False) for name, array in arrays.items()}

    return replace(case, feed=cast(case.feed), answer=cast(case.answer))
