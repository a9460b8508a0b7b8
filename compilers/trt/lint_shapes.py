"""Rules on shapes, before a plan is built: what profiles have to settle, and what no profile can."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from plansmith.compilers.precision.graph import names_inside
from plansmith.compilers.precision.lint.view import Finding, View
from plansmith.compilers.shape_inputs import inputs_that_decide, shape_inputs
from plansmith.records.engine import OptimizationProfile
from plansmith.records.model import ANONYMOUS, BATCH, InputRange

if TYPE_CHECKING:
    import onnx

Profiles = Sequence[OptimizationProfile]

# What comes out of these has as many entries as their input's contents say.
_COUNTING = ("Compress", "NonMaxSuppression", "NonZero", "Unique")
_ENDS = ("Shape", "Size")
# These give the shape of their first input.
_OF_THE_FIRST = ("Scatter", "ScatterElements", "ScatterND", "TensorScatter")
_MOST_SHAPE_VALUES = 64


def settled(view: View, profiles: Profiles) -> Iterator[Finding]:
    """A dim that varies has to be in every profile: TensorRT's builder refuses one without, trtexec takes 1 for it."""
    holding = shape_inputs(view.model)
    varying = [name for name in _inputs(view) if name not in holding and None in (view.shape(name) or ())]
    if varying and not profiles:
        words = f"takes {', '.join(map(repr, varying))} of sizes that vary, and there is no profile"
        yield Finding("no-profile", "error", "", words, "give the ranges: `shapes`, or `tensorrt: {profiles: ...}`")
    for profile in profiles:
        missing = [name for name in varying if name not in profile.shapes]
        if missing:
            words = f"takes {', '.join(map(repr, missing))}, which profile {profile.name!r} does not name"
            yield Finding("no-profile", "error", "", words, f"give the range of {missing[0]} in every profile")
        unknown = sorted({*profile.shapes, *profile.values} - set(_inputs(view)))
        if unknown:
            words = f"has no input {unknown[0]!r}, which profile {profile.name!r} names"
            yield Finding("profile-shape", "error", "", words, f"its inputs are {', '.join(_inputs(view))}")


def fitting(view: View, profiles: Profiles) -> Iterator[Finding]:
    """IOptimizationProfile::setDimensions: the rank of the input, its fixed sizes, and 0 <= min <= opt <= max."""
    for profile in profiles:
        for name, wanted in profile.shapes.items():
            shape = view.shape(name)
            problem = _misfit(shape, wanted) if shape is not None else ""
            if problem:
                words = f"takes {name!r}, of which profile {profile.name!r} {problem} ({wanted})"
                yield Finding("profile-shape", "error", "", words, f"mend the range of {name}")


def shape_values(view: View, profiles: Profiles) -> Iterator[Finding]:
    """Of an input that holds a shape a profile gives the contents (setShapeValues); at most 64 integers of rank 0 or 1.

    Larger inputs whose contents decide a size make TensorRT wait for the device in the middle of a run.
    """
    holding = shape_inputs(view.model)
    for name, taker in inputs_that_decide(view.model).items():
        if name not in holding:
            words = f"takes a size from the contents of {name!r}, which TensorRT may refuse"
            yield Finding("deciding-contents", "warning", taker, words, "compute sizes from shapes in the model's code")
    for name in holding:
        shape = view.shape(name)
        without = [profile.name for profile in profiles if name not in profile.values]
        if shape and (shape[0] is None or shape[0] > _MOST_SHAPE_VALUES):
            words = f"holds a shape of {shape[0] or 'any number of'} values; TensorRT reads {_MOST_SHAPE_VALUES}"
            remedy = "make it a constant of the model"
            yield Finding("shape-values", "error", "", f"input {name!r} {words}", remedy)
        elif without or not profiles:
            where = f"profile {without[0]!r}" if without else "nothing"
            words = f"input {name!r} holds a shape, and {where} says which values it takes"
            remedy = "make it a constant of the model, or give its values as min:opt:max in every profile"
            yield Finding("shape-values", "error", "", words, remedy)


def counted_outputs(view: View, profiles: Profiles) -> Iterator[Finding]:
    """An output that is as long as its contents say: Triton allocates it as it comes, and cannot divide it by requests.

    Triton's TensorRT backend, pull request 72 (output allocators); its replies are cut along the first axis.
    """
    del profiles
    promised = view.promised
    if promised is None:
        return
    known = {dim for tensor in promised.inputs for dim in tensor.dims} - {ANONYMOUS}
    batched = any(tensor.dims[:1] == (BATCH,) for tensor in promised.inputs)
    for output in promised.outputs:
        free = [place for place, dim in enumerate(output.dims) if isinstance(dim, str) and dim not in known]
        maker = _counter(view, output.name) if free else None
        if maker is None:
            continue
        words = f"gives {output.name!r} as many entries as the contents of an input say ({maker.op_type})"
        if batched and 0 in free:
            remedy = "give a fixed number of entries per sample and pad them, or set engine: onnxruntime"
            yield Finding("counted-output", "error", maker.name, f"{words}, and no axis of samples", remedy)
        else:
            remedy = "see that clients take replies of any length"
            yield Finding("counted-output", "warning", maker.name, words, remedy)


def _inputs(view: View) -> list[str]:
    constants = {tensor.name for tensor in view.model.graph.initializer}
    return [value.name for value in view.model.graph.input if value.name not in constants]


def _misfit(shape: list[int | None], wanted: InputRange) -> str:
    if len(shape) != len(wanted.min):
        return f"gives {len(wanted.min)} axes and not {len(shape)}"
    places = list(zip(shape, wanted.min, wanted.opt, wanted.max, strict=True))
    if any(size is not None and {low, usual, high} != {size} for size, low, usual, high in places):
        return "changes a fixed size"
    return "is not 0 <= min <= opt <= max" if any(not 0 <= a <= b <= c for _, a, b, c in places) else ""


def _counter(view: View, tensor: str) -> onnx.NodeProto | None:
    """The node that counts, where the length of a tensor comes from one; not where only its shape is asked for."""
    waiting, seen = [tensor], set[str]()
    while waiting:
        name = waiting.pop()
        maker = view.producer(name)
        if maker is None or name in seen:
            continue
        seen.add(name)
        if maker.op_type in _COUNTING:
            return maker
        if maker.op_type in _OF_THE_FIRST:
            waiting.append(maker.input[0])
        elif maker.op_type not in _ENDS:
            waiting += [other for other in (*maker.input, *names_inside(maker)) if other]
    return None


RULES = (settled, fitting, shape_values, counted_outputs)
