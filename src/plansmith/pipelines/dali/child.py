"""DALI child process: writes or runs one pipeline; requests and results are JSON files.

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
    """Execute the request; the result, or why it failed, is written to the answer file."""
    settings = json.loads(request.read_text())
    sys.path.insert(0, settings["site"])
    try:
        from nvidia import dali
    except (ImportError, OSError) as error:
        response = {"missing": str(error).splitlines()[0]}
    else:
        try:
            response = {"serialise": serialise, "run": run}[settings["call"]](dali, settings)
        except Exception as error:  # noqa: BLE001 - whatever it is, the parent tells of it; the traceback goes to the log
            traceback.print_exc()
            response = {"failed": f"{type(error).__name__}: {error}", "version": dali.__version__}
    answer.write_text(json.dumps(response))


def serialise(dali: Any, settings: Settings) -> dict[str, Any]:
    """Write the serialized pipeline that Triton's backend opens.

    No device is given: with one, DALI asks for the GPU's driver, and whoever opens the file names the device anyway.
    """
    from nvidia.dali._utils.dali_trace import set_tracing

    set_tracing(enabled=False)  # the path and the lines of this program would be written into the file
    Path(settings["out"]).write_bytes(_pipeline(dali, settings, None).serialize())
    return {"version": dali.__version__}


def run(dali: Any, settings: Settings) -> dict[str, Any]:
    """Run a pipeline, or that of a recipe, on images one by one, each from a file; all tensors go into one."""
    import numpy as np

    device_id = 0 if settings["device"] == "gpu" else None
    if "pipeline" in settings:
        content, device = Path(settings["pipeline"]).read_bytes(), {} if device_id is None else {"device_id": device_id}
        pipeline = dali.Pipeline.deserialize(serialized_pipeline=content, batch_size=1, num_threads=1, **device)
    else:
        pipeline = _pipeline(dali, {**settings, "batch": 1}, device_id)
    arrays = []
    for file in settings["images"]:
        pipeline.feed_input(settings["input"], [np.fromfile(file, np.uint8)])
        (tensors,) = pipeline.run()
        arrays.append(np.array(tensors.as_cpu().as_array()))
    np.save(settings["out"], np.concatenate(arrays))
    return {"version": dali.__version__}


def _pipeline(dali: Any, settings: Settings, device_id: int | None) -> Any:
    """Build the pipeline of a recipe."""
    pipeline = dali.Pipeline(batch_size=settings["batch"], num_threads=1, device_id=device_id, **QUEUE)
    with pipeline:
        pipeline.set_outputs(_defined(dali, settings["recipe"], settings))
    return pipeline


def _defined(dali: Any, recipe: Settings, settings: Settings) -> Any:
    """Define the recipe with DALI operators. Crop sizes and positions match Python's to the pixel."""
    fn, types = dali.fn, dali.types
    encoded = fn.external_source(name=settings["input"], device="cpu", dtype=types.UINT8, ndim=1)
    order = recipe["order"]
    readers, upright = _readers(dali), recipe["upright"]
    image = readers.decoders.image(
        encoded,
        device="mixed" if settings["device"] == "gpu" else "cpu",
        output_type=types.RGB if order == sorted(order) else types.BGR,
        jpeg_fancy_upsampling=True,  # as libjpeg does it, which Pillow decodes with
        adjust_orientation=upright,
        **settings.get("decoder_hints", {}),
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
    """Return the operators that read images and shapes, with the option to apply the EXIF orientation.

    Those of `fn` are since DALI 2.2, and turn where nothing is said; before, they never turn, and those of
    `fn.experimental` are told. A file that says nothing means another thing to a newer DALI than to its own.
    """
    is_told = dali.backend.GetSchema("decoders__Image").HasArgument("adjust_orientation")
    return dali.fn if is_told else dali.fn.experimental


def _size(dali: Any, size: tuple[Any, Any], step: Settings) -> tuple[Any, Any]:
    """Return height and width after a resize: numbers, or DALI expressions if they depend on the image."""
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


def _extreme(dali: Any, which: str, first: Any, second: Any) -> Any:
    """Return the smaller or larger of two sides; DALI does not accept plain numbers alone."""
    place = builtins if isinstance(first, int) and isinstance(second, int) else dali.math
    return getattr(place, which)(first, second)


def _rounded(dali: Any, total: Any, parts: Any) -> Any:
    """Return an integer quotient, rounded half to even."""
    lower = total // parts
    twice = 2 * (total - lower * parts)
    return lower + _counted(dali, twice > parts) + _counted(dali, twice == parts) * _is_odd(lower)


def _resized(dali: Any, image: Any, size: tuple[Any, Any], step: Settings) -> Any:
    height, width = (
        length if isinstance(length, int) else dali.fn.cast(length, dtype=dali.types.FLOAT) for length in size
    )
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
    if not all(isinstance(coordinate, int) for coordinate in begin):
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


def _start(dali: Any, side: Any, length: int, step: Settings) -> Any:
    """Return the start of a crop along one side; negative if the image gets a border there."""
    left_over = side - length
    inside = left_over // 2
    if step["rounding"] == "even":
        inside += _is_odd(left_over) * _is_odd(inside)
    border = -(-left_over // 2) if step["before"] == "less" else -((1 - left_over) // 2)
    if isinstance(left_over, int):
        return border if left_over < 0 else inside
    is_border = _counted(dali, left_over < 0)
    return is_border * border + (1 - is_border) * inside


def _is_odd(number: Any) -> Any:
    """Return 1 if odd, else 0; DALI expressions have no modulo."""
    return number - 2 * (number // 2)


def _counted(dali: Any, condition: Any) -> Any:
    """Return 1 if the condition holds, else 0."""
    return int(condition) if isinstance(condition, bool) else dali.fn.cast(condition, dtype=dali.types.INT64)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
