"""The step that has a real Triton load a release and answer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith.client.wire import numpy_dtype
from plansmith.engines import BuildSpec
from plansmith.errors import ServedCheckError
from plansmith.manifest import Package
from plansmith.reference import StoredCase, read_case
from plansmith.reports import ServedReport, ValidationReport
from plansmith.stages import Finished, StageRunner
from plansmith.triton.model_config import parse_config
from plansmith.triton.plan_config import instances_take
from plansmith.triton.serving_runtime import ServingRuntime
from plansmith.types import UNEXPORTED, OnnxModel, Tensor

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

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

    def takes(feed: Arrays) -> bool:
        own = {name: array for name, array in feed.items() if name not in package.record.reshaped}
        config = parse_config((package.folder / package.record.config_file).read_text())
        return _fits(feed, package.record) and instances_take(config, profiles, own)

    def check(out: Path) -> Any:
        from plansmith.triton.served_check import check_served

        _require_comparable(package.record, onnx.record.mask_input)
        cases = [c for c in onnx.record.reference.cases if c.name in _CASES and c.in_range]
        return check_served(
            package.record,
            package.folder,
            [_as_served(read_case(case, onnx.folder), package.record) for case in cases],
            runtime=replace(runtime, library_folders=folders),
            mask_input=onnx.record.mask_input,
            tolerances=validation.record.tolerances,
            takes=takes,
            scratch=out / "repository",
            log=stages.log_file("triton"),
            progress=stages.progress,
        ).model_dump(mode="json")

    inputs = [package.digest, onnx.digest, validation.digest]
    tools = "check_served_python" if onnx.record.exporter == UNEXPORTED else ""
    return stages.stage("check_served", ServedReport, inputs, parameters, check, tools=tools)


def _as_served(case: StoredCase, package: Package) -> StoredCase:
    """The same case as clients of the release send and get it.

    Lowered inputs and outputs change the element types; options of the spec change dims, and hide what Triton fills.
    """
    interface = package.interface
    feed = {tensor.name: _on_the_wire(case.feed[tensor.name], tensor, package) for tensor in interface.inputs}
    answer = {tensor.name: _on_the_wire(case.answer[tensor.name], tensor, package) for tensor in interface.outputs}
    return replace(case, feed=feed, answer=answer)


def _on_the_wire(array: NDArray[np.generic], tensor: Tensor, package: Package) -> NDArray[np.generic]:
    array = array.astype(numpy_dtype(tensor.dtype), copy=False)
    own = package.reshaped.get(tensor.name)
    if own is None:
        return array
    varying = iter([size for size, dim in zip(array.shape, own, strict=True) if isinstance(dim, str)])
    return array.reshape([next(varying) if isinstance(dim, str) else dim for dim in tensor.dims])


def _fits(feed: Arrays, package: Package) -> bool:
    """Whether a request has a batch and sizes that the release takes: options of the spec may make them fewer."""
    if package.max_batch_size and len(next(iter(feed.values()))) > package.max_batch_size:
        return False
    return all(
        isinstance(dim, str) or dim == size
        for tensor in package.interface.inputs
        for dim, size in zip(tensor.dims, feed[tensor.name].shape, strict=True)
    )


def _require_comparable(package: Package, mask_input: str | None) -> None:
    """See that padding can be told from what counts, where dims of the mask or of what it masks are others now.

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
