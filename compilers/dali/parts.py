"""The two parts that preprocess images with DALI: one that looks over what clients sent, and DALI's own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from plansmith.compilers.dali.pipelines import PIPELINE_FILE, run_pipeline, serialise_pipeline
from plansmith.compilers.dali.recipe import Recipe
from plansmith.parts import Part
from plansmith.pipeline.drafts import DraftPart
from plansmith.pipeline.served.encoded import EncodedStep
from plansmith.scratch import scratch_folder
from plansmith.types import BATCH, Device, Tensor

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ENCODED_PART, DALI_PART = "encoded", "dali"
"""The names of the parts, in their order."""

ENCODED = Tensor(name="encoded_images", dtype="uint8", dims=(BATCH, "encoded_bytes"))
"""What goes from one to the other: DALI's backend takes numbers, of equal shape within a request."""

JOINS_REQUESTS = False
"""Whether Triton may join requests for DALI.

Its backend answers all requests of an execution with one error (DaliModelInstance::Execute of
github.com/triton-inference-server/dali_backend), so that an image that is damaged in a way only decoding shows would
harm requests of others. A request of several images is one batch all the same.
"""


PARAMETERS = {"num_threads": "4"}
"""Of its configuration: how many threads decode a batch. Without a word it is one."""


def encoded_part(recipe: Recipe) -> DraftPart:
    """The first one: takes the bytes of images, [batch, 1], and refuses what DALI could not decode."""
    return DraftPart(
        name=ENCODED_PART,
        step=EncodedStep,
        settings={
            "input": recipe.input,
            "output": ENCODED.name,
            "most_pixels": recipe.most_pixels,
            "steps": [step.model_dump(mode="json") for step in recipe.steps],
        },
        inputs=(Tensor(name=recipe.input, dtype="string", dims=(BATCH, 1)),),
        outputs=(ENCODED,),
        modules=("encoded_files",),
    )


def write_dali_part(recipe: Recipe, out: Path, *, site: Path, device: Device, max_batch_size: int) -> Part:
    """Write the folder of the second one.

    Args:
        recipe: what it does.
        out: the pipeline's folder; the part's is made in it.
        site: the folder of `serve_env.dali_folder`, of the target's version.
        device: what its instances run on.
        max_batch_size: of its configuration.

    Raises:
        EnvironmentFault: DALI cannot be loaded.
        EngineError: DALI refuses the pipeline.
    """
    folder = out / DALI_PART
    folder.mkdir(parents=True)
    serialise_pipeline(
        recipe,
        folder / PIPELINE_FILE,
        site=site,
        device=device,
        max_batch_size=max_batch_size,
        input_name=ENCODED.name,
    )
    return Part(
        name=DALI_PART,
        backend="dali",
        files=(PIPELINE_FILE,),
        inputs=(ENCODED,),
        outputs=(recipe.tensor,),
        joins_requests=JOINS_REQUESTS,
        parameters=PARAMETERS,
    )


def run_recipe(recipe: Recipe, encoded: NDArray[np.generic], *, site: Path) -> NDArray[np.generic]:
    """What DALI makes of the first part's tensor, on the CPU whatever the target's device is.

    Args:
        recipe: what is done.
        encoded: numbers, [batch, longest].
        site: the folder of `serve_env.dali_folder`, of the target's version.

    Raises:
        EnvironmentFault: DALI cannot be loaded.
        EngineError: DALI refuses the pipeline, or cannot decode an image.
    """
    with scratch_folder("dali") as scratch:
        file = Path(scratch, PIPELINE_FILE)
        serialise_pipeline(recipe, file, site=site, device="cpu", max_batch_size=1, input_name=ENCODED.name)
        return run_pipeline(file, [row.tobytes() for row in encoded], site=site, input_name=ENCODED.name)
