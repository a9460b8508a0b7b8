"""Runs in a process of its own, with DALI: one pipeline is written or run, told and answered in JSON files.

Nothing of plansmith is imported here: DALI comes with a NumPy of its own. Called as
`python child.py <request.json> <answer.json>`.
"""

from __future__ import annotations

import builtins
import json
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

QUEUE = {"prefetch_queue_depth": 1, "seed": 0}
"""As Triton's backend makes pipelines (one execution at a time); a seed that is drawn would change the file's bytes."""

Settings = Mapping[str, Any]


def main(request: Path, answer: Path) -> None:
    """Do what the request says; what was found, or why it failed, goes into the answer."""
    asked = json.loads(request.read_text())
    sys.path.insert(0, asked["site"])
    try:
        from nvidia import dali
    except (ImportError, OSError) as error:
        told = {"missing": str(error).splitlines()[0]}
    else:
        try:
            told = {"serialise": serialise, "run": run}[asked["call"]](dali, asked)
        except Exception as error:  # noqa: BLE001 - whatever it is, the parent tells of it; the traceback goes to the log
            traceback.print_exc()
            told = {"failed": f"{type(error).__name__}: {error}", "version": dali.__version__}
    answer.write_text(json.dumps(told))


def serialise(dali: Any, asked: Settings) -> dict[str, Any]:
    """Write the file that Triton's backend opens.

    No device is given: with one, DALI asks for the GPU's driver, and whoever opens the file names the device anyway.
    """
    from nvidia.dali._utils.dali_trace import set_tracing

    set_tracing(enabled=False)  # the path and the lines of this program would be written into the file
    Path(asked["out"]).write_bytes(_pipeline(dali, asked, None).serialize())
    return {"version": dali.__version__}


def run(dali: Any, asked: Settings) -> dict[str, Any]:
    """Have a pipeline, or that of a recipe, answer: images one by one, each from a file, all tensors into one."""
    import numpy as np

    device_id = 0 if asked["device"] == "gpu" else None
    if "pipeline" in asked:
        content, device = Path(asked["pipeline"]).read_bytes(), {} if device_id is None else {"device_id": device_id}
        pipeline = dali.Pipeline.deserialize(serialized_pipeline=content, batch_size=1, num_threads=1, **device)
    else:
        pipeline = _pipeline(dali, {**asked, "batch": 1}, device_id)
    found = []
    for file in asked["images"]:
        pipeline.feed_input(asked["input"], [np.fromfile(file, np.uint8)])
        (tensors,) = pipeline.run()
        found.append(np.array(tensors.as_cpu().as_array()))
    np.save(asked["out"], np.concatenate(found))
    return {"version": dali.__version__}


def _pipeline(dali: Any, asked: Settings, device_id: int | None) -> Any:
    """The pipeline of a recipe."""
    pipeline = dali.Pipeline(batch_size=asked["batch"], num_threads=1, device_id=device_id, **QUEUE)
    with pipeline:
        pipeline.set_outputs(_defined(dali, asked["recipe"], asked))
    return pipeline


def _defined(dali: Any, recipe: Settings, asked: Settings) -> Any:
    """The recipe in DALI's operators. Sizes and places of crops are computed as Python would, to the pixel."""
    fn, types = dali.fn, dali.types
    encoded = fn.external_source(name=asked["input"], device="cpu", dtype=types.UINT8, ndim=1)
    order = recipe["order"]
    readers, upright = _readers(dali), recipe["upright"]
    image = readers.decoders.image(
        encoded,
        device="mixed" if asked["device"] == "gpu" else "cpu",
        output_type=types.RGB if order == sorted(order) else types.BGR,
        jpeg_fancy_upsampling=True,  # as libjpeg does it, which Pillow decodes with
        adjust_orientation=upright,
        **asked.get("decoder_hints", {}),
    )
    sides = readers.peek_image_shape(encoded, adjust_orientation=upright, dtype=types.INT64)
    size = (sides[0], sides[1])
    for step in recipe["steps"]:
        if step["do"] == "crop":
            image = _cropped(dali, image, size, step, order)
            size = (step["height"], step["width"])
        else:
            size = _size(dali, size, step)
            image = _resized(dali, image, size, step)
    return fn.crop_mirror_normalize(
        image,
        dtype=types.FLOAT16 if recipe["dtype"] == "float16" else types.FLOAT,
        output_layout="CHW",
        mean=[recipe["mean"][channel] / recipe["scale"] for channel in order],
        std=[recipe["std"][channel] / recipe["scale"] for channel in order],
    )


