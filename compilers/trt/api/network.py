"""A graph as TensorRT reads it: strongly typed, with the formats and profiles that a spec asks for."""

from __future__ import annotations

import glob
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from plansmith.errors import EngineError
from plansmith.records.engine import BuildSpec, OptimizationProfile, TensorFormat


class Parsed(NamedTuple):
    """What Polygraphy's loaders pass on: builder, network and parser, which must all live until the plan is there."""

    builder: Any
    network: Any
    parser: Any


def read_network(graph: Path) -> Parsed:
    """Read an ONNX file, weights in files beside it included; its dtypes are the plan's."""
    from polygraphy.backend.trt import NetworkFromOnnxPath

    return Parsed(*NetworkFromOnnxPath(str(graph), strongly_typed=True)())


def inputs_of(network: Any) -> list[Any]:
    """The inputs (`ITensor`) in their order."""
    return [network.get_input(index) for index in range(network.num_inputs)]


def outputs_of(network: Any) -> list[Any]:
    """The outputs (`ITensor`) in their order."""
    return [network.get_output(index) for index in range(network.num_outputs)]


def set_formats(network: Any, formats: Mapping[str, TensorFormat]) -> None:
    """Have inputs and outputs lie in memory as asked; TensorRT takes a mask with one bit per format that it may use."""
    import tensorrt

    tensors = {tensor.name: tensor for tensor in [*inputs_of(network), *outputs_of(network)]}
    for name, words in formats.items():
        member = getattr(tensorrt.TensorFormat, "LINEAR" if words == "chw" else words.upper())
        tensors[name].allowed_formats = 1 << int(member)


def profiles_of(network: Any, spec: BuildSpec) -> list[Any]:
    """Polygraphy's profiles, in the spec's order; none for a graph whose shapes are fixed.

    TensorRT itself tells which inputs hold a shape: those have a range of contents instead of one of shapes.

    Raises:
        EngineError: a profile leaves out an input that varies.
    """
    return [_profile(network, profile) for profile in _required(network, spec)]


def _required(network: Any, spec: BuildSpec) -> tuple[OptimizationProfile, ...]:
    if not spec.profiles and (varying := [tensor.name for tensor in inputs_of(network) if _varies(tensor)]):
        raise EngineError(
            f"{', '.join(varying)} vary, and there is no profile that says how",
            remedy="give their ranges under shapes, or tensorrt: profiles",
        )
    return spec.profiles


def _varies(tensor: Any) -> bool:
    return bool(tensor.is_shape_tensor) or any(size < 0 for size in tensor.shape)


def _profile(network: Any, profile: OptimizationProfile) -> Any:
    from polygraphy.backend.trt import Profile

    made = Profile()
    for tensor in inputs_of(network):
        ranges = profile.values if tensor.is_shape_tensor else profile.shapes
        if tensor.name in ranges:
            one = ranges[tensor.name]
            made.add(glob.escape(tensor.name), one.min, one.opt, one.max)  # Polygraphy takes names for patterns
        elif _varies(tensor):
            what = "the contents of the shape" if tensor.is_shape_tensor else "the input"
            raise EngineError(
                f"profile {profile.name} says nothing of {what} {tensor.name}",
                remedy="give its range under shapes, or in every one of tensorrt: profiles",
            )
        else:
            fixed = tuple(tensor.shape)
            made.add(glob.escape(tensor.name), fixed, fixed, fixed)
    return made
