"""DALI pipelines in files: written from a recipe, and run here, by a child process that has DALI."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith.errors import EngineError, EnvironmentFault
from plansmith.pipelines.dali.recipe import Recipe
from plansmith.records.model import Device
from plansmith.system.process import tied_to
from plansmith.system.temporary import scratch_folder

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

CHILD = Path(__file__).with_name("child.py")
PIPELINE_FILE = "model.dali"
"""What Triton's backend looks for in a version's folder."""

_DEADLINE_SECONDS = 300
_LOG_LINES = 8
_TO_PYTHON = "or write preprocessing: python into the spec"


def serialise_pipeline(
    recipe: Recipe,
    out: Path,
    *,
    site: Path,
    device: Device,
    max_batch_size: int,
    input_name: str,
    decoder_hints: Mapping[str, int] | None = None,
) -> str:
    """Write a pipeline; the same recipe gives the same bytes with the same DALI.

    Args:
        recipe: what it does.
        out: the file, in a folder that is there.
        site: the folder of `environment.dali_folder`, of the target's version.
        device: what it runs on; "gpu" decodes JPEG and resizes there.
        max_batch_size: of the configuration beside it.
        input_name: of the tensor that holds encoded images.
        decoder_hints: of `DaliOptions`, for a GPU.

    Returns:
        The version of DALI that wrote it.

    Raises:
        EnvironmentFault: DALI cannot be loaded, or takes too long.
        EngineError: DALI refuses the pipeline.
    """
    request = {
        "call": "serialise",
        "recipe": recipe.model_dump(mode="json"),
        "device": device,
        "batch": max(max_batch_size, 1),
        "input": input_name,
        "decoder_hints": dict(decoder_hints or {}),
        "out": str(out),
    }
    return str(_ask(request, site)["version"])


def run_pipeline(
    pipeline: Path | Recipe, images: Sequence[bytes], *, site: Path, input_name: str, device: Device = "cpu"
) -> NDArray[np.generic]:
    """What a pipeline, or that of a recipe, makes of images, in a batch, on the device that it was written for.

    Raises:
        EnvironmentFault: DALI cannot be loaded, or takes too long.
        EngineError: it cannot decode one of them.
    """
    import numpy as np

    with scratch_folder("dali") as scratch:
        files = [Path(scratch, f"{number:06}") for number in range(len(images))]
        for file, content in zip(files, images, strict=True):
            file.write_bytes(content)
        out = Path(scratch, "tensors.npy")
        what = (
            {"recipe": pipeline.model_dump(mode="json")}
            if isinstance(pipeline, Recipe)
            else {"pipeline": str(pipeline)}
        )
        request = {"call": "run", "images": [str(file) for file in files], "device": device, **what}
        _ask({**request, "input": input_name, "out": str(out)}, site)
        found: NDArray[np.generic] = np.load(out)
    return found


def _ask(request: Mapping[str, Any], site: Path) -> dict[str, Any]:
    with scratch_folder("dali") as scratch:
        asked, told = Path(scratch, "request.json"), Path(scratch, "answer.json")
        asked.write_text(json.dumps({**request, "site": str(site.absolute())}))
        try:
            done = subprocess.run(
                [sys.executable, "-I", str(CHILD), str(asked), str(told)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=_DEADLINE_SECONDS,
                check=False,
                preexec_fn=tied_to(os.getpid()),
            )
        except subprocess.TimeoutExpired as error:
            raise EnvironmentFault(
                f"DALI did not end within {_DEADLINE_SECONDS} seconds", remedy=f"try again, {_TO_PYTHON}"
            ) from error
        sys.stderr.write(done.stdout)  # the worker's log
        answer: dict[str, Any] = {}
        with suppress(FileNotFoundError):
            answer = json.loads(told.read_text())
    if "missing" in answer:
        raise EnvironmentFault(
            f"DALI of {site} cannot be loaded: {answer['missing']}",
            remedy=f"take {site} away and install it again: plansmith serve-env add TARGET --dali, {_TO_PYTHON}",
        )
    if "failed" in answer or not answer:
        tail = "\n".join([line for line in done.stdout.splitlines() if line.strip()][-_LOG_LINES:])
        said = answer.get("failed") or f"it ended with code {done.returncode}:\n{tail}"
        raise EngineError(f"DALI refused the pipeline or an image: {said}", remedy="write preprocessing: python")
    return answer
