"""Zero-shot image classification: tokenizes candidate texts before the model and ranks them after it.

Runs in the worker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from plansmith.config.pipeline import PipelineOptions
from plansmith.errors import SourceError
from plansmith.pipelines.draft import DraftPart
from plansmith.pipelines.image.kinds import require_tokenizer
from plansmith.pipelines.image.reference import ImageSource, files_of, open_image
from plansmith.pipelines.served.candidates import CandidatesStep
from plansmith.pipelines.served.postprocessing.labels import LABEL, SCORE
from plansmith.pipelines.served.postprocessing.zero_shot import ZeroShotStep
from plansmith.pipelines.served.requests import Refusal
from plansmith.pipelines.text.tokenization import Wording, read_tokenization
from plansmith.records.model import BATCH, AxisRange, Component, OnnxModel, Tensor
from plansmith.sources.huggingface.outputs import TEXT_INPUTS
from plansmith.sources.loaded_model import LoadedModel

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from plansmith.records.arrays import Arrays


TEXTS = "texts"
"""The ensemble's input beside images: of each, the texts that may fit it."""

_RANK = 3
_COUNTS = (2, 1, 5, 3, 16)
"""How many texts the questions have, in turns."""

_LABELS = (
    "cat",
    "a red car",
    "Grüße aus Zürich",
    "東京の夜 🌃",
    "cat",
    "dog, or another animal",
    "кошка",
    " ".join(["a very long label"] * 40),
)
"""Texts of the questions: one stands there twice, and one is cut off."""


@dataclass(frozen=True)
class Candidates:
    """Candidate texts of every image, as model inputs.

    Attributes:
        wording: how sentences become tokens.
        tensors: the model's inputs [batch, texts, tokens].
        template: the sentence that a text is put into.
        counts: how many texts an image may have.
    """

    wording: Wording
    tensors: tuple[Tensor, ...]
    template: str
    counts: AxisRange

    @property
    def raw(self) -> Tensor:
        """The raw input that clients send."""
        return Tensor(name=TEXTS, dtype="string", dims=(BATCH, self.tensors[0].dims[1]))

    def part(self) -> DraftPart:
        """Return the part that turns candidate texts into model inputs."""
        settings = {
            "input": TEXTS,
            "template": self.template,
            "fewest": self.counts.min,
            "most": self.counts.max,
            "tokens": self.wording.settings(self.tensors, "", None),
        }
        return DraftPart(
            name="texts",
            step=CandidatesStep,
            settings=settings,
            inputs=(self.raw,),
            outputs=self.tensors,
            modules=("text", "spans"),
            requirements=("tokenizers",),
            write=self.wording.write,
        )

    def tokens(self, feed: Arrays) -> dict[str, NDArray[np.generic]]:
        """Return the model inputs of a request's texts, by the source's own tokenizer."""
        texts = {self.wording.columns[0]: [self.template.format(text) for row in texts_of(feed) for text in row]}
        arrays = self.wording.tokens(texts, self.tensors, least=self.wording.least)
        return {name: array.reshape(*feed[TEXTS].shape, array.shape[-1]) for name, array in arrays.items()}


def candidate_inputs(component: Component) -> tuple[Tensor, ...]:
    """Return the model inputs made from candidate texts; none for a model that reads no images."""
    tensors = tuple(tensor for tensor in component.inputs if tensor.name in TEXT_INPUTS and len(tensor.dims) == _RANK)
    return tensors if len(tensors) < len(component.inputs) else ()


def read_candidates(
    live: LoadedModel, folder: Path, options: PipelineOptions, onnx: OnnxModel, *, task: str, trust_remote_code: bool
) -> Candidates | None:
    """Return how candidate texts become a graph's inputs; None for a graph without such inputs.

    Args:
        live: the source model.
        folder: its directory.
        options: what the spec says of the pipeline.
        onnx: the graph.
        task: that was asked for; empty: none.
        trust_remote_code: whether the model's own Python code may be run.

    Raises:
        SourceError: there is no tokenizer that can be served.
        UsageError: the longest length does not fit.
    """
    component = onnx.components["model"]
    tensors = candidate_inputs(component)
    if not tensors:
        return None
    require_tokenizer(folder)
    flat = tuple(tensor.model_copy(update={"dims": (tensor.dims[0], tensor.dims[-1])}) for tensor in tensors)
    texts_alone = {"components": {"model": component.model_copy(update={"inputs": flat})}}
    wording = read_tokenization(
        live,
        folder,
        options,
        onnx.model_copy(update=texts_alone),
        output="zero-shot",
        task=task,
        trust_remote_code=trust_remote_code,
    )
    count = tensors[0].dims[1]
    counts = AxisRange(min=count, opt=count, max=count) if isinstance(count, int) else onnx.axes[count]
    return Candidates(wording, tensors, options.hypothesis_template, counts)


