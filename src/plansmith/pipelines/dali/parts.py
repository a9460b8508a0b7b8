"""The two parts that preprocess images with DALI: one that looks over what clients sent, and DALI's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith.config.pipeline import DaliOptions
from plansmith.errors import UsageError
from plansmith.pipelines.dali.agreement import MEAN_LEVELS
from plansmith.pipelines.dali.pipelines import PIPELINE_FILE, run_pipeline, serialise_pipeline
from plansmith.pipelines.dali.recipe import Recipe, recipe_from_settings
from plansmith.pipelines.draft import Draft, DraftPart
from plansmith.pipelines.served.encoded import EncodedStep
from plansmith.pipelines.served.images import ImagesStep
from plansmith.pipelines.served.requests import Refusal
from plansmith.records.model import BATCH, Device, Tensor

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[np.generic]]

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


@dataclass(frozen=True)
class DaliPlace:
    """Which DALI a pipeline is made with, and for what.

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
    """The first one: takes the bytes of images, [batch, 1], and refuses what DALI could not decode."""
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
    """The second one. Writing it raises EnvironmentFault or EngineError, as `serialise_pipeline` does."""

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
    """What the second part does, in this process: on the CPU, whatever the target's device is.

    Settings:
        recipe: the fields of a `Recipe`.
        site: the folder of `environment.dali_folder`.
    """

    def __init__(self, settings: Mapping[str, Any], folder: Path) -> None:
        """See the class; the pipeline in the folder may be for a GPU that is not here."""
        del folder
        self._recipe = Recipe.model_validate(settings["recipe"])
        self._site = Path(settings["site"])

    def answer(self, feeds: Sequence[Arrays]) -> Sequence[Arrays | Refusal]:
        """The model's input for each request.

        Raises:
            EnvironmentFault: DALI cannot be loaded.
            EngineError: DALI refuses the pipeline, or cannot decode an image.
        """
        rows = [tuple(row.tobytes() for row in feed[ENCODED.name]) for feed in feeds]
        return [{self._recipe.output: _made(self._recipe, images, self._site)} for images in rows]


@lru_cache(maxsize=16)
def _made(recipe: Recipe, images: tuple[bytes, ...], site: Path) -> NDArray[np.generic]:
    """The tensor of a request: a process is started for it, and whoever holds pipelines against sources asks twice."""
    return run_pipeline(recipe, images, site=site, input_name=ENCODED.name)


def with_dali(draft: Draft, place: DaliPlace) -> Draft:
    """The same pipeline with DALI in the place of the part that reads images with Pillow.

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