def _readers(dali: Any) -> Any:
    """What has the operators that read images and shapes, and are told whether to turn by the EXIF orientation.

    Those of `fn` are since DALI 2.2, and turn where nothing is said; before, they never turn, and those of
    `fn.experimental` are told. A file that says nothing means another thing to a newer DALI than to its own.
    """
    is_told = dali.backend.GetSchema("decoders__Image").HasArgument("adjust_orientation")
    return dali.fn if is_told else dali.fn.experimental


def _size(dali: Any, size: tuple[Any, Any], step: Settings) -> tuple[Any, Any]:
    """Height and width after a resize: numbers, or DALI's terms where they follow from the image."""
    height, width = size
    if step["do"] == "exact":
        return step["height"], step["width"]
    if step["do"] == "shortest":
        shorter = _extreme(dali, "min", height, width)
        return step["side"] * height // shorter, step["side"] * width // shorter
    reached = "min" if step["longest"] else "max"
    return (
        _extreme(dali, reached, _rounded(dali, height * step["width"], width), step["height"]),
        _extreme(dali, reached, _rounded(dali, width * step["height"], height), step["width"]),
    )


def _extreme(dali: Any, which: str, one: Any, other: Any) -> Any:
    """The smaller or the larger of two sides; numbers alone are not for DALI."""
    place = builtins if isinstance(one, int) and isinstance(other, int) else dali.math
    return getattr(place, which)(one, other)


def _rounded(dali: Any, total: Any, parts: Any) -> Any:
    """A quotient of whole numbers, rounded; halves to the even one."""
    lower = total // parts
    twice = 2 * (total - lower * parts)
    return lower + _counted(dali, twice > parts) + _counted(dali, twice == parts) * _is_odd(lower)


def _resized(dali: Any, image: Any, size: tuple[Any, Any], step: Settings) -> Any:
    height, width = (one if isinstance(one, int) else dali.fn.cast(one, dtype=dali.types.FLOAT) for one in size)
    interpolations = {"bilinear": "LINEAR", "bicubic": "CUBIC", "lanczos": "LANCZOS3"}
    return dali.fn.resize(
        image,
        mode="stretch",
        resize_y=height,
        resize_x=width,
        interp_type=getattr(dali.types, f"INTERP_{interpolations[step['filter']]}"),
        antialias=True,
        subpixel_scale=False,  # the whole image becomes the whole result, as in Pillow
    )


def _cropped(dali: Any, image: Any, size: tuple[Any, Any], step: Settings, order: list[int]) -> Any:
    begin = [_start(dali, side, step[name], step) for side, name in zip(size, ("height", "width"), strict=True)]
    if not all(isinstance(one, int) for one in begin):
        begin = dali.fn.cast(dali.fn.stack(*begin), dtype=dali.types.INT32)
    fill = step["fill"] * len(order) if len(step["fill"]) == 1 else step["fill"]
    return dali.fn.slice(
        image,
        start=begin,
        shape=[step["height"], step["width"]],
        axes=(0, 1),
        out_of_bounds_policy="pad",
        fill_values=[float(fill[channel]) for channel in order],
    )


def _start(dali: Any, side: Any, wanted: int, step: Settings) -> Any:
    """Where a crop begins along one side; below zero where there is a border before the image."""
    left_over = side - wanted
    inside = left_over // 2
    if step["rounding"] == "even":
        inside += _is_odd(left_over) * _is_odd(inside)
    border = -(-left_over // 2) if step["before"] == "less" else -((1 - left_over) // 2)
    if isinstance(left_over, int):
        return border if left_over < 0 else inside
    is_border = _counted(dali, left_over < 0)
    return is_border * border + (1 - is_border) * inside


def _is_odd(number: Any) -> Any:
    """1 or 0; DALI's terms know no remainder."""
    return number - 2 * (number // 2)


def _counted(dali: Any, condition: Any) -> Any:
    """1 where it holds, otherwise 0."""
    return int(condition) if isinstance(condition, bool) else dali.fn.cast(condition, dtype=dali.types.INT64)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