def ranking_part(logits: Tensor, texts: Tensor) -> DraftPart:
    """Return the part after a model that compares images with texts.

    Args:
        logits: the model's output [batch, texts].
        texts: that clients send [batch, texts].
    """
    return DraftPart(
        name="zero-shot",
        step=ZeroShotStep,
        settings={"logits": logits.name, "texts": texts.name},
        inputs=(logits, texts),
        outputs=(
            Tensor(name=LABEL, dtype="string", dims=texts.dims),
            Tensor(name=SCORE, dtype="float32", dims=texts.dims),
        ),
        modules=("postprocessing.labels",),
    )


def with_texts(questions: Mapping[str, Arrays], counts: AxisRange) -> dict[str, Arrays]:
    """Add texts to image requests: in numbers that the model accepts, different for every image.

    Args:
        questions: by name, with images alone.
        counts: how many texts an image may have.
    """
    import numpy as np

    result: dict[str, Arrays] = {}
    for place, (name, feed) in enumerate(questions.items()):
        rows = len(next(iter(feed.values())))
        count = min(max(_COUNTS[place % len(_COUNTS)], counts.min), counts.max)
        texts = np.empty((rows, count), object)
        for row, column in np.ndindex(texts.shape):
            texts[row, column] = _LABELS[(place + row + column) % len(_LABELS)].encode()
        result[name] = {**feed, TEXTS: texts}
    return result


def require_own_tokens(candidates: Candidates, questions: Mapping[str, Arrays]) -> None:
    """Require that the text part gives the same tokens as the source's own tokenizer.

    Args:
        candidates: how texts become tokens.
        questions: requests by name.

    Raises:
        SourceError: it makes others.
    """
    import numpy as np

    part = candidates.part()
    with TemporaryDirectory() as folder:
        part.write(Path(folder))
        step = CandidatesStep(part.settings, Path(folder))
        for name, feed in questions.items():
            (token_arrays,) = step.answer([feed])
            own = candidates.tokens(feed)
            if isinstance(token_arrays, Refusal) or any(
                not np.array_equal(token_arrays[input_name], own[input_name]) for input_name in own
            ):
                raise SourceError(
                    f"pipeline: {type(candidates.wording.tokenizer).__name__} does more than its fast form: the part"
                    f" for texts makes other tokens for the request {name}",
                    remedy="leave `pipeline` out and send tokens",
                )


def texts_of(feed: Arrays) -> list[list[str]]:
    """Return the texts of a request, row by row."""
    return [[text.decode() for text in row] for row in feed[TEXTS].tolist()]


def infer_zero_shot(
    live: LoadedModel, source: ImageSource, candidates: Candidates, *, images: str
) -> Callable[[Arrays], Arrays]:
    """Return a function that runs transformers' zero-shot image classification, one image at a time.

    Args:
        live: the source model.
        source: has its image processor.
        candidates: have its tokenizer.
        images: name of the tensor of encoded images.
    """
    import numpy as np
    import transformers

    module: Any = live.module
    kind: Any = transformers.ZeroShotImageClassificationPipeline
    library = kind(
        model=module.model,
        image_processor=source.processor,
        tokenizer=candidates.wording.tokenizer,
        device=module.model.device,
    )
    # The pipeline's own call loses options for the tokenizer, and texts that are too long make it fail.
    cut = {"truncation": True, "max_length": candidates.wording.max_length}

    def ranked(file: bytes, texts: Sequence[str]) -> list[dict[str, Any]]:
        inputs = library.preprocess(
            open_image(file), list(texts), hypothesis_template=candidates.template, tokenizer_kwargs=cut
        )
        answers: list[dict[str, Any]] = library.postprocess(library.forward(inputs))
        return answers

    def ask(feed: Arrays) -> Arrays:
        rows = [ranked(*row) for row in zip(files_of(feed, images), texts_of(feed), strict=True)]
        labels = np.empty(feed[TEXTS].shape, object)
        for row, answers in enumerate(rows):
            labels[row] = [item["label"].encode() for item in answers]
        return {LABEL: labels, SCORE: np.array([[item["score"] for item in row] for row in rows], np.float32)}

    return ask
