"""DALI preprocessing parts: one checks the clients' images, the other is the DALI pipeline itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith.config.pipeline import DaliOptions
from plansmith.errors import EngineError, EnvironmentFault, UsageError
from plansmith.pipelines.dali.recipe import MEAN_LEVELS, Recipe, recipe_from_settings
from plansmith.pipelines.draft import Draft, DraftPart
from plansmith.pipelines.served.encoded import EncodedStep
from plansmith.pipelines.served.images import ImagesStep
from plansmith.pipelines.served.requests import Refusal
from plansmith.records.model import BATCH, Device, Tensor
from plansmith.system.files import scratch_folder
from plansmith.system.process import tied_to

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from plansmith.records.arrays import Arrays


CHILD = Path(__file__).with_name("child.py")
PIPELINE_FILE = "model.dali"
"""What Triton's backend looks for in a version's folder."""

_DEADLINE_SECONDS = 300
_LOG_LINES = 8
_TO_PYTHON = "or write preprocessing: python into the spec"

ENCODED = Tensor(name="encoded_images", dtype="uint8", dims=(BATCH, "encoded_bytes"))
"""What goes from one to the other: DALI's backend takes numbers, of equal shape within a request."""

JOINS_REQUESTS = False
"""Whether Triton may join requests for DALI.

Its backend answers all requests of an execution with one error (DaliModelInstance::Execute of
github.com/triton-inference-server/dali_backend), so that an image that is damaged in a way only decoding shows would
harm requests of others. A request of several images is one batch all the same.
"""


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
    """Serialize a pipeline; reproducible for the same recipe and DALI version.

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
    """Return the output of a pipeline, or that of a recipe, on a batch of images, on the device it was written for.

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
        source = (
            {"recipe": pipeline.model_dump(mode="json")}
            if isinstance(pipeline, Recipe)
            else {"pipeline": str(pipeline)}
        )
        request = {"call": "run", "images": [str(file) for file in files], "device": device, **source}
        _ask({**request, "input": input_name, "out": str(out)}, site)
        result: NDArray[np.generic] = np.load(out)
    return result


def _ask(request: Mapping[str, Any], site: Path) -> dict[str, Any]:
    with scratch_folder("dali") as scratch:
        request_file, answer_file = Path(scratch, "request.json"), Path(scratch, "answer.json")
        request_file.write_text(json.dumps({**request, "site": str(site.absolute())}))
        try:
            done = subprocess.run(
                [sys.executable, "-I", str(CHILD), str(request_file), str(answer_file)],
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
            answer = json.loads(answer_file.read_text())
    if "missing" in answer:
        raise EnvironmentFault(
            f"DALI of {site} cannot be loaded: {answer['missing']}",
            remedy=f"take {site} away and install it again: plansmith serve-env add TARGET --dali, {_TO_PYTHON}",
        )
    if "failed" in answer or not answer:
        tail = "\n".join([line for line in done.stdout.splitlines() if line.strip()][-_LOG_LINES:])
        reason = answer.get("failed") or f"it ended with code {done.returncode}:\n{tail}"
        raise EngineError(f"DALI refused the pipeline or an image: {reason}", remedy="write preprocessing: python")
    return answer


ENCODED_PART, DALI_PART = "encoded", "dali"
"""The names of the parts, in their order."""


@dataclass(frozen=True)
class DaliPlace:
    """DALI version and target of a pipeline.

    Args:
        site: the folder of `environment.dali_folder`, of the target's version.
        device: what the instances run on.
        max_batch_size: of the configuration.
        options: what it works with; hints for the decoder are for a GPU.
    """

    site: Path
    device: Device
    max_batch_size: int
    options: DaliOptions = field(default_factory=DaliOptions)


def encoded_part(recipe: Recipe) -> DraftPart:
    """Return the first part: takes the bytes of images, [batch, 1], and refuses what DALI could not decode."""
    return DraftPart(
        name=ENCODED_PART,
        step=EncodedStep,
        settings={
            "input": recipe.input,
            "output": ENCODED.name,
            "most_pixels": recipe.most_pixels,
            "whitened": recipe.whitened,
            "steps": [step.model_dump(mode="json") for step in recipe.steps],
        },
        inputs=(Tensor(name=recipe.input, dtype="string", dims=(BATCH, 1)),),
        outputs=(ENCODED,),
        modules=("encoded_files",),
    )


def dali_part(recipe: Recipe, place: DaliPlace) -> DraftPart:
    """Return the second part. Writing it raises EnvironmentFault or EngineError, as `serialise_pipeline` does."""

    def write(folder: Path) -> None:
        serialise_pipeline(
            recipe,
            folder / PIPELINE_FILE,
            site=place.site,
            device=place.device,
            max_batch_size=place.max_batch_size,
            input_name=ENCODED.name,
            decoder_hints=place.options.decoder_hints,
        )

    return DraftPart(
        name=DALI_PART,
        step=DaliStep,
        settings={"recipe": recipe.model_dump(mode="json"), "site": str(place.site)},
        inputs=(ENCODED,),
        outputs=(recipe.tensor,),
        write=write,
        backend="dali",
        joins_requests=JOINS_REQUESTS,
        parameters={"num_threads": str(place.options.num_threads)},
    )


class DaliStep:
    """In-process step of the second part: on the CPU, whatever the target's device is.

    Settings:
        recipe: the fields of a `Recipe`.
        site: the folder of `environment.dali_folder`.
    """

    def __init__(self, settings: Mapping[str, Any], folder: Path) -> None:
        """See the class; the pipeline in the folder may be for a GPU that is absent here."""
        del folder
        self._recipe = Recipe.model_validate(settings["recipe"])
        self._site = Path(settings["site"])

    def answer(self, feeds: Sequence[Arrays]) -> Sequence[Arrays | Refusal]:
        """Return the model's input for each request.

        Raises:
            EnvironmentFault: DALI cannot be loaded.
            EngineError: DALI refuses the pipeline, or cannot decode an image.
        """
        rows = [tuple(row.tobytes() for row in feed[ENCODED.name]) for feed in feeds]
        return [{self._recipe.output: _request_tensor(self._recipe, images, self._site)} for images in rows]


@lru_cache(maxsize=16)
def _request_tensor(recipe: Recipe, images: tuple[bytes, ...], site: Path) -> NDArray[np.generic]:
    """Return a request's tensor, cached: it starts a process, and comparisons with the source need it twice."""
    return run_pipeline(recipe, images, site=site, input_name=ENCODED.name)


def with_dali(draft: Draft, place: DaliPlace) -> Draft:
    """Return the pipeline with DALI in place of the Pillow part for images.

    Args:
        draft: whose first part is that one.
        place: which DALI, for what.

    Raises:
        UsageError: its first part reads no images.
        EngineError: DALI cannot do what that part does.
    """
    first, *others = draft.before
    if first.step is not ImagesStep:
        raise UsageError(
            f"preprocessing: dali is for images, and this pipeline's input is {draft.input}",
            remedy="leave `preprocessing` out",
        )
    recipe = recipe_from_settings(first.settings)
    return replace(
        draft,
        before=(encoded_part(recipe), dali_part(recipe, place), *others),
        bounds={recipe.output: MEAN_LEVELS * recipe.largest_level},
    )
